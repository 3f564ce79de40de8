"""The fleet: from nodes as a cluster shows them, and from a file as a person writes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fleet import H100, gpu_node

from shardwright.api.settings import FabricProfile, Settings
from shardwright.observe.world import NodePool, Sharing
from shardwright.sizing.fleet import FleetError, fabric_of, fleet_of_nodes, fleet_of_yaml
from shardwright.sizing.pools import pools_of
from shardwright.sizing.question import (
    ASSUMED_FABRIC,
    GIB,
    Fabric,
    FabricKind,
    Fleet,
    Limits,
    NodeGroup,
    Workload,
)
from shardwright.sizing.shape import Shape


def _group(**fields: Any) -> NodeGroup:
    return NodeGroup(
        **{
            "name": "a",
            "product": H100,
            "nodes": 2,
            "gpus_per_node": 8,
            "free_gpus": 8,
            "nvlink_size": 8,
            "memory_bytes": 79 * GIB,
            **fields,
        }
    )


def test_equal_nodes_are_one_group_whatever_they_are_called() -> None:
    found = fleet_of_nodes([gpu_node(f"n{number}") for number in range(500)])
    assert len(found.groups) == 1
    group = found.groups[0]
    assert (group.name, group.nodes, group.free_gpus, group.nvlink_size) == (H100, 500, 8, 8)
    assert group.memory_bytes / GIB == pytest.approx(79.19, abs=0.02)
    assert found.free_gpus == found.gpus == 4000


def test_nodes_differ_by_what_is_free() -> None:
    nodes = [gpu_node(f"n{number}") for number in range(3)]
    found = fleet_of_nodes(nodes, used={"n0": 8, "n1": 3})
    assert {(group.name, group.free_gpus) for group in found.groups} == {
        (f"{H100}.1", 0),
        (f"{H100}.2", 5),
        (f"{H100}.3", 8),
    }


def test_nodes_that_take_no_pods_have_nothing_free_but_count() -> None:
    found = fleet_of_nodes(
        [gpu_node("a", ready=False), gpu_node("b", unschedulable=True), gpu_node("c", healthy=7)]
    )
    assert found.free_gpus == 7
    assert found.gpus == 24


def test_nodes_that_cannot_be_planned_with_are_counted_by_reason() -> None:
    found = fleet_of_nodes(
        [
            gpu_node("a", deleting=True),
            gpu_node("b", product=""),
            gpu_node("c", sharing=Sharing.MIG),
            gpu_node("d", inventory={"mixed": True}),
            gpu_node("e", gpus=0),
            gpu_node("f", deleting=True),
        ]
    )
    assert found.groups == ()
    assert found.skipped == (
        "1 node left out: GPUs are not handed out whole (MIG)",
        "1 node left out: GPUs of several products",
        "2 nodes left out: being deleted",
        "1 node left out: no label names the GPU product",
    )


@pytest.mark.parametrize(
    ("fields", "kind", "rate", "source"),
    [
        ({}, FabricKind.ETHERNET, ASSUMED_FABRIC.gigabytes_per_second, "assumed"),
        ({"other": {"rdma/ib": 8}}, FabricKind.RDMA, 25, "resource rdma/ib; speed assumed"),
        ({"other": {"vpc.amazonaws.com/efa": 32}}, FabricKind.RDMA, 25, "resource vpc.amazonaws"),
        ({"other": {"example.com/hca": 1}}, FabricKind.RDMA, 25, "resource example.com/hca"),
        (
            {"labels": {"feature.node.kubernetes.io/custom-rdma.capable": "true"}},
            FabricKind.RDMA,
            25,
            "label feature.node",
        ),
        (
            {"labels": {"backend.coreweave.cloud/flavor": "roce"}},
            FabricKind.RDMA,
            25,
            "label backend.coreweave.cloud/flavor",
        ),
        ({"labels": {"ib.coreweave.cloud/speed": "3200G"}}, FabricKind.RDMA, 50, "3200G"),
        ({"labels": {"ib.coreweave.cloud/speed": "0G"}}, FabricKind.ETHERNET, 1.5625, "assumed"),
        ({"labels": {"ib.coreweave.cloud/speed": "fast"}}, FabricKind.ETHERNET, 1.5625, "assumed"),
    ],
)
def test_a_nodes_fabric(fields: Any, kind: FabricKind, rate: float, source: str) -> None:
    found = fabric_of(gpu_node("a", **fields), ("example.com/hca",))
    assert found.kind is kind
    assert found.gigabytes_per_second == pytest.approx(rate)
    assert source in found.source


def test_the_settings_name_resources_that_mean_rdma() -> None:
    node = gpu_node("a", other={"example.com/hca": 1})
    settings = Settings(fabric_profiles={"ib": FabricProfile(resources={"example.com/hca": "1"})})
    assert fleet_of_nodes([node]).groups[0].fabric == ASSUMED_FABRIC
    assert fleet_of_nodes([node], settings=settings).groups[0].fabric.kind is FabricKind.RDMA


@pytest.mark.parametrize(
    ("told", "silent", "rdma", "labelled"),
    [
        # What the settings say, and what becomes of a node that tells nothing, of one with an RDMA
        # resource, and of one whose label has kind and speed.
        (None, ASSUMED_FABRIC, (FabricKind.RDMA, 25), (FabricKind.RDMA, 50)),
        (
            {"kind": "RDMA", "gigabytesPerSecond": 40},
            Fabric(FabricKind.RDMA, 40, "settings"),
            (FabricKind.RDMA, 40),
            (FabricKind.RDMA, 50),
        ),
        (
            {"kind": "RDMA"},
            Fabric(FabricKind.RDMA, 25, "settings; speed assumed"),
            (FabricKind.RDMA, 25),
            (FabricKind.RDMA, 50),
        ),
        (
            {"kind": "Ethernet", "gigabytesPerSecond": 6.25},
            Fabric(FabricKind.ETHERNET, 6.25, "settings"),
            (FabricKind.RDMA, 25),
            (FabricKind.RDMA, 50),
        ),
        (
            {"kind": "Ethernet"},
            ASSUMED_FABRIC,
            (FabricKind.RDMA, 25),
            (FabricKind.RDMA, 50),
        ),
    ],
)
def test_the_settings_tell_what_nodes_do_not(
    told: Any, silent: Fabric, rdma: tuple[FabricKind, float], labelled: tuple[FabricKind, float]
) -> None:
    settings = Settings.read({"fabric": told})

    def seen(**fields: Any) -> Fabric:
        return fleet_of_nodes([gpu_node("a", **fields)], settings=settings).groups[0].fabric

    assert seen() == silent
    found = seen(other={"rdma/ib": 8})
    assert (found.kind, found.gigabytes_per_second) == rdma
    assert "resource rdma/ib" in found.source
    found = seen(labels={"ib.coreweave.cloud/speed": "3200G"})
    assert (found.kind, found.gigabytes_per_second) == labelled
    pool = NodePool("burst", "NVIDIA-H200", 8, 4, nvlink_size=8, compute=(9, 0))
    assert fleet_of_nodes([], pools=[pool], settings=settings).groups[0].fabric == silent


def test_a_pool_counts_as_nodes_that_may_come() -> None:
    pool = NodePool("burst", "NVIDIA-H200", 8, 4, nvlink_size=8, compute=(9, 0))
    group = fleet_of_nodes([], pools=[pool]).groups[0]
    assert group.possible
    assert (group.nodes, group.free_gpus, group.name) == (4, 8, "burst")


def test_a_clique_joins_the_stages_of_its_nodes() -> None:
    nodes = [gpu_node(f"n{i}", 4, product="NVIDIA-GB200", clique=f"c.{i // 4}") for i in range(8)]
    found = fleet_of_nodes(nodes)
    assert found.groups[0].clique_nodes == 4
    pool = pools_of(found, ["NVIDIA-GB200"])[0]
    assert pool.links(Shape(4, 2)).sends[0].rate == pytest.approx(900e9 * 0.8)
    assert pool.links(Shape(4, 8)).sends[-1].rate < 10e9


@pytest.mark.parametrize(
    ("free", "nvlink", "tensor", "slots"),
    [
        (8, 8, 8, 2),
        (8, 8, 3, 4),
        (7, 8, 4, 2),
        (8, 4, 8, 0),
        (8, 4, 3, 4),
        (6, 4, 2, 6),
        (6, 0, 4, 2),
    ],
)
def test_slots_never_cross_a_domain(free: int, nvlink: int, tensor: int, slots: int) -> None:
    assert _group(free_gpus=free, nvlink_size=nvlink).slots(tensor) == slots


def test_a_file_says_little_and_the_product_the_rest() -> None:
    found = fleet_of_yaml("nodes: [{product: NVIDIA-H100-80GB-HBM3, count: 2}]")
    assert found.groups == (
        _group(
            name=H100,
            memory_bytes=found.groups[0].memory_bytes,
            compute=(9, 0),
            fabric=ASSUMED_FABRIC,
        ),
    )


def test_a_file_may_say_everything() -> None:
    group = fleet_of_yaml(
        """
        nodes:
          - name: odd
            product: Acme-9000
            count: 3
            gpus: 4
            free: 2
            nvlink: 2
            memoryGiB: 100
            compute: "9.0"
            cliqueNodes: 3
            fabric: {kind: RDMA, gigabytesPerSecond: 100}
        """
    ).groups[0]
    assert group == NodeGroup(
        "odd",
        "Acme-9000",
        3,
        4,
        2,
        2,
        100 * GIB,
        (9, 0),
        Fabric(FabricKind.RDMA, 100, "nodes file"),
        3,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [", "no YAML"),
        ("- a", "expected a map with the key nodes"),
        ("nodes: []", "nodes"),
        ("nodes: [{count: 1}]", r"nodes\[0\]\.product: is missing"),
        (
            "nodes: [{product: H100, gpu: 8}]",
            r"nodes\[0\]\.gpu: is no field: did you mean nodes\[0\]\.gpus\?",
        ),
        ("nodes: [{product: H100, gpus: 4, free: 5}]", "free 5 exceeds gpus 4"),
        ("nodes: [{product: H100, gpus: 4, nvlink: 8}]", "nvlink 8 exceeds gpus 4"),
        ("nodes: [{product: Acme}]", "GPU product Acme: no figures"),
        ("nodes: [{product: H100, fabric: Token-Ring}]", r"fabric\.kind"),
        (
            "nodes: [{product: H100, count: 0}]",
            r"nodes\[0\]\.count: 0 is less than 1: write a whole number from 1 to 1000000",
        ),
        (
            "nodes: [{product: NVIDIA-A100-SXM4-80GB-MIG-3g.40gb}]",
            r"MIG-3g\.40gb: slices \(MIG\) .* tensor 1, .* such as NVIDIA-A100-SXM4-80GB$",
        ),
        ("nodes: [{product: NVIDIA-L40S-SHARED}]", "such as NVIDIA-L40S$"),
        ("nodes: !!python/object/apply:os.system [true]", "no YAML"),
    ],
)
def test_a_file_that_cannot_be_used_says_where(text: str, message: str) -> None:
    with pytest.raises(FleetError, match=message):
        fleet_of_yaml(text)


def test_questions_refuse_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match=r"workload\.inputLen 0: must be at least 1"):
        Workload(input_len=0)
    with pytest.raises(ValueError, match=r"workload\.tpotSeconds 0: must be above 0"):
        Workload(tpot_seconds=0)
    with pytest.raises(ValueError, match=r"attentionData 0: must be at least 1"):
        Limits(attention_data=0)
    with pytest.raises(ValueError, match=r"weightBits 5: must be 16, 8 or 4"):
        Limits(weight_bits=5)


class TestStagesApart:
    """Stages of a replica on different nodes: what that leaves of the free GPUs."""

    @pytest.mark.parametrize(
        ("groups", "shape", "together", "apart"),
        [
            # nodes × free GPUs, in one NVLink domain each
            ([(2, 8)], Shape(8, 2), 1, 1),
            ([(2, 8)], Shape(4, 2), 2, 2),
            ([(1, 8)], Shape(4, 2), 1, 0),
            ([(1, 8), (3, 4)], Shape(4, 2), 2, 2),
            ([(1, 8), (1, 4)], Shape(4, 2), 1, 1),
            ([(1, 8), (2, 4)], Shape(2, 3), 2, 2),
            ([(1, 8), (1, 2), (1, 2)], Shape(2, 3), 2, 1),
            ([(4, 8)], Shape(2, 4), 4, 4),
            ([(4, 8)], Shape(2, 1), 16, 16),
            ([(2, 0)], Shape(8, 2), 0, 0),
        ],
    )
    def test_replicas(
        self, groups: list[tuple[int, int]], shape: Shape, together: int, apart: int
    ) -> None:
        fleet = Fleet(
            tuple(
                _group(name=f"g{number}", nodes=nodes, free_gpus=free)
                for number, (nodes, free) in enumerate(groups)
            )
        )
        assert pools_of(fleet, [H100])[0].replicas(shape) == together
        pool = pools_of(fleet, [H100], apart=True)[0]
        assert pool.replicas(shape) == apart
        assert (pool.longest(shape.tensor) >= shape.pipeline) == (apart > 0)
        if apart:
            assert pool.stage_nodes(shape) == tuple(range(shape.pipeline))

    @given(
        rooms=st.lists(st.integers(0, 4), min_size=1, max_size=6),
        pipeline=st.integers(1, 4),
    )
    def test_replicas_are_as_many_as_a_search_finds(self, rooms: list[int], pipeline: int) -> None:
        groups = tuple(
            _group(name=f"g{number}", nodes=1, free_gpus=2 * room)
            for number, room in enumerate(rooms)
        )
        pool = pools_of(Fleet(groups), [H100], apart=True)[0]
        found, left = 0, sorted(rooms, reverse=True)
        # To take the emptiest nodes first is best: what stays is as even as can be.
        while len(left) >= pipeline and left[pipeline - 1] > 0:
            left = sorted([*(room - 1 for room in left[:pipeline]), *left[pipeline:]], reverse=True)
            found += 1
        assert pool.replicas(Shape(2, pipeline)) == found
