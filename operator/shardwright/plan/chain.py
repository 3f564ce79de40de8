"""The artifact chain of a revision: what is there, what is being made, what to do next.

A step Job is step + key + attempt. Its outcome is read from the report in its pod's termination
message: done → a record; permanent → a failure record, not repeated until the key changes;
anything else (a lost node, an eviction, an image pull, no report) → the environment's fault, tried
again elsewhere after a backoff, five times. An artifact that is recorded needs nothing of what it
was made from, so a kept engine is served without its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from shardwright.api.settings import Timeouts
from shardwright.observe.world import JobView, NodeView, PodView, Record, RecordState
from shardwright.plan.collection import leaving, restorable
from shardwright.plan.groups import dead_node
from shardwright.plan.revisions import Records
from shardwright.plan.times import stamp
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import (
    DONE,
    PERMANENT,
    REASON_ACCESS_DENIED,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    Report,
)

MAX_REBUILDS = 2
# Not repeated for ever, but not held against the key either: the user mends a Secret or a
# permission, and the key stays the same.
_MENDABLE = frozenset({REASON_ACCESS_DENIED})

DOING = {STEP_MODEL: "Fetching", STEP_CHECKPOINT: "Quantizing", STEP_ENGINE: "Building"}


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
    reason: str = ""
    message: str = ""
    log_tail: str = ""
    delay: float = 0.0

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


def missing(resolved: Resolved, records: Records) -> tuple[Artifact, ...]:
    """Artifacts to be made, in build order: the served one, what it lacks, and the model."""
    by_key = {artifact.key: artifact for artifact in resolved.artifacts}
    lacking: list[Artifact] = []

    def need(key: str) -> None:
        artifact = by_key.get(key)
        if artifact is None or artifact in lacking or _there(resolved, artifact, records):
            return
        record = records.get((resolved.claim_uid, artifact.step, artifact.key))
        comes_back = record is not None and restorable(record)
        if artifact.step != STEP_MODEL and not comes_back:
            need(artifact.source_key)
        lacking.append(artifact)

    need(resolved.model_key)
    need(resolved.serve_key)
    return tuple(lacking)


def _there(resolved: Resolved, artifact: Artifact, records: Records) -> bool:
    record = records.get((resolved.claim_uid, artifact.step, artifact.key))
    return record is not None and record.state is RecordState.READY


def judge(resolved: Resolved, shop: Shop) -> Chain:
    """What the revision's chain asks for next."""
    lacking = missing(resolved, shop.records)
    if not lacking:
        return Chain(Next.READY)
    return judge_artifact(resolved.claim_uid, lacking[0], shop)


def judge_artifact(claim_uid: str, artifact: Artifact, shop: Shop) -> Chain:
    """What one artifact that is not there asks for next."""
    record = shop.records.get((claim_uid, artifact.step, artifact.key))
    if record is not None and record.state is RecordState.FAILED:
        return Chain(
            Next.STALLED,
            artifact,
            record=record,
            reason=record.reason or "StepFailed",
            message=f"{artifact.step} {artifact.key} failed for good: {record.message}",
            log_tail=record.log_tail,
        )
    if record is not None and (collected := _collected(artifact, record)) is not None:
        return collected
    if record is not None and record.rebuilds > MAX_REBUILDS:
        return Chain(
            Next.STALLED,
            artifact,
            record=record,
            reason="ArtifactUnusable",
            message=f"{artifact.step} {artifact.key} was rebuilt {MAX_REBUILDS} times and its "
            f" files were found bad again: {record.message}; check the storage, then delete"
            f" ConfigMap {record.name}",
        )
    base = record.attempt if record is not None else 0
    jobs = sorted(
        (
            job
            for job in shop.jobs
            if (job.claim_uid, job.step, job.key) == (claim_uid, artifact.step, artifact.key)
            and job.attempt > base
        ),
        key=lambda job: job.attempt,
    )
    tries = shop.tries.get((artifact.step, artifact.key), Tries())
    if tries.edit != shop.edit and _spent(tries, shop):
        tries = Tries(attempts=tries.attempts)
    live = [job for job in jobs if job.attempt > tries.attempts]
    if live:
        return _judge_job(artifact, live[-1], tries, shop)
    attempt = max(base, tries.attempts, *(job.attempt for job in jobs), 0) + 1
    # A Job goes when its pod is gone; on a dead node that may be never, and nothing runs there.
    ending = [
        job
        for job in jobs
        if job.deleting
        and job.active
        and dead_node(job.node, shop.nodes, shop.now, shop.timeouts) is None
    ]
    if ending:
        return Chain(
            Next.WAIT,
            artifact,
            job=ending[0],
            reason="PreviousAttemptEnding",
            message=f"attempt {ending[0].attempt} of {artifact.step} is still ending",
        )
    if _spent(tries, shop):
        return Chain(
            Next.STALLED,
            artifact,
            reason=tries.reason or "StepFailed",
            message=f"{artifact.step} {artifact.key} failed {tries.failures} times: {tries.cause}; "
            "mend the cause, then edit the spec or set the annotation shardwright.dev/restartedAt",
        )
    if shop.now < tries.not_before:
        return Chain(
            Next.BACKOFF,
            artifact,
            attempt=attempt,
            reason=tries.reason or "StepRetrying",
            message=f"{artifact.step} failed {tries.failures} of {shop.timeouts.step_attempts} "
            f"times, next try after {stamp(tries.not_before)}: {tries.cause}",
            delay=tries.not_before - shop.now,
        )
    return Chain(
        Next.CREATE,
        artifact,
        attempt=attempt,
        reason=DOING[artifact.step],
        message=f"{DOING[artifact.step].lower()} {artifact.key}",
    )


def _collected(artifact: Artifact, record: Record) -> Chain | None:
    """Nothing named it for a while: it comes back from the trash, or is waited for to be gone."""
    what = f"{artifact.step} {artifact.key}"
    if restorable(record):
        message = f"{what} was collected while nothing named it and is brought back from the trash"
        return Chain(Next.WAIT, artifact, reason="Restoring", message=message)
    if leaving(record):
        message = f"{what} was collected while nothing named it; it is made anew once it is deleted"
        return Chain(Next.WAIT, artifact, reason="Purging", message=message)
    return None


def _spent(tries: Tries, shop: Shop) -> bool:
    return tries.failures >= shop.timeouts.step_attempts


def _judge_job(artifact: Artifact, job: JobView, tries: Tries, shop: Shop) -> Chain:
    pods = shop.job_pods.get(job.uid, ())
    pod = max(pods, key=lambda item: item.created, default=None)
    report = next((item.report for item in pods if item.report is not None), None)
    if job.complete:
        if report is not None and report.outcome == DONE and report.key == artifact.key:
            return Chain(
                Next.RECORD,
                artifact,
                job.attempt,
                job,
                report,
                reason=DOING[artifact.step],
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
        if report is not None and report.outcome == PERMANENT and report.reason not in _MENDABLE:
            return Chain(
                Next.FAIL,
                artifact,
                job.attempt,
                job,
                report,
                reason=report.reason,
                message=report.message,
                log_tail=report.log_tail,
            )
        return _count(artifact, job, tries, shop, *_why(job, pod, report))
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
            reason=DOING[artifact.step],
            message=f"{DOING[artifact.step].lower()} {artifact.key}: Job {job.name} gets a node",
        )
    where = (pod.node or pod.pin) if pod else job.node
    dead = None if shop.fleet_lost else dead_node(where, shop.nodes, shop.now, shop.timeouts)
    if dead:
        chain = _count(artifact, job, tries, shop, "NodeLost", dead)
        return Chain(
            chain.next,
            artifact,
            job.attempt,
            job,
            tries=chain.tries,
            discard=job,
            reason=chain.reason,
            message=chain.message,
        )
    if pod is not None and not pod.node and not pod.finished:
        if shop.now - pod.created >= shop.timeouts.bind_seconds:
            told = f": {pod.unschedulable}" if pod.unschedulable else ""
            cause = f"pod {pod.name} was not bound to {where} in time{told}"
            late = _count(artifact, job, tries, shop, "NotBoundInTime", cause)
            return replace(late, discard=job)
        left = pod.created + shop.timeouts.bind_seconds - shop.now
        return replace(_running(artifact, job, pod), delay=left)
    return _running(artifact, job, pod)


def _running(artifact: Artifact, job: JobView, pod: PodView | None) -> Chain:
    doing = DOING[artifact.step]
    if pod is not None and pod.waiting in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName"):
        return Chain(
            Next.WAIT,
            artifact,
            job.attempt,
            job,
            reason="ImagePullFailed",
            message=f"pod {pod.name} on {pod.node}: {pod.waiting}: {pod.waiting_message}; check "
            "spec.engine.image, spec.pod.imagePullSecrets and the registry",
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
    where = f" on {pod.node}" if pod is not None and pod.node else ""
    # The Job controller says why it cannot create a pod in events only.
    podless = (
        f": Job {job.name} has no pod yet; if that lasts, a ResourceQuota or an admission policy "
        "refuses it, which the Job's events tell"
    )
    return Chain(
        Next.WAIT,
        artifact,
        job.attempt,
        job,
        reason=doing,
        message=f"{doing.lower()} {artifact.key}{where}, attempt {job.attempt}"
        f"{podless if pod is None else ''}",
    )


def _why(job: JobView, pod: PodView | None, report: Report | None) -> tuple[str, str]:
    """(reason, cause) of a failure that is not the step's own."""
    if report is not None and report.reason:
        return report.reason, report.message
    if pod is not None and pod.disrupted:
        return "Evicted", f"pod {pod.name} was evicted from {pod.node}: {pod.disrupted}"
    if pod is not None and pod.exit_reason:
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        return pod.exit_reason, f"pod {pod.name} on {pod.node} ended: {pod.exit_reason}{code}"
    return job.failure_reason or "StepFailed", job.failure_message or f"Job {job.name} failed"


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
