"""What a picture shows, as plain frozen data: every number that is drawn stands here once.

Text, SVG and HTML are three drawings of the same scene, so that none can say what another does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30


class Part(StrEnum):
    """What a GPU's memory goes to, from the bottom of a bar to its top."""

    WEIGHTS = "weights"
    KV_USED = "KV in use"
    KV_SPARE = "KV spare"
    ACTIVATIONS = "activations"
    OVERHEAD = "overhead"
    FREE = "free"


MEANINGS = {
    Part.WEIGHTS: "the model's weights, with adapters and draft model",
    Part.KV_USED: "KV cache that the requests fill",
    Part.KV_SPARE: "KV cache for more or longer requests",
    Part.ACTIVATIONS: "peak of a forward pass or of the sampler",
    Part.OVERHEAD: "context, communication buffers, CUDA graphs",
    Part.FREE: "left alone by the runtime",
}


@dataclass(frozen=True, slots=True)
class GPUMemory:
    """Memory of one GPU, in bytes, by part; the same for every tensor rank of the stages named.

    Attributes:
        first: First stage that it holds for.
        last: Last stage of a run of stages alike; equal to `first` for one stage.
        layers: Layers of each of these stages.
        parts: Bytes by part, each 0 or more; together they are `total`.
        total: Memory of the GPU as the driver reports it.
    """

    first: int
    last: int
    layers: int
    parts: tuple[tuple[Part, int], ...]
    total: int

    def __post_init__(self) -> None:
        if any(size < 0 for _, size in self.parts):
            raise ValueError(f"stage {self.first}: a part of the memory is negative: {self.parts}")
        if sum(size for _, size in self.parts) != self.total:
            raise ValueError(
                f"stage {self.first}: the parts add up to {sum(size for _, size in self.parts)} "
                f"bytes, the GPU has {self.total}"
            )

    @property
    def name(self) -> str:
        """`stage 0`, or `stages 1–6` for a run alike."""
        return (
            f"stage {self.first}" if self.first == self.last else f"stages {self.first}–{self.last}"
        )


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """Which rank sits on a GPU."""

    replica: int
    stage: int
    tensor_rank: int


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring GPUs of a node that form one stage of one replica."""

    replica: int
    stage: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class NodeBox:
    """A node: its name and, GPU by GPU, who sits on it.

    Attributes:
        name: Of the node.
        product: Its GPUs' product.
        seats: A rank for each GPU, or None.
        taken: How many GPUs without a rank, counted from the first, somebody else uses.
    """

    name: str
    product: str
    seats: tuple[Seat | None, ...]
    taken: int = 0

    @property
    def free(self) -> int:
        """GPUs that nobody uses."""
        return sum(seat is None for seat in self.seats) - self.taken

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Stages on this node, in the order of its GPUs."""
        found: list[Block] = []
        for place, seat in enumerate(self.seats):
            if seat is None:
                continue
            last = found[-1] if found else None
            if last is not None and (last.replica, last.stage) == (seat.replica, seat.stage):
                found[-1] = Block(last.replica, last.stage, last.start, last.size + 1)
            else:
                found.append(Block(seat.replica, seat.stage, place, 1))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture.

    Attributes:
        title: What is shown, for a heading: model, precision, split.
        subtitle: Where, and what it carries.
        tensor: Tensor-parallel ranks of a stage.
        pipeline: Pipeline stages of a replica.
        replicas: Replicas drawn.
        nodes: In the order they are drawn; stages of a replica stand side by side.
        memory: By stage, runs of stages alike put together.
        inside: What links tensor ranks: `NVLink`, `PCIe`.
        between: What links stages of different nodes: `RDMA`, `Ethernet`, or what is known of it.
        notes: Remarks below the picture.
    """

    title: str
    subtitle: str
    tensor: int
    pipeline: int
    replicas: int
    nodes: tuple[NodeBox, ...]
    memory: tuple[GPUMemory, ...]
    inside: str
    between: str
    notes: tuple[str, ...] = ()

    def memory_of(self, stage: int) -> GPUMemory:
        """What a GPU of this stage holds.

        Raises:
            KeyError: When the scene says nothing of the stage.
        """
        for held in self.memory:
            if held.first <= stage <= held.last:
                return held
        raise KeyError(f"the picture has no memory for stage {stage}")

    def rank(self, seat: Seat) -> int:
        """Global rank within the replica: stage × TP + tensor rank."""
        return seat.stage * self.tensor + seat.tensor_rank

    @property
    def gpus(self) -> int:
        """GPUs of all nodes drawn."""
        return sum(len(node.seats) for node in self.nodes)

    @property
    def used(self) -> int:
        """GPUs that a rank sits on."""
        return sum(seat is not None for node in self.nodes for seat in node.seats)

    @property
    def free(self) -> int:
        """GPUs that nobody uses."""
        return sum(node.free for node in self.nodes)

    @property
    def taken(self) -> int:
        """GPUs that somebody else uses."""
        return sum(node.taken for node in self.nodes)

    def hops(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Pipeline links between nodes: (from node, to node, (replica, stage it leaves))."""
        homes = {
            (block.replica, block.stage): place
            for place, node in enumerate(self.nodes)
            for block in node.blocks
        }
        for (replica, stage), here in sorted(homes.items()):
            there = homes.get((replica, stage + 1))
            if there is not None and there != here:
                yield here, there, (replica, stage)


def gib(size: int) -> str:
    """Bytes as GiB with one decimal, the one form that all drawings use."""
    return f"{size / GIB:.1f}"


def together(stages: Sequence[GPUMemory]) -> tuple[GPUMemory, ...]:
    """Neighbouring stages that hold the same, put into one entry."""
    merged: list[GPUMemory] = []
    for held in stages:
        last = merged[-1] if merged else None
        if last is not None and (last.layers, last.parts, last.total) == (
            held.layers,
            held.parts,
            held.total,
        ):
            merged[-1] = GPUMemory(last.first, held.last, last.layers, last.parts, last.total)
        else:
            merged.append(held)
    return tuple(merged)
