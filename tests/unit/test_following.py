"""What follows a namespace for tests must itself miss nothing, however late a watch is."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest
from tests.support.following import Follower
from urllib3.exceptions import ProtocolError

from shardwright_sandbox.rest import GONE, Json, Rest

HANGS = 60.0
PATH = "/pods"


def item(uid: str, version: int) -> Json:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


class Server(Rest):
    """Objects of one path, whose watch tells only what the test lets through."""

    def __init__(self, *items: Json) -> None:
        self.items = list(items)
        self.version = 10
        self.watched_from: list[str] = []
        self._line: queue.Queue[Json | Exception] = queue.Queue()

    def get(self, path: str, **query: str) -> Json:
        assert (path, query) == (PATH, {})
        return {"metadata": {"resourceVersion": str(self.version)}, "items": [*self.items]}

    def watch(self, path: str, stop: threading.Event, **query: str) -> Iterator[Json]:
        assert path == PATH
        self.watched_from.append(query["resourceVersion"])
        while not stop.is_set():
            try:
                told = self._line.get(timeout=0.05)
            except queue.Empty:
                continue
            if isinstance(told, Exception):
                raise told
            yield told

    def tell(self, kind: str, what: Json) -> None:
        self._line.put({"type": kind, "object": what})

    def break_off(self) -> None:
        self._line.put(ProtocolError("connection lost"))


class Told(list[tuple[str, str]]):
    """What came by: kind and uid."""

    def __call__(self, kind: str, what: Json) -> None:
        self.append((kind, what["metadata"]["uid"]))


@pytest.fixture
def server() -> Server:
    return Server(item("a", 3))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def follower(server: Server, told: Told) -> Iterator[Follower]:
    found = Follower(server, PATH, told)
    found.start()
    yield found
    found.stop()


def catching_up(follower: Follower) -> threading.Thread:
    thread = threading.Thread(target=follower.catch_up, daemon=True)
    thread.start()
    return thread


def test_what_is_there_has_come_by_when_it_has_begun(follower: Follower, told: Told) -> None:
    assert told == [("ADDED", "a")]
    follower.catch_up()


def test_whoever_asks_waits_for_a_watch_that_is_behind(
    server: Server, follower: Follower, told: Told
) -> None:
    server.items, server.version = [item("a", 3), item("b", 11)], 11
    asking = catching_up(follower)
    asking.join(0.3)
    assert asking.is_alive()
    server.tell("ADDED", item("b", 11))
    asking.join(HANGS)
    assert not asking.is_alive()
    assert told == [("ADDED", "a"), ("ADDED", "b")]


def test_an_end_that_was_not_told_yet_is_waited_for_too(
    server: Server, follower: Follower, told: Told
) -> None:
    server.items, server.version = [], 12
    asking = catching_up(follower)
    asking.join(0.3)
    assert asking.is_alive()
    server.tell("DELETED", item("a", 12))
    asking.join(HANGS)
    assert told[-1] == ("DELETED", "a")


def test_a_watch_that_breaks_off_goes_on_where_it_was(
    server: Server, follower: Follower, told: Told
) -> None:
    server.items, server.version = [item("a", 3), item("b", 11)], 11
    server.tell("ADDED", item("b", 11))
    follower.catch_up()
    server.break_off()
    server.items, server.version = [item("a", 13), item("b", 11)], 13
    server.tell("MODIFIED", item("a", 13))
    follower.catch_up()
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a")]
    assert server.watched_from == ["10", "11"]


def test_a_watch_that_is_too_old_lists_anew_and_tells_what_went(
    server: Server, follower: Follower, told: Told
) -> None:
    server.items, server.version = [item("c", 20)], 20
    server.tell("ERROR", {"code": GONE})
    follower.catch_up()
    assert told == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "c")]


def test_an_error_of_the_watch_is_raised_to_whoever_asks(server: Server, told: Told) -> None:
    follower = Follower(server, PATH, told)
    follower.start()
    server.version = 11
    server.items = [item("b", 11)]
    server.tell("ERROR", {"code": 500})
    with pytest.raises(AssertionError, match="something was missed"):
        follower.catch_up()
    with pytest.raises(AssertionError, match="something was missed"):
        follower.stop()
