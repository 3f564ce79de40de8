"""Adapters of a spec: which are taken, what is fetched, what leaders are told, what status says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support import passes

from shardwright.api import names
from shardwright.api.asked import asked_of
from shardwright.api.lora import LoRA
from shardwright.api.serving import Runtime
from shardwright.api.status import Condition, LLMDeploymentStatus
from shardwright.observe.world import PodView, Record, RecordState
from shardwright.plan.adapter_checks import CHECKS, other_name, refuse_adapter
from shardwright.plan.adapter_states import number_of
from shardwright.plan.collection import named_by_revision, named_by_spec
from shardwright.plan.conditions import Outcome
from shardwright.plan.report import report
from shardwright.plan.resolve import adapter_artifact, adapter_folder, adapter_key, model_key
from shardwright.plan.revisions import asked_digest, dump, revision_of, wish_of
from shardwright.plan.situation import (
    CreateStep,
    Decision,
    KeepAdapters,
    Situation,
    TellAdapters,
    WriteRecord,
)
from shardwright.render.adapters import adapters_config_map
from shardwright.render.common import Owner
from shardwright.render.jobs import step_job, step_request
from shardwright.render.pods import group_pods
from shardwright.resolved import Resolved
from shardwright.runner.contract import (
    ADAPTER_FAILED,
    ADAPTERS_DIR,
    ADAPTERS_FILE,
    STEP_ADAPTER,
    STEP_MODEL,
    AdapterFacts,
    AdaptersHeard,
    AdapterTable,
    ServeRequest,
    decode,
    encode,
    table_digest,
)

LIMITS = {"maxRank": 16, "targetModules": ["attn_q", "attn_v"]}
IDENTITY = specs.identity()
NAMES = ("legal", "poems", "code")
FACTS = AdapterFacts(
    rank=8,
    alpha=16.0,
    modules=("q_proj", "v_proj"),
    base="meta-llama/Llama-3.1-8B-Instruct",
    dtype="BF16",
    layers=32,
    sizes={"q_proj": (4096, 4096), "v_proj": (4096, 1024)},
    bytes=13_000_000,
)
URI = "hf://meta-llama/Llama-3.1-8B-Instruct@main"


def uri(name: str) -> str:
    return f"hf://acme/{name}"


def lora(*chosen: str, **more: Any) -> dict[str, Any]:
    return {**LIMITS, "adapters": [{"name": n, "uri": uri(n)} for n in chosen], **more}


# Whether a base can take one


def refused(
    facts: AdapterFacts, name: str = "legal", runtime: Runtime = Runtime.VLLM, **limits: Any
) -> tuple[str, str]:
    asked = LoRA.read({**LIMITS, **limits})
    found = refuse_adapter(
        name,
        facts,
        asked,
        served_name="model",
        uri=URI,
        model=specs.LLAMA_8B,
        runtime=runtime,
    )
    return (found.reason, found.message) if found is not None else ("", "")


def test_an_adapter_within_the_limits_is_taken() -> None:
    assert refused(FACTS) == ("", "")
    assert refused(replace(FACTS, rank=16)) == ("", "")


@pytest.mark.parametrize(
    ("changes", "reason", "parts"),
    [
        ({"rank": 64}, "AdapterRankTooHigh", ("rank 64", "maxRank 16", "raise lora.maxRank to 64")),
        (
            {"modules": ("o_proj", "q_proj")},
            "AdapterModuleNotBuilt",
            ("o_proj", "lora.targetModules lacks attn_dense", "rebuilt"),
        ),
        ({"modules": ("lm_head",)}, "AdapterNotSupported", ("lm_head", "merge it")),
        ({"features": ("use_dora",)}, "AdapterNotSupported", ("use_dora",)),
        (
            {"sizes": {"q_proj": (8192, 8192)}, "base": "meta-llama/Llama-3.1-70B"},
            "AdapterOfAnotherModel",
            ("Llama-3.1-70B", "q_proj is 8192 → 8192", "4096 → 4096"),
        ),
        ({"layers": 80}, "AdapterOfAnotherModel", ("layer 79", "32")),
    ],
)
def test_one_outside_is_refused_with_what_would_help(
    changes: dict[str, Any], reason: str, parts: tuple[str, ...]
) -> None:
    found, message = refused(replace(FACTS, **changes))
    assert found == reason
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("scale", "able"),
    [
        ("use_rslora", {Runtime.VLLM, Runtime.TENSORRT_LLM}),
        ("rank_pattern", {Runtime.TENSORRT_LLM}),
        ("alpha_pattern", set()),
    ],
)
@pytest.mark.parametrize("runtime", [Runtime.VLLM, Runtime.SGLANG, Runtime.TENSORRT_LLM])
def test_a_scale_that_the_runtime_would_leave_out_is_refused_with_who_knows_it(
    scale: str, able: set[Runtime], runtime: Runtime
) -> None:
    reason, message = refused(replace(FACTS, scales=(scale,)), runtime=runtime)
    if runtime in able:
        assert (reason, message) == ("", "")
        return
    assert reason == "AdapterNotSupported"
    assert f"scaled by {scale}, which {runtime} leaves out without an error" in message
    for one in Runtime:
        assert (str(one) in message.partition("serve it with engine.runtime")[2]) is (one in able)


def test_the_same_adapter_is_taken_once_the_limits_are_raised() -> None:
    assert refused(replace(FACTS, rank=64), maxRank=64) == ("", "")
    wide = replace(FACTS, modules=("o_proj", "q_proj"))
    assert refused(wide, targetModules=["attn_q", "attn_dense"]) == ("", "")


def test_an_adapter_has_another_name_than_its_base() -> None:
    assert refused(FACTS, name="model")[0] == "AdapterNameTaken"


def test_a_sibling_s_adapter_is_taken_and_told() -> None:
    told = other_name(replace(FACTS, base="meta-llama/Llama-3.1-8B"), URI)
    assert "trained on meta-llama/Llama-3.1-8B" in told
    assert other_name(FACTS, URI) == other_name(replace(FACTS, base=""), URI) == ""


def test_every_check_documents_itself() -> None:
    assert all(check.__doc__ for check in CHECKS)


# Passes


def resolved(limits: Mapping[str, Any] | None = None) -> Resolved:
    return specs.resolved(specs.spec(lora=limits if limits is not None else lora(*NAMES)))


def leader(**changes: Any) -> PodView:
    pod = passes.pod(0, 3, ip="10.0.0.1", **changes)
    return replace(pod, labels={**pod.labels, names.LABEL_SERVING: "true"})


def fetched(name: str, facts: AdapterFacts | None = FACTS, **changes: Any) -> Record:
    key = adapter_key(uri(name))
    state = changes.pop("state", RecordState.READY)
    return Record(
        STEP_ADAPTER, key, specs.CLAIM.uid, state, name=f"swr-{name}", adapter=facts, **changes
    )


def situation(
    limits: Mapping[str, Any], *records: Record, pods: tuple[PodView, ...] = (), **changes: Any
) -> Situation:
    """One replica of one stage serves; its spec asks for adapters."""
    found = resolved({**limits, "adapters": []})
    asked = asked_of(specs.spec(lora=limits))
    digest = asked_digest(asked)
    revision = revision_of(f"llama-{wish_of(digest, '', specs.CLAIM.uid)}", "uid-rev", 1, found)
    wish = passes.WISH.model_copy(update={"revision": revision.name})
    base = passes.situation(*(pods or (leader(),)), revision=revision, wishes=(wish,))
    model = Record(
        STEP_MODEL,
        model_key(asked),
        specs.CLAIM.uid,
        RecordState.READY,
        commit=specs.COMMIT,
        facts=specs.LLAMA_8B,
    )
    known = {**base.records, **{(r.claim_uid, r.step, r.key): r for r in (model, *records)}}
    return replace(
        base,
        spec=asked,
        spec_error="",
        spec_digest=digest,
        claims={"models": specs.CLAIM},
        records=known,
        settings=specs.SETTINGS,
        **changes,
    )


def acted(found: Situation) -> Decision:
    decision = passes.acting(found)
    assert decision.findings.refusal is None, decision.findings.refusal
    return decision


def tables(decision: Decision) -> KeepAdapters:
    (kept,) = [item for item in decision.intents if isinstance(item, KeepAdapters)]
    return kept


def table(decision: Decision) -> AdapterTable:
    """The only one."""
    kept = tables(decision)
    assert list(kept.tables) == [kept.first]
    return kept.tables[kept.first]


def status(found: Situation, decision: Decision | None = None) -> LLMDeploymentStatus:
    return report(found, decision or acted(found), Outcome())


def condition(of: LLMDeploymentStatus, kind: str = "AdaptersReady") -> Condition:
    return next(item for item in of.conditions if item.type == kind)


def test_each_adapter_is_fetched_by_a_step_of_its_own() -> None:
    found = situation(lora(*NAMES))
    decision = acted(found)
    steps = [item for item in decision.intents if isinstance(item, CreateStep)]
    assert {item.artifact.key for item in steps} == {adapter_key(uri(name)) for name in NAMES}
    assert {item.artifact.step for item in steps} == {STEP_ADAPTER}
    assert all(item.artifact.gpus == 0 for item in steps)
    begun = [item for item in decision.intents if isinstance(item, WriteRecord)]
    assert {item.record.state for item in begun} == {RecordState.BUILDING}
    assert table(decision) == AdapterTable()
    said = status(found, decision)
    assert {item.state for item in said.adapters} == {"Fetching"}
    assert condition(said).reason == "FetchingAdapters"
    assert condition(said, "Ready").status == "True"


def test_adapters_named_or_not_make_no_new_revision_and_roll_nothing() -> None:
    decision = acted(situation(lora(*NAMES)))
    target = decision.findings.target
    assert target is not None
    assert target.number == 1
    assert not [item for item in decision.intents if type(item).__name__ == "MakeRevision"]
    assert asked_digest(asked_of(specs.spec(lora=lora(*NAMES)))) == asked_digest(
        asked_of(specs.spec(lora=lora()))
    )


def test_what_was_fetched_and_fits_stands_in_the_table() -> None:
    decision = acted(situation(lora(*NAMES), *(fetched(name) for name in NAMES)))
    entries = table(decision).adapters
    assert [entry.name for entry in entries] == list(NAMES)
    assert len({entry.number for entry in entries}) == 3
    assert entries[0].folder == f"/shardwright/store/shardwright/adapter/{entries[0].key}"
    assert (entries[0].rank, entries[0].modules) == (8, ("q_proj", "v_proj"))


def test_an_invalid_one_is_named_and_harms_none() -> None:
    high = fetched("poems", replace(FACTS, rank=64))
    found = situation(lora(*NAMES), fetched("legal"), high, fetched("code"))
    decision = acted(found)
    assert [entry.name for entry in table(decision).adapters] == ["legal", "code"]
    said = status(found, decision)
    by_name = {item.name: item for item in said.adapters}
    assert by_name["poems"].state == "Invalid"
    assert by_name["poems"].reason == "AdapterRankTooHigh"
    assert "raise lora.maxRank to 64" in by_name["poems"].message
    assert by_name["legal"].state == by_name["code"].state == "Ready"
    assert (condition(said).status, condition(said).reason) == ("False", "AdapterInvalid")
    assert "poems" in condition(said).message
    assert condition(said, "Ready").status == "True"


def test_a_fetch_that_failed_for_good_is_named_and_others_go_on() -> None:
    broken = fetched(
        "poems", None, state=RecordState.FAILED, reason="AccessDenied", message="401 of the hub"
    )
    found = situation(lora("legal", "poems"), fetched("legal"), broken)
    decision = acted(found)
    assert [entry.name for entry in table(decision).adapters] == ["legal"]
    said = {item.name: item for item in status(found, decision).adapters}
    assert (said["poems"].state, said["poems"].reason) == ("Failed", "AccessDenied")
    assert "401 of the hub" in said["poems"].message
    assert condition(status(found, decision)).reason == "AdapterFailed"


def test_a_missing_secret_of_one_adapter_stops_that_one_only() -> None:
    limits = lora("legal", "poems")
    limits["adapters"][1]["secretRef"] = {"name": "poems-token"}
    found = situation(limits, fetched("legal"), missing_adapter_secrets=frozenset({"poems-token"}))
    decision = acted(found)
    assert not [item for item in decision.intents if isinstance(item, CreateStep)]
    said = {item.name: item for item in status(found, decision).adapters}
    assert (said["poems"].state, said["poems"].reason) == ("Failed", "SecretNotFound")
    assert decision.requeue is not None
    assert decision.requeue <= 11


def test_an_adapter_on_a_claim_that_pods_do_not_mount_is_invalid() -> None:
    limits = lora()
    limits["adapters"] = [
        {"name": "far", "uri": "pvc://elsewhere/lora/far"},
        {"name": "near", "uri": "pvc://models/lora/near"},
    ]
    near = replace(fetched("near"), key=adapter_key("pvc://models/lora/near"))
    found = situation(limits, near)
    decision = acted(found)
    (entry,) = table(decision).adapters
    assert (entry.folder, entry.in_place) == ("/shardwright/store/lora/near", True)
    said = {item.name: item for item in status(found, decision).adapters}
    assert said["far"].reason == "AdapterClaimNotMounted"


def test_adapters_that_are_taken_out_leave_the_table() -> None:
    assert table(acted(situation(lora(), *(fetched(name) for name in NAMES)))) == AdapterTable()


def test_a_spec_without_limits_empties_the_table_only_where_pods_read_one() -> None:
    found = situation(lora("legal"), fetched("legal"))
    plain = asked_of(specs.spec())
    digest = asked_digest(plain)
    revision = found.revisions[0]
    other = revision_of(
        f"llama-{wish_of(digest, '', specs.CLAIM.uid)}", "u2", 2, specs.resolved(specs.spec())
    )
    moved = replace(found, spec=plain, spec_digest=digest, revisions=(revision, other))
    assert passes.decide(moved).findings.adapters.tables == {revision.name: AdapterTable()}
    never = replace(moved, revisions=(other,))
    assert passes.decide(never).findings.adapters.tables == {}


def test_a_refused_spec_leaves_the_adapters_as_they_are() -> None:
    found = situation(lora("legal"), fetched("legal"))
    said = status(found)
    refused_now = replace(found, spec=None, spec_error="unreadable", status=said)
    decision = passes.acting(refused_now)
    assert not [item for item in decision.intents if isinstance(item, KeepAdapters)]
    assert status(refused_now, decision).adapters == said.adapters


def test_a_leader_is_told_once_of_each_table() -> None:
    first = acted(situation(lora("legal"), fetched("legal")))
    (told,) = [item for item in first.intents if isinstance(item, TellAdapters)]
    assert told.digest == table_digest(encode(table(first)))
    known = leader(adapters=told.digest)
    again = acted(situation(lora("legal"), fetched("legal"), pods=(known,)))
    assert not [item for item in again.intents if isinstance(item, TellAdapters)]
    # The table comes first: what a kubelet reads upon the word must be the new one.
    kinds = [type(item).__name__ for item in first.intents]
    assert kinds.index("KeepAdapters") < kinds.index("TellAdapters")


def heard(found: Situation, **changes: Any) -> Situation:
    adapters = passes.acting(found).findings.adapters
    digest = adapters.digests[adapters.told]
    answer = AdaptersHeard(**{"table": digest, "loaded": ("legal", "poems"), **changes})
    return replace(found, adapters={leader().uid: answer})


def test_status_counts_the_leaders_that_have_each_adapter() -> None:
    found = situation(lora("legal", "poems"), fetched("legal"), fetched("poems"))
    waiting = status(found)
    assert {item.loaded_on for item in waiting.adapters} == {"0 of 1"}
    assert condition(waiting).reason == "AdaptersLoading"
    assert condition(waiting).message == (
        "2 of 2 adapters not loaded everywhere: legal: loaded on 0 of 1 leaders; poems: loaded on "
        "0 of 1 leaders; 1 of 1 leaders have not told yet what they have loaded: the operator asks "
        "them at port 8091 of their pods"
    )
    one = condition(status(heard(found, loaded=("legal",))))
    assert one.message == "1 of 2 adapters not loaded everywhere: poems: loaded on 0 of 1 leaders"
    done = status(heard(found))
    assert {item.loaded_on for item in done.adapters} == {"1 of 1"}
    assert (condition(done).status, condition(done).reason) == ("True", "AdaptersLoaded")
    stale = status(heard(found, table="another"))
    assert {item.loaded_on for item in stale.adapters} == {"0 of 1"}


def test_a_server_that_does_not_take_one_is_told_in_its_words() -> None:
    found = situation(lora("legal", "poems"), fetched("legal"), fetched("poems"))
    troubles = {"poems": (ADAPTER_FAILED, "500 CUDA error")}
    said = status(heard(found, loaded=("legal",), troubles=troubles))
    by_name = {item.name: item for item in said.adapters}
    assert (by_name["poems"].state, by_name["poems"].message) == ("Failed", "500 CUDA error")
    assert by_name["legal"].loaded_on == "1 of 1"
    assert condition(said, "Ready").status == "True"


def test_one_adapter_alone_is_advised_to_be_merged() -> None:
    def advised(*chosen: str) -> bool:
        plan = status(situation(lora(*chosen), *(fetched(name) for name in chosen))).plan
        assert plan is not None
        return any("merged into its base" in reason for reason in plan.reasons)

    assert advised("legal")
    assert not advised("legal", "poems")


def test_the_number_of_an_adapter_stands_for_its_files() -> None:
    assert number_of("k", "c") == number_of("k", "c")
    assert len({number_of("k", "c"), number_of("k", "d"), number_of("l", "c")}) == 3
    assert 1 <= number_of("k", "c") < 2**53


# Collection


def test_only_the_current_spec_names_adapters() -> None:
    spec = specs.spec(lora=lora("legal")).model_dump(by_alias=True, mode="json")
    key = adapter_key(uri("legal"))
    assert key in named_by_spec(spec)
    assert key not in named_by_revision(dump(resolved(lora("legal"))), specs.CLAIM.uid)


def test_an_adapter_of_ours_that_is_used_in_place_stays() -> None:
    spec = {
        "model": {"uri": URI},
        "lora": {"adapters": [{"uri": "pvc://models/shardwright/adapter/0123456789abcdef"}]},
    }
    assert "0123456789abcdef" in named_by_spec(spec)


# Objects


def test_the_fetch_has_its_own_secret_and_never_the_model_s() -> None:
    limits = lora("legal", "poems")
    limits["adapters"][0]["secretRef"] = {"name": "legal-token"}
    asked = specs.spec(model={"uri": URI, "secretRef": {"name": "hf-token"}}, lora=limits)
    found = {}
    for name in ("legal", "poems"):
        artifact = adapter_artifact(uri(name), specs.SETTINGS)
        job = step_job(
            artifact,
            attempt=1,
            owners=[Owner("llama", "uid")],
            spec=asked,
            claim=specs.CLAIM,
            settings=specs.SETTINGS,
            runner_config_map="runner",
        )
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["command"][-1] == "fetch"
        found[name] = container.get("envFrom")
        request = step_request(artifact, asked, "llama", specs.SETTINGS)
        assert (request.step, request.source) == (STEP_ADAPTER, uri(name))
    assert found == {
        "legal": [{"secretRef": {"name": "legal-token", "optional": False}}],
        "poems": None,
    }


def test_leaders_mount_the_table_and_know_the_limits() -> None:
    asked = specs.spec(lora=lora(*NAMES), parallelism={"tensor": 2, "pipeline": 2})
    pods = group_pods(specs.resolved(asked), IDENTITY, "runner")
    for stage, pod in enumerate(pods):
        (container,) = pod["spec"]["containers"]
        env = {item["name"]: item.get("value") for item in container["env"]}
        request = decode(ServeRequest, env["SHARDWRIGHT_REQUEST"])
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        if stage:
            assert request.adapters is None
            assert "adapters" not in mounts
            continue
        assert request.adapters is not None
        assert (request.adapters.max_rank, request.adapters.modules) == (16, ("q_proj", "v_proj"))
        volume = next(item for item in pod["spec"]["volumes"] if item["name"] == "adapters")
        assert volume["configMap"]["optional"] is True
        (item,) = volume["configMap"]["items"]
        own = table(acted(situation(lora("legal"), fetched("legal"))))
        told = {IDENTITY.revision: own, "llama-other": AdapterTable()}
        body = adapters_config_map(IDENTITY.namespace, IDENTITY.owner, told, "llama-other")
        assert volume["configMap"]["name"] == body["metadata"]["name"]
        assert mounts["adapters"]["mountPath"] == ADAPTERS_DIR
        assert item["path"] == ADAPTERS_FILE
        assert decode(AdapterTable, body["data"][item["key"]]) == own
        # Leaders that an earlier operator made read the table of what serves.
        assert decode(AdapterTable, body["data"][ADAPTERS_FILE]) == AdapterTable()


def test_pods_of_a_base_that_takes_none_are_as_before() -> None:
    (pod,) = group_pods(specs.resolved(specs.spec()), IDENTITY, "runner")
    (container,) = pod["spec"]["containers"]
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert decode(ServeRequest, env["SHARDWRIGHT_REQUEST"]).adapters is None
    named = [*container["volumeMounts"], *pod["spec"]["volumes"]]
    assert "adapters" not in {item["name"] for item in named}
    assert "adapters" not in str(pod["metadata"])


def test_folders_follow_the_uri() -> None:
    asked = specs.spec(model={"uri": "pvc://other/models/llama"})
    assert adapter_folder("pvc://other/lora/a", asked) == "/shardwright/source/lora/a"
    assert adapter_folder("pvc://models/lora/a", asked) == "/shardwright/store/lora/a"
    key = adapter_key("s3://bucket/a")
    assert adapter_folder("s3://bucket/a", asked).endswith(f"/adapter/{key}")


def test_a_table_that_is_read_back_is_the_same() -> None:
    found = table(acted(situation(lora("legal"), fetched("legal"))))
    assert decode(AdapterTable, encode(found)) == found
