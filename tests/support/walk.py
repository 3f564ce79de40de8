"""A deployment to which a seed does what users and chance do: edits, failures, a dead operator."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.golden import specs
from tests.support.edits import ADAPTERS, EDITS, MODELS
from tests.support.played import World

from shardwright.api import names
from shardwright.api.asked import AskedSpec
from shardwright.api.serving import Runtime
from shardwright.observe.world import PodView, RecordState
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.groups import slot_of
from shardwright.plan.report import report
from shardwright.plan.revisions import asked_digest
from shardwright.plan.situation import (
    CreatePods,
    CreateStep,
    DeletePod,
    DropStep,
    Intent,
    KeepAdapters,
    LetServe,
    PlaceStep,
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
    STEP_PROOF,
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
        self.flying: dict[str, Report] = {}  # what Jobs that have not ended will have told, by UID
        self.wished: dict[tuple[int, int], str] = {}  # what groups were last wished for as
        self.loading: set[str] = set()  # pods that are not ready yet
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
        went_on = self.go_on()
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
            self.tells_what_stands()
        self.serves_what_is_proven()
        return went_on or bool(done) or self.status != before

    def go_on(self) -> bool:
        """What takes time: Jobs end, pods become ready; whether there is any that may yet."""
        under_way = {job.uid for job in self.jobs if job.active}
        for uid in sorted(uid for uid in under_way if self.chance.random() < 0.3):
            self.land(uid)
        waiting = {pod.uid for pod in self.pods} & self.loading
        ready = {uid for uid in sorted(waiting) if self.chance.random() < 0.3}
        self.loading = waiting - ready
        self.pods = [
            replace(pod, ready=True, started=True, ready_changed=self.now)
            if pod.uid in ready
            else pod
            for pod in self.pods
        ]
        return bool(under_way or waiting)

    def land(self, uid: str) -> None:
        """A Job ends as it was to."""
        told = self.flying.pop(uid)
        worked = told.outcome == DONE
        self.reports[uid] = told
        self.ended.setdefault((told.step, told.key), []).append(worked)
        self.jobs = [
            replace(
                job,
                suspended=False,
                active=0,
                complete=worked,
                failed=not worked,
                finished_at=self.now,
            )
            if job.uid == uid
            else job
            for job in self.jobs
        ]

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
        """What carries the Service's label was proven, as the revision that it is wished for as.

        The pods' own label tells what they were made as: where edits change the gate alone, the
        same pods become another revision's.
        """
        known = {revision.name: revision for revision in self.revisions}
        self.wished |= {(one.index, one.incarnation): one.revision for one in self.status.groups}
        for pod in self.pods:
            if pod.labels.get(names.LABEL_PROTECTED) == "true":
                revision = known[self.wished.get(slot_of(pod), pod.labels[names.LABEL_REVISION])]
                assert self.was_proven(revision.resolved), (pod.name, self.trace[-8:])

    def tells_what_stands(self) -> None:
        """What status names as serving has a replica that serves, where any revision has one."""
        barred = self.decision.memory.rolled_back
        standing = {
            group.revision
            for group in self.decision.findings.groups
            if group.ready and group.serving and group.revision not in barred
        }
        told = self.status.engine
        if standing:
            assert told is not None
            assert told.serving.revision in standing, self.trace[-8:]

    def was_proven(self, resolved: Resolved) -> bool:
        """By what is written down, not by what a pass makes of it."""
        record = self.records.get((resolved.claim_uid, STEP_PROOF, resolved.proof_key))
        return record is not None and record.state is RecordState.READY

    # What becomes of intents.

    def carry_out(self, intent: Intent) -> bool:
        if isinstance(intent, LetServe):
            revision = next(one for one in self.revisions if one.name == intent.group.revision)
            assert self.was_proven(revision.resolved), self.trace[-8:]
            self.passed_its_gate(revision.resolved)
        if isinstance(intent, KeepAdapters):
            before, self.tables = self.tables, dict(intent.tables)
            self.holds_what_fits()
            return before != self.tables
        if isinstance(intent, TellAdapters):
            table = self.tables[intent.pod.labels[names.LABEL_REVISION]]
            assert intent.digest == table_digest(encode(table)), "told of another one's table"
            self.pods = [
                replace(pod, adapters=intent.digest) if pod.uid == intent.pod.uid else pod
                for pod in self.pods
            ]
            return True
        if isinstance(intent, DropStep):
            self.flying.pop(intent.job.uid, None)
            self.jobs = [job for job in self.jobs if job.uid != intent.job.uid]
            return True
        if isinstance(intent, PlaceStep):
            placed = replace(intent.job, suspended=False, node="h0", active=1, started_at=self.now)
            self.jobs = [placed if job.uid == placed.uid else job for job in self.jobs]
            return True
        return super().carry_out(intent)

    def start(self, intent: CreatePods) -> None:
        """Some pods take a while to load."""
        before = len(self.pods)
        super().start(intent)
        if self.chance.random() < 0.4:
            made = [replace(pod, ready=False, started=False) for pod in self.pods[before:]]
            self.pods[before:] = made
            self.loading |= {pod.uid for pod in made}

    def passed_its_gate(self, resolved: Resolved) -> None:
        """By the scores that Jobs told, whatever became of their records."""
        gate, accuracy = resolved.gate, resolved.spec.quantization.accuracy
        assert (gate is None) is (accuracy is None)
        if gate is None or accuracy is None:
            return
        score, least = self.measures[gate.score.key], accuracy.min_score
        if gate.baseline is not None:
            least = self.measures[gate.baseline.key] - (accuracy.max_drop or 0.0)
        assert least is not None
        assert score >= least - 1e-6, (score, least, self.trace[-8:])

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
        what = (artifact.step, artifact.key)
        assert True not in self.ended.get(what, ()), (f"{what} again", self.trace[-8:])
        flying = {(told.step, told.key) for told in self.flying.values()}
        assert what not in flying, (f"{what} twice at once", self.trace[-8:])
        worked = self.chance.random() > 0.2
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
        job = replace(self.jobs[-1], complete=False, suspended=True, created=self.now)
        self.jobs[-1] = job
        self.flying[job.uid] = self.reports.pop(job.uid)
        if self.chance.random() < 0.6:
            self.land(job.uid)
