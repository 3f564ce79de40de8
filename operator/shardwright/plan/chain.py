"""The artifact chain of a revision: what is there, what is being made, what to do next.

A step Job is step + key + attempt. Its outcome is read from the report in its pod's termination
message: done → a record; permanent → a failure record, not repeated until the key changes or the
user asks for it (`restartedAt`); its source damaged → that is withdrawn and made anew; out of
memory → once more, then only with more; anything else (a lost node, an eviction, an image pull, no
report) → the environment's fault, tried again elsewhere after a backoff, five times. An artifact
that is recorded needs nothing of what it was made from, so a kept engine is served without its
checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.observe.world import JobView, Record, RecordState
from shardwright.plan.attempts import Chain, Next, Shop, Tries, doing, judge_job, report_of
from shardwright.plan.breakage import dead_node
from shardwright.plan.collection import UNUSABLE, leaving, restorable
from shardwright.plan.gate import unscored
from shardwright.plan.revisions import Records, cured, proven, ungated_wish
from shardwright.plan.stepfaults import (
    MEMORY_ATTEMPTS,
    at_least,
    memory_raised,
    outdated,
    sources_of,
)
from shardwright.plan.times import stamp
from shardwright.resolved import Artifact, Resolved, Score
from shardwright.runner.contract import REASON_OUT_OF_MEMORY, STEP_MODEL

MAX_REBUILDS = 2
_AGAIN = "once mended, set the annotation shardwright.dev/restartedAt to try it again"
_OUTCOMES = (Next.RECORD, Next.FAIL, Next.COUNT, Next.WITHDRAW)  # of a Job that has ended
_UNDER_WAY = (Next.CREATE, Next.PLACE, Next.WAIT, Next.BACKOFF)


def missing(resolved: Resolved, records: Records) -> tuple[Artifact, ...]:
    """Artifacts to be made, in build order: the served one, what it lacks, and the models."""
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
    for key in resolved.also:
        need(key)
    need(resolved.serve_key)
    return tuple(lacking)


def _there(resolved: Resolved, artifact: Artifact, records: Records) -> bool:
    record = records.get((resolved.claim_uid, artifact.step, artifact.key))
    return record is not None and record.state is RecordState.READY


def judge(resolved: Resolved, shop: Shop) -> Chain:
    """What the revision's chain asks for next.

    Scores that need no replica come last, before any candidate: so an engine that answers badly
    never takes a candidate's GPUs, and the two never need GPUs at the same time.
    """
    lacking: Sequence[Artifact] = missing(resolved, shop.records)
    if not lacking and not proven(resolved, shop.records):
        lacking = unscored(resolved, shop.records, asks_leader=False)
    if not lacking:
        return Chain(Next.READY)
    return _judge_one(resolved, lacking[0], shop)


def scoring(resolved: Resolved, shop: Shop, *, answers: bool, wanted: bool) -> Chain | None:
    """What the scores ask for that a replica is asked for; None when nothing is to be measured now.

    `answers`: such a replica is ready. Without one nothing new is begun. `wanted`: there is to be
    one. Without that nothing is waited for either, and a Job that still asks one is given up.
    """
    lacking = to_ask(resolved, shop.records)
    if not lacking:
        return None
    found = _judge_one(resolved, lacking[0], shop)
    if not wanted:
        return found if found.next in _OUTCOMES else None
    return found if answers or found.next not in (Next.CREATE, Next.PLACE) else None


def to_ask(resolved: Resolved, records: Records) -> tuple[Score, ...]:
    """Scores that a replica is yet to be asked for; none once the proof is there."""
    if proven(resolved, records):
        return ()
    return unscored(resolved, records, asks_leader=True)


def _judge_one(resolved: Resolved, artifact: Artifact, shop: Shop) -> Chain:
    wish = ungated_wish(resolved) if isinstance(artifact, Score) else ""
    return judge_artifact(resolved.claim_uid, artifact, shop, wish)


def judge_artifact(claim_uid: str, artifact: Artifact, shop: Shop, wish: str = "") -> Chain:
    """What one artifact that is not there asks for next; of one that was bad also what was.

    What failed for good is tried once more each time the user asks for it (`Shop.asked_again`):
    what a tool failed at may have passed. A score's key holds what decides it, and not all that
    decides whether it can be measured (how much memory a server takes, whether it trusts a model's
    code): it is tried once more under any other `wish`.
    """
    artifact = at_least(artifact, shop.floors)
    record = shop.records.get((claim_uid, artifact.step, artifact.key))
    wish = wish or shop.asked_again
    found = replace(_judge_recorded(claim_uid, artifact, record, shop, wish), wish=wish)
    if record is None or record.reason != UNUSABLE or found.next not in _UNDER_WAY:
        return found
    # The group that found it is gone by now: nothing else in status tells why it is made again.
    why = f"made again, {record.rebuilds} of {MAX_REBUILDS} times: {record.message}"
    return replace(found, message=f"{found.message}; {why}")


def _judge_recorded(
    claim_uid: str, artifact: Artifact, record: Record | None, shop: Shop, wish: str
) -> Chain:
    if record is not None and record.state is RecordState.FAILED and not cured(record, wish):
        return Chain(
            Next.STALLED,
            artifact,
            record=record,
            reason=record.reason or "StepFailed",
            message=f"{artifact.step} {artifact.key} failed for good: {record.message}; {_AGAIN}",
            log_tail=record.log_tail,
        )
    if record is not None and (collected := _collected(artifact, record)) is not None:
        return collected
    if record is not None and record.rebuilds > MAX_REBUILDS:
        return Chain(
            Next.STALLED,
            artifact,
            record=record,
            reason=UNUSABLE,
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
    sources = sources_of(artifact, claim_uid, shop.records)
    tries = _eased(artifact, jobs, shop)
    live = [
        job
        for job in jobs
        if job.attempt > tries.attempts and not outdated(job, report_of(job, shop), sources)
    ]
    if live:
        return judge_job(artifact, live[-1], tries, shop, sources)
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
        return _stalled(artifact, tries)
    if shop.now < tries.not_before:
        return Chain(
            Next.BACKOFF,
            artifact,
            attempt=attempt,
            reason=tries.reason or "StepRetrying",
            message=f"{artifact.step} failed {tries.failures} of {_limit(tries, shop)} "
            f"times, next try after {stamp(tries.not_before)}: {tries.cause}",
            delay=tries.not_before - shop.now,
        )
    return Chain(
        Next.CREATE,
        artifact,
        attempt=attempt,
        source=sources.source,
        also_attempts=sources.also_attempts,
        reason=doing(artifact),
        message=f"{doing(artifact).lower()} {artifact.key}",
    )


def _eased(artifact: Artifact, jobs: Sequence[JobView], shop: Shop) -> Tries:
    """What is held against a step still, after an edit or with more memory than it had."""
    tries = shop.tries.get((artifact.step, artifact.key), Tries())
    last = next((job for job in jobs if job.attempt == tries.attempts), None)
    edited = tries.edit != shop.edit and _spent(tries, shop)
    raised = tries.reason == REASON_OUT_OF_MEMORY and memory_raised(artifact, last)
    return Tries(attempts=tries.attempts) if edited or raised else tries


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
    return tries.failures >= _limit(tries, shop)


def _limit(tries: Tries, shop: Shop) -> int:
    """How often a step may fail before somebody has to change something."""
    limit = shop.timeouts.step_attempts
    return min(limit, MEMORY_ATTEMPTS) if tries.reason == REASON_OUT_OF_MEMORY else limit


def _stalled(artifact: Artifact, tries: Tries) -> Chain:
    """The tries are spent: only somebody else can help."""
    mend = "mend the cause, then"
    if tries.reason == REASON_OUT_OF_MEMORY:
        mend = "it goes on by itself with more memory; to try again with the same,"
    return Chain(
        Next.STALLED,
        artifact,
        reason=tries.reason or "StepFailed",
        message=f"{artifact.step} {artifact.key} failed {tries.failures} times: {tries.cause}; "
        f"{mend} edit the spec or set the annotation shardwright.dev/restartedAt",
    )
