"""hf://: what is fetched, at which commit, with which token, and what a refusal tells the user."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
from tests.fetching.hub_server import REPOSITORY, HubServer
from tests.fetching.models import CONFIG, SHARDS, WANTED, model, safetensors, wanted
from tests.fetching.served import Fault
from tests.fetching.volume import Volume

URI = f"hf://{REPOSITORY}@main"


def env(hub: HubServer, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, **more}


def token(name: str) -> str:
    """A token of the hub's form."""
    return f"hf_{name:x<34}"


def test_a_model_is_whole_pinned_and_described(hub: HubServer, volume: Volume) -> None:
    files = model()
    commit = hub.push(files)
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    assert report.commit == commit
    assert not report.reused
    assert report.facts is not None
    assert (report.facts.architecture, report.facts.layers) == ("LlamaForCausalLM", 2)
    assert report.facts.bytes == sum(len(files[name]) for name in SHARDS)
    assert volume.files(URI) == wanted(files)
    manifest = volume.manifest(URI)
    assert set(manifest.files) == WANTED
    for name, entry in manifest.files.items():
        assert entry.sha256 == hashlib.sha256(files[name]).hexdigest()
        assert entry.size == len(files[name])
    assert report.total_bytes == manifest.total_bytes
    assert manifest.commit == commit
    assert "huggingface_hub" in manifest.tools
    assert volume.leftovers() == []


def test_a_second_attempt_reports_what_is_there_and_asks_nobody(
    hub: HubServer, volume: Volume
) -> None:
    hub.push(model())
    first = volume.fetch(URI, env(hub))
    hub.hub.requests.clear()
    second = volume.fetch(URI, env(hub))
    assert second.reused
    assert (second.commit, second.facts, second.total_bytes) == (
        first.commit,
        first.facts,
        first.total_bytes,
    )
    assert hub.hub.requests == []


def test_a_branch_that_moves_between_attempts_gives_one_commit(
    hub: HubServer, volume: Volume
) -> None:
    old, new = model(), model(2 * 2**20)
    first = hub.push(old)
    # A failure ends the work on all others, so it comes when the other file is whole.
    whole = volume.final(URI) / SHARDS[0]
    hub.store.always(hub.path(old[SHARDS[1]]), Fault(status=503, until=whole.exists))
    assert volume.fetch(URI, env(hub)).outcome == "Environment"
    hub.push(new)
    hub.store.always(hub.path(old[SHARDS[1]]), None)
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.commit) == ("Done", first)
    assert volume.files(URI) == wanted(old)
    assert hub.sent(old[SHARDS[0]]) == len(old[SHARDS[0]])


def test_a_commit_that_was_pushed_away_is_replaced_by_the_branch_as_it_is(
    hub: HubServer, volume: Volume
) -> None:
    old, new = model(), model(2 * 2**20)
    first = hub.push(old)
    hub.store.always(hub.path(old[SHARDS[1]]), Fault(status=503))
    assert volume.fetch(URI, env(hub)).outcome == "Environment"
    hub.store.always(hub.path(old[SHARDS[1]]), None)
    del hub.commits[first]
    second = hub.push(new)
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.commit) == ("Done", second)
    assert volume.files(URI) == wanted(new)


def test_an_attempt_with_the_commit_pinned_goes_on_with_the_plan_of_the_branch(
    hub: HubServer, volume: Volume
) -> None:
    files = model()
    commit = hub.push(files)
    hub.store.always(hub.path(files[SHARDS[1]]), Fault(status=503))
    assert volume.fetch(URI, env(hub)).outcome == "Environment"
    hub.store.always(hub.path(files[SHARDS[1]]), None)
    report = volume.fetch(URI, env(hub), source=f"hf://{REPOSITORY}@{commit}")
    assert (report.outcome, report.commit) == ("Done", commit)
    assert volume.said("going on with an earlier attempt")


def test_the_token_goes_to_the_hub_only_and_into_no_log(hub: HubServer, volume: Volume) -> None:
    hub.token = token("only")
    hub.push(model())
    hub.store.once(hub.path(model()[SHARDS[0]]), Fault(cut=70_000))
    report = volume.fetch(URI, env(hub, HF_TOKEN=hub.token))
    assert report.outcome == "Done", report.message
    # The store's own handler refuses any request with a token.
    assert hub.store.requests
    text = str(volume.log) + str(report)
    assert hub.token not in text
    assert "s3cr3t" not in text


def test_a_private_repository_without_a_token_says_what_to_set(
    hub: HubServer, volume: Volume
) -> None:
    hub.push(model())
    hub.token = token("right")
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Permanent", "AccessDenied")
    assert "model.secretRef" in report.message
    assert "HF_TOKEN" in report.message
    wrong = volume.fetch(URI, env(hub, HF_TOKEN=token("wrong")))
    assert (wrong.outcome, wrong.reason) == ("Permanent", "AccessDenied")
    assert token("wrong") not in wrong.message


def test_a_gated_repository_says_where_to_accept_its_terms(hub: HubServer, volume: Volume) -> None:
    hub.push(model())
    hub.gated = True
    report = volume.fetch(URI, env(hub, HF_TOKEN=token("some")))
    assert (report.outcome, report.reason) == ("Permanent", "AccessDenied")
    assert f"{hub.url}/{REPOSITORY}" in report.message
    assert "accept its terms" in report.message
    # One refusal ends it: nothing is tried again that the user must mend.
    assert not volume.said("trying again")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        (f"hf://{REPOSITORY}@nowhere", "branch, tag or commit"),
        ("hf://acme/absent@main", "no such repository"),
    ],
)
def test_what_is_not_there_is_a_failure_for_good(
    hub: HubServer, volume: Volume, uri: str, words: str
) -> None:
    hub.push(model())
    report = volume.fetch(uri, env(hub, HF_TOKEN=token("some")))
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")
    assert words in report.message


def test_a_full_hub_is_asked_again_after_the_time_it_names(hub: HubServer, volume: Volume) -> None:
    files = model()
    hub.push(files)
    busy = Fault(status=429, headers={"Retry-After": "1"})
    hub.hub.once("/revision/main", busy)
    hub.store.once(hub.path(files[SHARDS[0]]), busy, Fault(status=503), Fault(status=500))
    started = time.monotonic()
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    assert time.monotonic() - started >= 2
    waits = [line["wait_seconds"] for line in volume.said("trying again")]
    assert waits.count(1.0) == 2
    assert len(waits) == 4


def test_the_hubs_own_rate_limit_header_is_read(hub: HubServer, volume: Volume) -> None:
    hub.push(model())
    hub.hub.once("/main", Fault(status=429, headers={"RateLimit": '"api";r=0;t=1'}))
    assert volume.fetch(URI, env(hub)).outcome == "Done"
    assert [line["wait_seconds"] for line in volume.said("trying again")] == [1.0]


def test_a_wait_longer_than_our_patience_ends_the_attempt_at_once(
    hub: HubServer, volume: Volume
) -> None:
    hub.push(model())
    hub.hub.always("/main", Fault(status=429, headers={"Retry-After": "4000"}))
    started = time.monotonic()
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Environment", "SourceUnavailable")
    assert "4000 s" in report.message
    assert time.monotonic() - started < 60


def test_tries_are_bounded(hub: HubServer, volume: Volume) -> None:
    hub.push(model())
    hub.hub.always("/main", Fault(status=502))
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Environment", "SourceUnavailable")
    assert len(hub.hub.requests) == volume.patience.tries


def test_a_hub_that_nobody_serves_is_the_environments_fault(volume: Volume) -> None:
    report = volume.fetch(URI, {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert (report.outcome, report.reason) == ("Environment", "SourceUnavailable")


def test_a_signed_address_that_has_run_out_is_asked_for_anew(
    hub: HubServer, volume: Volume
) -> None:
    hub.push(model())
    hub.expire_next = 2
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message


def test_pickles_are_refused_with_the_reason(hub: HubServer, volume: Volume) -> None:
    files = {name: data for name, data in model().items() if "safetensors" not in name}
    hub.push(files)
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Permanent", "UnsafeWeights")
    assert "pytorch_model.bin" in report.message
    assert volume.files(URI) == {}


def test_shards_that_the_source_lacks_are_told_before_any_are_fetched(
    hub: HubServer, volume: Volume
) -> None:
    files = model()
    lacking = files.pop(SHARDS[1])
    hub.push(files)
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Permanent", "ModelIncomplete")
    assert SHARDS[1] in report.message
    assert hub.sent(files[SHARDS[0]]) == hub.sent(lacking) == 0


def test_a_config_without_facts_is_told_before_any_weights_are_fetched(
    hub: HubServer, volume: Volume
) -> None:
    files = model()
    files["config.json"] = b'{"architectures": ["X"], "model_type": "x"}'
    hub.push(files)
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Permanent", "ModelIncomplete")
    assert "num_attention_heads" in report.message
    assert hub.sent(files[SHARDS[0]]) == 0


def test_a_weight_file_that_was_uploaded_cut_off_is_told(hub: HubServer, volume: Volume) -> None:
    files = model()
    files[SHARDS[1]] = files[SHARDS[1]][:-1000]
    hub.push(files)
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Permanent", "ModelIncomplete")
    assert f"{SHARDS[1]} has" in report.message
    assert "cut off" in report.message


def test_a_name_that_leads_out_of_the_folder_is_refused(hub: HubServer, volume: Volume) -> None:
    hub.push({**model(), "../../escape.json": b"{}"})
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Permanent"
    assert "cannot be written safely" in report.message
    assert not list(volume.root.rglob("escape.json"))


def test_nothing_of_the_model_is_executed(hub: HubServer, volume: Volume) -> None:
    mark = volume.root / "executed"
    code = f"open({str(mark)!r}, 'w').close()\n".encode()
    config = {**CONFIG, "auto_map": {"AutoModel": "modeling_evil.Evil"}}
    files = {
        **model(),
        "config.json": json.dumps(config).encode(),
        "modeling_evil.py": code,
        "conftest.py": code,
        "sitecustomize.py": code,
    }
    hub.push(files)
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    assert report.facts is not None
    assert report.facts.remote_code
    assert not mark.exists()
    assert volume.files(URI)["modeling_evil.py"] == code


def test_an_adapters_folder_comes_with_its_weights(hub: HubServer, volume: Volume) -> None:
    files = {
        **model(),
        "speech-lora/adapter_config.json": b"{}",
        "speech-lora/adapter_model.safetensors": safetensors(100, 3),
        "original/model.safetensors": safetensors(100, 4),
    }
    hub.push(files)
    assert volume.fetch(URI, env(hub)).outcome == "Done"
    names = set(volume.manifest(URI).files)
    assert "speech-lora/adapter_model.safetensors" in names
    assert "original/model.safetensors" not in names
