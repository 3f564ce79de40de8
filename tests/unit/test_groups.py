"""From pods to the state of a group: every state, every way to break, and whose fault it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.api import names
from shardwright.api.settings import Timeouts
from shardwright.observe.world import GPUInventory, NodeView, PodView, Resources, Taint
from shardwright.plan.breakage import WORDS_SECONDS, Fault, dead_node
from shardwright.plan.groups import Group, State, next_deadline, observe_group, slot_of, stage_of
from shardwright.plan.placed import Placed
from shardwright.runner.contract import (
    ENVIRONMENT,
    PERMANENT,
    REASON_GPU_MISMATCH,
    REASON_MANIFEST_MISMATCH,
    REASON_MANIFEST_MISSING,
    REASON_OUT_OF_MEMORY,
    REASON_PEER_LOST,
    REASON_RANK_FAILED,
    REASON_UNKNOWN_FLAG,
    REASON_WORLD_MISMATCH,
    FirstCause,
    Report,
)

NOW = 10_000.0
TIMES = Timeouts(bind_seconds=100, start_seconds=200, ready_seconds=300, node_dead_seconds=50)
PLACED = Placed(("n0", "n1"), NOW - 20).dump()


def node(name: str, **more: Any) -> NodeView:
    return NodeView(name=name, uid=f"u-{name}", gpu=GPUInventory(), allocatable=Resources(), **more)


NODES = {name: node(name) for name in ("n0", "n1", "n2")}


def gated(stage: int, **more: Any) -> PodView:
    return replace(
        PodView(
            namespace="llm",
            name=f"p{stage}",
            uid=f"u{stage}",
            labels={
                names.LABEL_REPLICA: "0",
                names.LABEL_INCARNATION: "4",
                names.LABEL_STAGE: str(stage),
            },
            gated=True,
            created=NOW - 30,
        ),
        **more,
    )


def pinned(stage: int, **more: Any) -> PodView:
    """The gate is lifted, the scheduler has not bound it."""
    return replace(gated(stage), gated=False, pin=f"n{stage}", placement=PLACED, **more)


def bound(stage: int, **more: Any) -> PodView:
    values: dict[str, Any] = {"node": f"n{stage}", "bound_at": NOW - 10, **more}
    return replace(pinned(stage), **values)


def up(stage: int, **more: Any) -> PodView:
    values: dict[str, Any] = {
        "phase": "Running",
        "started": True,
        "ready_changed": NOW - 5,
        **more,
    }
    return bound(stage, **values)


def ready(stage: int, **more: Any) -> PodView:
    return up(stage, **{"ready": True, **more})


def ended(stage: int, **more: Any) -> PodView:
    values: dict[str, Any] = {
        "phase": "Failed",
        "exit_reason": "Error",
        "exit_code": 1,
        "finished_at": NOW - 1,
        **more,
    }
    return up(stage, **values)


def said(reason: str, outcome: str = ENVIRONMENT, **more: Any) -> Report:
    return Report(outcome=outcome, reason=reason, message=f"about {reason}", **more)


def seen(
    *pods: PodView,
    pipeline: int = 2,
    nodes: dict[str, NodeView] | None = None,
    now: float = NOW,
    fleet_lost: bool = False,
) -> Group:
    return observe_group(
        index=0,
        incarnation=4,
        revision="llama-a",
        pipeline=pipeline,
        pods=pods,
        nodes=NODES if nodes is None else nodes,
        now=now,
        timeouts=TIMES,
        fleet_lost=fleet_lost,
    )


# How far a group has come.


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ((), State.ABSENT),
        ((gated(0),), State.PARTIAL),
        ((gated(1),), State.PARTIAL),
        ((gated(0), gated(1)), State.GATED),
        ((pinned(0), gated(1)), State.PLACING),
        ((pinned(0), pinned(1)), State.PLACING),
        ((bound(0), pinned(1)), State.PLACING),
        ((bound(0), bound(1)), State.STARTING),
        ((up(0), ready(1)), State.STARTING),
        ((ready(0), up(1)), State.STARTING),
        ((ready(0), ready(1)), State.READY),
    ],
)
def test_states_without_fault(pods: tuple[PodView, ...], state: State) -> None:
    group = seen(*pods)
    assert (group.state, group.breakage) == (state, None)
    assert group.ready == (state is State.READY)
    assert group.unplaced == (state in (State.PARTIAL, State.GATED))


def test_members_stand_in_the_order_of_their_stages() -> None:
    group = seen(ready(1), ready(0))
    assert [pod.name for pod in group.pods] == ["p0", "p1"]
    assert group.nodes == ("n0", "n1")
    assert group.placement == Placed(("n0", "n1"), NOW - 20)


def test_a_group_serves_once_a_member_carries_the_label() -> None:
    labelled = {**ready(0).labels, names.LABEL_PROTECTED: "true"}
    assert seen(ready(0, labels=labelled), ready(1)).serving
    assert not seen(ready(0), ready(1)).serving


# Whose fault.


@pytest.mark.parametrize(
    ("last", "fault", "reason", "avoided"),
    [
        ({"report": said(REASON_MANIFEST_MISSING, PERMANENT)}, Fault.ARTIFACT, None, ()),
        ({"report": said(REASON_MANIFEST_MISMATCH, PERMANENT)}, Fault.ARTIFACT, None, ()),
        ({"report": said(REASON_GPU_MISMATCH)}, Fault.NODE, None, ("n1",)),
        ({"report": said(REASON_WORLD_MISMATCH)}, Fault.NODE, None, ("n1",)),
        ({"report": said(REASON_GPU_MISMATCH, PERMANENT)}, Fault.NODE, None, ("n1",)),
        ({"report": said(REASON_UNKNOWN_FLAG, PERMANENT)}, Fault.PERMANENT, None, ()),
        ({"report": said(REASON_OUT_OF_MEMORY, PERMANENT)}, Fault.PERMANENT, None, ()),
        ({"report": said(REASON_RANK_FAILED)}, Fault.CRASH, None, ("n1",)),
        ({"exit_reason": "OOMKilled", "exit_code": 137}, Fault.MEMORY, "OOMKilled", ("n1",)),
        ({"report": said(REASON_OUT_OF_MEMORY)}, Fault.MEMORY, None, ("n1",)),
        ({}, Fault.CRASH, "PodFailed", ("n1",)),
        ({"exit_reason": "", "exit_code": None}, Fault.CRASH, "PodFailed", ("n1",)),
        ({"phase": "Succeeded", "exit_code": 0}, Fault.CRASH, "PodFailed", ("n1",)),
        ({"exit_reason": "UnexpectedAdmissionError"}, Fault.NODE, "AdmissionRefused", ("n1",)),
        ({"exit_reason": "OutOfnvidia.com/gpu"}, Fault.NODE, "AdmissionRefused", ("n1",)),
        ({"exit_reason": "NodeAffinity"}, Fault.NODE, "AdmissionRefused", ("n1",)),
        ({"disrupted": "EvictionByEvictionAPI"}, Fault.EVICTED, "Evicted", ()),
        ({"disrupted": "PreemptionByScheduler"}, Fault.EVICTED, "Evicted", ()),
    ],
)
def test_what_an_ended_member_says_decides_whose_fault_it_is(
    last: dict[str, Any], fault: Fault, reason: str | None, avoided: tuple[str, ...]
) -> None:
    group = seen(ready(0), ended(1, **last))
    assert group.state is State.BROKEN
    assert group.breakage is not None
    wanted = reason or last["report"].reason
    assert (group.breakage.fault, group.breakage.reason) == (fault, wanted)
    assert group.breakage.nodes == avoided
    assert "p1" in group.breakage.cause
    assert "n1" in group.breakage.cause


def test_a_container_that_the_kernel_killed_whole_names_its_limit_and_the_field() -> None:
    """With the group kill of cgroup v2 the runner dies too, and nobody reports."""
    had = Resources(memory_bytes=96 * 2**30)
    broken = seen(ready(0), ended(1, exit_reason="OOMKilled", exit_code=137, requests=had)).breakage
    assert broken is not None
    assert "OOMKilled with exit code 137" in broken.cause
    assert "limit of 96.0 GiB" in broken.cause
    assert broken.cause.endswith("raise spec.pod.resources.memory")


def test_a_cause_names_pod_rank_node_and_the_reported_reason_and_keeps_the_log() -> None:
    report = said(REASON_RANK_FAILED, rank=11, log_tail="Traceback\nCUDA error")
    broken = seen(ready(0), ended(1, report=report)).breakage
    assert broken is not None
    assert broken.cause == "pod p1 (rank 11) on n1: RankFailed: about RankFailed"
    assert broken.log_tail == "Traceback\nCUDA error"


def test_of_several_ended_members_the_first_to_end_is_the_cause() -> None:
    first = ended(1, finished_at=NOW - 9, report=said(REASON_RANK_FAILED))
    later = ended(0, finished_at=NOW - 3, report=said(REASON_OUT_OF_MEMORY))
    for pods in ((first, later), (later, first)):
        broken = seen(*pods).breakage
        assert broken is not None
        assert (broken.reason, broken.nodes) == (REASON_RANK_FAILED, ("n1",))


def test_a_lost_peer_is_never_the_cause_when_another_member_tells_more() -> None:
    witness = ended(0, finished_at=NOW - 9, report=said(REASON_PEER_LOST))
    culprit = ended(1, finished_at=NOW - 3, report=said(REASON_RANK_FAILED))
    broken = seen(witness, culprit).breakage
    assert broken is not None
    assert (broken.reason, broken.nodes) == (REASON_RANK_FAILED, ("n1",))


def test_a_lost_peer_is_not_the_cause_when_the_other_ended_without_a_word() -> None:
    """A killed rank leaves no report; its peer only noticed, and its node is not to blame."""
    witness = ended(0, finished_at=NOW - 3, report=said(REASON_PEER_LOST))
    culprit = ended(1, finished_at=NOW - 5, exit_reason="OOMKilled", exit_code=137)
    same_second = replace(witness, finished_at=NOW - 5)
    for one in (witness, same_second):
        broken = seen(one, culprit).breakage
        assert broken is not None
        assert (broken.reason, broken.nodes) == ("OOMKilled", ("n1",))


def test_a_lost_peer_alone_is_told_as_it_is() -> None:
    """The witness's own node is not held against it; one that is not ready is suspected at once."""
    lost = ended(0, report=said(REASON_PEER_LOST), finished_at=NOW - WORDS_SECONDS)
    broken = seen(lost, ready(1)).breakage
    assert broken is not None
    assert broken.cause == f"pod p0 on n0 lost its peers: about {REASON_PEER_LOST}"
    assert (broken.fault, broken.reason, broken.nodes) == (Fault.CRASH, REASON_PEER_LOST, ())
    nodes = {**NODES, "n1": node("n1", ready=False, not_ready_since=NOW - 1)}
    suspected = seen(lost, ready(1), nodes=nodes).breakage
    assert suspected is not None
    assert (suspected.fault, suspected.nodes) == (Fault.NODE, ("n1",))
    assert "n1" in suspected.cause
    assert seen(lost, ready(1), nodes=nodes, fleet_lost=True).breakage is None


def test_a_pod_alone_starts_alone() -> None:
    assert seen(up(0), pipeline=1).waiting == "its 1 pod starts on n0"


def test_a_node_whose_clock_is_fast_does_not_make_a_lost_peer_wait() -> None:
    lost = ended(0, report=said(REASON_PEER_LOST), finished_at=NOW + 600)
    broken = seen(lost, ready(1)).breakage
    assert broken is not None, "it would stay broken for ten minutes"
    assert broken.reason == REASON_PEER_LOST


def test_a_lost_peers_own_end_is_waited_for_a_moment() -> None:
    """Kubelets tell of their pods in any order."""
    lost = ended(0, report=said(REASON_PEER_LOST), finished_at=NOW - 1)
    found = seen(lost, ready(1))
    assert (found.state, found.waiting_reason) == (State.STARTING, REASON_PEER_LOST)
    assert next_deadline(found, NOW, TIMES) == WORDS_SECONDS - 1
    both = seen(lost, ended(1, report=said(REASON_PEER_LOST))).breakage
    assert both is not None, "nobody is left who could tell"
    told = seen(lost, ended(1, report=said(REASON_RANK_FAILED))).breakage
    assert told is not None
    assert told.reason == REASON_RANK_FAILED


def test_a_lost_peer_that_was_told_the_first_cause_speaks_for_the_one_it_lies_in() -> None:
    first = FirstCause(1, 3, ENVIRONMENT, REASON_RANK_FAILED, "rank 3 exited with code 7")
    lost = ended(0, report=said(REASON_PEER_LOST, first=first, log_tail="its last line"))
    broken = seen(lost, ready(1)).breakage
    assert broken is not None
    assert (broken.fault, broken.reason, broken.nodes) == (Fault.CRASH, REASON_RANK_FAILED, ("n1",))
    assert broken.cause == "pod p1 (rank 3) on n1: RankFailed: rank 3 exited with code 7"
    assert broken.log_tail == "its last line"
    forever = replace(first, outcome=PERMANENT)
    refused = seen(replace(lost, report=said(REASON_PEER_LOST, first=forever)), ready(1)).breakage
    assert refused is not None
    assert refused.fault is Fault.PERMANENT
    own = seen(lost, ended(1, report=said(REASON_OUT_OF_MEMORY))).breakage
    assert own is not None
    assert own.reason == REASON_OUT_OF_MEMORY, "its own words go before what another heard"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"deleting": True}, "PodDeleted"),
        ({"disrupted": "EvictionByEvictionAPI"}, "Evicted"),
    ],
)
def test_a_lost_peer_is_not_the_cause_when_the_other_goes(
    other: dict[str, Any], reason: str
) -> None:
    broken = seen(ended(0, report=said(REASON_PEER_LOST)), ready(1, **other)).breakage
    assert broken is not None
    assert (broken.fault, broken.reason) == (Fault.EVICTED, reason)
    gone = seen(ended(0, report=said(REASON_PEER_LOST))).breakage
    assert gone is not None
    assert gone.reason == "PodLost"


def test_a_lost_peer_points_at_the_dead_node_of_the_other() -> None:
    nodes = {**NODES, "n1": node("n1", ready=False, not_ready_since=NOW - 60)}
    broken = seen(ended(0, report=said(REASON_PEER_LOST)), ready(1), nodes=nodes).breakage
    assert broken is not None
    assert (broken.fault, broken.reason, broken.nodes) == (Fault.NODE, "NodeLost", ("n1",))


def test_a_member_that_vanished_breaks_the_group_without_fault() -> None:
    for pods in ((ready(0),), (ready(1),)):
        broken = seen(*pods).breakage
        assert broken is not None
        assert (broken.fault, broken.reason) == (Fault.EVICTED, "PodLost")


def test_a_member_missing_while_a_gate_is_lifted_is_broken_not_partial() -> None:
    assert seen(pinned(0)).state is State.BROKEN


def test_eviction_and_deletion_break_the_group_without_fault() -> None:
    evicted = seen(ready(0), ready(1, disrupted="EvictionByEvictionAPI")).breakage
    assert evicted is not None
    assert (evicted.fault, evicted.reason) == (Fault.EVICTED, "Evicted")
    deleted = seen(ready(0, deleting=True), ready(1)).breakage
    assert deleted is not None
    assert (deleted.fault, deleted.reason) == (Fault.EVICTED, "PodDeleted")
    waiting = seen(gated(0, deleting=True), gated(1)).breakage
    assert waiting is not None
    assert (waiting.fault, waiting.reason) == (Fault.EVICTED, "PodDeleted")


def test_a_report_outweighs_an_eviction_and_an_eviction_a_dead_node() -> None:
    nodes = {**NODES, "n0": node("n0", ready=False, not_ready_since=NOW - 60)}
    told = seen(
        ready(0, disrupted="DeletionByTaintManager"),
        ended(1, report=said(REASON_RANK_FAILED)),
        nodes=nodes,
    ).breakage
    assert told is not None
    assert told.reason == REASON_RANK_FAILED
    evicted = seen(ready(0), ready(1, disrupted="EvictionByEvictionAPI"), nodes=nodes).breakage
    assert evicted is not None
    assert evicted.reason == "Evicted"


# Nodes.


@pytest.mark.parametrize(
    ("found", "dead"),
    [
        (node("n1"), ""),
        (None, "node n1 is gone"),
        (node("n1", ready=False, not_ready_since=NOW - 49.9), ""),
        (node("n1", ready=False, not_ready_since=NOW - 50), "node n1 is NotReady for 50 s"),
        (
            node("n1", taints=(Taint("node.kubernetes.io/out-of-service", "", "NoExecute"),)),
            "node n1 is out of service",
        ),
        (node("n1", taints=(Taint("node.kubernetes.io/unschedulable"),)), ""),
        (node("n1", unschedulable=True), ""),
    ],
)
def test_when_a_node_counts_as_dead(found: NodeView | None, dead: str) -> None:
    nodes = {"n0": NODES["n0"], **({"n1": found} if found else {})}
    assert (dead_node("n1", nodes, NOW, TIMES) or "") == dead
    group = seen(ready(0), ready(1), nodes=nodes)
    assert (group.state is State.BROKEN) == bool(dead)
    if group.breakage:
        assert (group.breakage.fault, group.breakage.nodes) == (Fault.NODE, ("n1",))
        assert dead in group.breakage.cause


def test_no_node_is_no_dead_node() -> None:
    assert dead_node("", {}, NOW, TIMES) is None


def test_a_pod_pinned_to_a_dead_node_breaks_its_group_before_it_is_bound() -> None:
    nodes = {"n0": NODES["n0"]}
    broken = seen(pinned(0), pinned(1), nodes=nodes).breakage
    assert broken is not None
    assert (broken.fault, broken.nodes) == (Fault.NODE, ("n1",))


def test_no_node_counts_as_dead_while_most_of_the_fleet_is_gone() -> None:
    nodes = {**NODES, "n1": node("n1", ready=False, not_ready_since=NOW - 60)}
    assert seen(ready(0), ready(1), nodes=nodes, fleet_lost=True).breakage is None
    crashed = seen(ready(0), ended(1), nodes=nodes, fleet_lost=True)
    assert crashed.state is State.BROKEN


# Deadlines.


@pytest.mark.parametrize(
    ("pods", "passed", "reason", "fault", "avoided"),
    [
        ((bound(0), pinned(1)), 80, "NotBoundInTime", Fault.UNPLACED, ("n1",)),
        ((pinned(0), gated(1)), 80, "NotBoundInTime", Fault.UNPLACED, ("n0",)),
        ((up(0), bound(1)), 190, "NotStartedInTime", Fault.CRASH, ("n1",)),
        ((up(0), ready(1)), 295, "NotReadyInTime", Fault.CRASH, ("n0",)),
        ((ready(0), up(1)), 295, "NotReadyInTime", Fault.CRASH, ("n1",)),
    ],
)
def test_deadlines_break_a_group_when_they_pass_and_not_before(
    pods: tuple[PodView, ...], passed: float, reason: str, fault: Fault, avoided: tuple[str, ...]
) -> None:
    early = seen(*pods, now=NOW + passed - 0.1)
    assert early.breakage is None
    left = next_deadline(early, NOW + passed - 5, TIMES)
    assert left == pytest.approx(5)
    late = seen(*pods, now=NOW + passed)
    assert late.state is State.BROKEN
    assert late.breakage is not None
    assert (late.breakage.reason, late.breakage.fault) == (reason, fault)
    assert late.breakage.nodes == avoided


def test_gated_groups_and_ready_ones_have_no_deadline() -> None:
    for pods in ((gated(0), gated(1)), (ready(0), ready(1)), ()):
        group = seen(*pods, now=NOW + 10**6)
        assert group.breakage is None
        assert next_deadline(group, NOW, TIMES) is None


def test_a_slow_image_pull_is_given_the_start_deadline_and_not_the_ready_one() -> None:
    late_start = Timeouts(bind_seconds=10, start_seconds=1000, ready_seconds=20)
    group = observe_group(
        index=0,
        incarnation=4,
        revision="r",
        pipeline=2,
        pods=[up(0), bound(1, waiting="ContainerCreating")],
        nodes=NODES,
        now=NOW + 500,
        timeouts=late_start,
        fleet_lost=False,
    )
    assert group.state is State.STARTING


def test_a_ready_group_that_turns_unready_gets_a_whole_deadline_anew() -> None:
    turned = up(0, bound_at=NOW - 5000, ready_changed=NOW - 299)
    old = ready(1, bound_at=NOW - 5000, ready_changed=NOW - 4000)
    assert seen(turned, old).state is State.STARTING
    assert seen(turned, old, now=NOW + 1).state is State.BROKEN


def test_a_deadline_message_says_what_the_scheduler_and_the_kubelet_said() -> None:
    unbound = seen(bound(0), pinned(1, unschedulable="0/3 nodes"), now=NOW + 80).breakage
    assert unbound is not None
    assert "0/3 nodes" in unbound.cause
    pull = bound(1, waiting="ImagePullBackOff", waiting_message="no such image")
    unstarted = seen(up(0), pull, now=NOW + 190).breakage
    assert unstarted is not None
    assert "ImagePullBackOff: no such image" in unstarted.cause


# Words for what is waited for.


@pytest.mark.parametrize(
    ("pods", "reason", "told"),
    [
        (
            (bound(0), bound(1, waiting="ImagePullBackOff", waiting_message="no such image")),
            "ImagePullFailed",
            "pod p1 on n1: ImagePullBackOff: no such image",
        ),
        ((bound(0), bound(1, waiting="ErrImagePull")), "ImagePullFailed", "pod p1 on n1"),
        ((bound(0), bound(1, waiting="InvalidImageName")), "ImagePullFailed", "pod p1"),
        (
            (
                bound(0, waiting="CreateContainerConfigError"),
                bound(1, waiting="ImagePullBackOff"),
            ),
            "ImagePullFailed",
            "pod p1",
        ),
        (
            (bound(0, waiting="CreateContainerConfigError", waiting_message="no key"), bound(1)),
            "CreateContainerConfigError",
            "pod p0 on n0: CreateContainerConfigError: no key",
        ),
        ((bound(0), bound(1, waiting="ContainerCreating")), "GroupStarting", "2 pods"),
        ((bound(0), pinned(1, unschedulable="0/3")), "Unschedulable", "pod p1 is not bound yet"),
        ((up(0), ready(1)), "GroupStarting", "2 pods start on n0, n1"),
    ],
)
def test_what_a_group_waits_for_is_told_by_its_gravest_member(
    pods: tuple[PodView, ...], reason: str, told: str
) -> None:
    group = seen(*pods)
    assert group.waiting_reason == reason
    assert told in group.waiting


# Labels and annotations.


@pytest.mark.parametrize(
    ("text", "placed"),
    [
        ("", None),
        ("{", None),
        ("[]", None),
        ('{"nodes": ["a"]}', None),
        ('{"nodes": ["a"], "at": "soon"}', None),
        ('{"nodes": ["a", "b"], "at": 5}', Placed(("a", "b"), 5.0)),
    ],
)
def test_the_placement_annotation_is_read_or_ignored(text: str, placed: Placed | None) -> None:
    assert Placed.load(text) == placed


def test_a_placement_comes_back_from_its_annotation() -> None:
    placed = Placed(("a", "b"), 1234.567)
    assert Placed.load(placed.dump()) == placed


@pytest.mark.parametrize(
    ("labels", "slot", "stage"),
    [
        ({}, (-1, -1), -1),
        ({names.LABEL_REPLICA: "1"}, (-1, -1), -1),
        ({names.LABEL_REPLICA: "1", names.LABEL_INCARNATION: "x"}, (-1, -1), -1),
        (
            {
                names.LABEL_REPLICA: "1",
                names.LABEL_INCARNATION: "12",
                names.LABEL_STAGE: "3",
            },
            (1, 12),
            3,
        ),
    ],
)
def test_slot_and_stage_are_read_from_labels(
    labels: dict[str, str], slot: tuple[int, int], stage: int
) -> None:
    pod = replace(gated(0), labels=labels)
    assert (slot_of(pod), stage_of(pod)) == (slot, stage)
