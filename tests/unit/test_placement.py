"""Where a replica goes: all of it or none, near together, and never where it could not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.fleet import GIB, H100, RACK, ZONE, gpu_node, gpus, replica

from shardwright.api.spec import Toleration
from shardwright.observe.world import NodeView, Resources, Sharing, Taint
from shardwright.plan.placement import (
    NoRoom,
    Placement,
    PlacementRequest,
    order_of_placement,
    place_group,
    place_step,
)


def placed(
    request: PlacementRequest, nodes: list[NodeView], used: Mapping[str, Resources] | None = None
) -> Placement:
    found = place_group(request, nodes, used or {})
    assert isinstance(found, Placement), found.message()
    return found


def refused(
    request: PlacementRequest, nodes: list[NodeView], used: Mapping[str, Resources] | None = None
) -> NoRoom:
    found = place_group(request, nodes, used or {})
    assert isinstance(found, NoRoom), found
    return found


# All or nothing.


def test_two_replicas_of_2x8_on_three_nodes_one_is_placed_and_the_other_holds_nothing() -> None:
    nodes = [gpu_node(name) for name in "abc"]
    first = placed(replica(2, 8), nodes)
    used = {name: gpus(8) for name in first.nodes}
    second = refused(replica(2, 8), nodes, used)
    assert (second.free_gpus, second.largest_block, second.nodes_with_room) == (8, 8, 1)
    assert second.possible
    assert second.message() == (
        "needs 16 GPUs of NVIDIA-H100-80GB-HBM3 (2 pods × 8 on different nodes): 8 free, largest "
        "free block 8 GPUs on one node, 1 node has room for a pod; 2 nodes with fewer than 8 GPUs "
        "free; it is placed as soon as pods that hold the room end or nodes are added"
    )
    assert placed(replica(2, 8), nodes, {}).nodes == first.nodes


def test_a_filler_pod_on_the_freed_node_keeps_the_whole_replica_off() -> None:
    nodes = [gpu_node(name) for name in "ab"]
    assert refused(replica(2, 8), nodes, {"b": gpus(1)}).largest_block == 8


def test_a_pod_that_takes_seven_of_eight_leaves_no_room_for_a_stage_of_eight() -> None:
    nodes = [gpu_node("a", 8, healthy=7), gpu_node("b")]
    found = refused(replica(2, 8), nodes)
    assert found.free_gpus == 15
    assert found.reasons == ("1 node with unhealthy GPUs (7 of 8 allocatable)",)
    assert not found.possible
    assert placed(replica(1, 8), nodes).nodes == ("b",)


# Nearness.


def test_the_domain_with_room_for_the_whole_replica_is_chosen_not_the_fullest() -> None:
    # Bin-packing the first pod would take block r1, whose second node is busy.
    nodes = [
        gpu_node("a1", rack="r1", clique="u.1"),
        gpu_node("a2", rack="r1", clique="u.1"),
        gpu_node("b1", rack="r2", clique="u.2"),
        gpu_node("b2", rack="r2", clique="u.2"),
    ]
    found = placed(replica(2, 8), nodes, {"a1": gpus(8)})
    assert found.nodes == ("b1", "b2")
    assert (found.level, found.domain) == ("nvidia.com/gpu.clique", "u.2")
    assert found.reasons == ("all stages under nvidia.com/gpu.clique=u.2",)


def test_the_clique_is_nearer_than_every_level_of_the_network() -> None:
    nodes = [
        gpu_node("a", rack="r1", clique="u.1"),
        gpu_node("b", rack="r1", clique="u.2"),
        gpu_node("c", rack="r2", clique="u.2"),
    ]
    assert placed(replica(2, 8), nodes).nodes == ("b", "c")
    assert placed(replica(2, 8, levels=()), nodes).nodes == ("b", "c")


@pytest.mark.parametrize(
    ("busy", "level", "domain", "nodes"),
    [
        ((), RACK, "r1", ("a1", "a2")),
        (("a1",), RACK, "r2", ("b1", "b2")),
        (("a1", "b1"), ZONE, "z1", ("a2", "b2")),
        (("a1", "b1", "b2"), "", "", ("a2", "c1")),
    ],
)
def test_the_nearest_level_with_room_for_all_stages_decides(
    busy: tuple[str, ...], level: str, domain: str, nodes: tuple[str, ...]
) -> None:
    fleet = [
        gpu_node("a1", rack="r1", zone="z1"),
        gpu_node("a2", rack="r1", zone="z1"),
        gpu_node("b1", rack="r2", zone="z1"),
        gpu_node("b2", rack="r2", zone="z1"),
        gpu_node("c1", rack="r3", zone="z2"),
    ]
    found = placed(replica(2, 8), fleet, {name: gpus(8) for name in busy})
    assert (found.level, found.domain, found.nodes) == (level, domain, nodes)


def test_a_node_without_the_label_is_no_candidate_at_that_level() -> None:
    nodes = [
        gpu_node("a", zone="z1"),
        gpu_node("b", zone="z1"),
        gpu_node("c", rack="r1", zone="z2"),
        gpu_node("d", rack="r1", zone="z2"),
    ]
    assert placed(replica(2, 8), nodes).domain == "r1"
    assert placed(replica(2, 8), nodes[:3]).domain == "z1"


def test_without_any_level_the_replica_is_placed_and_status_says_that_nearness_is_unknown() -> None:
    found = placed(replica(2, 8), [gpu_node("a"), gpu_node("b")])
    assert (found.level, found.domain) == ("", "")
    assert "nearness is not known" in found.reasons[0]


def test_the_reason_says_when_no_single_domain_has_room() -> None:
    found = placed(replica(2, 8), [gpu_node("a", zone="z1"), gpu_node("b", zone="z2")])
    assert found.reasons == (f"no single domain of {ZONE} has room for all 2 stages",)


def test_old_and_new_topology_labels_are_levels_like_any_other() -> None:
    new, old = "fabric.topograph.run/tier-0", "network.topology.nvidia.com/leaf"
    nodes = [
        gpu_node("a", labels={old: "leaf-1"}),
        gpu_node("b", labels={old: "leaf-1"}),
        gpu_node("c", labels={new: "3c1b9d0f5a77e812"}),  # a long value, hashed
        gpu_node("d", labels={new: "3c1b9d0f5a77e812"}),
    ]
    request = replica(2, 8, levels=(new, old))
    assert placed(request, nodes).domain == "3c1b9d0f5a77e812"
    assert placed(request, nodes, {"c": gpus(1)}).domain == "leaf-1"


def test_consecutive_stages_share_the_nearest_level_where_they_can() -> None:
    fleet = [
        gpu_node("n1", rack="r2", zone="z"),
        gpu_node("n2", rack="r1", zone="z"),
        gpu_node("n3", rack="r2", zone="z"),
        gpu_node("n4", rack="r1", zone="z"),
        gpu_node("n5", rack="r3", zone="z"),
    ]
    found = placed(replica(4, 8), fleet)
    # Two racks of two nodes each rather than three racks, and no rack is visited twice.
    assert found.nodes == ("n2", "n4", "n1", "n3")
    assert (found.level, found.domain) == (ZONE, "z")


def test_the_zone_is_preferred_in_which_neighbours_are_nearer() -> None:
    fleet = [
        *(gpu_node(f"a{i}", rack=f"ra{i}", zone="a") for i in range(4)),
        *(gpu_node(f"b{i}", rack=f"rb{i // 2}", zone="b") for i in range(4)),
        gpu_node("b4", rack="rb4", zone="b"),
    ]
    assert placed(replica(4, 8), fleet).nodes == ("b0", "b1", "b2", "b3")


# Best fit.


def test_a_replica_takes_the_domain_it_fills_and_leaves_the_large_one_whole() -> None:
    fleet = [
        *(gpu_node(f"a{i}", rack="large") for i in range(4)),
        *(gpu_node(f"b{i}", rack="small") for i in range(2)),
    ]
    assert placed(replica(2, 8), fleet).domain == "small"


def test_partly_used_nodes_are_taken_before_empty_ones() -> None:
    fleet = [gpu_node(name, rack="r") for name in "abc"]
    found = placed(replica(2, 4), fleet, {"b": gpus(4), "c": gpus(2)})
    assert found.nodes == ("b", "c")


def test_among_equals_the_first_name_is_taken() -> None:
    fleet = [gpu_node(f"{rack}{i}", rack=rack) for rack in ("y", "x") for i in (2, 1)]
    assert placed(replica(2, 8), fleet).nodes == ("x1", "x2")


# Spread and Pack.


def test_spread_puts_every_stage_on_a_node_of_its_own() -> None:
    assert placed(replica(2, 2), [gpu_node("a"), gpu_node("b")]).nodes == ("a", "b")
    found = refused(replica(2, 2), [gpu_node("a")])
    assert not found.possible
    assert found.next_step.endswith("with spec.placement.pipelineStages: Pack it fits now")


def test_pack_takes_the_fewest_nodes_and_the_fullest_that_does() -> None:
    fleet = [gpu_node("a"), gpu_node("b"), gpu_node("c")]
    found = placed(replica(2, 2, spread=False), fleet, {"b": gpus(4)})
    assert found.nodes == ("b", "b")
    assert (found.level, found.domain) == ("kubernetes.io/hostname", "b")
    assert found.reasons == ("all stages on node b",)


def test_pack_fills_nodes_one_after_another() -> None:
    fleet = [gpu_node(name, rack="r") for name in "abc"]
    found = placed(replica(5, 2, spread=False), fleet, {"c": gpus(6)})
    assert found.nodes == ("a", "a", "a", "a", "c")


def test_pack_needs_fewer_nodes_rather_than_fewer_racks() -> None:
    fleet = [
        *(gpu_node(f"a{i}", 4, rack="a", zone="z") for i in range(3)),
        gpu_node("b", 8, rack="b", zone="z"),
    ]
    assert placed(replica(4, 4, spread=False), fleet).nodes == ("a0", "a1", "b", "b")


# Nodes that are out.

BAD_NODES: list[tuple[dict[str, Any], str]] = [
    ({"unschedulable": True}, "1 node cordoned"),
    ({"ready": False}, "1 node NotReady"),
    ({"deleting": True}, "1 node being deleted"),
    ({"taints": (Taint("team", "b"),)}, "1 node with untolerated taint team=b:NoSchedule"),
    (
        {"taints": (Taint("node.kubernetes.io/out-of-service", "", "NoExecute"),)},
        "1 node with untolerated taint node.kubernetes.io/out-of-service:NoExecute",
    ),
    ({"product": ""}, "1 node with GPUs of unknown product"),
    (
        {"inventory": {"slices_only": True}},
        "1 node with GPUs only as ResourceSlices (no allocatable nvidia.com/gpu)",
    ),
    ({"gpus": 0, "inventory": {"product": H100}}, "1 node offering no nvidia.com/gpu"),
    (
        {"sharing": Sharing.MIG, "gpus": 56},
        "1 node with MIG slices, which cannot form a group of 8",
    ),
    (
        {"sharing": Sharing.SHARED, "gpus": 32},
        "1 node with time-shared GPUs, which cannot form a group of 8",
    ),
    ({"sharing": Sharing.INVALID}, "1 node with an invalid MIG configuration"),
    ({"inventory": {"mixed": True}}, "1 node with GPUs of several products"),
    ({"nvlink": 2}, "1 node with NVLink islands of 2 GPUs, fewer than 8"),
    ({"gpus": 4}, "1 node with fewer than 8 GPUs"),
    ({"memory": 32}, "1 node without 64Gi of memory"),
    ({"cpu": 4}, "1 node without 8 CPUs"),
    ({"pods": 0}, "1 node without 1 pod"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD_NODES, ids=[reason for _, reason in BAD_NODES])
def test_no_replica_goes_to_a_node_that_is_out_and_the_reason_is_told(
    fields: dict[str, Any], reason: str
) -> None:
    bad = gpu_node("bad", **fields)
    assert placed(replica(1, 8), [bad, gpu_node("good")]).nodes == ("good",)
    found = refused(replica(1, 8), [bad])
    assert found.reasons == (reason,)
    assert not found.possible
    assert found.message().count("\n") == 0


def test_what_others_have_taken_is_told_apart_from_what_a_node_never_had() -> None:
    found = refused(replica(1, 8), [gpu_node("a")], {"a": gpus(0, memory=1000)})
    assert found.reasons == ("1 node without 64Gi of memory free",)
    assert found.possible


def test_reasons_are_counted_and_told_in_one_sentence() -> None:
    nodes = [
        gpu_node("a", unschedulable=True),
        gpu_node("b", unschedulable=True, ready=False),
        gpu_node("c", ready=False),
        gpu_node("d", taints=(Taint("x"),)),
        *(gpu_node(f"e{i}", memory=400) for i in range(3)),
        gpu_node("other", product="NVIDIA-L40S"),
        gpu_node("cpu", 0),
    ]
    need = Resources(8000, 412 * GIB)
    found = refused(replica(2, 8, per_pod=need), nodes)
    assert found.message() == (
        "needs 16 GPUs of NVIDIA-H100-80GB-HBM3 (2 pods × 8 on different nodes): 24 free, largest "
        "free block 8 GPUs on one node, 0 nodes have room for a pod; 2 nodes cordoned, 1 NotReady, "
        "1 with untolerated taint x:NoSchedule, 3 without 412Gi of memory; uncordon them"
    )


def test_nodes_of_other_products_are_no_news() -> None:
    found = refused(replica(2, 8), [gpu_node("a", product="NVIDIA-L40S")])
    assert found.reasons == ()
    assert found.message() == (
        "needs 16 GPUs of NVIDIA-H100-80GB-HBM3 (2 pods × 8 on different nodes): no node has such "
        "GPUs; add nodes with such GPUs or choose another spec.gpu.product"
    )


def test_nodes_that_are_out_for_a_while_are_told_to_be_brought_back() -> None:
    taints = (Taint("node.kubernetes.io/unreachable"),)
    nodes = [gpu_node("a", ready=False, taints=taints), gpu_node("b")]
    found = refused(replica(2, 8), nodes)
    assert (found.possible, found.next_step) == (False, "bring them back")
    hopeless = refused(replica(3, 8), nodes)
    assert hopeless.next_step == "add nodes that can hold it, or bring them back"


def test_an_avoided_node_is_never_taken() -> None:
    nodes = [gpu_node("a"), gpu_node("b")]
    assert placed(replica(1, 8, avoid=frozenset({"a"})), nodes).nodes == ("b",)
    found = refused(replica(2, 8, avoid=frozenset({"a"})), nodes)
    assert found.reasons == ("1 node avoided after earlier failures",)
    assert found.next_step == "repair or replace the nodes that failed"


@pytest.mark.parametrize("value", ["", "present", "true"])
def test_the_gpu_taint_is_tolerated_whatever_its_value(value: str) -> None:
    node = gpu_node("a", taints=(Taint("nvidia.com/gpu", value),))
    assert placed(replica(1, 8), [node]).nodes == ("a",)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"key": "team", "value": "b"}, True),
        ({"key": "team", "value": "b", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "c"}, False),
        ({"key": "team"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_tolerations_are_read_as_the_scheduler_reads_them(
    toleration: dict[str, Any], tolerated: bool
) -> None:
    request = replica(1, 8, tolerations=[Toleration(**toleration)])
    found = place_group(request, [gpu_node("a", taints=(Taint("team", "b"),))], {})
    assert isinstance(found, Placement) is tolerated


def test_a_taint_that_only_prefers_does_not_exclude() -> None:
    node = gpu_node("a", taints=(Taint("busy", "", "PreferNoSchedule"),))
    assert placed(replica(1, 8), [node]).nodes == ("a",)


def test_node_selector_and_volume_terms_must_be_met() -> None:
    nodes = [
        gpu_node("a", zone="z1", labels={"pool": "x"}),
        gpu_node("b", zone="z2", labels={"pool": "x"}),
        gpu_node("c", zone="z2"),
    ]
    request = replica(1, 8, node_selector={"pool": "x"}, node_terms=({ZONE: ("z2", "z3")},))
    assert placed(request, nodes).nodes == ("b",)
    assert refused(request, [nodes[0], nodes[2]]).reasons == (
        "1 node without label pool=x",
        "1 out of the volume's reach",
    )


def test_any_term_of_the_volume_is_enough_and_all_labels_of_it_are_needed() -> None:
    terms = ({ZONE: ("z1",), "disk": ("a",)}, {ZONE: ("z2",)})
    nodes = [gpu_node("a", zone="z1"), gpu_node("b", zone="z1", labels={"disk": "a"})]
    assert placed(replica(1, 8, node_terms=terms), nodes).nodes == ("b",)
    assert placed(replica(1, 8, node_terms=terms), [gpu_node("c", zone="z2")]).nodes == ("c",)


# Shared GPUs and NVLink.


def test_one_gpu_may_be_a_share_or_a_slice_if_the_spec_names_that_product() -> None:
    product = f"{H100}-SHARED"
    node = gpu_node("a", 32, product=product, sharing=Sharing.SHARED)
    assert placed(replica(1, 1, product=product), [node]).nodes == ("a",)
    assert refused(replica(1, 1), [node]).reasons == ()


def test_two_stages_never_share_a_time_shared_node_since_it_may_be_one_gpu() -> None:
    nodes = [gpu_node(name, 32, sharing=Sharing.SHARED) for name in "ab"]
    assert placed(replica(2, 1, spread=False), nodes).nodes == ("a", "b")
    assert not refused(replica(2, 1, spread=False), nodes[:1]).possible


def test_gpus_without_known_nvlink_are_refused_only_where_nvlink_is_needed() -> None:
    pcie, sxm = gpu_node("pcie", 8, nvlink=0), gpu_node("sxm", 8)
    assert placed(replica(1, 8), [pcie]).nodes == ("pcie",)
    assert placed(replica(1, 8, nvlink_needed=True), [pcie, sxm]).nodes == ("sxm",)
    assert placed(replica(1, 1, nvlink_needed=True), [pcie]).nodes == ("pcie",)
    assert refused(replica(1, 8, nvlink_needed=True), [pcie]).reasons == (
        "1 node without NVLink between their GPUs",
    )


def test_a_pod_on_a_node_of_several_islands_comes_with_a_warning() -> None:
    found = placed(replica(1, 2), [gpu_node("a", 8, nvlink=2)])
    assert "does not promise to keep a pod on one island" in found.reasons[-1]


def test_other_extended_resources_limit_a_node_too() -> None:
    need = Resources(1000, GIB, other={"rdma/ib": 4})
    nodes = [gpu_node("a", other={"rdma/ib": 4}), gpu_node("b")]
    assert placed(replica(1, 4, per_pod=need), nodes).nodes == ("a",)
    assert refused(replica(2, 4, per_pod=need, spread=False), nodes).reasons == (
        "1 node without 4 rdma/ib",
    )


# Replicas of one deployment.


def test_replicas_keep_apart_where_it_costs_no_nearness() -> None:
    fleet = [gpu_node(f"{rack}{i}", rack=rack) for rack in ("a", "b") for i in (0, 1)]
    request = replica(2, 4, sibling_nodes=frozenset({"a0", "a1"}))
    used = {"a0": gpus(4), "a1": gpus(4)}
    assert placed(request, fleet, used).nodes == ("b0", "b1")
    full = used | {"b0": gpus(8)}
    found = placed(request, fleet, full)
    assert found.nodes == ("a0", "a1")
    assert found.reasons[-1] == "shares a0, a1 with another replica: no room elsewhere"


def test_single_pods_keep_apart_before_they_pack() -> None:
    request = replica(1, 2, sibling_nodes=frozenset({"a"}))
    fleet = [gpu_node("a"), gpu_node("b")]
    assert placed(request, fleet, {"a": gpus(2)}).nodes == ("b",)
    assert placed(request, fleet, {"b": gpus(8)}).nodes == ("a",)


# Steps.


def step(tensor: int = 1, **fields: Any) -> PlacementRequest:
    return replica(1, tensor, **fields)


def test_a_gpu_step_goes_to_the_fullest_node_that_has_room() -> None:
    fleet = [gpu_node(name) for name in "abc"]
    assert place_step(step(), fleet, {"b": gpus(6), "c": gpus(8)}) == "b"
    assert place_step(step(4), fleet, {"b": gpus(6), "c": gpus(2)}) == "c"


def test_a_gpu_step_needs_no_common_island() -> None:
    assert place_step(step(8), [gpu_node("a", nvlink=2)], {}) == "a"
    assert isinstance(place_step(step(2), [gpu_node("a", sharing=Sharing.MIG)], {}), NoRoom)


def test_a_step_without_gpus_prefers_nodes_that_have_none() -> None:
    fleet = [gpu_node("a"), gpu_node("b"), gpu_node("cpu", 0)]
    assert place_step(step(0, product=""), fleet, {}) == "cpu"
    # Also when every GPU is taken: its CPU and memory still serve GPU work.
    taken = {"a": gpus(8, memory=900), "b": gpus(8, memory=900)}
    assert place_step(step(0, product=""), fleet, taken) == "cpu"
    busy = {"cpu": Resources(cpu_millis=128_000)}
    assert place_step(step(0, product=""), fleet, busy) == "a"
    assert place_step(step(0, product=""), fleet, busy | {"b": gpus(4)}) == "b"


def test_a_step_without_gpus_stays_off_tainted_nodes_even_those_that_gpu_pods_tolerate() -> None:
    tainted = gpu_node("a", taints=(Taint("nvidia.com/gpu", "present"),))
    found = place_step(step(0), [tainted], {})
    assert isinstance(found, NoRoom)
    assert found.message() == (
        "needs one node with 8 CPUs, 64Gi of memory, 20Gi of disk: no node has room; 1 node with "
        "untolerated taint nvidia.com/gpu=present:NoSchedule; add nodes that can hold it, or "
        "tolerate the taint in spec.placement.tolerations"
    )
    helper = step(0, tolerations=[Toleration(key="nvidia.com/gpu", operator="Exists")])
    assert place_step(helper, [tainted], {}) == "a"


def test_a_step_that_has_no_room_says_what_is_free() -> None:
    found = place_step(step(2), [gpu_node("a")], {"a": gpus(7)})
    assert isinstance(found, NoRoom)
    assert found.message() == (
        "needs 2 GPUs of NVIDIA-H100-80GB-HBM3 (1 pod × 2): 1 free, largest free block 1 GPU on "
        "one node, 0 nodes have room for a pod; 1 node with fewer than 2 GPUs free; it is placed "
        "as soon as pods that hold the room end or nodes are added"
    )


def test_a_step_in_a_cluster_without_nodes_asks_for_nodes() -> None:
    found = place_step(step(0), [], {})
    assert isinstance(found, NoRoom)
    assert found.next_step == "add nodes"


def test_a_step_is_one_pod() -> None:
    with pytest.raises(ValueError, match="a step is one pod, and the request has 2 stages"):
        place_step(replica(2, 1), [gpu_node("a")], {})


# Order.


def test_what_waits_is_placed_by_priority_then_age_and_groups_before_steps() -> None:
    waiting = {
        "young": order_of_placement(0, 200.0),
        "old": order_of_placement(0, 100.0),
        "old step": order_of_placement(0, 100.0, is_step=True),
        "urgent step": order_of_placement(1000, 300.0, is_step=True),
    }
    assert sorted(waiting, key=lambda name: waiting[name]) == [
        "urgent step",
        "old",
        "old step",
        "young",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stages": 0}, "stages is 0"),
        ({"tensor": -1}, "gpus_per_pod is -1"),
        ({"tensor": 8, "per_pod": Resources(gpus=4)}, "per_pod.gpus is 4 and gpus_per_pod 8"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replica(**fields)
