"""GPUs that one replica may be made of: all free nodes of one product, asked as one."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwright.sizing.hardware import Hardware, hardware
from shardwright.sizing.links import Links, links_of
from shardwright.sizing.question import Fabric, Fleet, NodeGroup
from shardwright.sizing.shape import GPUMemory, Shape


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes of one product whose GPUs have at least so much memory.

    Attributes:
        product: As the nodes' labels have it.
        hardware: What one GPU can do.
        groups: The nodes, those without a free GPU included.
        memory: Memory of the smallest of these GPUs.
        apart: Whether the stages of one replica must stand on different nodes.
        domain: GPUs of the largest group of ranks that a node's NVLink domain, or its bus, allows.
        linked: Whether all of these nodes have NVLink.
    """

    product: str
    hardware: Hardware
    groups: tuple[NodeGroup, ...]
    memory: GPUMemory
    apart: bool = False
    domain: int = field(init=False)
    linked: bool = field(init=False)

    def __post_init__(self) -> None:
        # Asked thousands of times a plan.
        object.__setattr__(self, "domain", max(group.domain for group in self.groups))
        object.__setattr__(self, "linked", self.has_nvlink(1))

    @property
    def compute(self) -> tuple[int, int]:
        """Compute capability as the nodes tell it, else the product's."""
        told = {group.compute for group in self.groups} - {(0, 0)}
        return min(told) if told else self.hardware.compute

    @property
    def free_gpus(self) -> int:
        """GPUs that nothing uses."""
        return sum(group.nodes * group.free_gpus for group in self.groups)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(group.nodes * group.gpus_per_node for group in self.groups)

    def has_nvlink(self, tensor: int) -> bool:
        """Whether every node that may hold a stage of `tensor` ranks joins them by NVLink."""
        able = [group for group in self.groups if group.domain >= tensor] or list(self.groups)
        return self.hardware.nvlink_gbps > 0 and all(group.nvlink_size > 1 for group in able)

    def slots(self, tensor: int) -> int:
        """Stages of `tensor` ranks that the free GPUs hold at once."""
        return sum(group.slots(tensor) for group in self.groups)

    def longest(self, tensor: int) -> int:
        """Most stages of `tensor` ranks that one replica may have on the free GPUs."""
        if not self.apart:
            return self.slots(tensor)
        return sum(group.nodes for group in self.carriers(tensor))

    def replicas(self, shape: Shape) -> int:
        """Replicas that the free GPUs hold at once.

        With stages apart, r of them find room when the nodes, each with at most r stages, hold
        r × pipeline.
        """
        most = self.slots(shape.tensor) // shape.pipeline
        if not self.apart:
            return most
        rooms = [
            (group.nodes, group.slots(shape.tensor) // group.nodes)
            for group in self.carriers(shape.tensor)
        ]

        def lacking(count: int) -> bool:
            held = sum(nodes * min(each, count) for nodes, each in rooms)
            return held < count * shape.pipeline

        # What holds some replicas holds fewer too: those before the first number that lacks room.
        return bisect.bisect_left(range(1, most + 1), x=True, key=lacking)

    def carriers(self, tensor: int) -> tuple[NodeGroup, ...]:
        """Groups that hold at least one such stage."""
        return tuple(group for group in self.groups if group.slots(tensor))

    def stage_nodes(self, shape: Shape) -> tuple[int, ...]:
        """Each stage's node, when one replica takes the emptiest nodes first."""
        if self.apart:
            return tuple(range(shape.pipeline))
        per_node = [
            group.slots(shape.tensor) // group.nodes
            for group in sorted(self.carriers(shape.tensor), key=_free, reverse=True)
            for _ in range(min(group.nodes, shape.pipeline))
        ]
        nodes: list[int] = []
        for number, stages in enumerate(per_node or [1] * shape.pipeline):
            nodes += [number] * stages
            if len(nodes) >= shape.pipeline:
                break
        while len(nodes) < shape.pipeline:
            nodes.append((nodes[-1] if nodes else -1) + 1)
        return tuple(nodes[: shape.pipeline])

    def links(self, shape: Shape) -> Links:
        """What connects one replica; where nodes differ, the slowest that may carry it counts."""
        carriers = self.carriers(shape.tensor) or self.groups
        nvlink = (
            min(group.nvlink_size for group in carriers) if self.has_nvlink(shape.tensor) else 0
        )
        return links_of(
            self.hardware,
            nvlink_size=nvlink,
            gpus_per_node=min(group.gpus_per_node for group in carriers),
            fabric=self.fabric(shape.tensor),
            stage_nodes=self.stage_nodes(shape),
            tensor=shape.tensor,
            clique_nodes=min(group.clique_nodes for group in carriers),
        )

    def fabric(self, tensor: int) -> Fabric:
        """The slowest network of the nodes that may carry such a stage."""
        carriers = self.carriers(tensor) or self.groups
        return min(
            (group.fabric for group in carriers),
            key=lambda fabric: (fabric.gigabytes_per_second, fabric.kind, fabric.source),
        )


def _free(group: NodeGroup) -> tuple[int, str]:
    return group.free_gpus, group.name


def pools_of(fleet: Fleet, products: Sequence[str], *, apart: bool = False) -> tuple[Pool, ...]:
    """The pools of these products; `apart` keeps the stages of a replica on different nodes.

    A product whose nodes report different memory gives one pool for each size, of all nodes with at
    least so much: what fits the larger ones is not lost for the smaller ones' sake.

    Raises:
        UnknownHardwareError: No figures are known for a product.
    """
    pools = []
    for product in products:
        groups = tuple(group for group in fleet.groups if group.product == product)
        known = hardware(product)
        for size in sorted({group.memory_bytes for group in groups}):
            able = tuple(group for group in groups if group.memory_bytes >= size)
            pools.append(Pool(product, known, able, GPUMemory(size, product), apart))
    return tuple(pools)
