"""What became of each replica: the wish for it, its pods, and whether it is whole.

A group is one incarnation of one replica: `pipeline` pods, one a stage. It is whole or it is
nothing: a member that failed, vanished, is being evicted or sits on a dead node breaks the group,
and a broken group is replaced as one. A group whose pods are all still gated holds no GPU and
cannot break: what is missing is created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardwright.api import names
from shardwright.api.settings import Timeouts
from shardwright.observe.world import NodeView, PodView
from shardwright.plan.breakage import (
    Breakage,
    Fault,
    deleted,
    late,
    member_breakage,
    peer_lost,
    words_awaited,
)
from shardwright.plan.placed import Placed
from shardwright.runner.contract import REASON_PEER_LOST
from shardwright.words import counted


class State(StrEnum):
    """How far a group has come."""

    ABSENT = "Absent"  # no pod yet
    PARTIAL = "Partial"  # some pods exist, all gated
    GATED = "Gated"  # all pods exist, all gated: to be placed
    PLACING = "Placing"  # some gates are lifted, or not all pods are bound
    STARTING = "Starting"  # all bound, not all ready
    READY = "Ready"
    BROKEN = "Broken"


@dataclass(frozen=True, slots=True)
class Group:
    """A wish with the pods that answer it."""

    index: int
    incarnation: int
    revision: str
    pipeline: int
    pods: tuple[PodView, ...]  # by stage
    state: State
    breakage: Breakage | None = None
    placement: Placed | None = None
    waiting: str = ""  # what it waits for, in words
    waiting_reason: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes by stage, as far as they are known."""
        return tuple(pod.node or pod.pin for pod in self.pods)

    @property
    def leader(self) -> PodView | None:
        """The pod of stage 0, if it is there."""
        return next((pod for pod in self.pods if stage_of(pod) == 0), None)

    @property
    def ready(self) -> bool:
        """Whether the whole group serves."""
        return self.state is State.READY

    @property
    def serving(self) -> bool:
        """Whether it was let into the Service: candidates are not, until they are proven."""
        return any(names.LABEL_PROTECTED in pod.labels for pod in self.pods)

    @property
    def unplaced(self) -> bool:
        """Whether it has pods that hold nothing yet."""
        return self.state in (State.PARTIAL, State.GATED)


def stage_of(pod: PodView) -> int:
    """The stage a pod's label names, -1 when it names none."""
    text = pod.labels.get(names.LABEL_STAGE, "")
    return int(text) if text.isdigit() else -1


def slot_of(pod: PodView) -> tuple[int, int]:
    """(replica, incarnation) that a pod's labels name, (-1, -1) when they name none."""
    replica = pod.labels.get(names.LABEL_REPLICA, "")
    incarnation = pod.labels.get(names.LABEL_INCARNATION, "")
    if not (replica.isdigit() and incarnation.isdigit()):
        return (-1, -1)
    return int(replica), int(incarnation)


def observe_group(
    *,
    index: int,
    incarnation: int,
    revision: str,
    pipeline: int,
    pods: Sequence[PodView],
    nodes: Mapping[str, NodeView],
    now: float,
    timeouts: Timeouts,
    fleet_lost: bool,
) -> Group:
    """The state of one group from the pods that carry its replica and incarnation.

    `fleet_lost` says that most of the fleet went at once: then no node counts as dead, since the
    fault is more likely between us and the cluster than in every node.
    """
    members = {stage_of(pod): pod for pod in pods}
    ordered = tuple(members[stage] for stage in sorted(members))

    def group(state: State, breakage: Breakage | None = None, **more: str) -> Group:
        placed = next((found for pod in ordered if (found := Placed.load(pod.placement))), None)
        return Group(
            index=index,
            incarnation=incarnation,
            revision=revision,
            pipeline=pipeline,
            pods=ordered,
            state=state,
            breakage=breakage,
            placement=placed,
            waiting=more.get("waiting", ""),
            waiting_reason=more.get("reason", ""),
        )

    if not members:
        return group(State.ABSENT)
    missing = [stage for stage in range(pipeline) if stage not in members]
    going = [pod for pod in ordered if pod.deleting]
    if all(pod.gated for pod in ordered):
        if going:
            return group(State.BROKEN, deleted(going[0]))
        return group(State.PARTIAL if missing else State.GATED)
    broken = member_breakage(ordered, nodes, now, timeouts, fleet_lost=fleet_lost)
    if broken is None and missing:
        broken = Breakage(
            Fault.EVICTED, "PodLost", f"the pod of stage {missing[0]} is gone, the others are not"
        )
    if broken is None and not fleet_lost:
        broken = peer_lost(ordered, nodes, now)
    if broken is None:
        broken = late(ordered, now, timeouts)
    if broken is not None:
        return group(State.BROKEN, broken)
    if all(pod.ready for pod in ordered):
        return group(State.READY)
    reason, waiting = _waits_for(ordered)
    bound = all(pod.node for pod in ordered)
    state = State.STARTING if bound else State.PLACING
    return group(state, waiting=waiting, reason=reason)


def next_deadline(group: Group, now: float, timeouts: Timeouts) -> float | None:
    """Seconds until a deadline of this group may pass, None when none is running."""
    if group.state not in (State.PLACING, State.STARTING):
        return None
    if (left := words_awaited(group.pods, now)) is not None:
        return left
    decided = group.placement.at if group.placement else min(pod.created for pod in group.pods)
    if any(not pod.node for pod in group.pods):
        return max(0.5, decided + timeouts.bind_seconds - now)
    bound = max(pod.bound_at or decided for pod in group.pods)
    if any(not pod.started for pod in group.pods):
        return max(0.5, bound + timeouts.start_seconds - now)
    since = min(max(bound, pod.ready_changed or bound) for pod in group.pods if not pod.ready)
    return max(0.5, since + timeouts.ready_seconds - now)


_PULL_FAILURES = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)


def _waits_for(pods: Sequence[PodView]) -> tuple[str, str]:
    """(reason, words) of what the group waits for: the gravest member speaks."""
    for pod in pods:
        if pod.finished:
            return REASON_PEER_LOST, f"pod {pod.name} lost its peers, whose own end is waited for"
    for pod in pods:
        if pod.waiting in _PULL_FAILURES:
            return "ImagePullFailed", (
                f"pod {pod.name} on {pod.node}: {pod.waiting}: {pod.waiting_message}; check "
                "spec.engine.image, spec.pod.imagePullSecrets and the registry"
            )
    for pod in pods:
        if pod.waiting and pod.waiting not in ("ContainerCreating", "PodInitializing"):
            return (
                pod.waiting,
                f"pod {pod.name} on {pod.node}: {pod.waiting}: {pod.waiting_message}",
            )
    for pod in pods:
        if pod.unschedulable and not pod.node:
            return "Unschedulable", f"pod {pod.name} is not bound yet: {pod.unschedulable}"
    # No count of the ready ones: it would rewrite status with every pod that turns.
    homes = ", ".join(dict.fromkeys(pod.node or pod.pin for pod in pods))
    start = "starts" if len(pods) == 1 else "start"
    return "GroupStarting", f"its {counted(len(pods), 'pod')} {start} on {homes}"
