"""A home for a whole replica, or for one step, or the reason why there is none.

Pure: nodes and what is used on them go in, names of nodes come out. Nothing is held by asking. The
same nodes in another order give the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.api.names import HOSTNAME_LABEL
from shardwright.observe.nodes import CLIQUE_LABEL
from shardwright.observe.world import NodeView, Resources
from shardwright.plan.placement_levels import NODE_LEVEL, Candidate, Choice, choose
from shardwright.plan.placement_nodes import (
    Obstacle,
    PlacementRequest,
    is_other_product,
    obstacle,
    recovered,
    room,
    shortage,
)
from shardwright.plan.placement_refusal import NoRoom, explain

__all__ = [
    "NoRoom",
    "Placement",
    "PlacementRequest",
    "order_of_placement",
    "place_group",
    "place_step",
]

_NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class Placement:
    """A node for every stage of a replica.

    `level` is the node label whose one value `domain` all stages share (`kubernetes.io/hostname`
    when they share a node), both "" when no level holds them all.
    """

    nodes: tuple[str, ...]
    level: str
    domain: str
    reasons: tuple[str, ...]


def place_group(
    request: PlacementRequest, nodes: Iterable[NodeView], used: Mapping[str, Resources]
) -> Placement | NoRoom:
    """Place all stages of a replica, as near each other as room for all of them allows, or none.

    Args:
        request: The replica.
        nodes: Every node of the cluster.
        used: What is taken by node name, as `plan.capacity` counts it.
    """
    survey = _Survey.of(request, nodes, islands=True)
    choice = survey.choose(used)
    if choice is None:
        return survey.no_room(used)
    return Placement(
        nodes=choice.nodes,
        level=survey.level_name(choice),
        domain=choice.domain,
        reasons=survey.reasons(choice),
    )


def place_step(
    request: PlacementRequest, nodes: Iterable[NodeView], used: Mapping[str, Resources]
) -> str | NoRoom:
    """The node for a step Job's pod: where it does least harm to replicas that are still to come.

    A step with GPUs takes the fullest node that has room. One without prefers nodes that have no
    GPUs, then those with the fewest free; among equals the one with the least memory free. Its GPUs
    need no common NVLink island, since its workers do not talk to each other.

    Raises:
        ValueError: When the request has more than one stage.
    """
    if request.stages != 1:
        raise ValueError(f"a step is one pod, and the request has {request.stages} stages")
    survey = _Survey.of(request, nodes, islands=False)
    roomy = [node for node in survey.usable if room(request, node, used.get(node.name, _NOTHING))]
    if not roomy:
        return survey.no_room(used)

    def harm(node: NodeView) -> tuple[bool, int, int, str]:
        left = node.allocatable - used.get(node.name, _NOTHING)
        has_gpus = request.gpus_per_pod == 0 and node.gpu.capacity > 0
        return has_gpus, max(0, left.gpus), left.memory_bytes, node.name

    return min(roomy, key=harm).name


def order_of_placement(
    priority: int, created: float, *, is_step: bool = False
) -> tuple[int, float, bool]:
    """Sort key of what waits for a place: highest priority, then oldest, then groups before steps.

    Args:
        priority: The pod priority that its priority class resolves to.
        created: When the deployment was created, in seconds since the epoch.
        is_step: Whether it is a step Job: of one deployment, its replicas go first.
    """
    return -priority, created, is_step


@dataclass(frozen=True, slots=True)
class _Survey:
    """Nodes sorted into those that may hold a pod of the request and those that may not."""

    request: PlacementRequest
    levels: tuple[str, ...]
    usable: tuple[NodeView, ...]
    barred: tuple[tuple[NodeView, Obstacle], ...]
    islands: bool

    @classmethod
    def of(
        cls,
        request: PlacementRequest,
        nodes: Iterable[NodeView],
        *,
        islands: bool,
    ) -> _Survey:
        usable: list[NodeView] = []
        barred: list[tuple[NodeView, Obstacle]] = []
        for node in sorted(nodes, key=lambda one: one.name):
            if is_other_product(request, node):
                continue
            found = obstacle(request, node, islands=islands)
            if found is None:
                usable.append(node)
            else:
                barred.append((node, found))
        # A clique is NVLink across nodes: nearer than any level of the network.
        wanted = dict.fromkeys((CLIQUE_LABEL, *request.levels))
        levels = tuple(key for key in wanted if any(_domain(node, key) for node in usable))
        return cls(request, levels, tuple(usable), tuple(barred), islands)

    def choose(self, used: Mapping[str, Resources]) -> Choice | None:
        request = self.request
        candidates = []
        for node in self.usable:
            taken = used.get(node.name, _NOTHING)
            if slots := room(request, node, taken):
                candidates.append(
                    Candidate(
                        name=node.name,
                        slots=slots,
                        free=max(0, node.allocatable.gpus - taken.gpus),
                        sibling=node.name in request.sibling_nodes,
                        domains=tuple(_domain(node, key) for key in self.levels),
                    )
                )
        return choose(candidates, request.stages, request.gpus_per_pod)

    def fits(
        self,
        used: Mapping[str, Resources],
        request: PlacementRequest | None = None,
        extra: Sequence[NodeView] = (),
    ) -> bool:
        """Whether the request, or a variant of it, has room, with further nodes if asked."""
        missing = self.request.stages
        for node in (*self.usable, *extra):
            missing -= room(request or self.request, node, used.get(node.name, _NOTHING))
            if missing <= 0:
                return True
        return False

    def level_name(self, choice: Choice) -> str:
        if choice.level == NODE_LEVEL:
            return HOSTNAME_LABEL
        return self.levels[choice.level] if choice.level < len(self.levels) else ""

    def reasons(self, choice: Choice) -> tuple[str, ...]:
        """Why these nodes, in sentences for status."""
        stages = self.request.stages
        if choice.level == NODE_LEVEL:
            found = [f"{'all stages' if stages > 1 else 'stage 0'} on node {choice.domain}"]
        elif name := self.level_name(choice):
            found = [f"all stages under {name}={choice.domain}"]
        elif self.levels:
            found = [
                f"no single domain of {', '.join(self.levels)} has room for all {stages} stages"
            ]
        else:
            found = ["no node carries a label of a network level: nearness is not known"]
        siblings = sorted({*choice.nodes} & self.request.sibling_nodes)
        if siblings:
            found.append(f"shares {', '.join(siblings)} with another replica: no room elsewhere")
        chosen = [node for node in self.usable if node.name in choice.nodes]
        split = [node.name for node in chosen if 0 < node.gpu.nvlink_size < node.gpu.capacity]
        if split and self.request.gpus_per_pod > 1:
            found.append(
                f"{', '.join(split)}: NVLink joins only some GPUs of the node, and the device "
                "plugin does not promise to keep a pod on one island"
            )
        return tuple(found)

    def no_room(self, used: Mapping[str, Resources]) -> NoRoom:
        request = self.request
        free = [
            max(0, node.allocatable.gpus - used.get(node.name, _NOTHING).gpus)
            for node in self.usable
        ]
        roomy = 0
        against: Counter[Obstacle] = Counter(found for _, found in self.barred)
        for node in self.usable:
            taken = used.get(node.name, _NOTHING)
            if room(request, node, taken):
                roomy += 1
            else:
                against[shortage(request, node, taken)] += 1
        back = self._back()
        return explain(
            request,
            free_gpus=sum(free),
            largest_block=max(free, default=0),
            nodes_with_room=roomy,
            against=dict(sorted(against.items())),
            possible=self.fits({}),
            possible_later=bool(back) and self.fits({}, extra=back),
            packs=request.spread
            and request.stages > 1
            and self.fits(used, replace(request, spread=False)),
        )

    def _back(self) -> list[NodeView]:
        """Nodes that are out for a while only, as they would be once they are back."""
        patient = replace(self.request, avoid=frozenset())
        back = [recovered(node) for node, found in self.barred if found.kind.passing]
        return [node for node in back if not obstacle(patient, node, islands=self.islands)]


def _domain(node: NodeView, key: str) -> str:
    """The node's value of a level, "" where it has none."""
    if key == CLIQUE_LABEL:
        return node.gpu.clique
    return node.labels.get(key, "")
