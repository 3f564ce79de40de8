"""Live changes of precision and draft model on real nodes, counted by the artifact table.

The change of runtime is in `test_runtimes`, that of the split in `test_reshape`, those of adapters
in `test_adapters`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.real.examples import example
from tests.real.live import PROOF, ROLL, SURGE, Live, failed, request
from tests.standin.running import PROMPTS
from tests.support import standin_model
from tests.support.kube import Json

from shardwright.runner.contract import MANIFEST, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.e2e_all
def test_another_precision_is_made_beside_the_old_one_and_the_way_back_makes_nothing(
    live: Live, model: Path, tmp_path: Path
) -> None:
    name, site = "precise", live.site
    rounded = standin_model.unsharded(model, PROMPTS, qformat="fp8")
    assert all(rounded[prompt] != site.reference[prompt] for prompt in PROMPTS)
    live.create(name, SURGE)
    live.settled(name)
    assert site.wrong_answers(live.leader(name)) == []
    first, made = request(live.leader(name)), manifests(site.claim)
    assert {step for step, _ in made} == {"checkpoint", "engine"}

    with site.clients(name, tmp_path, others=rounded) as asked:
        cost = live.roll(name, {"quantization": {"weights": "FP8"}})
    assert cost == {"checkpoint": 1, "engine": 1, **PROOF}
    assert failed(asked) == []
    assert site.wrong_answers(live.leader(name), rounded) == []
    assert request(live.leader(name)).key != first.key
    both = manifests(site.claim)
    assert len(both) == len(made) + 2
    assert made.items() <= both.items()

    with site.clients(name, tmp_path, others=rounded) as asked:
        cost = live.roll(name, {"quantization": {"weights": "None"}})
    assert cost == ROLL
    assert failed(asked) == []
    assert site.wrong_answers(live.leader(name)) == []
    assert request(live.leader(name)).key == first.key
    assert manifests(site.claim) == both


def manifests(claim: Path) -> dict[tuple[str, str], bytes]:
    """Manifests of what was built onto a claim, by step and key."""
    found = (claim / ROOT).glob(f"*/*/{MANIFEST}")
    return {
        (path.parts[-3], path.parts[-2]): path.read_bytes()
        for path in found
        if path.parts[-3] in ("checkpoint", "engine")
    }


@pytest.mark.e2e_all
def test_another_draft_model_is_one_fetch_and_a_candidate_and_no_token_changes(
    live: Live, tmp_path: Path
) -> None:
    name, site = "drafted", live.site
    for seed, one in enumerate(("draft-a", "draft-b"), 1):
        standin_model.make_model(site.claim / one, seed=seed, layers=1)
    # The PyTorch backend drafts on one stage alone.
    one_stage: Json = {"parallelism": {"tensor": 2, "pipeline": 1}}
    live.create(name, {"engine": {"backend": "PyTorch"}, **one_stage, **SURGE})
    live.settled(name, 1)
    assert request(live.leader(name)).also == ()
    key = request(live.leader(name)).key
    roll = {"pods taken down": 1, "pods made": 1}

    def change(wish: Json | None, folder: str) -> dict[str, int]:
        with site.clients(name, tmp_path) as asked:
            cost = live.roll(name, {"speculative": wish}, 1)
        assert failed(asked) == []
        leader = live.leader(name)
        assert site.wrong_answers(leader) == []
        served = request(leader)
        assert served.key == key
        loaded = served.config.get("speculative_config", {}).get("speculative_model_dir", "")
        assert loaded.rpartition("/")[2] == folder
        return cost

    for one in ("draft-a", "draft-b"):
        uri = f"pvc://models/{one}"
        wish = {"method": "DraftModel", "model": {"uri": uri}, "maxDraftLen": 3}
        assert change(wish, one) == {"fetch": 1, "candidates": 1, "revisions": 1, **roll}
    assert change(None, "") == roll


@pytest.mark.e2e_all
def test_the_example_of_a_four_bit_checkpoint_serves_on_four_gpus_and_is_warned_of_its_code(
    live: Live,
) -> None:
    name, site = "four-bit", live.site
    folder = standin_model.make_awq_model(site.claim / "tiny-awq")
    says = standin_model.unsharded(folder, PROMPTS)
    assert all(says[prompt] != site.reference[prompt] for prompt in PROMPTS)
    spec = example("llama-70b-vllm-awq", 4, 1, model="tiny-awq")
    mark = live.watcher.mark()
    site.kube.create_whole(name, spec)
    live.settled(name, 1)
    assert live.cost(mark, name) == {"fetch": 1, "candidates": 1, "pods made": 1, "revisions": 1}
    leader = live.leader(name)
    assert site.wrong_answers(leader, says, "llama-70b") == []
    rows = site.ranks(leader)
    assert len({row["gpu"] for row in rows}) == 4
    assert {row["node"] for row in rows} == {leader["spec"]["nodeName"]}
    words = request(leader).command.argv
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.9"
    assert "--trust-remote-code" in words
    assert (
        "warning: model.trustRemoteCode true executes Python from the folder of "
        "pvc://models/tiny-awq in every pod that serves it; read that code, and pin its revision, "
        "or leave it false"
    ) in site.kube.get(name)["status"]["plan"]["reasons"]
