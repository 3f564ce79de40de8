"""Whose fault it is that a step's Job failed, and so what has to change before another attempt.

The step's own report goes first; where there is none the kubelet's words count, then the Job's. A
step that ran out of host memory does so again under the same limit, on whatever node: its pod's
requests are its limits, so that the node's own shortage reaches it last. A step that finds what it
is made from damaged can be run a hundred times in vain: that has to be made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from shardwright.api.settings import FetchResources, Settings, StepResources
from shardwright.observe.quantity import to_millis, to_whole
from shardwright.observe.world import JobView, PodView, Record, Resources
from shardwright.plan.breakage import OOM_KILLED, words_of_end, words_of_eviction
from shardwright.plan.revisions import Records
from shardwright.resolved import Artifact, Score
from shardwright.runner.contract import (
    ARTIFACT_FAULTS,
    FETCHED,
    PERMANENT,
    REASON_ACCESS_DENIED,
    REASON_DATASET_NOT_FOUND,
    REASON_OUT_OF_MEMORY,
    STEP_ADAPTER,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    STEP_SCORE,
    Report,
)

# One more than the first: elsewhere it may have been the node that had none left.
MEMORY_ATTEMPTS = 2
# Not repeated for ever, but not held against the key either: the user mends a Secret or a
# permission, or brings the data, and the key stays the same.
_MENDABLE = frozenset({REASON_ACCESS_DENIED, REASON_DATASET_NOT_FOUND})
_MADE_FROM = {STEP_ENGINE: STEP_CHECKPOINT, STEP_CHECKPOINT: STEP_MODEL}
_MEMORY_FIELD = dict.fromkeys(FETCHED, "fetchResources.memory")


class Blame(StrEnum):
    """What has to change before another attempt can end otherwise."""

    KEY = "Key"  # nothing but another key
    SOURCE = "Source"  # what it is made from
    MEMORY = "Memory"  # the step's memory limit
    SURROUNDINGS = "Surroundings"  # the node, the network, a permission: or nothing, but later


@dataclass(frozen=True, slots=True)
class StepFault:
    """Why a step's Job failed: a stable reason, and the cause in words."""

    blame: Blame
    reason: str
    cause: str


def step_fault(job: JobView, pod: PodView | None, report: Report | None) -> StepFault:
    """The fault of a failed Job, from its last pod and from the report of any of its pods."""
    if report is not None and report.reason:
        return StepFault(_blame(report), report.reason, report.message)
    if pod is not None and pod.disrupted:
        return StepFault(Blame.SURROUNDINGS, "Evicted", words_of_eviction(pod))
    if pod is not None and pod.exit_reason:
        cause = words_of_end(pod)
        if pod.exit_reason != OOM_KILLED:
            return StepFault(Blame.SURROUNDINGS, pod.exit_reason, cause)
        # The kernel has killed the whole container, its runner too: nobody was left to report.
        # The container that ended: a server beside it would be started again.
        own = job.requests - job.beside
        asks = job.step == STEP_SCORE and not own.gpus
        field = _MEMORY_FIELD.get(STEP_MODEL if asks else job.step, "stepResources.memory")
        return StepFault(
            Blame.MEMORY,
            REASON_OUT_OF_MEMORY,
            f"{cause}: it took more host memory than its limit of {_gib(own.memory_bytes)}; "
            f"raise {field} in the operator's settings",
        )
    words = job.failure_message or f"Job {job.name} failed"
    return StepFault(Blame.SURROUNDINGS, job.failure_reason or "StepFailed", words)


def _blame(report: Report) -> Blame:
    if report.reason in ARTIFACT_FAULTS:
        return Blame.SOURCE
    if report.outcome == PERMANENT:
        return Blame.SURROUNDINGS if report.reason in _MENDABLE else Blame.KEY
    return Blame.MEMORY if report.reason == REASON_OUT_OF_MEMORY else Blame.SURROUNDINGS


@dataclass(frozen=True, slots=True)
class Sources:
    """Records of what a step works on: its source, and in order what it reads beside that."""

    source: Record | None = None
    beside: tuple[Record | None, ...] = ()

    @property
    def also_attempts(self) -> tuple[int, ...]:
        """Which attempts made what is read beside; 0 where that is on no record."""
        return tuple(0 if one is None else one.attempt for one in self.beside)

    def blamed(self, job: JobView, report: Report | None) -> tuple[Record | None, int]:
        """What a Job found fault with, and which attempt at it the Job saw (0: not told).

        A report names what is bad by its key; the source where it names none of the others.
        """
        for place, one in enumerate(self.beside):
            if one is not None and report is not None and report.key == one.key:
                told = job.also_attempts
                return one, told[place] if place < len(told) else 0
        return self.source, job.source_attempt

    def to_withdraw(self, job: JobView, report: Report | None) -> Record | None:
        """What a Job found damaged, if that is the one that is recorded.

        A Job of an earlier operator does not say which one it worked on: its next attempt will.
        """
        bad, seen = self.blamed(job, report)
        return bad if bad is not None and seen == bad.attempt > 0 else None


def sources_of(artifact: Artifact, claim_uid: str, records: Records) -> Sources:
    """The records of what an artifact is made from, or a score loads."""
    beside = tuple(records.get((claim_uid, STEP_MODEL, key)) for key in artifact.also)
    return Sources(_source_of(artifact, claim_uid, records), beside)


def _source_of(artifact: Artifact, claim_uid: str, records: Records) -> Record | None:
    if artifact.step == STEP_SCORE:
        loaded = (
            records.get((claim_uid, step, artifact.source_key))
            for step in (STEP_ENGINE, STEP_CHECKPOINT, STEP_MODEL)
        )
        return next((record for record in loaded if record is not None), None)
    step = _MADE_FROM.get(artifact.step)
    return records.get((claim_uid, step, artifact.source_key)) if step else None


def outdated(job: JobView, report: Report | None, sources: Sources) -> bool:
    """Whether a failed Job found fault with a source that has been made anew since."""
    if not job.failed or report is None or _blame(report) is not Blame.SOURCE:
        return False
    bad, seen = sources.blamed(job, report)
    return bad is not None and bool(seen) and seen != bad.attempt


def memory_raised(artifact: Artifact, last: JobView | None) -> bool:
    """Whether the next attempt would have more memory than the one that ran out of it."""
    return last is not None and artifact.resources.memory_bytes > last.requests.memory_bytes


def floors(settings: Settings) -> dict[str, Resources]:
    """What the settings give to a step at least, by step.

    A revision keeps what was resolved, but a step that has yet to run takes what an administrator
    has raised since: no pod that serves is touched by it.
    """
    steps, fetch = settings.step_resources, settings.fetch_resources
    given: Mapping[str, StepResources | FetchResources] = {
        STEP_MODEL: fetch,
        STEP_ADAPTER: fetch,
        STEP_CHECKPOINT: steps,
        STEP_ENGINE: steps,
        STEP_SCORE: steps,
    }
    return {
        step: Resources(
            cpu_millis=to_millis(asked.cpu),
            memory_bytes=to_whole(asked.memory),
            ephemeral_bytes=to_whole(asked.ephemeral_storage),
        )
        for step, asked in given.items()
    }


def at_least(artifact: Artifact, given: Mapping[str, Resources]) -> Artifact:
    """The artifact with no less of CPU, memory and scratch than its step is given in `floors`.

    A score that only asks a server computes nothing: it gets what a fetch does. Where that server
    is beside it, each container has its own.
    """
    step, asking = given.get(artifact.step), given.get(STEP_MODEL)
    if isinstance(artifact, Score) and artifact.beside is not None:
        before = artifact.beside.resources
        server = _larger(before, step)
        tool = _larger(artifact.resources - before, asking)
        beside = replace(artifact.beside, resources=server)
        enough: Artifact = replace(artifact, resources=server + tool, beside=beside)
    else:
        asks = artifact.step == STEP_SCORE and not artifact.gpus
        enough = replace(artifact, resources=_larger(artifact.resources, asking if asks else step))
    return artifact if enough == artifact else enough


def _larger(asked: Resources, floor: Resources | None) -> Resources:
    if floor is None:
        return asked
    return replace(
        asked,
        cpu_millis=max(asked.cpu_millis, floor.cpu_millis),
        memory_bytes=max(asked.memory_bytes, floor.memory_bytes),
        ephemeral_bytes=max(asked.ephemeral_bytes, floor.ephemeral_bytes),
    )


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
