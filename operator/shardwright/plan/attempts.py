"""One attempt at a step: what its Job has come to, and what the chain asks for in answer.

Also the words in which a chain answers, and what it is judged by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shardwright.api.settings import Timeouts
from shardwright.observe.world import CRASH_LOOP, JobView, NodeView, PodView, Record, Resources
from shardwright.plan.breakage import dead_node
from shardwright.plan.revisions import Records
from shardwright.plan.stepfaults import Blame, Sources, StepFault, step_fault
from shardwright.resolved import Artifact, Score
from shardwright.runner.contract import (
    DONE,
    STEP_ADAPTER,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    STEP_SCORE,
    Report,
)

# A pod that is refused is missing for longer.
_POD_SECONDS = 10.0
_DOING = {
    STEP_MODEL: "Fetching",
    STEP_ADAPTER: "Fetching",
    STEP_CHECKPOINT: "Quantizing",
    STEP_ENGINE: "Building",
    STEP_SCORE: "Measuring",
}

# Inputs of a checkpoint that has fewer bits than the model.
_FEWER_BITS = ("weights", "kvCache", "calibration")


def doing(artifact: Artifact) -> str:
    """What a step does, in one word; a checkpoint of 16 bits is only split into ranks."""
    if artifact.step == STEP_CHECKPOINT and not any(map(artifact.inputs.get, _FEWER_BITS)):
        return "Converting"
    return _DOING[artifact.step]


class Next(StrEnum):
    """What a chain asks for."""

    READY = "Ready"  # everything the revision serves from is there
    CREATE = "Create"  # make the Job of the next attempt
    PLACE = "Place"  # a suspended Job waits for a node
    WAIT = "Wait"  # a Job runs, or goes away
    BACKOFF = "Backoff"  # the environment failed; the next attempt comes later
    RECORD = "Record"  # a Job is done: write down what it made
    FAIL = "Fail"  # a Job failed for good: write that down
    COUNT = "Count"  # a Job failed in its environment: count it in status
    WITHDRAW = "Withdraw"  # a Job found its source damaged: trash that, to be made anew
    STALLED = "Stalled"  # only the user can help


@dataclass(frozen=True, slots=True)
class Tries:
    """What is remembered of a step's failures in its environment."""

    attempts: int = 0
    failures: int = 0
    edit: str = ""
    not_before: float = 0.0
    avoid: tuple[str, ...] = ()
    reason: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """The next thing to do for one revision's artifacts, and the words for status."""

    next: Next
    artifact: Artifact | None = None
    attempt: int = 0
    job: JobView | None = None
    report: Report | None = None
    tries: Tries | None = None  # what to remember, with COUNT
    record: Record | None = None  # the failure record, with STALLED
    discard: JobView | None = None  # a Job whose node died: its pod must not come back
    source: Record | None = None  # what it is made from, with CREATE; what is bad, with WITHDRAW
    also_attempts: tuple[int, ...] = ()  # which ones made what it reads beside, with CREATE
    reason: str = ""
    message: str = ""
    log_tail: str = ""
    delay: float = 0.0
    wish: str = ""  # under which it is tried: of a score without what its gate demands

    @property
    def ready(self) -> bool:
        """Whether pods of the revision may be created."""
        return self.next is Next.READY


@dataclass(frozen=True, slots=True)
class Shop:
    """Everything a chain is judged by."""

    records: Records
    jobs: Sequence[JobView]
    job_pods: Mapping[str, Sequence[PodView]]  # by the Job's uid
    tries: Mapping[tuple[str, str], Tries]  # by (step, key)
    nodes: Mapping[str, NodeView]
    edit: str
    now: float
    jitter: float
    timeouts: Timeouts
    fleet_lost: bool = False
    floors: Mapping[str, Resources] = field(default_factory=dict)  # by step
    asked_again: str = ""  # stands for the value of restartedAt; empty without one


def report_of(job: JobView, shop: Shop) -> Report | None:
    """The report of any of a Job's pods: a pod that was deleted is replaced."""
    pods = shop.job_pods.get(job.uid, ())
    return next((item.report for item in pods if item.report is not None), None)


def judge_job(
    artifact: Artifact, job: JobView, tries: Tries, shop: Shop, sources: Sources
) -> Chain:
    """What the newest attempt asks for; `sources` are the records of what it is made from."""
    pods = shop.job_pods.get(job.uid, ())
    pod = max(pods, key=lambda item: item.created, default=None)
    report = report_of(job, shop)
    if job.complete:
        if report is not None and report.outcome == DONE and report.key == artifact.key:
            return Chain(
                Next.RECORD,
                artifact,
                job.attempt,
                job,
                report,
                reason=doing(artifact),
                message=f"{artifact.step} {artifact.key} is there",
            )
        return _count(
            artifact,
            job,
            tries,
            shop,
            "NoReport",
            f"pod {pod.name if pod else 'of ' + job.name} ended without a report of this key",
        )
    if job.failed:
        fault = step_fault(job, pod, report)
        return _judge_failed(artifact, job, tries, shop, sources, fault, report)
    if job.deleting:
        return Chain(
            Next.WAIT,
            artifact,
            job.attempt,
            job,
            reason="PreviousAttemptEnding",
            message=f"Job {job.name} is being deleted; the next attempt waits for it",
        )
    if job.suspended:
        return Chain(
            Next.PLACE,
            artifact,
            job.attempt,
            job,
            reason=doing(artifact),
            message=f"{doing(artifact).lower()} {artifact.key}: Job {job.name} gets a node",
        )
    where = (pod.node or pod.pin) if pod else job.node
    dead = None if shop.fleet_lost else dead_node(where, shop.nodes, shop.now, shop.timeouts)
    if dead:
        return replace(_count(artifact, job, tries, shop, "NodeLost", dead), discard=job)
    if pod is not None and not pod.node and not pod.finished:
        if shop.now - pod.created >= shop.timeouts.bind_seconds:
            told = f": {pod.unschedulable}" if pod.unschedulable else ""
            cause = f"pod {pod.name} was not bound to {where} in time{told}"
            late = _count(artifact, job, tries, shop, "NotBoundInTime", cause)
            return replace(late, discard=job)
        left = pod.created + shop.timeouts.bind_seconds - shop.now
        return replace(_running(artifact, job, pod, shop.now), delay=left)
    if pod is not None and _crashes(artifact, pod):
        cause = (
            f"pod {pod.name} on {pod.node}: a container that runs beside the step crashes again "
            f"and again: {pod.waiting_message}; check {_image_source(artifact)}"
        )
        return replace(_count(artifact, job, tries, shop, pod.waiting, cause), discard=job)
    return _running(artifact, job, pod, shop.now)


def _crashes(artifact: Artifact, pod: PodView) -> bool:
    """Whether a sidecar that the step cannot do without is started in vain.

    The kubelet tries for ever. Without its server, or before it has begun, a step only waits.
    """
    over = pod.finished or pod.exit_code is not None
    waits = not pod.started or (isinstance(artifact, Score) and artifact.beside is not None)
    return pod.waiting == CRASH_LOOP and waits and not over


def _running(artifact: Artifact, job: JobView, pod: PodView | None, now: float) -> Chain:
    word = doing(artifact)
    if pod is not None and pod.waiting in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
        return Chain(
            Next.WAIT,
            artifact,
            job.attempt,
            job,
            reason="ImagePullFailed",
            message=f"pod {pod.name} on {pod.node}: {pod.waiting}: {pod.waiting_message}; check "
            f"{_image_source(artifact)} and the registry",
        )
    if pod is not None and pod.unschedulable and not pod.node:
        return Chain(
            Next.WAIT,
            artifact,
            job.attempt,
            job,
            reason="Unschedulable",
            message=f"pod {pod.name} is not bound: {pod.unschedulable}",
        )
    if pod is not None and pod.waiting:
        return Chain(
            Next.WAIT,
            artifact,
            job.attempt,
            job,
            reason=pod.waiting,
            message=f"pod {pod.name} on {pod.node}: {pod.waiting}: {pod.waiting_message}",
        )
    where = f" on {pod.node}" if pod is not None and pod.node else ""
    # The Job controller says why it cannot create a pod in events only.
    podless = (
        f": Job {job.name} has no pod yet; if that lasts, a ResourceQuota or an admission policy "
        "refuses it, which the Job's events tell"
    )
    # Every Job is without one for a moment.
    left = 0.0 if pod is not None else max(0.0, job.created + _POD_SECONDS - now)
    return Chain(
        Next.WAIT,
        artifact,
        job.attempt,
        job,
        reason=word,
        message=f"{word.lower()} {artifact.key}{where}, attempt {job.attempt}"
        f"{podless if pod is None and not left else ''}",
        delay=left,
    )


def _image_source(artifact: Artifact) -> str:
    """What names a step's image: models are fetched in the operator's own."""
    if artifact.step == STEP_MODEL:
        return "the operator's setting operatorImage (the chart's image), spec.pod.imagePullSecrets"
    return "spec.engine.image, spec.pod.imagePullSecrets"


def _judge_failed(
    artifact: Artifact,
    job: JobView,
    tries: Tries,
    shop: Shop,
    sources: Sources,
    fault: StepFault,
    report: Report | None,
) -> Chain:
    """A Job that failed: for good, by its source's fault, or to be tried again."""
    if fault.blame is Blame.KEY and report is not None:
        return Chain(
            Next.FAIL,
            artifact,
            job.attempt,
            job,
            report,
            reason=fault.reason,
            message=fault.cause,
            log_tail=report.log_tail,
        )
    bad = sources.to_withdraw(job, report) if fault.blame is Blame.SOURCE else None
    if bad is not None:
        return Chain(
            Next.WITHDRAW,
            artifact,
            job.attempt,
            job,
            source=bad,
            reason=fault.reason,
            message=fault.cause,
        )
    return _count(artifact, job, tries, shop, fault.reason, fault.cause)


def _count(
    artifact: Artifact, job: JobView, tries: Tries, shop: Shop, reason: str, cause: str
) -> Chain:
    failures = tries.failures + 1
    delay = shop.timeouts.step_backoff_seconds * 2 ** (failures - 1) * (1 + shop.jitter / 4)
    avoid = tuple(dict.fromkeys([*([job.node] if job.node else []), *tries.avoid]))[:4]
    counted = Tries(
        attempts=job.attempt,
        failures=failures,
        edit=shop.edit,
        not_before=shop.now + delay,
        avoid=avoid,
        reason=reason,
        cause=cause,
    )
    return Chain(
        Next.COUNT, artifact, job.attempt, job, tries=counted, reason=reason, message=cause
    )
