"""Who gets which node: one decision at a time over the whole cluster.

A decision reads what is taken, less what others who come first would get, and makes its promise in
the same breath: nothing is awaited in between, so no lock is needed. A promise lives until the
write that carries it is in the store (or has failed); all else is derived from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.control.queue import Key
from shardwright.control.store import Store
from shardwright.observe.world import NodeView, PodView, Resources
from shardwright.plan.capacity import pod_home
from shardwright.plan.placement import (
    NoRoom,
    Placement,
    PlacementRequest,
    place_group,
    place_step,
)

Order = tuple[int, float, bool]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Something that waits for a place."""

    key: Key
    request: PlacementRequest
    order: Order
    label: str

    @property
    def slot(self) -> tuple[Key, bool]:
        """One group and one step of a key may wait."""
        return self.key, self.is_step

    @property
    def is_step(self) -> bool:
        """Whether it is a step's pod, not a replica."""
        return self.order[2]

    def put(self, taken: dict[str, Resources], nodes: Sequence[str]) -> None:
        """Count its pods on their nodes."""
        for node in nodes:
            taken[node] = taken.get(node, Resources()) + self.each

    @property
    def each(self) -> Resources:
        """What one of its pods takes."""
        return replace(self.request.per_pod, gpus=self.request.gpus_per_pod, pods=1)


@dataclass(frozen=True, slots=True)
class Queued:
    """There would be room, but others come first."""

    behind: str


@dataclass(slots=True)
class Placer:
    """Places groups and steps; remembers who waits, and promises under way."""

    store: Store
    waiting: dict[tuple[Key, bool], Ticket] = field(default_factory=dict)
    promises: dict[str, tuple[str, Resources]] = field(default_factory=dict)

    def forget(self, key: Key, *, step: bool) -> bool:
        """A key's group (or its step) no longer waits for a place; whether it did."""
        return self.waiting.pop((key, step), None) is not None

    def wait(self, ticket: Ticket) -> None:
        """A key's ticket waits, though another one of it was asked for after it."""
        self.waiting[ticket.slot] = ticket

    def free_of_promise(self, uids: Sequence[str]) -> None:
        """The writes for these pods or Jobs have come through, or failed."""
        for uid in uids:
            self.promises.pop(uid, None)

    def used(self) -> dict[str, Resources]:
        """What is taken on each node, promises included."""
        taken = dict(self.store.usage.by_node())
        for host, name in self.store.hosts.items():
            # Unbound pods count on the hostname they are pinned to.
            if host in taken:
                taken[name] = taken.get(name, Resources()) + taken.pop(host)
        for node, resources in self.promises.values():
            taken[node] = taken.get(node, Resources()) + resources
        return taken

    def place_group(self, ticket: Ticket, uids: Sequence[str]) -> Placement | NoRoom | Queued:
        """Nodes for all pods of a group (`uids` by stage), promised at once."""
        found = self._decide(ticket)
        if isinstance(found, Placement):
            self._promise(uids, found.nodes, ticket)
        return found

    def place_step(self, ticket: Ticket, uid: str) -> str | NoRoom | Queued:
        """A node for a step's pod, promised at once."""
        found = self._decide(ticket)
        if isinstance(found, Placement):
            self._promise([uid], found.nodes, ticket)
            return found.nodes[0]
        return found

    def could_place(self, request: PlacementRequest, without: Iterable[PodView] = ()) -> bool:
        """Whether a group would fit, now or once these pods are gone; nothing is promised."""
        used = self.used()
        for pod in without:
            home = pod_home(pod)
            home = self.store.hosts.get(home, home)
            if home in used:
                used[home] -= pod.requests
        return isinstance(place_group(request, self.store.nodes.values(), used), Placement)

    def _promise(self, uids: Sequence[str], nodes: Sequence[str], ticket: Ticket) -> None:
        for uid, node in zip(uids, nodes, strict=True):
            self.promises[uid] = (node, ticket.each)

    def _decide(self, ticket: Ticket) -> Placement | NoRoom | Queued:
        nodes = list(self.store.nodes.values())
        used = self.used()
        alone = _try(ticket, nodes, used)
        if isinstance(alone, NoRoom):
            self.waiting[ticket.slot] = ticket
            return alone
        ahead = sorted(
            (
                other
                for other in self.waiting.values()
                if other.slot != ticket.slot and other.order < ticket.order
            ),
            key=lambda other: other.order,
        )
        first = ""
        for other in ahead:
            # Those ahead that fit now take their place first; those that do not fit hold nothing.
            got = _try(other, nodes, used)
            if isinstance(got, Placement):
                first = first or other.label
                other.put(used, got.nodes)
        if first:
            alone = _try(ticket, nodes, used)
            if isinstance(alone, NoRoom):
                self.waiting[ticket.slot] = ticket
                return Queued(first)
        self.waiting.pop(ticket.slot, None)
        return alone


def _try(
    ticket: Ticket, nodes: Sequence[NodeView], used: Mapping[str, Resources]
) -> Placement | NoRoom:
    if not ticket.is_step:
        return place_group(ticket.request, nodes, used)
    found = place_step(ticket.request, nodes, used)
    if isinstance(found, NoRoom):
        return found
    return Placement(nodes=(found,), level="", domain="", reasons=())
