"""Whose fault it is that a group is broken, from what its pods and their nodes say.

The first cause among the members counts, and a report before a bare exit. What a member says that
only lost its peers is never the cause while another one shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from shardwright.api import names
from shardwright.api.settings import Timeouts
from shardwright.observe.world import NodeView, PodView
from shardwright.plan.placed import Placed
from shardwright.runner.contract import (
    ARTIFACT_FAULTS,
    NODE_FAULTS,
    PERMANENT,
    REASON_OUT_OF_MEMORY,
    REASON_PEER_LOST,
    Report,
)

# A pod that lost a peer ends within moments of it, and its kubelet may be the first to tell. So
# long the peer's own end is waited for, unless the first one knows what it was.
WORDS_SECONDS = 5.0
# Clocks of nodes that are kept in step still differ a little, and ends are told in whole seconds.
_CLOCKS_SECONDS = 5.0
# The kubelet's word for a container that the kernel killed for its memory.
OOM_KILLED = "OOMKilled"


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
    key: str = ""  # of the artifact that is to blame, where one is


def deleted(pod: PodView) -> Breakage:
    """Somebody deletes a member."""
    return Breakage(Fault.EVICTED, "PodDeleted", f"pod {pod.name} is being deleted")


def member_breakage(
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
            return deleted(pod)
    return None


def _witness(pod: PodView) -> bool:
    """Whether it ended only because another member did: never the cause while another one shows."""
    return pod.finished and pod.report is not None and pod.report.reason == REASON_PEER_LOST


def peer_lost(
    pods: Sequence[PodView], nodes: Mapping[str, NodeView], now: float
) -> Breakage | None:
    """A member lost its peers and nothing else shows: what it was told of them, if anything.

    Without that the nodes of the others are suspected when they are not ready, never its own. None
    while the others' own ends are waited for, too.
    """
    for pod in pods:
        if _witness(pod) and (broken := _heard(pod, pods)):
            return broken
    for pod in pods:
        if not _witness(pod):
            continue
        unready = _unready_peers(pod, pods, nodes)
        if not unready and words_awaited(pods, now) is not None:
            return None
        why = pod.report.message if pod.report is not None else ""
        told = f": {why}" if why else ""
        told += f"; NotReady: {', '.join(unready)}" if unready else ""
        cause = f"pod {pod.name} on {pod.node} lost its peers{told}"
        fault = Fault.NODE if unready else Fault.CRASH
        return Breakage(fault, REASON_PEER_LOST, cause, unready)
    return None


def words_awaited(pods: Sequence[PodView], now: float) -> float | None:
    """Seconds until one that only lost its peers is taken at its word, None if that is not so.

    An end that lies ahead of `now` was told by a node whose clock is fast: it is not waited for, or
    the group would be broken for as long as that clock is wrong.
    """
    lost = [pod for pod in pods if _witness(pod)]
    if not lost or len(lost) == len(pods):
        return None
    left = min(one.finished_at or 0.0 for one in lost) + WORDS_SECONDS - now
    return left if 0 < left <= WORDS_SECONDS + _CLOCKS_SECONDS else None


def _unready_peers(
    pod: PodView, pods: Sequence[PodView], nodes: Mapping[str, NodeView]
) -> tuple[str, ...]:
    return tuple(
        peer.node
        for peer in pods
        if peer.node in nodes and not nodes[peer.node].ready and peer is not pod
    )


def _heard(witness: PodView, pods: Sequence[PodView]) -> Breakage | None:
    """The first cause as a member was told it, blamed on the pod where it lies."""
    report = witness.report
    first = report.first if report is not None else None
    if report is None or first is None or first.reason == REASON_PEER_LOST:
        return None
    culprit = next(
        (pod for pod in pods if pod.labels.get(names.LABEL_STAGE) == str(first.stage)), None
    )
    if culprit is None:
        return None
    words = Report(
        outcome=first.outcome,
        reason=first.reason,
        message=first.message,
        rank=first.rank,
        log_tail=report.log_tail,
    )
    return _ended(replace(culprit, report=words))


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
            return Breakage(Fault.ARTIFACT, report.reason, cause, (), report.log_tail, report.key)
        if report.reason in NODE_FAULTS:
            return Breakage(Fault.NODE, report.reason, cause, nodes, report.log_tail)
        if report.outcome == PERMANENT:
            return Breakage(Fault.PERMANENT, report.reason, cause, (), report.log_tail)
        memory = report.reason == REASON_OUT_OF_MEMORY
        fault = Fault.MEMORY if memory else Fault.CRASH
        return Breakage(fault, report.reason, cause, nodes, report.log_tail)
    if pod.disrupted:
        return Breakage(Fault.EVICTED, "Evicted", words_of_eviction(pod))
    if pod.exit_reason in ("UnexpectedAdmissionError", "OutOfnvidia.com/gpu", "NodeAffinity"):
        return Breakage(
            Fault.NODE,
            "AdmissionRefused",
            f"node {pod.node} refused pod {pod.name}: {pod.exit_reason}",
            nodes,
        )
    cause = words_of_end(pod)
    if pod.exit_reason != OOM_KILLED:
        return Breakage(Fault.CRASH, "PodFailed", cause, nodes)
    # The kernel kills the whole container, its runner too: nobody is left to report.
    cause += (
        f": it took more host memory than its limit of {pod.requests.memory_bytes / 2**30:.1f} "
        "GiB, shared memory counted in; raise spec.pod.resources.memory"
    )
    return Breakage(Fault.MEMORY, OOM_KILLED, cause, nodes)


def words_of_eviction(pod: PodView) -> str:
    """That a pod was evicted, by whom and from where."""
    return f"pod {pod.name} was evicted from {pod.node}: {pod.disrupted}"


def words_of_end(pod: PodView) -> str:
    """How a pod ended that has left no report: as its kubelet tells."""
    code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
    return f"pod {pod.name} on {pod.node} ended: {pod.exit_reason or pod.phase}{code}"


def late(pods: Sequence[PodView], now: float, timeouts: Timeouts) -> Breakage | None:
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
