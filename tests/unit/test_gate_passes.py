"""Passes over a deployment with an accuracy gate: what is measured when, and what serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.fleet import gpu_node

from shardwright.api import names
from shardwright.api.asked import AskedSpec
from shardwright.api.settings import Settings
from shardwright.api.status import LLMDeploymentStatus
from shardwright.observe.world import (
    DeploymentView,
    JobView,
    NodeView,
    PodView,
    Record,
    RecordState,
)
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.report import report
from shardwright.plan.resolve import model_key
from shardwright.plan.revisions import Revision, asked_digest
from shardwright.plan.situation import (
    CreatePods,
    CreateStep,
    Decision,
    DeletePod,
    Intent,
    LetServe,
    MakeRevision,
    PruneRevision,
    RaiseRevision,
    Situation,
    WriteRecord,
)
from shardwright.runner.contract import DONE, STEP_MODEL, STEP_SCORE, Report

MMLU = {"task": "mmlu", "samples": 570}
IMAGE = "registry.example.com/lm-eval:0.4.9.2"


class World:
    """Carries out what passes intend: Jobs end at once, pods are ready as soon as they exist.

    `scores` is what a score's Job reports: by the backend that it measured.
    """

    def __init__(self, **scores: float) -> None:
        self.scores = scores
        self.settings = Settings(evaluation_image=IMAGE)
        self.nodes: dict[str, NodeView] = {
            f"h{number}": gpu_node(f"h{number}", 8, inventory={"compute": (9, 0)})
            for number in range(6)
        }
        self.status = LLMDeploymentStatus()
        self.revisions: list[Revision] = []
        self.records: dict[tuple[str, str, str], Record] = {}
        self.pods: list[PodView] = []
        self.jobs: list[JobView] = []
        self.reports: dict[str, Report] = {}
        self.measured: list[str] = []  # what scores were taken of, in order
        self.asked: list[str] = []  # pods that scores asked
        self.made: list[str] = []  # steps
        self.born = 0
        self.generation = 0
        self.spec: AskedSpec
        self.decision: Decision

    def edit(self, accuracy: dict[str, Any] | None = None, **changes: Any) -> None:
        quantization = {"weights": "FP8", **changes.pop("quantization", {})}
        if accuracy is not None:
            quantization["accuracy"] = accuracy
        base: dict[str, Any] = {
            "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"},
            "engine": {"backend": "TensorRT"},
            "gpu": {"product": specs.H100},
            "parallelism": {"tensor": 1, "pipeline": 1},
            "storage": {"claimName": "models"},
            "quantization": quantization,
        }
        self.spec = AskedSpec.read({**base, **changes})
        self.generation += 1
        key = (specs.CLAIM.uid, STEP_MODEL, model_key(self.spec))
        self.records.setdefault(
            key,
            Record(
                STEP_MODEL,
                key[2],
                specs.CLAIM.uid,
                RecordState.READY,
                commit="abc",
                facts=specs.LLAMA_8B,
            ),
        )
        self.settle()

    def situation(self) -> Situation:
        return Situation(
            now=1000.0,
            jitter=0.0,
            settings=self.settings,
            deployment=DeploymentView(
                "llm", "llama", "uid", generation=self.generation, resource_version=1
            ),
            spec=self.spec,
            spec_error="",
            spec_digest=asked_digest(self.spec),
            status=self.status,
            claims={"models": specs.CLAIM},
            missing_secrets=(),
            revisions=tuple(sorted(self.revisions, key=lambda one: one.number)),
            pods=tuple(self.pods),
            jobs=tuple(self.jobs),
            job_pods={
                job.uid: (PodView("llm", job.name, f"p-{job.uid}", report=self.reports[job.uid]),)
                for job in self.jobs
            },
            records=dict(self.records),
            nodes=self.nodes,
        )

    def settle(self) -> None:
        """Passes until one intends nothing and status stays as it is."""
        for _ in range(80):
            found = self.situation()
            self.decision = decide(found)
            before = self.status
            done = [intent for intent in self.decision.intents if self.carry_out(intent)]
            self.status = report(found, self.decision, Outcome())
            if not done and self.status == before:
                return
        raise AssertionError(self.decision)

    def carry_out(self, intent: Intent) -> bool:
        match intent:
            case MakeRevision(revision):
                self.revisions.append(replace(revision, uid=f"uid-{revision.name}"))
            case RaiseRevision(revision, number):
                self.revisions.remove(revision)
                self.revisions.append(replace(revision, number=number))
            case PruneRevision(revision):
                self.revisions.remove(revision)
            case WriteRecord(record):
                self.records[record.claim_uid, record.step, record.key] = record
            case CreateStep():
                self.run(intent)
            case CreatePods():
                self.start(intent)
            case LetServe(group):
                labels = {names.LABEL_PROTECTED: "true", names.LABEL_SERVING: "true"}
                gone = {pod.uid for pod in group.pods}
                self.pods = [
                    replace(pod, labels={**pod.labels, **labels}) if pod.uid in gone else pod
                    for pod in self.pods
                ]
            case DeletePod(pod):
                self.pods = [one for one in self.pods if one.uid != pod.uid]
            case _:
                return False
        return True

    def run(self, intent: CreateStep) -> None:
        artifact = intent.artifact
        self.made.append(artifact.step)
        told = Report(DONE, step=artifact.step, key=artifact.key)
        if artifact.step == STEP_SCORE:
            backend = str(artifact.inputs["of"]["backend"])  # type: ignore[index]
            self.measured.append(backend)
            self.asked.append(intent.leader)
            told = replace(told, score=self.scores[backend], samples=570)
        uid = f"job-{len(self.jobs)}"
        self.reports[uid] = told
        self.jobs.append(
            JobView(
                "llm",
                uid,
                uid,
                step=artifact.step,
                key=artifact.key,
                attempt=intent.attempt,
                claim_uid=specs.CLAIM.uid,
                owners=("uid",),
                complete=True,
            )
        )

    def start(self, intent: CreatePods) -> None:
        wish = intent.wish
        serving = {names.LABEL_PROTECTED: "true"} if intent.serving else {}
        for stage in intent.stages:
            self.born += 1
            labels = {
                names.LABEL_REPLICA: str(wish.index),
                names.LABEL_INCARNATION: str(wish.incarnation),
                names.LABEL_STAGE: str(stage),
                names.LABEL_REVISION: wish.revision,
                **serving,
            }
            name = f"llama-{wish.index}-{wish.incarnation}-{stage}"
            self.pods.append(
                PodView(
                    "llm",
                    name,
                    f"uid-{name}",
                    labels=labels,
                    node=f"h{self.born % 6}",
                    phase="Running",
                    ready=True,
                    started=True,
                    created=900.0,
                    bound_at=901.0,
                    ready_changed=950.0,
                )
            )

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = next(one for one in self.status.conditions if one.type == kind)
        return found.status, found.reason, found.message

    @property
    def serving(self) -> str:
        assert self.status.engine is not None
        return self.status.engine.serving.key


def failed_after_serving() -> World:
    """FP8 serves, and INT4 AWQ fails its gate."""
    world = World(TensorRT=65.8, PyTorch=68.2)
    world.edit()
    world.edit({**MMLU, "maxDrop": 1.0}, quantization={"weights": "INT4AWQ"})
    return world


def test_an_engine_whose_scores_pass_serves_and_status_shows_them() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit({**MMLU, "maxDrop": 1.0})
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert world.measured == ["TensorRT", "PyTorch"]
    assert world.asked == ["", ""]  # trtllm-eval loads a copy of its own
    engine = world.status.engine
    assert engine is not None
    shown = engine.serving.accuracy
    assert shown is not None
    assert (shown.task, shown.score, shown.baseline, shown.samples) == ("mmlu", 67.9, 68.2, 570)
    assert (shown.passed, shown.limit, shown.measured) == (
        True,
        "maxDrop 1",
        "1970-01-01T00:16:40Z",
    )
    assert "67.90" in world.condition("EngineReady")[2]


def test_an_engine_made_worse_never_has_a_pod_and_the_old_one_goes_on() -> None:
    world = World(TensorRT=65.8, PyTorch=68.2)
    world.edit()
    pods, serving = list(world.pods), world.serving
    world.edit({**MMLU, "maxDrop": 1.0}, quantization={"weights": "INT4AWQ"})
    assert world.pods == pods
    assert world.serving == serving
    status, reason, message = world.condition("Stalled")
    assert (status, reason) == ("True", "AccuracyTooLow")
    assert world.condition("Available")[0] == "True"
    for words in (
        "mmlu 65.80 over 570 samples",
        "baseline 68.20",
        "maxDrop 1",
        "fails by 1.40",
        "try quantization.weights FP8",
        "goes on serving",
    ):
        assert words in message
    assert world.status.engine is not None
    assert world.status.engine.next is not None
    shown = world.status.engine.next.accuracy
    assert shown is not None
    assert (shown.score, shown.baseline, shown.passed) == (65.8, 68.2, False)


def test_what_was_found_is_remembered_when_the_spec_comes_back() -> None:
    world = failed_after_serving()
    measured = list(world.measured)
    world.edit()
    assert world.condition("Ready")[0] == "True"
    world.edit({**MMLU, "maxDrop": 1.0}, quantization={"weights": "INT4AWQ"})
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.measured == measured


def test_a_looser_limit_is_judged_by_the_kept_scores() -> None:
    world = failed_after_serving()
    measured = list(world.measured)
    world.edit({**MMLU, "maxDrop": 3.0}, quantization={"weights": "INT4AWQ"})
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert world.measured == measured


def test_a_tighter_limit_over_what_serves_takes_nothing_down() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit({**MMLU, "maxDrop": 1.0})
    pods, measured = list(world.pods), list(world.measured)
    world.edit({**MMLU, "maxDrop": 0.1})
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.pods == pods
    assert world.measured == measured
    world.edit({**MMLU, "maxDrop": 0.5})
    assert world.condition("Ready")[0] == "True"
    assert world.pods == pods
    assert world.measured == measured


def test_a_gate_over_what_serves_asks_for_scores_and_replaces_no_pod() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit(replicas=3)
    pods = list(world.pods)
    world.edit({**MMLU, "maxDrop": 1.0}, replicas=3)
    assert world.condition("Ready")[0] == "True"
    assert world.pods == pods
    assert {group.revision for group in world.status.groups} == {world.revisions[-1].name}
    world.edit(replicas=3)
    assert world.condition("Ready")[0] == "True"
    assert world.pods == pods


def test_a_revision_whose_name_pods_still_carry_is_kept() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit()
    first = world.revisions[0].name
    for drop in range(1, 15):
        world.edit({**MMLU, "maxDrop": float(drop)})
    assert world.pods[0].labels[names.LABEL_REVISION] == first
    assert first in {revision.name for revision in world.revisions}
    assert world.condition("Ready")[0] == "True"


def test_a_given_baseline_is_not_measured() -> None:
    world = World(TensorRT=67.9)
    world.edit({**MMLU, "maxDrop": 1.0, "baseline": "70"})
    assert world.measured == ["TensorRT"]
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.pods == []


def test_an_engine_of_several_stages_is_asked_where_it_runs() -> None:
    world = World(TensorRT=40.0)
    world.edit({"task": "gsm8k", "minScore": 50.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert world.asked == ["llama-0-1-0"]
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.pods == []  # the candidate gives its GPUs back
    world.edit({"task": "gsm8k", "minScore": 30.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert world.condition("Ready")[0] == "True"
    assert len(world.asked) == 1


def test_a_candidate_gets_no_requests_before_its_scores_are_in() -> None:
    world = World(TensorRT=60.0)
    serve: list[bool] = []
    whole = world.run

    def run(intent: CreateStep) -> None:
        if intent.artifact.step == STEP_SCORE:
            serve.append(any(names.LABEL_PROTECTED in pod.labels for pod in world.pods))
        whole(intent)

    world.run = run  # type: ignore[method-assign]
    world.edit({"task": "gsm8k", "minScore": 50.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert serve == [False]
    assert world.condition("Ready")[0] == "True"
    assert all(names.LABEL_PROTECTED in pod.labels for pod in world.pods)


def test_scores_that_fail_for_good_stall_and_free_the_candidate() -> None:
    world = World(TensorRT=60.0)

    def run(intent: CreateStep) -> None:
        World.run(world, intent)
        job = world.jobs[-1]
        if job.step == STEP_SCORE:
            world.jobs[-1] = replace(job, complete=False, failed=True)
            world.reports[job.uid] = Report(
                "Permanent", reason="NoScore", message="told no score", step=job.step, key=job.key
            )

    world.run = run  # type: ignore[method-assign]
    world.edit({"task": "gsm8k", "minScore": 50.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert world.condition("Stalled")[:2] == ("True", "NoScore")
    assert world.pods == []


@pytest.mark.parametrize(
    ("accuracy", "reason"),
    [
        ({"task": "perplexity", "maxPerplexity": 9.0, "dataset": "t"}, "AccuracyTaskNotSupported"),
        ({**MMLU, "maxDrop": 1.0}, "BaselineUnavailable"),
    ],
)
def test_a_gate_that_cannot_be_is_refused_before_anything_is_built(
    accuracy: dict[str, Any], reason: str
) -> None:
    world = World()
    world.edit()
    made, pods = list(world.made), list(world.pods)
    split = {"tensor": 2, "pipeline": 2} if reason == "BaselineUnavailable" else {"tensor": 1}
    world.edit(accuracy, quantization={"weights": "INT4AWQ"}, parallelism={"pipeline": 1, **split})
    assert world.condition("Accepted")[:2] == ("False", reason)
    assert (world.made, world.pods) == (made, pods)
