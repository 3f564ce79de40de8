"""The demo tells turns that were over before it looked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from shardwright_sandbox.demo_states import States
from shardwright_sandbox.rest import Json, Rest


def an_object(version: int, reason: str) -> Json:
    return {
        "metadata": {"uid": "a", "resourceVersion": str(version), "generation": 1},
        "status": {"reason": reason},
    }


class Server:
    """Has one object, and tells its watch only what the test lets through."""

    def __init__(self) -> None:
        self.events: queue.Queue[Json] = queue.Queue()

    def get(self, path: str, **query: str) -> Json:
        del path, query
        return {"metadata": {"resourceVersion": "1"}, "items": [an_object(1, "Pending")]}

    def watch(self, path: str, stop: threading.Event, **query: str) -> Iterator[Json]:
        del path, query
        while not stop.is_set():
            try:
                yield self.events.get(timeout=0.02)
            except queue.Empty:
                continue


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def states(server: Server) -> Iterator[States]:
    found = States(cast("Rest", server), "/apis/shardwright.dev/v1alpha1/llmdeployments")
    found.start()
    yield found
    found.stop()


def test_all_states_up_to_the_one_looked_at_are_told_in_order_and_once(
    server: Server, states: States
) -> None:
    told: list[Any] = []
    ended = threading.Event()

    def look() -> None:
        told.extend(state.status["reason"] for state in states.until(4))
        ended.set()

    for version, reason in ((2, "Fetching"), (3, "Building")):
        server.events.put({"type": "MODIFIED", "object": an_object(version, reason)})
    looking = threading.Thread(target=look)
    looking.start()
    assert not ended.wait(0.3)
    server.events.put({"type": "MODIFIED", "object": an_object(4, "Ready")})
    looking.join(60)
    assert told == ["Pending", "Fetching", "Building", "Ready"]
    assert states.until(4) == []
