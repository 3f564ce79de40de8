"""Adapters while a deployment moves to another model or other limits: each replica keeps its own.

What serves goes on serving every adapter that it can take until the revision asked for serves;
what that one cannot take is told by name meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.played import World

from shardwright.api import names
from shardwright.observe.world import ClaimView, PodView, Record, RecordState
from shardwright.plan.resolve import adapter_key, model_key
from shardwright.plan.situation import (
    CreatePods,
    CreateStep,
    Intent,
    KeepAdapters,
    Situation,
    TellAdapters,
    WriteRecord,
)
from shardwright.runner.contract import (
    STEP_ADAPTER,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    AdapterFacts,
    AdaptersHeard,
    ModelFacts,
    encode,
    table_digest,
)

NIM = "nvcr.io/nim/nvidia/llm-nim:2.1.5"
SMALL = "hf://meta-llama/Llama-3.1-8B-Instruct@main"
LARGE = "hf://meta-llama/Llama-3.1-70B-Instruct@main"
MODELS = {SMALL: specs.LLAMA_8B, LARGE: specs.LLAMA_70B}
MODULES = ("q_proj", "v_proj")
OTHER_CLAIM = replace(specs.CLAIM, name="disk", uid="uid-disk")


def facts(model: ModelFacts, rank: int = 8) -> AdapterFacts:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    sizes = {"q_proj": (model.hidden_size, queries), "v_proj": (model.hidden_size, keys)}
    return AdapterFacts(rank, 16.0, MODULES, dtype="BF16", layers=model.layers, sizes=sizes)


class Serving(World):
    """Leaders load what their own table tells them; steps that `held` names do not end."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()
        self.starting: Callable[[str], bool] = lambda _: False
        self.kept: KeepAdapters | None = None
        self.claims = {"models": specs.CLAIM, "disk": OTHER_CLAIM}

    def adapter(self, name: str, found: AdapterFacts, claim: ClaimView = specs.CLAIM) -> None:
        key = adapter_key(f"hf://acme/{name}")
        record = Record(
            STEP_ADAPTER, key, claim.uid, RecordState.READY, name=f"swr-{name}", adapter=found
        )
        self.records[claim.uid, STEP_ADAPTER, key] = record

    def model(self, uri: str, claim: ClaimView = specs.CLAIM) -> None:
        key = model_key(specs.spec(model={"uri": uri}))
        record = Record(
            STEP_MODEL, key, claim.uid, RecordState.READY, commit="abc", facts=MODELS[uri]
        )
        self.records[claim.uid, STEP_MODEL, key] = record

    def ask(self, *chosen: str, uri: str = SMALL, rank: int = 16, **more: Any) -> None:
        self.model(uri)
        adapters = [{"name": name, "uri": f"hf://acme/{name}"} for name in chosen]
        limits = {"maxRank": rank, "targetModules": ["attn_q", "attn_v"], "adapters": adapters}
        self.edit(model={"uri": uri}, **{"lora": limits, **more})

    def situation(self) -> Situation:
        found = super().situation()
        hidden = model_key(self.spec) if STEP_MODEL in self.held else ""
        return replace(
            found,
            records={place: one for place, one in found.records.items() if place[2] != hidden},
            claims=self.claims,
            adapters={pod.uid: self.heard(pod) for pod in self.pods if pod.adapters},
        )

    def heard(self, pod: PodView) -> AdaptersHeard:
        return AdaptersHeard(pod.adapters, tuple(self.table(pod.labels[names.LABEL_REVISION])))

    def table(self, revision: str) -> list[str]:
        assert self.kept is not None
        return [one.name for one in self.kept.tables[revision].adapters]

    def carry_out(self, intent: Intent) -> bool:
        match intent:
            case CreateStep() if intent.artifact.step in self.held:
                return False
            case WriteRecord(record) if record.step in self.held:
                return False
            case KeepAdapters():
                before, self.kept = self.kept, intent
                return before != intent
            case TellAdapters(pod, digest):
                assert self.kept is not None
                own = self.kept.tables[pod.labels[names.LABEL_REVISION]]
                assert digest == table_digest(encode(own)), "told of another one's table"
                self.pods = [
                    replace(one, adapters=digest) if one.uid == pod.uid else one
                    for one in self.pods
                ]
                return True
        return super().carry_out(intent)

    def start(self, intent: CreatePods) -> None:
        before = len(self.pods)
        super().start(intent)
        if self.starting(intent.wish.revision):
            self.pods[before:] = [replace(pod, ready=False) for pod in self.pods[before:]]

    def let_go(self) -> None:
        """What was held goes on."""
        self.held.clear()
        self.starting = lambda _: False
        self.pods = [replace(pod, ready=True) for pod in self.pods]
        self.settle()

    @property
    def loaded(self) -> dict[str, list[str]]:
        """Names by the revision of each running pod."""
        return {
            revision: self.table(revision)
            for revision in sorted({pod.labels[names.LABEL_REVISION] for pod in self.pods})
        }

    @property
    def said(self) -> dict[str, tuple[str, str, str]]:
        return {one.name: (one.state, one.reason, one.loaded_on) for one in self.status.adapters}

    def words(self, name: str) -> str:
        return next(one.message for one in self.status.adapters if one.name == name)


@pytest.fixture
def world() -> Serving:
    """The 8B model serves two adapters of its own; one of the 70B model has been fetched too."""
    found = Serving()
    found.adapter("legal", facts(specs.LLAMA_8B))
    found.adapter("poems", facts(specs.LLAMA_8B, rank=16))
    found.adapter("large", facts(specs.LLAMA_70B))
    found.ask("legal", "poems")
    (only,) = found.loaded
    assert found.loaded == {only: ["legal", "poems"]}
    assert found.condition("AdaptersReady")[:2] == ("True", "AdaptersLoaded")
    return found


def test_another_model_takes_no_adapter_from_what_serves(world: Serving) -> None:
    (old,) = world.loaded
    world.held = {STEP_ENGINE}
    world.ask("legal", "poems", "large", uri=LARGE)
    assert world.loaded == {old: ["legal", "poems"]}
    assert world.said == {
        "legal": ("Invalid", "AdapterOfAnotherModel", "1 of 1"),
        "poems": ("Invalid", "AdapterOfAnotherModel", "1 of 1"),
        "large": ("Ready", "AdapterReady", "0 of 1"),
    }
    assert "name the adapter of this model; 1 of 1 replicas, of a revision before, still " in (
        world.words("legal")
    )
    assert f"replicas of {old}: it was trained on another model" in world.words("large")
    assert world.condition("AdaptersReady")[:2] == ("False", "AdapterInvalid")

    world.let_go()
    (new,) = world.loaded
    assert new != old
    assert world.loaded == {new: ["large"]}
    assert world.said == {
        "legal": ("Invalid", "AdapterOfAnotherModel", "0 of 1"),
        "poems": ("Invalid", "AdapterOfAnotherModel", "0 of 1"),
        "large": ("Ready", "AdapterReady", "1 of 1"),
    }
    assert "still serve" not in world.words("legal")
    assert world.kept is not None
    assert list(world.kept.tables) == [new]


def test_adapters_come_and_go_while_another_model_is_fetched(world: Serving) -> None:
    (old,) = world.loaded
    world.adapter("code", facts(specs.LLAMA_8B))
    world.held = {STEP_MODEL}
    world.ask("legal", "code", uri=LARGE)
    assert world.condition("Accepted")[0] == "Unknown"
    assert world.loaded == {old: ["legal", "code"]}
    assert world.said == {
        "legal": ("Ready", "AdapterReady", "1 of 1"),
        "code": ("Ready", "AdapterReady", "1 of 1"),
    }


def test_smaller_limits_take_no_adapter_from_what_serves(world: Serving) -> None:
    (old,) = world.loaded
    world.held = {STEP_ENGINE}
    world.ask("legal", "poems", rank=8)
    assert world.loaded == {old: ["legal", "poems"]}
    assert world.said == {
        "legal": ("Ready", "AdapterReady", "1 of 1"),
        "poems": ("Invalid", "AdapterRankTooHigh", "1 of 1"),
    }
    world.let_go()
    (new,) = world.loaded
    assert (new != old, world.table(new)) == (True, ["legal"])
    assert world.said["poems"] == ("Invalid", "AdapterRankTooHigh", "0 of 1")


def test_raised_limits_give_what_serves_nothing_that_it_cannot_take(world: Serving) -> None:
    (old,) = world.loaded
    world.adapter("wide", facts(specs.LLAMA_8B, rank=64))
    world.held = {STEP_ENGINE}
    world.ask("legal", "wide", rank=64)
    assert world.loaded == {old: ["legal"]}
    assert world.said["wide"] == ("Ready", "AdapterReady", "0 of 1")
    assert f"replicas of {old}: its rank 64 exceeds lora.maxRank 16" in world.words("wide")
    assert world.condition("AdaptersReady")[:2] == ("False", "AdaptersLoading")
    world.let_go()
    (new,) = world.loaded
    assert world.table(new) == ["legal", "wide"]
    assert world.condition("AdaptersReady")[:2] == ("True", "AdaptersLoaded")


def test_a_revert_in_the_middle_touches_no_adapter(world: Serving) -> None:
    before = world.loaded
    tables = world.kept
    world.held = {STEP_ENGINE}
    world.ask("legal", "poems", uri=LARGE)
    world.ask("legal", "poems")
    assert (world.loaded, world.kept) == (before, tables)
    assert world.condition("AdaptersReady")[:2] == ("True", "AdaptersLoaded")


def test_another_runtime_takes_no_adapter_from_what_serves(world: Serving) -> None:
    (old,) = world.loaded
    world.starting = lambda revision: revision != old
    world.ask("legal", "poems", engine={"runtime": "VLLM"}, quantization={"weights": "None"})
    new = next(one for one in world.loaded if one != old)
    assert world.loaded == {old: ["legal", "poems"], new: ["legal", "poems"]}
    world.let_go()
    assert world.loaded == {new: ["legal", "poems"]}
    assert world.condition("AdaptersReady")[:2] == ("True", "AdaptersLoaded")


def test_replicas_of_two_models_at_once_have_a_table_each(world: Serving) -> None:
    world.ask("legal", "large", replicas=3)
    (old,) = world.loaded
    seen: list[str] = []

    def second(revision: str) -> bool:
        seen.extend([revision] if revision != old else [])
        return len(seen) > 1

    world.starting = second
    world.ask("legal", "large", uri=LARGE, replicas=3)
    new = seen[0]
    assert world.loaded == {old: ["legal"], new: ["large"]}
    assert len({pod.adapters for pod in world.pods}) == 2
    assert world.said["legal"] == ("Invalid", "AdapterOfAnotherModel", "1 of 2")
    world.let_go()
    assert world.loaded == {new: ["large"]}
    assert world.said["large"] == ("Ready", "AdapterReady", "3 of 3")


def test_a_candidate_that_never_serves_takes_no_adapter_away(world: Serving) -> None:
    (old,) = world.loaded
    world.starting = lambda revision: revision != old
    world.ask("legal", "poems", "large", uri=LARGE)
    new = next(one for one in world.loaded if one != old)
    assert world.loaded == {old: ["legal", "poems"], new: ["large"]}
    world.ask("legal", uri=LARGE)
    assert world.loaded == {old: ["legal"], new: []}


def test_pods_that_became_another_revision_s_read_the_table_they_mount(world: Serving) -> None:
    """A gate changes no pod: they keep the volume that they were made with."""
    (old,) = world.loaded
    gate = {"task": "mmlu", "samples": 570, "minScore": 10}
    world.scores = {"TensorRT": 60.0}
    world.ask("legal", "poems", accuracy=gate)
    (group,) = world.status.groups
    assert group.revision != old
    assert world.loaded == {old: ["legal", "poems"]}
    world.ask("legal", accuracy=gate)
    assert world.loaded == {old: ["legal"]}
    assert world.said == {"legal": ("Ready", "AdapterReady", "1 of 1")}


def test_a_move_to_another_claim_takes_no_adapter_from_what_serves(world: Serving) -> None:
    (old,) = world.loaded
    world.model(SMALL, OTHER_CLAIM)
    world.held = {STEP_ADAPTER, STEP_CHECKPOINT}
    world.ask("legal", "poems", storage={"claimName": "disk"})
    assert world.loaded == {old: ["legal", "poems"]}
    assert world.said["legal"] == ("Fetching", "Fetching", "1 of 1")
    # What is fetched from now on is on the new claim, which the old replicas do not mount.
    world.adapter("code", facts(specs.LLAMA_8B), OTHER_CLAIM)
    world.ask("legal", "code", storage={"claimName": "disk"})
    assert world.loaded == {old: ["legal"]}
    assert world.said["code"] == ("Ready", "AdapterReady", "0 of 1")
    assert f"replicas of {old}: it was fetched onto the claim" in world.words("code")


def test_nothing_is_said_to_be_fetched_for_a_spec_that_was_refused(world: Serving) -> None:
    world.held = {STEP_ADAPTER}
    world.ask("legal", "poems", "late")
    assert world.said["late"] == ("Fetching", "Fetching", "0 of 1")
    world.ask("legal", "late", uri=SMALL, engine={"runtime": "NIM", "image": NIM})
    assert world.condition("Accepted")[:2] == ("False", "LoRANotSupported")
    assert world.said == {
        "legal": ("Ready", "AdapterReady", "1 of 1"),
        "poems": ("Ready", "AdapterReady", "1 of 1"),
    }
