"""Leaders are asked for their adapters: soon while they change, rarely while nothing does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.test_link_reader import KEY, Asked, leader, until

from shardwright.control.adapters import AdapterReader
from shardwright.control.leaders import backoff
from shardwright.runner.contract import ADAPTER_FAILED, ADAPTER_WAITING, AdaptersHeard

ADDRESS = "10.0.0.1"
FAILED = {"poems": (ADAPTER_FAILED, "500 CUDA error")}


def page(table: str = "new", **told: Any) -> dict[str, Any]:
    heard = AdaptersHeard(table, **told)
    return {"deployment": "llama", "replica": 0, "incarnation": 3, "adapters": heard.told()}


class Reading:
    """A reader under a clock that stands until the next turn is due."""

    def __init__(self, answer: object) -> None:
        self.now = 100.0
        self.ask = Asked(**{"10_0_0_1": answer})
        self.woken = 0
        self.reader = AdapterReader(self._wake, clock=lambda: self.now, ask=self.ask)

    def _wake(self, keys: set[Any]) -> None:
        assert keys == {KEY}
        self.woken += 1

    async def waits(self, count: int) -> list[float]:
        """Seconds from each of the next answers to the question after it."""
        found = []
        for _ in range(count):
            asked, before = self.ask.count.get(ADDRESS, 0), self.reader._turns["uid-0"]
            self.now = max(self.now, before.at)
            self.reader._more.set()
            await until(lambda asked=asked: self.ask.count.get(ADDRESS) == asked + 1)
            await until(lambda before=before: self.reader._turns["uid-0"] is not before)
            found.append(self.reader._turns["uid-0"].at - self.now)
        return found


def check(answer: object, judge: Callable[[Reading], Awaitable[None]]) -> None:
    async def run() -> None:
        found = Reading(answer)
        found.reader.want(KEY, [(leader(), "new")])
        task = asyncio.create_task(found.reader.run())
        try:
            await judge(found)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        page(troubles=FAILED),
        page(loaded=("legal",), troubles={"poems": (ADAPTER_WAITING, "its turn")}),
        page("old", loaded=("legal",)),
        page("old", troubles=FAILED),
    ],
    ids=["a failure", "a wait", "an old table", "an old failure"],
)
def test_trouble_that_stands_is_asked_about_ever_more_rarely(answer: object) -> None:
    async def judge(found: Reading) -> None:
        assert await found.waits(8) == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
        assert found.woken == 1, "what is not new wakes nobody"

    check(answer, judge)


def test_an_answer_that_tells_something_new_is_followed_closely() -> None:
    async def judge(found: Reading) -> None:
        await found.waits(6)
        found.ask.pages[ADDRESS] = page(loaded=("legal",), troubles=FAILED)
        assert await found.waits(2) == [1.0, 2.0]
        assert found.woken == 2

    check(page(troubles=FAILED), judge)


def test_another_table_is_asked_for_at_once() -> None:
    async def judge(found: Reading) -> None:
        await found.waits(6)
        found.reader.want(KEY, [(leader(), "newer")])
        assert found.reader._turns["uid-0"].at == found.now
        assert await found.waits(3) == [2.0, 4.0, 8.0]
        found.ask.pages[ADDRESS] = page("newer")
        assert await found.waits(1) == [30.0]

    check(page(troubles=FAILED), judge)


def test_what_is_settled_is_asked_for_now_and_then() -> None:
    async def judge(found: Reading) -> None:
        assert await found.waits(4) == [30.0] * 4
        assert (found.woken, found.reader.heard(KEY)["uid-0"].loaded) == (1, ("legal",))

    check(page(loaded=("legal",)), judge)


def test_a_leader_that_does_not_answer_is_asked_ever_more_rarely() -> None:
    async def judge(found: Reading) -> None:
        assert await found.waits(8) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        found.ask.pages[ADDRESS] = page(troubles=FAILED)
        assert await found.waits(2) == [1.0, 2.0]

    check(TimeoutError(), judge)


def test_each_leader_has_a_table_of_its_own() -> None:
    async def judge(found: Reading) -> None:
        found.ask.pages["10.0.0.2"] = page("other")
        found.reader.want(KEY, [(leader(), "new"), (leader("uid-1", "10.0.0.2"), "other")])
        await until(lambda: len(found.reader.heard(KEY)) == 2)
        assert {uid: one.at - found.now for uid, one in found.reader._turns.items()} == {
            "uid-0": 30.0,
            "uid-1": 30.0,
        }

    check(page("new"), judge)


def test_a_month_of_tries_overflows_nothing() -> None:
    assert backoff(1.0, 10**6, 60.0) == 60.0
    assert [backoff(5.0, times, 600.0) for times in range(3)] == [5.0, 10.0, 20.0]
