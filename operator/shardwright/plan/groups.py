"""What became of each replica: the wish for it, its pods, and whether it is whole.

A group is one incarnation of one replica: `pipeline` pods, one a stage. It is whole or it is
nothing: a member that failed, vanished, is being evicted or sits on a dead node breaks the group,
and a broken group is replaced as one. A group whose pods are all still gated holds no GPU and
cannot break: what is missing is created.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardwright.api import names
from shardwright.api.settings import Timeouts
from shardwright.observe.world import NodeView, PodView
from shardwright.runner.contract import (
    ARTIFACT_FAULTS,
    NODE_FAULTS,
    PERMANENT,
    REASON_OUT_OF_MEMORY,
    REASON_PEER_LOST,
)


class State(StrEnum):
    """How far a group has come."""

    ABSENT = "Absent"  # no pod yet
    PARTIAL = "Partial"  # some pods exist, all gated
    GATED = "Gated"  # all pods exist, all gated: to be placed
    PLACING = "Placing"  # some gates are lifted, or not all pods are bound
    STARTING = "Starting"  # all bound, not all ready
    READY = "Ready"
    BROKEN = "Broken"


class Fault(StrEnum):
    """Whose fault a broken group is: it decides what is held against whom."""

    NODE = "Node"  # node dead, gone, or unfit: avoid it
    EVICTED = "Evicted"  # drained, preempted, deleted by someone: no fault of ours
    UNPLACED = "Unplaced"  # not bound in time: released whole
    ARTIFACT = "Artifact"  # the files are not what their manifest says
    PERMANENT = "Permanent"  # the runtime refuses and will again
    MEMORY = "Memory"  # it took more than it is given: nothing that its engine's key holds
    CRASH = "Crash"  # it died


@dataclass(frozen=True, slots=True)
class Breakage:
    """Why a group is broken: whose fault, a stable reason, the first cause, and nodes to avoid."""

    fault: Fault
    reason: str
    cause: str
    nodes: tuple[str, ...] = ()
    log_tail: str = ""


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


@dataclass(frozen=True, slots=True)
class Placed:
    """The placement annotation: the whole replica's nodes by stage, and when it was decided."""

    nodes: tuple[str, ...]
    at: float

    def dump(self) -> str:
        """As the annotation holds it."""
        return json.dumps({"nodes": list(self.nodes), "at": round(self.at, 3)})

    @staticmethod
    def load(text: str) -> Placed | None:
        """Read the annotation; None when there is none or it is not ours to read."""
        if not text:
            return None
        try:
            raw = json.loads(text)
            return Placed(tuple(str(node) for node in raw["nodes"]), float(raw["at"]))
        except (ValueError, KeyError, TypeError):
            return None


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
            return group(State.BROKEN, _deleted(going[0]))
        return group(State.PARTIAL if missing else State.GATED)
    broken = _member_breakage(ordered, nodes, now, timeouts, fleet_lost=fleet_lost)
    if broken is None and missing:
        broken = Breakage(
            Fault.EVICTED, "PodLost", f"the pod of stage {missing[0]} is gone, the others are not"
        )
    if broken is None and not fleet_lost:
        broken = _peer_lost(ordered, nodes)
    if broken is None:
        broken = _late(ordered, now, timeouts)
    if broken is not None:
        return group(State.BROKEN, broken)
    if all(pod.ready for pod in ordered):
        return group(State.READY)
    reason, waiting = _waits_for(ordered)
    bound = all(pod.node for pod in ordered)
    state = State.STARTING if bound else State.PLACING
    return group(state, waiting=waiting, reason=reason)


def _deleted(pod: PodView) -> Breakage:
    return Breakage(Fault.EVICTED, "PodDeleted", f"pod {pod.name} is being deleted")


def _member_breakage(
    pods: Sequence[PodView],
    nodes: Mapping[str, NodeView],
    now: float,
    timeouts: Timeouts,
    *,
    fleet_lost: bool,
) -> Breakage | None:
    """The first cause among the members: the earliest end, a report before a bare exit."""
    ended = [pod for pod in pods if pod.finished]
    ended.sort(key=lambda pod: (pod.finished_at or now, pod.name))
    told = [pod for pod in ended if pod.report is not None and not _witness(pod)]
    mute = [pod for pod in ended if pod.report is None]
    for pod in (told or mute)[:1]:
        return _ended(pod)
    for pod in pods:
        if pod.disrupted:
            return Breakage(
                Fault.EVICTED,
                "Evicted",
                f"pod {pod.name} is being evicted from {pod.node}: {pod.disrupted}",
                (),
            )
    for pod in pods:
        where = pod.node or pod.pin
        dead = None if fleet_lost else dead_node(where, nodes, now, timeouts)
        if dead:
            return Breakage(Fault.NODE, "NodeLost", f"pod {pod.name}: {dead}", (where,))
    for pod in pods:
        if pod.deleting:
            return _deleted(pod)
    return None


def _witness(pod: PodView) -> bool:
    """Whether it ended only because another member did: never the cause while another one shows."""
    return pod.finished and pod.report is not None and pod.report.reason == REASON_PEER_LOST


def _peer_lost(pods: Sequence[PodView], nodes: Mapping[str, NodeView]) -> Breakage | None:
    """A member lost its peers and nothing else shows: suspect the others' nodes, never its own."""
    for pod in pods:
        if not _witness(pod):
            continue
        unready = tuple(
            peer.node
            for peer in pods
            if peer.node in nodes and not nodes[peer.node].ready and peer is not pod
        )
        told = f"; NotReady: {', '.join(unready)}" if unready else ""
        cause = f"pod {pod.name} on {pod.node} lost its peers{told}"
        fault = Fault.NODE if unready else Fault.CRASH
        return Breakage(fault, REASON_PEER_LOST, cause, unready)
    return None


def dead_node(
    name: str, nodes: Mapping[str, NodeView], now: float, timeouts: Timeouts
) -> str | None:
    """Why a node counts as dead, None while it lives (or is not known to be needed yet)."""
    if not name:
        return None
    node = nodes.get(name)
    if node is None:
        return f"node {name} is gone"
    if any(taint.key == "node.kubernetes.io/out-of-service" for taint in node.taints):
        return f"node {name} is out of service"
    if (
        node.not_ready_since is not None
        and now - node.not_ready_since >= timeouts.node_dead_seconds
    ):
        return f"node {name} is NotReady for {now - node.not_ready_since:.0f} s"
    return None


def _ended(pod: PodView) -> Breakage:
    """What a finished pod says of its end."""
    report = pod.report
    nodes = (pod.node,) if pod.node else ()
    if report is not None and report.reason:
        rank = f" (rank {report.rank})" if report.rank >= 0 else ""
        cause = f"pod {pod.name}{rank} on {pod.node}: {report.reason}: {report.message}"
        if report.reason in ARTIFACT_FAULTS:
            return Breakage(Fault.ARTIFACT, report.reason, cause, (), report.log_tail)
        if report.reason in NODE_FAULTS:
            return Breakage(Fault.NODE, report.reason, cause, nodes, report.log_tail)
        if report.outcome == PERMANENT:
            return Breakage(Fault.PERMANENT, report.reason, cause, (), report.log_tail)
        memory = report.reason == REASON_OUT_OF_MEMORY
        fault = Fault.MEMORY if memory else Fault.CRASH
        return Breakage(fault, report.reason, cause, nodes, report.log_tail)
    if pod.disrupted:
        return Breakage(
            Fault.EVICTED, "Evicted", f"pod {pod.name} was evicted from {pod.node}: {pod.disrupted}"
        )
    if pod.exit_reason in ("UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "NodeAffinity"):
        return Breakage(
            Fault.NODE,
            "AdmissionRefused",
            f"node {pod.node} refused pod {pod.name}: {pod.exit_reason}",
            nodes,
        )
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    cause = f"pod {pod.name} on {pod.node} ended: {pod.exit_reason or pod.phase}{code}"
    if pod.exit_reason != "OOMKilled":
        return Breakage(Fault.CRASH, "PodFailed", cause, nodes)
    # The kernel kills the whole container, its runner too: nobody is left to report.
    cause += (
        f": it took more host memory than its limit of {pod.requests.memory_bytes / 2**30:.1f} "
        "GiB, shared memory counted in; raise spec.pod.resources.memory"
    )
    return Breakage(Fault.MEMORY, "OOMKilled", cause, nodes)


def _late(pods: Sequence[PodView], now: float, timeouts: Timeouts) -> Breakage | None:
    """Deadlines: to be bound, to be started (slow image pulls are no failure), to be ready."""
    placed = next((found for pod in pods if (found := Placed.load(pod.placement))), None)
    decided = placed.at if placed else min(pod.created for pod in pods)
    unbound = [pod for pod in pods if not pod.node]
    if unbound and now - decided >= timeouts.bind_seconds:
        pod = unbound[0]
        told = f": {pod.unschedulable}" if pod.unschedulable else ""
        return Breakage(
            Fault.UNPLACED,
            "NotBoundInTime",
            f"pod {pod.name} was not bound to {pod.pin or 'a node'} within "
            f"{timeouts.bind_seconds:.0f} s{told}",
            (pod.pin,) if pod.pin else (),
        )
    if unbound:
        return None
    bound = max(pod.bound_at or decided for pod in pods)
    late = [pod for pod in pods if not pod.started]
    if late and now - bound >= timeouts.start_seconds:
        pod = late[0]
        return Breakage(
            Fault.CRASH,
            "NotStartedInTime",
            f"pod {pod.name} on {pod.node} did not start within {timeouts.start_seconds:.0f} s"
            + (f": {pod.waiting}: {pod.waiting_message}" if pod.waiting else ""),
            (pod.node,),
        )
    for pod in pods:
        # Not ready for an instant is not ill: only a whole deadline without a turn counts.
        since = max(bound, pod.ready_changed or bound)
        if not pod.ready and not late and now - since >= timeouts.ready_seconds:
            return Breakage(
                Fault.CRASH,
                "NotReadyInTime",
                f"pod {pod.name} on {pod.node} is up but not ready for "
                f"{timeouts.ready_seconds:.0f} s",
                (pod.node,),
            )
    return None


def next_deadline(group: Group, now: float, timeouts: Timeouts) -> float | None:
    """Seconds until a deadline of this group may pass, None when none is running."""
    if group.state not in (State.PLACING, State.STARTING):
        return None
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
    return "GroupStarting", f"its {len(pods)} pods start on {homes}"
