"""Who gets the last node: one decision at a time, in order, with promises that hold."""

from __future__ import annotations

from tests.support.fleet import gpu_node, replica

from shardwright.api.settings import Settings
from shardwright.control.placer import Placer, Queued, Ticket
from shardwright.control.queue import Key
from shardwright.control.store import Store
from shardwright.plan.placement import NoRoom, Placement, order_of_placement


def placer(*nodes: str) -> Placer:
    store = Store(Settings())
    for name in nodes:
        store.nodes[name] = gpu_node(name)
    return Placer(store)


def ticket(
    name: str, *, stages: int = 1, tensor: int = 8, priority: int = 0, created: float = 0.0
) -> Ticket:
    return Ticket(
        Key("deployment", "ns", name),
        replica(stages, tensor),
        order_of_placement(priority, created),
        f"a replica of ns/{name}",
    )


def test_a_promise_counts_until_its_write_is_settled() -> None:
    desk = placer("a")
    assert isinstance(desk.place_group(ticket("one"), ["u1"]), Placement)
    assert isinstance(desk.place_group(ticket("two"), ["u2"]), NoRoom)
    desk.free_of_promise(["u1"])
    assert isinstance(desk.place_group(ticket("two"), ["u2"]), Placement)


def test_what_does_not_fit_promises_nothing() -> None:
    desk = placer("a")
    assert isinstance(desk.place_group(ticket("big", stages=2), ["u1", "u2"]), NoRoom)
    assert desk.promises == {}


def test_the_older_of_two_that_want_the_last_node_gets_it() -> None:
    desk = placer("a")
    first, late = ticket("first", created=1.0), ticket("late", created=2.0)
    held = desk.place_group(ticket("holder"), ["u0"])
    assert isinstance(held, Placement)
    assert isinstance(desk.place_group(first, ["u1"]), NoRoom)
    assert isinstance(desk.place_group(late, ["u2"]), NoRoom)
    desk.free_of_promise(["u0"])
    answer = desk.place_group(late, ["u2"])
    assert isinstance(answer, Queued)
    assert "ns/first" in answer.behind
    assert isinstance(desk.place_group(first, ["u1"]), Placement)


def test_a_higher_priority_comes_before_an_older_one() -> None:
    desk = placer("a")
    desk.place_group(ticket("holder"), ["u0"])
    old, urgent = ticket("old", created=1.0), ticket("urgent", created=9.0, priority=100)
    assert isinstance(desk.place_group(old, ["u1"]), NoRoom)
    assert isinstance(desk.place_group(urgent, ["u2"]), NoRoom)
    desk.free_of_promise(["u0"])
    assert isinstance(desk.place_group(old, ["u1"]), Queued)
    assert isinstance(desk.place_group(urgent, ["u2"]), Placement)


def test_one_that_cannot_be_placed_anyway_holds_nothing_back() -> None:
    desk = placer("a", "b")
    big = ticket("big", stages=3, created=1.0)
    assert isinstance(desk.place_group(big, ["u1", "u2", "u3"]), NoRoom)
    assert isinstance(desk.place_group(ticket("small", created=2.0), ["u4"]), Placement)


def test_who_no_longer_wants_a_place_is_forgotten() -> None:
    desk = placer("a")
    desk.place_group(ticket("holder"), ["u0"])
    gone = ticket("gone", created=1.0)
    desk.place_group(gone, ["u1"])
    desk.forget(gone.key, step=False)
    desk.free_of_promise(["u0"])
    assert isinstance(desk.place_group(ticket("next", created=2.0), ["u2"]), Placement)


def test_a_hostname_that_differs_from_the_node_name_is_known() -> None:
    odd = gpu_node("node.example.com", labels={"kubernetes.io/hostname": "node"})
    store = Store(Settings())
    store.nodes |= {"node.example.com": odd, "a": gpu_node("a")}
    assert store.hosts == {"node": "node.example.com"}
    store.nodes.pop("node.example.com")
    store.inventory_version += 1
    assert store.hosts == {}
