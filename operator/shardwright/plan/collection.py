"""Which artifacts of a claim are collected, and how: trash, wait, purge, or back again.

An artifact is named by every kept revision of every LLMDeployment of the namespace that has it in
its chain (or as its proof), by the model of every current spec, and by Jobs that work on it; also
at zero replicas. What is named is never taken away. What is not is kept all the same while it is
among the newest `keepArtifacts`, or has been unused for less than `minAgeSeconds`.

The record says how far things are, so that any pass of any operator goes on from there:

    Ready ──▶ Collected ──(Trash)──▶ grace time ──▶ Purging ──(Purge)──▶ record deleted
      ▲           │                                    ▲
      └─(Restore)─┘  named again      Building, bad ──(Trash)

The words in brackets are Jobs, whose names follow from key, stamp and action, so that each exists
once. The step that cannot be taken back is decided twice, in two passes: `Purging` is written for
an artifact that nothing names, and its Job is made only if that is still so. A Restore is ordered
only when the Trash Job is known to be over, so no rename ever comes late.

When an artifact was last used is not written down while it is used, which would cost requests for
ever: `unusedSince` is written once, when a pass first finds that nothing names it, and taken back
when something does. If nobody looked at the time, the clock starts later, never sooner.

What a user may rely on: uninstalling, or deleting an LLMDeployment, keeps its artifacts until they
are collected by age and count; deleting a record's ConfigMap by hand deletes no files (the next one
who needs the artifact finds its valid manifest and reports it, without a build); of a model on a
claim of the user's own (`pvc://`) only our manifest's folder is ever moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shardwright.api.settings import Retention
from shardwright.observe.world import JobView, Record, RecordState
from shardwright.plan.revisions import DATA_VERSION
from shardwright.runner.contract import (
    FETCHED,
    INPUT_PART,
    PART_HEADS,
    PERMANENT,
    REASON_MANIFEST_MISSING,
    ROOT,
    STEP_ADAPTER,
    STEP_MODEL,
    STEP_PROOF,
    STEP_SCORE,
    SWEEP_PURGE,
    SWEEP_RESTORE,
    SWEEP_TRASH,
    SWEEPS,
    Report,
    artifact_key,
)

# Reasons of a record that is Trashed because nothing named it.
COLLECTED = "Collected"  # it comes back when it is named
PURGING = "Purging"  # it is deleted; whoever needs it waits for that and builds it anew
UNUSABLE = "ArtifactUnusable"  # a pod found its files bad: it is made anew
DISCARDED = "Discarded"  # it was bad before: nobody would load it, it never comes back
MAX_SWEEPS = 8  # Jobs at a time that nobody waits for
HOLD_SECONDS = 5.0

_STAMP = re.compile(r"[0-9]{17}")
_PVC = "pvc://"


@dataclass(frozen=True, slots=True)
class Stock:
    """One claim's artifacts and everything that their collection rests on.

    Attributes:
        records: All of the claim's.
        named: Keys that must stay.
        hold: Why nothing may be taken away now, though nothing seems to name it; else empty.
        jobs: All of the claim's, steps and sweeps.
        reports: Last words of the pods of sweeps, by the Job's uid.
        untouched: (record uid, stamp) of records that were marked by this very process, which has
            not asked for their Trash Job yet: their files are where they were.
        retry_seconds: After how long a sweep that failed is tried again, and one that somebody
            waits for.
    """

    records: tuple[Record, ...]
    named: frozenset[str]
    hold: str
    jobs: tuple[JobView, ...]
    reports: Mapping[str, Report]
    retention: Retention
    grace_seconds: float
    now: float
    untouched: frozenset[tuple[str, str]] = frozenset()
    retry_seconds: tuple[float, float] = (600.0, 60.0)


@dataclass(frozen=True, slots=True)
class Note:
    """Write down since when nothing names a record (0: something does)."""

    record: Record
    unused: float


@dataclass(frozen=True, slots=True)
class Mark:
    """Turn a record Trashed, for this reason and under this stamp."""

    record: Record
    reason: str
    stamp: str


@dataclass(frozen=True, slots=True)
class Revive:
    """Turn a record Ready: its files are where they belong."""

    record: Record


@dataclass(frozen=True, slots=True)
class Order:
    """Create the Job of a sweep."""

    record: Record
    action: str


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete a Job that is over."""

    job: JobView


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete a record; its sweeps' Jobs go with it."""

    record: Record


Act = Note | Mark | Revive | Order | Clear | Forget


@dataclass(slots=True)
class Collection:
    """What a pass does, and in how many seconds time alone may change the answer."""

    acts: list[Act] = field(default_factory=list)
    due: float | None = None

    def wait(self, seconds: float) -> None:
        """Look again in so many seconds."""
        seconds = max(seconds, 0.05)
        self.due = seconds if self.due is None else min(self.due, seconds)


def stamp_of(now: float) -> str:
    """A moment as 17 digits: year to millisecond in UTC."""
    at = datetime.fromtimestamp(now, UTC)
    return f"{at:%Y%m%d%H%M%S}{at.microsecond // 1000:03d}"


def moment_of(stamp: str) -> float:
    """Seconds since the epoch of a stamp."""
    at = datetime.strptime(stamp[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return at.timestamp() + int(stamp[14:]) / 1000


def restorable(record: Record) -> bool:
    """Whether a record's artifact comes back when it is named: nothing need be built for it."""
    return record.state is RecordState.TRASHED and record.reason == COLLECTED


def leaving(record: Record) -> bool:
    """Whether a record's artifact is being deleted: it can be built when that is over."""
    return record.state is RecordState.TRASHED and record.reason in (PURGING, DISCARDED)


# Who names what.


class UnreadableError(ValueError):
    """Something of the namespace cannot be read, so what it names is not known."""


def named_by_revision(data: Mapping[str, Any], claim_uid: str) -> set[str]:
    """Keys on a claim that a revision's data name. Read without their models: there are many.

    Raises:
        UnreadableError: When they are of a version that this operator does not know.
    """
    try:
        if data["version"] != DATA_VERSION:
            raise UnreadableError(f"revision data of version {data['version']!r}")
        found = _named_in_place(data["spec"])
        if data["claimUID"] == claim_uid:
            found |= {artifact["key"] for artifact in data["artifacts"]}
            found |= {data["serve"]["key"], data["proof"]["key"]}
            found |= _named_by_gate(data.get("gate"))
    except (KeyError, TypeError) as error:
        raise UnreadableError(f"revision data without {error}") from error
    return found


def _named_by_gate(gate: Any) -> set[str]:  # noqa: ANN401 - any JSON
    """Records of scores, and of the proof without a gate."""
    if gate is None:
        return set()
    scores = [gate["score"], *([gate["baseline"]] if gate["baseline"] is not None else [])]
    return {gate["loads_key"], *(score["key"] for score in scores)}


def named_by_spec(spec: Mapping[str, Any]) -> set[str]:
    """Keys that a current spec names beside its revisions: its model's, draft's and adapters'.

    The inputs are those of `plan.resolve.model_inputs`, `plan.drafts.draft_inputs` and
    `plan.adapters.adapter_inputs`, which tests hold together. The adapters that stand in a
    revision's data name nothing: they are those of the day it was made.

    Raises:
        UnreadableError: When it has no model, or adapters of another form.
    """
    try:
        adapters = [str(one["uri"]) for one in (spec.get("lora") or {}).get("adapters") or ()]
        named = {artifact_key(STEP_ADAPTER, {"uri": uri}) for uri in adapters}
        for uri in adapters:
            named |= _in_place(uri)
        named |= {artifact_key(STEP_MODEL, {"uri": spec["model"]["uri"]}), *_named_in_place(spec)}
        uri = _draft_uri(spec)
    except (AttributeError, KeyError, TypeError) as error:
        raise UnreadableError(f"spec without {error}") from error
    if uri:
        # Whichever the method: as a model, and as heads.
        named |= {
            artifact_key(STEP_MODEL, {"uri": uri}),
            artifact_key(STEP_MODEL, {"uri": uri, INPUT_PART: PART_HEADS}),
        }
    return named


def _named_in_place(spec: Mapping[str, Any]) -> set[str]:
    """A pvc:// model may be an artifact of ours that somebody loads from where it lies."""
    return _in_place(str(spec["model"]["uri"])) | _in_place(_draft_uri(spec))


def _in_place(uri: str) -> set[str]:
    parts = uri.removeprefix(_PVC).strip("/").split("/")
    own = uri.startswith(_PVC) and len(parts) > 3 and parts[1] == ROOT  # noqa: PLR2004
    return {parts[3]} if own else set()


def _draft_uri(spec: Mapping[str, Any]) -> str:
    """Uri of what drafts tokens, or an empty string."""
    model = (spec.get("speculative") or {}).get("model") or {}
    return str(model.get("uri") or "")


def is_sweep(job: JobView) -> bool:
    """Whether a Job is a sweep, not a step."""
    return job.step in SWEEPS


def works(job: JobView) -> bool:
    """Whether a Job may still touch files."""
    return not (job.complete or job.failed) or job.active > 0


# What is done.


def collect(stock: Stock) -> Collection:
    """What to do now about one claim's artifacts."""
    found = Collection()
    unnamed: list[Record] = []
    for record in stock.records:
        if record.trash:
            _trashed(record, stock, found)
        elif record.key in stock.named:
            if record.unused:
                found.acts.append(Note(record, 0.0))
            found.acts += [Clear(job) for job in _jobs(record, stock, sweeps=True) if _over(job)]
        elif not record.unused:
            found.acts.append(Note(record, stock.now))
            found.wait(stock.retention.min_age_seconds)
        else:
            unnamed.append(record)
    _unnamed(unnamed, stock, found)
    return _bounded(found, stock)


def _unnamed(records: Iterable[Record], stock: Stock, found: Collection) -> None:
    """Records that nothing names, the newest of them kept."""
    kept = 0
    for record in sorted(records, key=lambda item: (-item.unused, item.key)):
        # A fetch publishes file by file, so that one that failed has left some.
        failed = record.state is RecordState.FAILED and record.step not in FETCHED
        files = record.step not in (STEP_PROOF, STEP_SCORE) and not failed
        if files and record.state is RecordState.READY and kept < stock.retention.keep_artifacts:
            kept += 1
            continue
        left = record.unused + stock.retention.min_age_seconds - stock.now
        if left > 0:
            found.wait(left)
        elif stock.hold:
            found.wait(HOLD_SECONDS)
        elif not files:
            _forget(record, stock, found)
        else:
            reason = COLLECTED if record.state is RecordState.READY else DISCARDED
            found.acts.append(Mark(record, reason, stamp_of(stock.now)))


def _forget(record: Record, stock: Stock, found: Collection) -> None:
    """Delete a record, its step's Jobs first: one that is done would be recorded again."""
    jobs = _jobs(record, stock, sweeps=False)
    found.acts += [Clear(job) for job in jobs if not job.deleting]
    if jobs:
        found.wait(HOLD_SECONDS)
    else:
        found.acts.append(Forget(record))


def _trashed(record: Record, stock: Stock, found: Collection) -> None:
    """A record that is in collection: how far it is, and whether it is named again."""
    if not _STAMP.fullmatch(record.trash) or not (restorable(record) or leaving(record)):
        # changed by hand; whatever files there are stay, and are found again
        found.acts.append(Forget(record))
        return
    jobs = {
        job.step: job
        for job in _jobs(record, stock, sweeps=True)
        if job.attempt == int(record.trash)
    }
    if record.reason == PURGING:
        _purging(record, jobs.get(SWEEP_PURGE), stock, found)
        return
    restore = jobs.get(SWEEP_RESTORE)
    if restore is not None:
        _restoring(record, restore, stock, found)
        return
    trash = jobs.get(SWEEP_TRASH)
    named = record.key in stock.named
    if trash is None:
        if named and restorable(record) and (record.uid, record.trash) in stock.untouched:
            found.acts.append(Revive(record))
        elif stock.hold and not named:
            found.wait(HOLD_SECONDS)
        else:
            # Also of a named one, unless it is certain that no Job was asked for: a rename that
            # came after the way back would be worse than one too many.
            found.acts.append(Order(record, SWEEP_TRASH))
    elif not trash.complete or not _over(trash):
        _again(trash, stock, found, awaited=named)
    elif record.reason == DISCARDED:
        _purging(record, jobs.get(SWEEP_PURGE), stock, found)
    elif named:
        found.acts.append(Order(record, SWEEP_RESTORE))
    else:
        _resting(record, stock, found)


def _resting(record: Record, stock: Stock, found: Collection) -> None:
    """In the trash, and nothing names it."""
    left = moment_of(record.trash) + stock.grace_seconds - stock.now
    if left > 0:
        found.wait(left)
    elif stock.hold:
        found.wait(HOLD_SECONDS)
    else:
        found.acts.append(Mark(record, PURGING, record.trash))


def _restoring(record: Record, job: JobView, stock: Stock, found: Collection) -> None:
    """On its way back; that is carried through even if nobody wants it any more."""
    report = stock.reports.get(job.uid)
    gone = report is not None and (report.outcome, report.reason) == (
        PERMANENT,
        REASON_MANIFEST_MISSING,
    )
    if job.complete:
        found.acts.append(Revive(record))
    elif job.failed and gone:
        _forget(record, stock, found)
    else:
        _again(job, stock, found, awaited=True)


def _purging(record: Record, job: JobView | None, stock: Stock, found: Collection) -> None:
    """To be deleted: not yet begun, under way, or done."""
    named = record.key in stock.named
    if job is None:
        if named and record.reason == PURGING:
            found.acts.append(Mark(record, COLLECTED, record.trash))
        elif stock.hold:
            found.wait(HOLD_SECONDS)
        else:
            found.acts.append(Order(record, SWEEP_PURGE))
    elif job.complete and _over(job):
        _forget(record, stock, found)
    else:
        _again(job, stock, found, awaited=named)


def _again(job: JobView, stock: Stock, found: Collection, *, awaited: bool) -> None:
    """Wait for a sweep; one that failed is made room for after a while."""
    if not job.failed or job.deleting:
        return
    if job.active and job.step != SWEEP_RESTORE:
        # its pod may yet rename; a second Restore beside the first does no harm
        found.wait(HOLD_SECONDS)
        return
    ended = job.finished_at if job.finished_at is not None else job.created
    left = ended + stock.retry_seconds[awaited] - stock.now
    if left > 0:
        found.wait(left)
    else:
        found.acts.append(Clear(job))


def _jobs(record: Record, stock: Stock, *, sweeps: bool) -> list[JobView]:
    return [job for job in stock.jobs if job.key == record.key and is_sweep(job) is sweeps]


def _over(job: JobView) -> bool:
    return not works(job) and not job.deleting


def _bounded(found: Collection, stock: Stock) -> Collection:
    """Not all at once: the claim is there for those who load from it."""
    room = MAX_SWEEPS - sum(is_sweep(job) and works(job) for job in stock.jobs)
    acts: list[Act] = []
    for act in found.acts:
        if isinstance(act, Order) and act.record.key not in stock.named:
            room -= 1
            if room < 0:
                found.wait(HOLD_SECONDS)
                continue
        acts.append(act)
    found.acts = acts
    return found
