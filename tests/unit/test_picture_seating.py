"""From a plan to a picture: replicas on nodes, memory by part."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.picture.scene import Part, Scene
from shardwright.picture.seating import DRAWN_NODES, memory_of, scene_of
from shardwright.sizing.question import (
    GIB,
    Fabric,
    FabricKind,
    Fleet,
    NodeGroup,
    Workload,
)
from shardwright.sizing.result import Candidate, Estimate, StepTime
from shardwright.sizing.shape import MemoryPlan, Precision, Shape, StageMemory

LOAD = Workload(concurrency=8, input_len=2048, output_len=512)


def group(name: str = "h100", **changes: object) -> NodeGroup:
    base = NodeGroup(
        name=name,
        product="NVIDIA-H100-80GB-HBM3",
        nodes=2,
        gpus_per_node=8,
        free_gpus=8,
        nvlink_size=8,
        memory_bytes=80 * GIB,
        fabric=Fabric(FabricKind.RDMA, 25.0),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def stage(number: int, **changes: int) -> StageMemory:
    base = StageMemory(
        stage=number,
        layers=40,
        weights=40 * GIB,
        activation=GIB,
        runtime=2 * GIB,
        lora=0,
        draft=0,
        kv_pool=30 * GIB,
        kv_bytes_per_token=1,
        kv_tokens=51_200,
        total=80 * GIB,
    )
    return replace(base, **changes)


def plan(
    tensor: int, stage_nodes: tuple[int, ...], replicas: int, groups: tuple[str, ...] = ("h100",)
) -> Candidate:
    step = StepTime(0.01, 0.0, 0.0, 0.0, 0.0)
    pipeline = len(stage_nodes)
    return Candidate(
        product="NVIDIA-H100-80GB-HBM3",
        precision=Precision(),
        shape=Shape(tensor, pipeline),
        replicas=replicas,
        replicas_needed=1,
        stage_nodes=stage_nodes,
        node_groups=groups,
        memory=MemoryPlan(tuple(stage(number) for number in range(pipeline)), "test"),
        estimate=Estimate(8, 20, 0.1, 0.01, 100.0, 100.0 / tensor / pipeline, step),
        score=1.0,
    )


def drawn(candidate: Candidate, *groups: NodeGroup) -> Scene:
    return scene_of(candidate, Fleet(groups), LOAD, "title")


def rows(scene: Scene) -> list[str]:
    """A node a row, a GPU a word: replica.stage.rank, `-` free, `#` taken."""
    return [
        " ".join(
            f"{seat.replica}.{seat.stage}.{seat.tensor_rank}"
            if seat
            else "#"
            if place < node.taken
            else "-"
            for place, seat in enumerate(node.seats)
        )
        for node in scene.nodes
    ]


def test_stages_over_nodes_stand_side_by_side() -> None:
    scene = drawn(plan(4, (0, 1), 2), group(gpus_per_node=4, free_gpus=4, nvlink_size=4, nodes=4))
    assert rows(scene) == [
        "0.0.0 0.0.1 0.0.2 0.0.3",
        "0.1.0 0.1.1 0.1.2 0.1.3",
        "1.0.0 1.0.1 1.0.2 1.0.3",
        "1.1.0 1.1.1 1.1.2 1.1.3",
    ]


def test_stages_of_one_node_are_packed() -> None:
    assert rows(drawn(plan(2, (0, 0), 2), group(nodes=1))) == [
        "0.0.0 0.0.1 0.1.0 0.1.1 1.0.0 1.0.1 1.1.0 1.1.1"
    ]


def test_gpus_in_use_are_left_alone() -> None:
    assert rows(drawn(plan(2, (0,), 2), group(nodes=1, free_gpus=5))) == [
        "# # # 0.0.0 0.0.1 1.0.0 1.0.1 -"
    ]


def test_no_group_of_ranks_lies_over_the_edge_of_an_nvlink_domain() -> None:
    assert rows(drawn(plan(2, (0,), 3), group(nodes=1, nvlink_size=4, free_gpus=7))) == [
        "# 0.0.0 0.0.1 - 1.0.0 1.0.1 2.0.0 2.0.1"
    ]


def test_replicas_that_do_not_fit_side_by_side_take_the_roomiest_nodes() -> None:
    three = group(nodes=3, gpus_per_node=4, free_gpus=4, nvlink_size=4)
    scene = drawn(plan(2, (0, 1), 3), three)
    assert scene.replicas == 3
    assert scene.used == 12


def test_replicas_that_cannot_be_drawn_are_told() -> None:
    scene = drawn(plan(8, (0,), 3), group())
    assert scene.replicas == 2
    assert "2 of 3 replicas are drawn." in scene.notes


def test_of_thousands_of_nodes_the_first_are_drawn_and_the_rest_is_told() -> None:
    scene = drawn(plan(8, (0,), 5000), group(nodes=5000))
    assert len(scene.nodes) == DRAWN_NODES
    assert f"The first {DRAWN_NODES} of 5,000 nodes are drawn." in scene.notes


def test_nodes_have_their_names_where_they_are_known() -> None:
    fleet = Fleet((group(),))
    known = scene_of(plan(8, (0,), 1), fleet, LOAD, "t", names={"h100": ("a", "b")})
    assert [node.name for node in known.nodes] == ["a", "b"]
    assert [node.name for node in drawn(plan(8, (0,), 1), group()).nodes] == ["node 0", "node 1"]


def test_only_nodes_that_may_carry_it_are_drawn() -> None:
    scene = drawn(plan(8, (0,), 1), group(), group("l40s", product="NVIDIA-L40S"))
    assert len(scene.nodes) == 2


def test_links_are_named_by_what_they_run_over() -> None:
    assert (
        drawn(plan(8, (0, 1), 1), group()).inside,
        drawn(plan(8, (0, 1), 1), group()).between,
    ) == (
        "NVLink",
        "RDMA",
    )
    bus = group(nvlink_size=0)
    assert drawn(plan(2, (0, 0), 1), bus).inside == "PCIe"
    assert drawn(plan(2, (0, 0), 1), bus).between == "PCIe", "both stages are in one node"


class TestMemory:
    """A GPU's memory by part."""

    def test_the_pool_is_split_by_what_the_load_fills(self) -> None:
        held = dict(memory_of(stage(0), plan(8, (0,), 1), LOAD).parts)
        assert held[Part.KV_USED] == 12 * GIB, "8 requests of 2,560 of 51,200 tokens"
        assert held[Part.KV_SPARE] == 18 * GIB
        assert held[Part.FREE] == 7 * GIB

    def test_a_load_beyond_the_pool_fills_it(self) -> None:
        held = dict(memory_of(stage(0, kv_tokens=100), plan(8, (0,), 1), LOAD).parts)
        assert (held[Part.KV_USED], held[Part.KV_SPARE]) == (30 * GIB, 0)

    def test_adapters_and_draft_count_as_weights(self) -> None:
        found = memory_of(stage(0, lora=GIB, draft=2 * GIB), plan(8, (0,), 1), LOAD)
        assert dict(found.parts)[Part.WEIGHTS] == 43 * GIB

    def test_what_lies_outside_the_budget_comes_out_of_what_is_free(self) -> None:
        held = dict(memory_of(stage(0, outside=3 * GIB), plan(8, (0,), 1), LOAD).parts)
        assert (held[Part.OVERHEAD], held[Part.FREE]) == (5 * GIB, 4 * GIB)
        full = dict(memory_of(stage(0, outside=30 * GIB), plan(8, (0,), 1), LOAD).parts)
        assert (full[Part.OVERHEAD], full[Part.FREE]) == (9 * GIB, 0)


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.integers(1, 12),
    gpus=st.sampled_from([1, 2, 4, 8]),
    domain=st.sampled_from([0, 1, 2, 4, 8]),
    tensor=st.sampled_from([1, 2, 4, 8]),
    stage_nodes=st.sampled_from([(0,), (0, 1), (0, 0), (0, 1, 2), (0, 0, 1, 1)]),
    replicas=st.integers(0, 40),
    data=st.data(),
)
def test_every_replica_drawn_is_whole_and_nobody_sits_twice(
    nodes: int,
    gpus: int,
    domain: int,
    tensor: int,
    stage_nodes: tuple[int, ...],
    replicas: int,
    data: st.DataObject,
) -> None:
    free = data.draw(st.integers(0, gpus))
    held = group(nodes=nodes, gpus_per_node=gpus, free_gpus=free, nvlink_size=min(domain, gpus))
    scene = drawn(plan(tensor, stage_nodes, replicas), held)
    seats = Counter(seat for node in scene.nodes for seat in node.seats if seat)
    assert set(seats.values()) <= {1}
    assert len(seats) == scene.replicas * tensor * len(stage_nodes)
    homes: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for place, node in enumerate(scene.nodes):
        assert all(seat is None for seat in node.seats[: node.taken])
        for gpu, seat in enumerate(node.seats):
            if seat:
                homes.setdefault((seat.replica, seat.stage), set()).add((place, gpu // held.domain))
    assert all(len(where) == 1 for where in homes.values()), "a stage lies in one domain"
    for replica in range(scene.replicas):
        where = [next(iter(homes[replica, number]))[0] for number in range(len(stage_nodes))]
        together = dict(zip(stage_nodes, where, strict=True))
        assert [together[node] for node in stage_nodes] == where
        assert len(set(where)) == len(set(stage_nodes))
