"""From a planned candidate to a scene: which node a replica's stages could stand on.

A drawing, no placement: the placer decides later, from what is free then. Here replicas fill nodes
from the first, each on as many nodes as the plan says, never over an NVLink domain's edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from shardwright.picture.scene import GPUMemory, NodeBox, Part, Scene, Seat, gib, together
from shardwright.sizing.question import Fleet, NodeGroup, Workload
from shardwright.sizing.result import Candidate
from shardwright.sizing.shape import StageMemory
from shardwright.words import counted

DRAWN_NODES = 400
"""Most nodes of a picture; those beyond are only counted."""


@dataclass(slots=True)
class _Node:
    name: str
    group: NodeGroup
    seats: list[Seat | None] = field(default_factory=list)

    def starts(self, tensor: int) -> list[int]:
        """Where a tensor-parallel group could begin: whole in a domain, on free GPUs."""
        domain, taken = self.group.domain, self.group.gpus_per_node - self.group.free_gpus
        found = []
        for low in range(0, self.group.gpus_per_node, domain):
            high = min(low + domain, self.group.gpus_per_node)
            start = max(low, taken)
            while start + tensor <= high:
                if all(seat is None for seat in self.seats[start : start + tensor]):
                    found.append(start)
                start += tensor
        return found


def scene_of(
    candidate: Candidate,
    fleet: Fleet,
    workload: Workload,
    title: str,
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    notes: Sequence[str] = (),
) -> Scene:
    """The picture of a candidate on its fleet.

    Args:
        candidate: What is drawn.
        fleet: The fleet it was planned for.
        workload: The load, which says how much of the KV cache is in use.
        title: Heading of the picture.
        names: Names of the nodes by group, where they are known; others are counted.
        notes: Remarks below it.
    """
    groups = [group for group in fleet.groups if group.name in candidate.node_groups]
    everyone = sum(group.nodes for group in groups)
    nodes = list(islice(_nodes(groups, names or {}), DRAWN_NODES))
    placed = _seat(candidate, nodes)
    remarks = [*notes]
    if len(nodes) < everyone:
        remarks.append(f"The first {DRAWN_NODES} of {everyone:,} nodes are drawn.")
    if placed < candidate.replicas:
        remarks.append(f"{placed:,} of {counted(candidate.replicas, 'replica')} are drawn.")
    return Scene(
        title=title,
        subtitle=_subtitle(candidate, groups, workload),
        tensor=candidate.shape.tensor,
        pipeline=candidate.shape.pipeline,
        replicas=placed,
        nodes=tuple(
            NodeBox(
                node.name,
                candidate.product,
                tuple(node.seats),
                node.group.gpus_per_node - node.group.free_gpus,
            )
            for node in nodes
        ),
        memory=together(
            [memory_of(stage, candidate, workload) for stage in candidate.memory.stages]
        ),
        inside=_inside(groups),
        between=_between(groups, candidate),
        notes=tuple(remarks),
    )


def _nodes(groups: Sequence[NodeGroup], names: Mapping[str, Sequence[str]]) -> Iterator[_Node]:
    for group in groups:
        known = names.get(group.name, ())
        for number in range(group.nodes):
            name = known[number] if number < len(known) else _name(groups, group, number)
            yield _Node(name, group, [None] * group.gpus_per_node)


def _name(groups: Sequence[NodeGroup], group: NodeGroup, number: int) -> str:
    """A name for a node that has none: its group's where there are several, and a number."""
    return f"node {number}" if len(groups) == 1 else f"{group.name} node {number}"


def _seat(candidate: Candidate, nodes: list[_Node]) -> int:
    """Seat replica after replica; how many found a home.

    Each on the next nodes that stand side by side, which is easiest to read; where that leaves some
    out, all anew on the nodes with most room, wherever they are.
    """
    placed = _side_by_side(candidate, nodes)
    if placed == candidate.replicas:
        return placed
    before = [list(node.seats) for node in nodes]
    for node in nodes:
        node.seats = [None] * node.group.gpus_per_node
    spread = _roomiest_first(candidate, nodes)
    if spread > placed:
        return spread
    for node, seats in zip(nodes, before, strict=True):
        node.seats = seats
    return placed


def _side_by_side(candidate: Candidate, nodes: list[_Node]) -> int:
    wide, at, placed = candidate.nodes_per_replica, 0, 0
    while placed < candidate.replicas and at + wide <= len(nodes):
        here = nodes[at : at + wide]
        if _put(candidate, placed, here):
            placed += 1
        else:
            at += wide if _used(here) else 1
    return placed


def _roomiest_first(candidate: Candidate, nodes: list[_Node]) -> int:
    tensor, wide, placed = candidate.shape.tensor, candidate.nodes_per_replica, 0
    rooms = [len(node.starts(tensor)) for node in nodes]
    while placed < candidate.replicas:
        chosen = sorted(sorted(range(len(nodes)), key=lambda place: -rooms[place])[:wide])
        if len(chosen) < wide or not _put(candidate, placed, [nodes[place] for place in chosen]):
            break
        for place in chosen:
            rooms[place] = len(nodes[place].starts(tensor))
        placed += 1
    return placed


def _used(nodes: Sequence[_Node]) -> bool:
    return any(seat is not None for node in nodes for seat in node.seats)


def _put(candidate: Candidate, replica: int, homes: Sequence[_Node]) -> bool:
    """Seat one replica on these nodes if all of its stages fit."""
    tensor = candidate.shape.tensor
    starts = [node.starts(tensor) for node in homes]
    chosen: list[tuple[int, int]] = []
    for place in candidate.stage_nodes:
        if place >= len(homes) or not starts[place]:
            return False
        chosen.append((place, starts[place].pop(0)))
    for stage, (place, start) in enumerate(chosen):
        for rank in range(tensor):
            homes[place].seats[start + rank] = Seat(replica, stage, rank)
    return True


def memory_of(stage: StageMemory, candidate: Candidate, workload: Workload) -> GPUMemory:
    """A stage's memory as drawn; the KV pool split into what its requests fill and the rest."""
    asked = candidate.estimate.batch * workload.request_len
    filled = min(1.0, asked / stage.kv_tokens) if stage.kv_tokens else 1.0
    pool = max(0, stage.kv_pool)
    used = round(pool * filled)
    held = {
        Part.WEIGHTS: stage.weights + stage.lora + stage.draft,
        Part.KV_USED: used,
        Part.KV_SPARE: pool - used,
        Part.ACTIVATIONS: stage.activation,
        Part.OVERHEAD: stage.runtime,
    }
    left = max(0, stage.total - sum(held.values()))
    # What a runtime takes outside its budget comes out of what that leaves, if it is enough.
    outside = min(stage.outside, left)
    held[Part.OVERHEAD] += outside
    held[Part.FREE] = left - outside
    return GPUMemory(
        first=stage.stage,
        last=stage.stage,
        layers=stage.layers,
        parts=tuple(held.items()),
        total=max(stage.total, sum(held.values())),
    )


def _subtitle(candidate: Candidate, groups: Sequence[NodeGroup], workload: Workload) -> str:
    nodes = sum(group.nodes for group in groups)
    sizes = {group.gpus_per_node for group in groups}
    each = f"{min(sizes)}" if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
    memory = gib(min((group.memory_bytes for group in groups), default=0))
    return (
        f"{counted(nodes, 'node')} × {each} {candidate.product} ({memory} GiB each). Asked: "
        f"{counted(workload.concurrency, 'request')} at once of {workload.input_len:,} tokens in, "
        f"{workload.output_len:,} out; room for {candidate.concurrency:,}."
    )


def _inside(groups: Sequence[NodeGroup]) -> str:
    links = {"NVLink" if group.nvlink_size > 1 else "PCIe" for group in groups}
    return " or ".join(sorted(links))


def _between(groups: Sequence[NodeGroup], candidate: Candidate) -> str:
    if candidate.nodes_per_replica == 1:
        return _inside(groups)
    return " or ".join(sorted({group.fabric.kind.value for group in groups}))
