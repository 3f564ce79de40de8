"""Live changes of adapters, precision and draft model on real nodes, counted by the artifact table.

The change of runtime is in `test_runtimes`, that of the split in `test_reshape`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.real.site import SPEC, Asked, Site
from tests.standin.running import PROMPTS, REPOSITORY
from tests.support import costs, standin_model
from tests.support.adapters import adapter, write
from tests.support.kube import H100, Json, merged
from tests.support.operator import Operator
from tests.support.real_processes import processes
from tests.support.watcher import Mark, Watcher, watching

from shardwright.runner.contract import ENV_REQUEST, MANIFEST, ROOT, ServeRequest, decode

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STAGES = 2
SECONDS = 150.0
# A candidate beside the one that serves, which goes when its last request is done.
SURGE: Json = {"rollout": {"maxSurge": 1, "maxUnavailable": 0, "drainTimeoutSeconds": 10}}
# What each row of the table costs one replica of two stages.
ROLL = {"pods taken down": STAGES, "pods made": STAGES}
PROOF = {"candidates": 1, "revisions": 1, **ROLL}
# Prompts that each adapter is asked after each change.
FEW = 4
# Projections of the tiny model: inputs and outputs.
SIZES = {"q_proj": (64, 64), "v_proj": (64, 32)}


@dataclass(frozen=True, slots=True)
class Live:
    """A namespace with the model, and everything that happens in it."""

    site: Site
    watcher: Watcher

    def create(self, name: str, change: Json) -> Mark:
        """Create a deployment of two ranks on each of two stages; when."""
        split = {"parallelism": {"tensor": 2, "pipeline": STAGES}}
        spec = merged(merged(SPEC, split), change)
        if "engine" in change:
            # A null must reach the base that it is merged into.
            spec["engine"] = {**spec["engine"], **change["engine"]}
        mark = self.watcher.mark()
        self.site.kube.create(name, spec)
        return mark

    def settled(self, name: str, pods: int = STAGES) -> None:
        costs.settle(self.site.kube, self.watcher, name, pods, SECONDS)

    def cost(self, mark: Mark, name: str) -> dict[str, int]:
        return costs.counted(self.watcher, mark, name)

    def uids(self, name: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.site.kube.pods(name)}

    def leader(self, name: str) -> Json:
        (leader,) = self.site.leaders(name)
        return leader

    def roll(self, name: str, change: Json, pods: int = STAGES) -> dict[str, int]:
        """Edit it, and wait until no pod of before is left and nothing moves; what that cost."""
        old, mark = self.uids(name), self.watcher.mark()
        self.site.kube.edit(name, change)
        self.site.kube.wait(
            "no pod of before",
            lambda: (
                not old & {pod["metadata"]["uid"] for pod in self.site.kube.pods(name, live=False)}
            ),
            SECONDS,
        )
        self.settled(name, pods)
        return self.cost(mark, name)


@pytest.fixture(scope="module")
def live(running: Operator, shared_site: Site) -> Iterator[Live]:
    """One namespace for all of them."""
    with watching(shared_site.sandbox.api, shared_site.kube.namespace) as watcher:
        yield Live(shared_site, watcher)


def failed(asked: list[Asked]) -> list[str]:
    assert any(not one.problem for one in asked)
    return [one.problem for one in asked if one.problem]


def request(pod: Json) -> ServeRequest:
    """What a serving pod was asked to do."""
    (container,) = pod["spec"]["containers"]
    (text,) = [one["value"] for one in container["env"] if one["name"] == ENV_REQUEST]
    return decode(ServeRequest, text)


def containers(live: Live, name: str) -> set[tuple[str, int]]:
    """Containers of a deployment's pods, and how often each was started anew."""
    return {
        (one["containerID"], one["restartCount"])
        for pod in live.site.kube.pods(name)
        for one in pod["status"]["containerStatuses"]
    }


def adapters(*wanted: str) -> Json:
    listed = [{"name": name, "uri": f"pvc://models/lora/{name}"} for name in wanted]
    modules = ["attn_q", "attn_v"]
    return {"lora": {"maxRank": 16, "targetModules": modules, "adapters": listed}}


def test_adapters_come_and_go_and_no_pod_engine_or_request_notices(
    live: Live, model: Path, tmp_path: Path
) -> None:
    name, site = "adapted", live.site
    says: dict[str, dict[str, str]] = {}
    for seed, one in enumerate(("legal", "poems"), 1):
        folder = write(site.claim / "lora" / one, adapter(SIZES, layers=4, seed=seed))
        says[one] = standin_model.unsharded(model, PROMPTS[:FEW], adapter=folder)
        # An answer tells whose it is.
        assert all(said != site.reference[prompt] for prompt, said in says[one].items())
    live.create(name, {"engine": {"runtime": "VLLM", "backend": None}, **adapters()})
    live.settled(name)
    leader = live.leader(name)
    before, inside = live.uids(name), containers(live, name)
    working = {one.pid for one in processes(before)}
    assert working

    def change(*wanted: str) -> dict[str, int]:
        mark = live.watcher.mark()
        site.kube.edit(name, adapters(*wanted))
        site.kube.wait_reason(name, "AdaptersReady", "AdaptersLoaded", SECONDS)
        live.settled(name)
        told = site.kube.get(name)["status"].get("adapters", [])
        assert {one["name"]: one["loadedOn"] for one in told} == dict.fromkeys(wanted, "1 of 1")
        for one in wanted:
            assert site.wrong_answers(leader, says[one], one) == []
        return live.cost(mark, name)

    def refused(one: str) -> bool:
        (said,) = site.wrong_answers(leader, {PROMPTS[0]: ""}, one)
        return said.startswith("HTTP 404")

    # Meanwhile a client asks for the model itself, and must get its answers.
    with site.clients(name, tmp_path) as asked:
        assert change("legal", "poems") == {"adapter": 2}
        assert change("poems") == {}
        assert refused("legal")
        # It is on the claim and was looked at: nothing is fetched for it again.
        assert change("poems", "legal") == {}
        assert change() == {}
        site.kube.wait("none is left", lambda: refused("legal") and refused("poems"), SECONDS)
    assert failed(asked) == []
    assert live.uids(name) == before
    assert containers(live, name) == inside
    assert working <= {one.pid for one in processes(before)}


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
    text = (REPOSITORY / "examples/llama-70b-vllm-awq.yaml").read_text(encoding="utf-8")
    example: Json = yaml.safe_load(text)["spec"]
    # The sandbox has neither its model, nor its GPUs, nor their memory.
    here: Json = {
        "model": {"uri": "pvc://models/tiny-awq"},
        "gpu": {"product": H100},
        "pod": SPEC["pod"],
    }
    spec = merged(example, here)
    mark = live.watcher.mark()
    site.kube.create(name, {**spec, "engine": {**spec["engine"], "backend": None}})
    live.settled(name, 1)
    assert live.cost(mark, name) == {"fetch": 1, "candidates": 1, "pods made": 1, "revisions": 1}
    leader = live.leader(name)
    assert site.wrong_answers(leader, says, example["model"]["servedName"]) == []
    rows = site.ranks(leader)
    assert len({row["gpu"] for row in rows}) == example["parallelism"]["tensor"] == 4
    assert {row["node"] for row in rows} == {leader["spec"]["nodeName"]}
    words = request(leader).command.argv
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.9"
    assert "--trust-remote-code" in words
    warned = [
        one
        for one in site.kube.get(name)["status"]["plan"]["reasons"]
        if "model.trustRemoteCode true" in one
    ]
    assert len(warned) == 1, "the user is not warned"
    assert "pvc://models/tiny-awq" in warned[0]
