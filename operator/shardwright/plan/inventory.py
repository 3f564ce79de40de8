"""What the cluster has, for the questions a spec is checked against.

These are questions about hardware that exists or may come to exist: a node counts with the GPUs it
owns, also while one of them is unhealthy or the node is cordoned. What is free is the placer's
question. Nodes of one product may differ; then the largest answers, and the text says how many
nodes are like it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from shardwright.observe.world import GPUInventory, NodePool, NodeView, Sharing
from shardwright.words import counted

_ORDER = (Sharing.EXCLUSIVE, Sharing.SHARED, Sharing.MIG, Sharing.INVALID)
_PART = re.compile(r"[^A-Z0-9]+")
_MODEL = re.compile(r"(?!HBM|SXM)[A-Z]{1,3}[0-9]+[A-Z]?")
_ALIKE = 0.8  # ratio of difflib from which a name counts as a slip of the pen
_NAMED = 3
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Product:
    """One GPU product of the cluster.

    Attributes:
        name: As the label has it.
        nodes: Nodes that carry it now.
        gpus: GPUs (or slices, or shares) they own.
        unhealthy: How many of those cannot be allocated.
        sizes: How many GPUs of one node can form a tensor-parallel group → nodes that offer so
            many, largest first. Shared, sliced and mixed nodes are left out.
        sharing: The best way any of them hands GPUs out.
        compute: Highest compute capability seen, None while none is known.
        memory_mib: Least memory of one GPU that any node names, 0 while none is known.
        pools: Names of node pools that may bring it.
        pool_size: Most GPUs of one node or NVLink island of those pools.
    """

    name: str
    nodes: int
    gpus: int
    unhealthy: int
    sizes: tuple[tuple[int, int], ...]
    sharing: Sharing
    compute: tuple[int, int] | None
    memory_mib: int
    pools: tuple[str, ...]
    pool_size: int

    @property
    def largest_domain(self) -> int:
        """Most exclusive GPUs that one node, or one NVLink island of it, has or may have; or 0."""
        if self.sharing is not Sharing.EXCLUSIVE:
            return 0
        return max(self.pool_size, *(size for size, _ in self.sizes), 0)

    def describe(self) -> str:
        """In words: `NVIDIA-H100-80GB-HBM3 (8 GPUs on 3 nodes, 4 on 2 nodes; pool burst)`."""
        parts = []
        for number, (size, nodes) in enumerate(self.sizes):
            unit = "" if number else " GPU" if size == 1 else " GPUs"
            parts.append(f"{size}{unit} on {counted(nodes, 'node')}")
        none = f"no whole GPUs on {counted(self.nodes, 'node')}" if self.nodes else "no node now"
        found = ", ".join(parts) or none
        if self.sharing is not Sharing.EXCLUSIVE:
            found = f"{_SHARING_WORDS[self.sharing]} on {counted(self.nodes, 'node')}"
        if self.pools:
            found += f"; {'pool' if len(self.pools) == 1 else 'pools'} {', '.join(self.pools)}"
        return f"{self.name} ({found})"


_SHARING_WORDS = {
    Sharing.SHARED: "time-shared",
    Sharing.MIG: "MIG slices",
    Sharing.INVALID: "invalid MIG configuration",
}


def products(nodes: Iterable[NodeView], pools: Iterable[NodePool]) -> dict[str, Product]:
    """Every product that a node carries or a pool may bring, by name in alphabetical order.

    Nodes that are being deleted are left out. A node without a product label is in none of them;
    see `unlabelled`.
    """
    carriers: dict[str, list[NodeView]] = {}
    for node in nodes:
        if node.gpu.product and not node.deleting:
            carriers.setdefault(node.gpu.product, []).append(node)
    bringers: dict[str, list[NodePool]] = {}
    for pool in pools:
        bringers.setdefault(pool.product, []).append(pool)
    return {
        name: _product(name, carriers.get(name, []), bringers.get(name, []))
        for name in sorted({*carriers, *bringers})
    }


def _product(name: str, nodes: Sequence[NodeView], pools: Sequence[NodePool]) -> Product:
    sharings = {node.gpu.sharing for node in nodes} | {Sharing.EXCLUSIVE for _ in pools}
    sharing = next(kind for kind in _ORDER if kind in sharings)
    sizes = Counter(size for node in nodes if (size := _size(node)))
    sources: list[GPUInventory | NodePool] = [*(node.gpu for node in nodes), *pools]
    computes = {source.compute for source in sources} - {(0, 0)}
    memories = {source.memory_mib for source in sources} - {0}
    return Product(
        name=name,
        nodes=len(nodes),
        gpus=sum(node.gpu.capacity for node in nodes),
        unhealthy=sum(max(0, node.gpu.capacity - node.gpu.count) for node in nodes),
        sizes=tuple(sorted(sizes.items(), reverse=True)),
        sharing=sharing,
        compute=max(computes, default=None),
        memory_mib=min(memories, default=0),
        pools=tuple(sorted(pool.name for pool in pools)),
        pool_size=max((pool.nvlink_size or pool.gpus_per_node for pool in pools), default=0),
    )


def _size(node: NodeView) -> int:
    """GPUs of the node that can form one tensor-parallel group."""
    gpu = node.gpu
    if gpu.sharing is not Sharing.EXCLUSIVE or gpu.mixed:
        return 0
    return min(gpu.nvlink_size, gpu.capacity) if gpu.nvlink_size else gpu.capacity


def largest_domain(nodes: Iterable[NodeView], pools: Iterable[NodePool], product: str) -> int:
    """Most GPUs of the product that one node, or one NVLink island of it, can bring together.

    Only whole exclusive GPUs count. 0 when there is no such product or all of it is sliced or
    shared. Where islands are not known (`nvlink_size` 0) the node is the limit.
    """
    found = products(nodes, pools).get(product)
    return found.largest_domain if found else 0


def split_that_fits(
    world_size: int, domain: int, *, heads: int = 0, max_stages: int = 0
) -> tuple[int, int] | None:
    """The split of `world_size` ranks with the largest tensor size that fits one NVLink domain.

    Args:
        world_size: Ranks of a replica, tensor × pipeline.
        domain: GPUs of the largest domain, as `largest_domain` tells.
        heads: Attention heads that the tensor size must divide; 0 while the model is not known.
        max_stages: Most pipeline stages (the model's layers, or nodes); 0 for no limit.

    Returns:
        (tensor, pipeline) with tensor ≤ domain, None when no divisor of the world size does.
    """
    for tensor in range(min(world_size, domain), 0, -1):
        stages, rest = divmod(world_size, tensor)
        if rest or (heads and heads % tensor):
            continue
        return None if max_stages and stages > max_stages else (tensor, stages)
    return None


def sharing_of(
    nodes: Iterable[NodeView], pools: Iterable[NodePool], product: str
) -> Sharing | None:
    """The best way in which any node hands out this product; None when nothing carries it.

    Exclusive if any node or pool has it exclusively: the placer passes the other nodes over.
    """
    found = products(nodes, pools).get(product)
    return found.sharing if found else None


def compute_of(
    nodes: Iterable[NodeView], pools: Iterable[NodePool], product: str
) -> tuple[int, int] | None:
    """The product's CUDA compute capability as (major, minor); None while nothing tells it."""
    found = products(nodes, pools).get(product)
    return found.compute if found else None


def unlabelled(nodes: Iterable[NodeView]) -> tuple[str, ...]:
    """Names of nodes that have GPUs and no label that names their product, in order."""
    return tuple(
        sorted(
            node.name
            for node in nodes
            if not node.gpu.product
            and not node.deleting
            # MIG slices of the mixed strategy are resources of their own beside no nvidia.com/gpu.
            and (node.gpu.capacity > 0 or node.gpu.sharing is Sharing.MIG)
        )
    )


def suggestions(wanted: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names that `wanted` may have been meant as, the likeliest first, three at most.

    Names that contain it (or the other way round) come alone; without any, those of the same GPU
    model (`H100`, `L40S`); without any, those spelt alike. Upper and lower case count as the same.
    """
    asked = wanted.upper()

    def likeness(name: str) -> float:
        return SequenceMatcher(None, asked, name.upper(), autojunk=False).ratio()

    known = sorted(names, key=lambda name: (-likeness(name), name))
    for found in (
        [name for name in known if asked in name.upper() or name.upper() in asked],
        [name for name in known if _models(asked) & _models(name.upper())],
        [name for name in known if likeness(name) >= _ALIKE],
    ):
        if found:
            return tuple(found[:_NAMED])
    return ()


def _models(name: str) -> set[str]:
    """GPU models in a product's name, without its memory (`80GB`, `HBM3`) and socket (`SXM4`)."""
    return {part for part in _PART.split(name) if _MODEL.fullmatch(part)}


def explain_unknown_product(
    nodes: Sequence[NodeView], pools: Iterable[NodePool], product: str
) -> str:
    """What to tell someone who asks for a product that no node and no node pool has.

    One paragraph: the value, what it may have been meant as, what the cluster has, and which nodes
    carry GPUs that nothing names.
    """
    known = products(nodes, pools)
    parts = [f"spec.gpu.product {product}: no node and no node pool has it."]
    if meant := suggestions(product, known):
        parts.append(f"Did you mean {' or '.join(meant)}?")
    if known:
        listed = [item.describe() for item in known.values()][:_LISTED]
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        parts.append(f"The cluster has {', '.join(listed)}{more}.")
    else:
        parts.append("The cluster has no GPUs whose product is known.")
    if note := unlabelled_note(nodes):
        parts.append(f"{note}.")
    return " ".join(parts)


def unlabelled_note(nodes: Iterable[NodeView]) -> str:
    """A hint about nodes whose GPUs have no product label, "" when all have one."""
    names = unlabelled(nodes)
    if not names:
        return ""
    shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return (
        f"{counted(len(names), 'node carries', 'nodes carry')} GPUs but no product label "
        f"({shown}): install GPU Feature Discovery or set productKeys"
    )
