"""The fleet a plan may use, from the nodes of a cluster.

Equal nodes become one group, so that thousands of them cost no more than a handful. What is not
known is assumed on the careful side and says so: no NVLink, a slow network.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from shardwright.api.settings import Settings
from shardwright.observe.gpus import DriverMemory, driver_memory, gpu_kind
from shardwright.observe.world import NodePool, NodeView, Sharing
from shardwright.sizing.question import (
    ASSUMED_FABRIC,
    Fabric,
    FabricKind,
    Fleet,
    NodeGroup,
)
from shardwright.words import counted

# Node Feature Discovery's built-in labels (docs/usage/features.md; "available" up to 0.10 or so).
_NFD = "feature.node.kubernetes.io/custom-rdma"
_RDMA_LABELS = (f"{_NFD}.enabled", f"{_NFD}.available", f"{_NFD}.capable")
# CoreWeave's labels: docs.coreweave.com, "InfiniBand and RoCE labels".
_FLAVOR_LABEL = "backend.coreweave.cloud/flavor"
_SPEED_LABEL = "ib.coreweave.cloud/speed"
_RDMA_FLAVORS = frozenset({"infiniband", "roce"})
_RDMA_RESOURCES = ("rdma/", "vpc.amazonaws.com/efa")
_SPEED = re.compile(r"([0-9]+)G")
# One 200-gigabit adapter a GPU: the least that nodes with an adapter for each GPU are sold with.
ASSUMED_RDMA_GBPS = 25.0
_MIB = 1024**2
# An H100 is labelled 81,559 MiB and shows a process 81,090.
_PROCESS_SHARE = 0.994


def memory_of(product: str, label_mib: int = 0) -> int:
    """Bytes of one GPU as a process sees them.

    The table's figure where the product is in it. A label counts what the board has: more than a
    process gets, so it only lowers the figure, or stands in less what drivers keep.
    """
    return driver_report(product, label_mib).total


def driver_report(product: str, label_mib: int = 0) -> DriverMemory:
    """The same, with what is not certain about it."""
    if not label_mib:
        return driver_memory(product)
    labelled = label_mib * _MIB
    if gpu_kind(product) is None:
        return DriverMemory(round(labelled * _PROCESS_SHARE))
    return DriverMemory(min(driver_memory(product).total, labelled))


def fabric_of(
    node: NodeView, resources: Iterable[str] = (), usual: Fabric = ASSUMED_FABRIC
) -> Fabric:
    """How a node reaches others, going by its labels and by what it can allocate.

    Args:
        node: The node.
        resources: Further resource names that mean RDMA, from the settings' fabric profiles.
        usual: What nodes have that tell nothing, `usual_fabric` of the settings.

    Returns:
        Gigabytes a second for each GPU from the node's speed label, else as `usual` says of its
        kind of network, else an assumption.
    """
    labels = node.labels
    gpus = max(1, node.gpu.capacity)
    if (found := _SPEED.fullmatch(labels.get(_SPEED_LABEL, ""))) and int(found[1]):
        return Fabric(FabricKind.RDMA, int(found[1]) / 8 / gpus, f"label {_SPEED_LABEL}={found[0]}")
    named = frozenset(resources)
    offered = next(
        (
            name
            for name, amount in sorted(node.allocatable.other.items())
            if amount > 0 and (name.startswith(_RDMA_RESOURCES) or name in named)
        ),
        "",
    )
    label = next((name for name in _RDMA_LABELS if labels.get(name) == "true"), "")
    if labels.get(_FLAVOR_LABEL) in _RDMA_FLAVORS:
        label = _FLAVOR_LABEL
    if offered or label:
        why = f"resource {offered}" if offered else f"label {label}"
        if usual.kind is FabricKind.RDMA:
            return replace(usual, source=f"{why}; speed: {usual.source}")
        return Fabric(FabricKind.RDMA, ASSUMED_RDMA_GBPS, f"{why}; speed assumed")
    return usual


def usual_fabric(settings: Settings | None) -> Fabric:
    """The network of nodes that do not tell theirs: the administrator's word, or an assumption."""
    told = settings.fabric if settings is not None else None
    if told is None:
        return ASSUMED_FABRIC
    kind, speed = FabricKind(told.kind), told.gigabytes_per_second
    if speed is not None:
        return Fabric(kind, speed, "settings")
    if kind is FabricKind.RDMA:
        return Fabric(kind, ASSUMED_RDMA_GBPS, "settings; speed assumed")
    return ASSUMED_FABRIC


def fleet_of_nodes(
    nodes: Sequence[NodeView],
    *,
    used: Mapping[str, int] | None = None,
    pools: Sequence[NodePool] = (),
    settings: Settings | None = None,
) -> Fleet:
    """The fleet of a cluster.

    Args:
        nodes: Its nodes.
        used: Node name → GPUs that are taken on it.
        pools: Nodes that may come to exist; they count as free.
        settings: Their fabric profiles name resources that mean RDMA; their fabric is that of nodes
            which do not tell theirs, and of node pools.
    """
    taken = used or {}
    resources, usual = _profile_resources(settings), usual_fabric(settings)
    cliques = Counter(node.gpu.clique for node in nodes if node.gpu.clique)
    skipped: Counter[str] = Counter()
    fabrics: dict[tuple[object, ...], Fabric] = {}
    groups: Counter[NodeGroup] = Counter()
    for node in nodes:
        if why := _left_out(node):
            skipped[why] += bool(node.gpu.capacity)
            continue
        gpu = node.gpu
        key = _fabric_key(node)
        link = fabrics.get(key) or fabrics.setdefault(key, fabric_of(node, resources, usual))
        groups[
            NodeGroup(
                name="",
                product=gpu.product,
                nodes=1,
                gpus_per_node=gpu.capacity,
                free_gpus=max(0, gpu.count - taken.get(node.name, 0)) if _open(node) else 0,
                nvlink_size=gpu.nvlink_size,
                memory_bytes=memory_of(gpu.product, gpu.memory_mib),
                compute=gpu.compute,
                fabric=link,
                clique_nodes=cliques[gpu.clique] if gpu.clique else 1,
            )
        ] += 1
    merged = [replace(group, nodes=count) for group, count in groups.items()]
    merged += [_pool_group(pool, usual) for pool in pools]
    return Fleet(
        groups=named(merged),
        skipped=tuple(
            f"{counted(count, 'node')} left out: {why}"
            for why, count in sorted(skipped.items())
            if count
        ),
        host_bytes=_host_bytes(nodes),
    )


def _host_bytes(nodes: Sequence[NodeView]) -> tuple[tuple[str, int], ...]:
    """As in `Fleet.host_bytes`; a node that is being deleted gives nothing."""
    most: dict[str, int] = {}
    for node in nodes:
        offered = node.allocatable.memory_bytes
        if node.deleting or not offered:
            continue
        for product in {"", node.gpu.product}:
            most[product] = max(most.get(product, 0), offered)
    return tuple(sorted(most.items()))


def _profile_resources(settings: Settings | None) -> tuple[str, ...]:
    profiles = settings.fabric_profiles.values() if settings else ()
    return tuple(sorted({name for profile in profiles for name in profile.resources}))


def _fabric_key(node: NodeView) -> tuple[object, ...]:
    """All that `fabric_of` looks at, so that it is asked once for each kind of node."""
    labels = node.labels
    return (
        node.gpu.capacity,
        frozenset(node.allocatable.other),
        labels.get(_SPEED_LABEL),
        labels.get(_FLAVOR_LABEL),
        *(labels.get(name) for name in _RDMA_LABELS),
    )


def _left_out(node: NodeView) -> str:
    gpu = node.gpu
    if node.deleting:
        return "being deleted"
    if not gpu.capacity:
        return "no GPUs"
    if not gpu.product:
        return "no label names the GPU product"
    if gpu.sharing is not Sharing.EXCLUSIVE:
        return f"GPUs are not handed out whole ({gpu.sharing.value})"
    return "GPUs of several products" if gpu.mixed else ""


def _open(node: NodeView) -> bool:
    return node.ready and not node.unschedulable


def _pool_group(pool: NodePool, fabric: Fabric) -> NodeGroup:
    return NodeGroup(
        name=pool.name,
        product=pool.product,
        nodes=pool.max_nodes,
        gpus_per_node=pool.gpus_per_node,
        free_gpus=pool.gpus_per_node,
        nvlink_size=pool.nvlink_size,
        memory_bytes=memory_of(pool.product, pool.memory_mib),
        compute=pool.compute,
        fabric=fabric,
        possible=True,
    )


def named(groups: Sequence[NodeGroup]) -> tuple[NodeGroup, ...]:
    """In a fixed order, those without a name called after their product."""
    unnamed = Counter(group.product for group in groups if not group.name)
    seen: Counter[str] = Counter()
    named = []
    for group in sorted(groups, key=lambda group: (group.product, group.possible, group)):
        name = group.name
        if not name:
            seen[group.product] += 1
            several = unnamed[group.product] > 1
            name = f"{group.product}.{seen[group.product]}" if several else group.product
        named.append(replace(group, name=name))
    return tuple(named)
