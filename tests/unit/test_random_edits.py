"""Edits in any order, in the middle of each other, with failing steps, dying pods and bad scores.

Each pass sees nothing but the world, so every one of them is also the first of an operator that was
started again. Now and then one really is: the operator dies in the middle of what it does, before
it has written its status, and the next one has heard nothing of leaders yet.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.edits import ADAPTERS, EDITS, MODELS
from tests.support.played import World

from shardwright.api import names
from shardwright.api.asked import AskedSpec
from shardwright.api.serving import Runtime
from shardwright.observe.world import PodView
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.groups import slot_of
from shardwright.plan.report import report
from shardwright.plan.revisions import asked_digest, proven
from shardwright.plan.situation import (
    CreateStep,
    DeletePod,
    Intent,
    KeepAdapters,
    LetServe,
    Situation,
    TellAdapters,
)
from shardwright.resolved import Resolved
from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    PERMANENT,
    STEP_ADAPTER,
    STEP_MODEL,
    STEP_SCORE,
    AdaptersHeard,
    AdapterTable,
    Report,
    encode,
    table_digest,
)


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
        self.tables: dict[str, AdapterTable] = {}
        self.measures: dict[str, float] = {}  # what Jobs told, by the key of the score
        self.deaf = False  # whether this operator has not heard of leaders yet

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
            self.one_pass(dies=self.chance.random() < 0.15)

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
        heard = {} if self.deaf else {pod.uid: self.heard(pod) for pod in self.pods if pod.adapters}
        return replace(
            found,
            now=self.now,
            deployment=deployment,
            spec_digest=asked_digest(self.spec),
            adapters=heard,
        )

    def heard(self, pod: PodView) -> AdaptersHeard:
        """A leader has loaded what the table that it was told of holds."""
        table = self.tables[pod.labels[names.LABEL_REVISION]]
        return AdaptersHeard(pod.adapters, tuple(one.name for one in table.adapters))

    def one_pass(self, *, dies: bool = False) -> bool:
        """Returns whether anything moved; one that `dies` does a part of it and tells nothing."""
        self.now += 1
        found = self.situation()
        self.deaf = dies
        self.decision = decide(found)
        self.holds_the_floor(found)
        before = self.status
        intents = self.decision.intents
        if dies:
            intents = intents[: self.chance.randint(0, len(intents))]
            self.trace.append(f"dies after {len(intents)} of {len(self.decision.intents)}")
        done = [intent for intent in intents if self.carry_out(intent)]
        if not dies:
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
            self.passed_its_gate(revision.resolved)
        if isinstance(intent, KeepAdapters):
            before, self.tables = self.tables, dict(intent.tables)
            self.holds_what_fits()
            return before != self.tables
        if isinstance(intent, TellAdapters):
            table = self.tables[intent.pod.labels[names.LABEL_REVISION]]
            assert intent.digest == table_digest(encode(table)), "told of another one's table"
            told = replace(intent.pod, adapters=intent.digest)
            self.pods = [told if pod.uid == told.uid else pod for pod in self.pods]
            return True
        return super().carry_out(intent)

    def passed_its_gate(self, resolved: Resolved) -> None:
        """By the scores that Jobs told, whatever became of their records."""
        gate, accuracy = resolved.gate, resolved.spec.quantization.accuracy
        assert (gate is None) is (accuracy is None)
        if gate is None or accuracy is None or gate.baseline is None:
            return
        assert accuracy.max_drop is not None
        drop = self.measures[gate.baseline.key] - self.measures[gate.score.key]
        assert drop <= accuracy.max_drop + 1e-6, (drop, self.trace[-8:])

    def holds_what_fits(self) -> None:
        """No leader is told of an adapter that its model or its limits cannot take."""
        known = {revision.name: revision.resolved for revision in self.revisions}
        for name, table in self.tables.items():
            spec = known[name].spec
            assert spec.lora is not None or not table.adapters
            for entry in table.adapters:
                facts = ADAPTERS[entry.name]
                assert spec.lora is not None
                assert facts.rank <= spec.lora.max_rank, self.trace[-8:]
                assert facts.layers == known[name].facts.layers, self.trace[-8:]
                assert not (facts.scales and spec.engine.runtime is Runtime.SGLANG)

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
        elif artifact.step == STEP_ADAPTER:
            name = str(artifact.inputs["uri"]).rpartition("/")[2].partition("@")[0]
            told = replace(told, adapter=ADAPTERS[name], commit="abc")
        elif artifact.step == STEP_SCORE:
            score = 68.2 - self.chance.choice([0.2, 2.0, 5.0])
            told = replace(told, score=score, samples=570)
            self.measures[artifact.key] = score
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
    speaks_of_adapters(walk)
    if walk.status.ready_replicas == walk.spec.replicas and found["Ready"].status == "True":
        return
    ready = found["Ready"]
    assert ready.status in ("False", "Unknown") or walk.spec.replicas == 0, walk.trace[-8:]
    assert ready.message, walk.trace[-8:]
    assert ready.reason not in ("", "Unknown", "Pending"), ready


def speaks_of_adapters(walk: Walk) -> None:
    """Each that is asked for is loaded wherever something serves, or told by name with a word."""
    asked = walk.spec.lora.adapters if walk.spec.lora is not None else []
    told = {one.name: one for one in walk.status.adapters}
    accepted = next(one for one in walk.status.conditions if one.type == "Accepted")
    # Of a spec that was refused: what leaders have.
    if accepted.status == "True" and told:
        assert list(told) == [one.name for one in asked], walk.trace[-8:]
    for one in told.values():
        assert one.state in ("Ready", "Invalid", "Failed"), (one, walk.trace[-8:])
        if one.state != "Ready":
            assert one.reason, (one, walk.trace[-8:])
            assert one.message, (one, walk.trace[-8:])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_walk_of_edits_comes_to_rest_with_a_word_and_makes_nothing_twice(seed: int) -> None:
    answered(walked(seed))


@pytest.mark.soak
def test_many_walks_of_edits_come_to_rest_with_a_word_and_make_nothing_twice() -> None:
    for seed in range(SEEDS, 1500):
        answered(walked(seed))
