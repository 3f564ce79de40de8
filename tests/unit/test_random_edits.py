"""Edits in any order, in the middle of each other, with failing steps, dying pods and bad scores.

Each pass sees nothing but the world, so every one of them is also the first of an operator that was
started again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.played import MMLU, World

from shardwright.api import names
from shardwright.api.asked import AskedSpec
from shardwright.observe.world import PodView
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.groups import slot_of
from shardwright.plan.report import report
from shardwright.plan.revisions import asked_digest, proven
from shardwright.plan.situation import CreateStep, DeletePod, Intent, LetServe, Situation
from shardwright.runner.contract import DONE, ENVIRONMENT, PERMANENT, STEP_MODEL, STEP_SCORE, Report

MODELS = {
    "hf://meta-llama/Llama-3.1-8B-Instruct@main": specs.LLAMA_8B,
    "hf://meta-llama/Llama-3.1-70B-Instruct@main": specs.LLAMA_70B,
}
NIM = "nvcr.io/nim/nvidia/llm-nim:2.1.5"
DRAFT = {"method": "DraftModel", "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"}}

EDITS: list[Callable[[dict[str, Any]], None]] = [
    lambda spec: spec.update(quantization={"weights": "None"}),
    lambda spec: spec.update(quantization={"weights": "FP8"}),
    lambda spec: spec.update(quantization={"weights": "INT4AWQ"}),
    lambda spec: spec["quantization"].update(accuracy={**MMLU, "maxDrop": 1.0}),
    lambda spec: spec["quantization"].update(accuracy={**MMLU, "maxDrop": 3.0}),
    lambda spec: spec["quantization"].pop("accuracy", None),
    lambda spec: spec.update(engine={"backend": "TensorRT"}),
    lambda spec: spec.update(engine={"backend": "TensorRT", "limits": {"maxBatchSize": 16}}),
    lambda spec: spec.update(engine={"backend": "PyTorch"}),
    lambda spec: spec.update(engine={"runtime": "VLLM"}),
    lambda spec: spec.update(engine={"runtime": "SGLang"}),
    lambda spec: spec.update(engine={"runtime": "Triton"}),
    lambda spec: spec.update(engine={"runtime": "NIM", "image": NIM}),
    lambda spec: spec.pop("parallelism", None),
    lambda spec: spec.update(parallelism={"expert": 3}),
    lambda spec: spec.update(parallelism={"tensor": 2, "attentionData": 2}),
    lambda spec: spec.update(parallelism={"tensor": 1, "pipeline": 1}),
    lambda spec: spec.update(parallelism={"tensor": 2, "pipeline": 1}),
    lambda spec: spec.update(parallelism={"tensor": 2, "pipeline": 2}),
    lambda spec: spec.update(replicas=0),
    lambda spec: spec.update(replicas=1),
    lambda spec: spec.update(replicas=2),
    lambda spec: spec.update(replicas=3),
    lambda spec: spec.update(rollout={"maxSurge": 1, "maxUnavailable": 0}),
    lambda spec: spec.pop("rollout", None),
    lambda spec: spec.update(speculative=DRAFT),
    lambda spec: spec.update(speculative={"method": "NGram"}),
    lambda spec: spec.pop("speculative", None),
    *(lambda spec, uri=uri: spec["model"].update(uri=uri) for uri in MODELS),
]


class Walk(World):
    """A world in which a seed decides what the user does and what goes wrong."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = random.Random(seed)  # noqa: S311 - a walk, not a secret
        self.now = 1000.0
        self.restarted = ""
        self.wanted: dict[str, Any] = {
            "model": {"uri": next(iter(MODELS))},
            "engine": {"backend": "TensorRT"},
            "gpu": {"product": specs.H100},
            "parallelism": {"tensor": 1, "pipeline": 1},
            "storage": {"claimName": "models"},
            "quantization": {"weights": "FP8"},
            "replicas": 2,
        }
        self.ended: dict[tuple[str, str], list[bool]] = {}
        self.trace: list[str] = []

    # What the user and chance do.

    def step(self) -> None:
        if self.chance.random() < 0.15:
            self.restarted = f"2026-01-01T00:00:{self.chance.randrange(60):02}Z"
        elif self.chance.random() < 0.15 and self.pods:
            self.lose(self.chance.choice(self.pods))
        else:
            self.chance.choice(EDITS)(self.wanted)
        self.read()
        for _ in range(self.chance.randrange(7)):
            self.one_pass()

    def read(self) -> None:
        self.spec = AskedSpec.read(self.wanted)
        self.generation += 1
        self.trace.append(f"{self.wanted} {self.restarted}")

    def lose(self, pod: PodView) -> None:
        self.trace.append(f"lost {pod.name}")
        self.pods.remove(pod)

    # One pass, and what must hold in each.

    def situation(self) -> Situation:
        found = super().situation()
        deployment = replace(found.deployment, restarted_at=self.restarted)
        return replace(
            found, now=self.now, deployment=deployment, spec_digest=asked_digest(self.spec)
        )

    def one_pass(self) -> bool:
        """Returns whether anything moved."""
        self.now += 1
        found = self.situation()
        self.decision = decide(found)
        self.holds_the_floor(found)
        before = self.status
        done = [intent for intent in self.decision.intents if self.carry_out(intent)]
        self.status = report(found, self.decision, Outcome())
        self.serves_what_is_proven()
        return bool(done) or self.status != before

    def quiet(self) -> None:
        """Passes until nothing moves, the clock put forward to what is waited for."""
        still = 0
        for _ in range(400):
            if self.one_pass():
                still = 0
                continue
            still += 1
            if self.decision.requeue is None or still > 3:
                return
            self.now += self.decision.requeue
        raise AssertionError("it never comes to rest:\n" + "\n".join(self.trace[-8:]))

    def holds_the_floor(self, found: Situation) -> None:
        """No ready replica is taken down below the floor that the spec allows."""
        gone = {
            slot_of(intent.pod) for intent in self.decision.intents if isinstance(intent, DeletePod)
        }
        ready = {
            (group.index, group.incarnation)
            for group in self.decision.findings.groups
            if group.ready and group.serving
        }
        whole = {slot for slot in ready if slot in {slot_of(pod) for pod in found.pods}}
        taken = whole & gone
        if not taken or found.spec is None:
            return
        floor = found.spec.replicas - found.spec.rollout.max_unavailable
        assert len(whole - taken) >= min(floor, len(whole)), self.trace[-8:]

    def serves_what_is_proven(self) -> None:
        """What carries the Service's label was proven, and is of a revision that is there."""
        known = {revision.name: revision for revision in self.revisions}
        for pod in self.pods:
            if pod.labels.get(names.LABEL_SERVING) == "true":
                revision = known[pod.labels[names.LABEL_REVISION]]
                assert proven(revision.resolved, self.records), (pod.name, self.trace[-8:])

    # What becomes of intents.

    def carry_out(self, intent: Intent) -> bool:
        if isinstance(intent, LetServe):
            revision = next(one for one in self.revisions if one.name == intent.group.revision)
            assert proven(revision.resolved, self.records), self.trace[-8:]
        return super().carry_out(intent)

    def run(self, intent: CreateStep) -> None:
        """Steps fail now and then; what was made once is not made again."""
        artifact = intent.artifact
        past = self.ended.setdefault((artifact.step, artifact.key), [])
        assert True not in past, (f"{artifact.step} {artifact.key} again", self.trace[-8:])
        worked = self.chance.random() > 0.2
        past.append(worked)
        told = Report(DONE, step=artifact.step, key=artifact.key)
        if not worked:
            outcome = self.chance.choice([ENVIRONMENT, PERMANENT])
            told = replace(told, outcome=outcome, reason="StepFailed", message="by chance")
        elif artifact.step == STEP_MODEL:
            uri = str(artifact.inputs["uri"])
            told = replace(told, facts=MODELS[uri], commit="abc")
        elif artifact.step == STEP_SCORE:
            score = 68.2 - self.chance.choice([0.2, 2.0, 5.0])
            told = replace(told, score=score, samples=570)
        self.report(intent, told)
        if not worked:
            self.jobs[-1] = replace(self.jobs[-1], complete=False, failed=True)


SEEDS = 12


def walked(seed: int) -> Walk:
    walk = Walk(seed)
    walk.read()
    for _ in range(walk.chance.randrange(3, 12)):
        walk.step()
    walk.quiet()
    return walk


def answered(walk: Walk) -> None:
    """Ready, or a condition that says why not and what to do."""
    found = {one.type: one for one in walk.status.conditions}
    assert all(one.reason for one in found.values())
    if walk.status.ready_replicas == walk.spec.replicas and found["Ready"].status == "True":
        return
    ready = found["Ready"]
    assert ready.status in ("False", "Unknown") or walk.spec.replicas == 0, walk.trace[-8:]
    assert ready.message, walk.trace[-8:]
    assert ready.reason not in ("", "Unknown", "Pending"), ready


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_walk_of_edits_comes_to_rest_with_a_word_and_makes_nothing_twice(seed: int) -> None:
    answered(walked(seed))


@pytest.mark.soak
def test_many_walks_of_edits_come_to_rest_with_a_word_and_make_nothing_twice() -> None:
    for seed in range(SEEDS, 1500):
        answered(walked(seed))
