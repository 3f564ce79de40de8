"""What the operator remembers of a deployment, in its status: wishes, tries, a rollback, a loan.

Read from status at the start of a pass, written back before anything is done about it. A lost
status is rebuilt from the pods' labels: restarts are forgotten, incarnations are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from shardwright.api.names import LABEL_REVISION
from shardwright.api.settings import Timeouts
from shardwright.api.status import GroupStatus, LLMDeploymentStatus, StepStatus
from shardwright.observe.world import PodView
from shardwright.plan.attempts import Tries
from shardwright.plan.groups import slot_of
from shardwright.plan.rollout import Wish
from shardwright.plan.times import seconds

# Pauses are at most so much longer than their settings, so that many do not end at once.
_JITTER = 1.25
# More would be centuries.
_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Memory:
    """The part of status that decides what is done next."""

    wishes: tuple[Wish, ...] = ()
    incarnations: int = 0
    tries: dict[tuple[str, str], Tries] = field(default_factory=dict)
    failed_revision: str = ""
    failed_cause: str = ""
    # Others that were rolled back before it, oldest first, and why.
    barred: tuple[tuple[str, str], ...] = ()
    settled: str = ""  # the target once a group of it was ready: a later crash rolls nothing back
    borrowed: str = ""

    @property
    def rolled_back(self) -> dict[str, str]:
        """Causes by the names of all revisions that are barred, oldest first."""
        newest = {self.failed_revision: self.failed_cause} if self.failed_revision else {}
        return {**dict(self.barred), **newest}

    def barring(self, rolled_back: Mapping[str, str]) -> Memory:
        """This memory with exactly these revisions barred, oldest first."""
        found = tuple(rolled_back.items())
        revision, cause = found[-1] if found else ("", "")
        return replace(self, failed_revision=revision, failed_cause=cause, barred=found[:-1])


def recall(status: LLMDeploymentStatus, pods: Iterable[PodView]) -> Memory:
    """Memory from status, or, when the status was lost, from the pods."""
    highest = 0
    newest: dict[int, PodView] = {}
    for pod in pods:
        replica, incarnation = slot_of(pod)
        if replica < 0:
            continue
        highest = max(highest, incarnation)
        known = newest.get(replica)
        if known is None or slot_of(known)[1] < incarnation:
            newest[replica] = pod
    if status.observed_generation < 0:
        wishes = tuple(
            Wish(replica, slot_of(pod)[1], pod.labels.get(LABEL_REVISION, ""))
            for replica, pod in sorted(newest.items())
        )
        return Memory(wishes=wishes, incarnations=highest)
    return Memory(
        wishes=tuple(_wish(group) for group in status.groups),
        incarnations=max(status.incarnations, highest),
        tries={(step.step, step.key): _tries(step) for step in status.steps},
        failed_revision=status.failed_revision,
        failed_cause=status.failed_cause,
        barred=tuple((one.revision, one.cause) for one in status.barred_revisions),
        settled=status.settled_revision,
        borrowed=status.engine.next.borrowed if status.engine and status.engine.next else "",
    )


def _wish(group: GroupStatus) -> Wish:
    return Wish(
        index=group.index,
        incarnation=group.incarnation,
        revision=group.revision,
        restarts=group.restarts,
        not_before=seconds(group.not_before),
        avoid=tuple(group.avoid_nodes),
        cause=group.cause,
        reason=group.reason,
        held=group.held,
        held_edit=group.held_edit,
    )


def _tries(step: StepStatus) -> Tries:
    return Tries(
        attempts=step.attempts,
        failures=step.failures,
        edit=step.edit,
        not_before=seconds(step.not_before),
        avoid=tuple(step.avoid_nodes),
        reason=step.reason,
        cause=step.cause,
    )


def within_reach(memory: Memory, now: float, timeouts: Timeouts) -> Memory:
    """Memory without pauses that nobody would have made at this moment.

    A pause is kept as a time of day. Where the clock that wrote it was ahead, or the settings had
    longer ones then, it would be waited for as long as the difference: it is over instead.

    Args:
        memory: As it was recalled.
        now: Unix time.
        timeouts: Tell the longest pauses.
    """
    restart = timeouts.restart_backoff_max_seconds * _JITTER
    doubled = 2.0 ** min(timeouts.step_attempts - 1, _DOUBLINGS)
    step = timeouts.step_backoff_seconds * doubled * _JITTER
    return replace(
        memory,
        wishes=tuple(
            replace(wish, not_before=now) if wish.not_before - now > restart else wish
            for wish in memory.wishes
        ),
        tries={
            key: replace(tries, not_before=now) if tries.not_before - now > step else tries
            for key, tries in memory.tries.items()
        },
    )


def same(old: Memory, new: Memory) -> bool:
    """Whether nothing changed that a later pass would act on (times are kept in whole seconds)."""
    return _rounded(old) == _rounded(new)


def _rounded(memory: Memory) -> Memory:
    return replace(
        memory,
        wishes=tuple(replace(wish, not_before=int(wish.not_before)) for wish in memory.wishes),
        tries={
            key: replace(tries, not_before=int(tries.not_before))
            for key, tries in memory.tries.items()
        },
    )
