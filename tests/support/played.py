"""A deployment whose passes are carried out at once: Jobs end, pods are ready, nothing fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

    `scores` is what a score's Job reports: by the backend that it measured, or the precision where
    the runtime has none (`plain` for the 16-bit model).
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
        self.started = 0  # Jobs
        self.generation = 0
        self.fetched = True  # whether the model is there from the start
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
        there = Record(
            STEP_MODEL,
            key[2],
            specs.CLAIM.uid,
            RecordState.READY,
            commit="abc",
            facts=specs.LLAMA_8B,
            attempt=1,
        )
        if self.fetched:
            self.records.setdefault(key, there)
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
                if job.uid in self.reports
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
        if artifact.step == STEP_MODEL:
            told = replace(told, facts=specs.LLAMA_8B, commit="abc")
        if artifact.step == STEP_SCORE:
            backend = _measured(artifact.inputs["of"])
            self.measured.append(backend)
            self.asked.append(intent.leader)
            told = replace(told, score=self.scores[backend], samples=570)
        self.report(intent, told)

    def report(self, intent: CreateStep, told: Report) -> None:
        """The Job of a step, ended with this report."""
        artifact = intent.artifact
        self.started += 1
        uid = f"job-{self.started}"
        self.reports[uid] = told
        self.jobs.append(
            JobView(
                "llm",
                uid,
                uid,
                step=artifact.step,
                key=artifact.key,
                attempt=intent.attempt,
                source_attempt=intent.source_attempt,
                also_attempts=intent.also_attempts,
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


def _measured(of: object) -> str:
    assert isinstance(of, dict)
    return str(of.get("backend") or of.get("weights") or "plain")
