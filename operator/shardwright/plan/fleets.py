"""The GPUs that a plan may use: what is there, what may come, what nobody else holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.api.settings import Settings
from shardwright.api.spec import Placement
from shardwright.observe.nodes import node_pools
from shardwright.observe.world import NodeView, Resources
from shardwright.plan.placement_nodes import PlacementRequest, open_to
from shardwright.sizing.fleet_nodes import fleet_of_nodes, named
from shardwright.sizing.question import Fleet, NodeGroup


@dataclass(frozen=True, slots=True)
class Fleets:
    """The GPUs that a plan may use.

    Attributes:
        owned: Every GPU of the nodes that the spec's placement allows, free or not.
        possible: The same, and what node pools may bring.
        free: What nobody else holds; None while no plan is to be made.
    """

    owned: Fleet
    possible: Fleet
    free: Fleet | None = None


def fleets_of(nodes: Iterable[NodeView], placement: Placement, settings: Settings) -> Fleets:
    """Every GPU that the placement of a spec allows; nothing is said of what is free.

    Args:
        nodes: All nodes. Those that are cordoned or not ready count like the others: they come
            back.
        placement: Its node labels and tolerations.
        settings: Node pools, and resources that mean RDMA.
    """
    allowed = allowed_nodes(nodes, placement)
    owned = _all_free(fleet_of_nodes(allowed, settings=settings))
    pools = node_pools(settings)
    if not pools:
        return Fleets(owned, owned)
    with_pools = fleet_of_nodes(allowed, pools=pools, settings=settings)
    return Fleets(owned, _all_free(with_pools))


def free_fleet(
    nodes: Iterable[NodeView],
    placement: Placement,
    settings: Settings,
    used: Mapping[str, Resources],
) -> Fleet:
    """What nobody holds on the nodes that are open now; `used` is by node name."""
    taken = {name: held.gpus for name, held in used.items() if held.gpus}
    return fleet_of_nodes(allowed_nodes(nodes, placement), used=taken, settings=settings)


def allowed_nodes(nodes: Iterable[NodeView], placement: Placement) -> Sequence[NodeView]:
    """Nodes that a serving pod of this placement may ever run on."""
    request = PlacementRequest(
        product="",
        gpus_per_pod=1,
        stages=1,
        per_pod=Resources(),
        tolerations=placement.tolerations,
        node_selector=placement.node_selector,
    )
    return [node for node in nodes if not node.gpu.slices_only and open_to(request, node)]


def _all_free(fleet: Fleet) -> Fleet:
    """Every GPU counted as free, and nodes that are alike then counted together."""
    counts: Counter[NodeGroup] = Counter()
    for group in fleet.groups:
        name = group.name if group.possible else ""
        alike = replace(group, name=name, nodes=1, free_gpus=group.gpus_per_node)
        counts[alike] += group.nodes
    merged = [replace(group, nodes=count) for group, count in counts.items()]
    return replace(fleet, groups=named(merged))
