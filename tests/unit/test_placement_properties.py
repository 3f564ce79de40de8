"""Placement against brute force on random fleets: what is never broken, whatever the cluster."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, groupby

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet import GIB, H100, LEVELS, RACK, ZONE, gpu_node, gpus, replica

from shardwright.observe.world import NodeView, Resources, Sharing, Taint
from shardwright.plan.placement import (
    NoRoom,
    Placement,
    PlacementRequest,
    place_group,
    place_step,
)

CLIQUE = "nvidia.com/gpu.clique"
HOST = "kubernetes.io/hostname"
NEAREST_FIRST = (HOST, CLIQUE, RACK, ZONE, "")

# Every node is one number, so that examples are cheap to draw and shrink towards a plain node. A
# choice that stands several times is that much likelier.
CHOICES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("gpus", (8, 8, 8, 4)),
    ("used", (0, 0, 4, 6, 8, 2)),
    ("rack", ("r1", "r2", "r3", "")),
    ("zone", ("z1", "z2", "")),
    ("clique", ("", "", "u1.1", "u2.1")),
    ("fault", (*("",) * 9, "cordon", "down", "taint", "delete", "product", "dra", "mig", "nvlink")),
    ("memory", (1024, 1024, 100)),
    ("mark", ("", "", "", "avoid", "sibling", "sibling")),
)
CODES = st.integers(0, 4 * 6 * 4 * 3 * 4 * 17 * 3 * 6 - 1)


class Fleet:
    """Nodes, what is used on them, and which of them the request avoids or holds dear."""

    def __init__(self, codes: Sequence[int], *, nested: bool = False) -> None:
        self.nodes: list[NodeView] = []
        self.used: dict[str, Resources] = {}
        self.marks: dict[str, set[str]] = {"avoid": set(), "sibling": set(), "": set()}
        for number, code in enumerate(codes):
            name = f"n{number:02}"
            chosen: dict[str, object] = {}
            rest = code
            for field, values in CHOICES:
                rest, index = divmod(rest, len(values))
                chosen[field] = values[index]
            if nested:  # a rack is in one zone, a clique in one rack
                chosen["rack"] = f"{chosen['zone']}-{chosen['rack']}"
                chosen["clique"] = f"{chosen['rack']}-{chosen['clique']}"
            self.nodes.append(_node(name, chosen))
            self.marks[str(chosen["mark"])].add(name)
            if chosen["used"]:
                self.used[name] = gpus(int(str(chosen["used"])), memory=64)

    def request(self, stages: int, tensor: int, *, spread: bool) -> PlacementRequest:
        return replica(
            stages,
            tensor,
            spread=spread,
            avoid=frozenset(self.marks["avoid"]),
            sibling_nodes=frozenset(self.marks["sibling"]),
        )


def _node(name: str, chosen: Mapping[str, object]) -> NodeView:
    fault = chosen["fault"]
    node = gpu_node(
        name,
        int(str(chosen["gpus"])),
        rack=str(chosen["rack"]),
        zone=str(chosen["zone"]),
        clique=str(chosen["clique"]),
        memory=int(str(chosen["memory"])),
        product="NVIDIA-L40S" if fault == "product" else H100,
        sharing=Sharing.MIG if fault == "mig" else Sharing.EXCLUSIVE,
        nvlink=2 if fault == "nvlink" else None,
        taints=(Taint("team", "b", "NoExecute"),) if fault == "taint" else (),
        inventory={"slices_only": True} if fault == "dra" else None,
    )
    return replace(
        node, unschedulable=fault == "cordon", ready=fault != "down", deleting=fault == "delete"
    )


# The rules once more, written from the specification and sharing no code with the placer.


def may_hold(request: PlacementRequest, node: NodeView) -> bool:
    gpu = node.gpu
    return (
        gpu.product == request.product
        and node.ready
        and not (node.unschedulable or node.deleting or gpu.slices_only or node.taints)
        and node.name not in request.avoid
        and (request.gpus_per_pod == 1 or gpu.sharing is Sharing.EXCLUSIVE)
        and not 0 < gpu.nvlink_size < min(request.gpus_per_pod, gpu.capacity)
    )


def holds(request: PlacementRequest, node: NodeView, taken: Resources, pods: int) -> bool:
    """Whether so many pods fit on the node beside what is taken."""
    if pods > 1 and (request.spread or node.gpu.sharing is not Sharing.EXCLUSIVE):
        return False
    offer, need = node.allocatable, request.per_pod
    return (
        (request.gpus_per_pod == 0 or taken.gpus + pods * request.gpus_per_pod <= offer.gpus)
        and taken.memory_bytes + pods * need.memory_bytes <= offer.memory_bytes
        and taken.cpu_millis + pods * need.cpu_millis <= offer.cpu_millis
        and taken.pods + pods <= offer.pods
    )


def assignments(
    request: PlacementRequest, nodes: Sequence[NodeView], used: Mapping[str, Resources]
) -> Iterator[tuple[NodeView, ...]]:
    """Every choice of nodes for the stages, whatever their order."""
    able = [node for node in nodes if may_hold(request, node)]
    choose = combinations if request.spread else combinations_with_replacement
    for chosen in choose(able, request.stages):
        counts = Counter(node.name for node in chosen)
        if all(
            holds(request, node, used.get(node.name, Resources()), counts[node.name])
            for node in chosen
        ):
            yield chosen


def domain(node: NodeView, level: str) -> str:
    if level == HOST:
        return node.name
    return node.gpu.clique if level == CLIQUE else node.labels.get(level, "")


def level_of(chosen: Sequence[NodeView]) -> str:
    """The nearest level of which all chosen nodes share one domain."""
    for level in NEAREST_FIRST[:-1]:
        values = {domain(node, level) for node in chosen}
        if len(values) == 1 and "" not in values:
            return level
    return ""


def check_valid(
    request: PlacementRequest, fleet: Fleet, found: Placement, used: Mapping[str, Resources]
) -> list[NodeView]:
    by_name = {node.name: node for node in fleet.nodes}
    chosen = [by_name[name] for name in found.nodes]
    assert len(chosen) == request.stages
    if request.spread:
        assert len({*found.nodes}) == request.stages
    for node in chosen:
        assert may_hold(request, node)
        taken = used.get(node.name, Resources())
        assert holds(request, node, taken, found.nodes.count(node.name))
    assert found.level == level_of(chosen)
    assert found.domain == (domain(chosen[0], found.level) if found.level else "")
    return chosen


SMALL = {
    "codes": st.lists(CODES, min_size=1, max_size=6),
    "stages": st.integers(1, 4),
    "tensor": st.sampled_from([4, 8, 2, 1]),
    "spread": st.booleans(),
}


@settings(derandomize=True, max_examples=1500, deadline=None)
@given(**SMALL)
def test_on_small_fleets_the_answer_is_as_good_as_brute_force(
    codes: list[int], stages: int, tensor: int, spread: bool
) -> None:
    fleet = Fleet(codes)
    request = fleet.request(stages, tensor, spread=spread)
    every = list(assignments(request, fleet.nodes, fleet.used))
    found = place_group(request, fleet.nodes, fleet.used)
    if isinstance(found, NoRoom):
        assert every == []
        assert found.possible is any(assignments(request, fleet.nodes, {}))
        assert str(request.gpus) in found.message()
        return
    chosen = check_valid(request, fleet, found, fleet.used)
    tightest = min((level_of(one) for one in every), key=NEAREST_FIRST.index)
    assert found.level == tightest
    siblings = request.sibling_nodes
    strangers = [
        one
        for one in every
        if level_of(one) == tightest and not siblings & {node.name for node in one}
    ]
    if strangers:
        assert not siblings & {*found.nodes}
        fewest = min(len({node.name for node in one}) for one in strangers)
        assert len({node.name for node in chosen}) == fewest


@settings(derandomize=True, max_examples=300, deadline=None)
@given(**SMALL, seed=st.integers(0, 1000))
def test_the_same_nodes_in_another_order_give_the_same_answer(
    codes: list[int], stages: int, tensor: int, spread: bool, seed: int
) -> None:
    fleet = Fleet(codes)
    request = fleet.request(stages, tensor, spread=spread)
    shuffled = list(fleet.nodes)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 — an order, not a secret
    found = place_group(request, fleet.nodes, fleet.used)
    assert place_group(request, shuffled, fleet.used) == found
    one = replace(request, stages=1)
    assert place_step(one, shuffled, fleet.used) == place_step(one, fleet.nodes, fleet.used)


@settings(derandomize=True, max_examples=700, deadline=None)
@given(
    codes=st.lists(CODES, min_size=10, max_size=40),
    stages=st.integers(1, 12),
    tensor=st.sampled_from([8, 4, 2]),
    spread=st.booleans(),
)
def test_on_larger_fleets_ranks_share_a_node_and_stages_stand_together(
    codes: list[int], stages: int, tensor: int, spread: bool
) -> None:
    fleet = Fleet(codes, nested=True)
    request = fleet.request(stages, tensor, spread=spread)
    found = place_group(request, fleet.nodes, fleet.used)
    if isinstance(found, NoRoom):
        able = [node for node in fleet.nodes if may_hold(request, node)]
        room = 0
        for node in able:
            taken = fleet.used.get(node.name, Resources())
            pods = range(1, stages + 1)
            room += sum(holds(request, node, taken, number) for number in pods)
        assert room < stages
        assert found.free_gpus == sum(
            max(0, node.allocatable.gpus - fleet.used.get(node.name, Resources()).gpus)
            for node in able
        )
        return
    chosen = check_valid(request, fleet, found, fleet.used)
    # Levels that nest: going through the stages, no domain is left and entered again.
    for level in NEAREST_FIRST[:-1]:
        runs = [value for value, _ in groupby(domain(node, level) for node in chosen)]
        assert len(runs) == len({*runs})


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    codes=st.lists(CODES, min_size=1, max_size=8), shapes=st.lists(st.integers(1, 3), max_size=8)
)
def test_placing_replica_after_replica_never_takes_a_gpu_twice(
    codes: list[int], shapes: list[int]
) -> None:
    fleet = Fleet(codes)
    used = dict(fleet.used)
    for stages in shapes:
        request = fleet.request(stages, 4, spread=True)
        found = place_group(request, fleet.nodes, used)
        if isinstance(found, NoRoom):
            continue
        for name in found.nodes:
            used[name] = used.get(name, Resources()) + request.need
    for node in fleet.nodes:
        before = fleet.used.get(node.name, Resources()).gpus
        now = used.get(node.name, Resources()).gpus
        assert now == before or now <= node.allocatable.gpus


@settings(derandomize=True, max_examples=500, deadline=None)
@given(codes=st.lists(CODES, min_size=1, max_size=6), tensor=st.integers(0, 8))
def test_a_step_takes_a_node_that_holds_it_and_no_fuller_one_would(
    codes: list[int], tensor: int
) -> None:
    fleet = Fleet(codes)
    request = replace(
        fleet.request(1, tensor, spread=True), per_pod=Resources(1000, 64 * GIB), levels=LEVELS
    )
    found = place_step(request, fleet.nodes, fleet.used)
    left = {
        node.name: max(0, node.allocatable.gpus - fleet.used.get(node.name, Resources()).gpus)
        for node in fleet.nodes
    }
    able = [
        node.name
        for node in fleet.nodes
        if node.ready
        and not (node.unschedulable or node.deleting or node.taints)
        and node.name not in request.avoid
        and (
            tensor == 0
            or (
                node.gpu.product == H100
                and not node.gpu.slices_only
                and (tensor == 1 or node.gpu.sharing is Sharing.EXCLUSIVE)
            )
        )
        and holds(request, node, fleet.used.get(node.name, Resources()), 1)
    ]
    if isinstance(found, NoRoom):
        assert able == []
    else:
        assert found in able
        assert left[found] == min(left[name] for name in able)
