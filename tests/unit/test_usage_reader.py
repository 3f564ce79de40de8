"""Leaders are asked rarely how they are used, and only what is new wakes anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from shardwright.api import names
from shardwright.control.queue import Key
from shardwright.control.usage import ASK_SECONDS, UsageReader
from shardwright.observe.world import PodView
from shardwright.runner.contract import Usage

KEY = Key("deployment", "llm", "llama")
USED = Usage("llama-abc", 600.0, kv_cache=0.9, running=4.0)


def page(used: Usage | None = USED, **changes: Any) -> dict[str, Any]:
    told = {} if used is None else {"usage": used.told()}
    return {"deployment": "llama", "replica": 0, "incarnation": 3, **told, **changes}


def leader(uid: str = "uid-0", ip: str = "10.0.0.1") -> PodView:
    labels = {names.LABEL_REPLICA: "0", names.LABEL_INCARNATION: "3"}
    return PodView("llm", "llama-0", uid, labels=labels, ip=ip)


class Site:
    """One leader, its page, a clock, and who was woken."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.page: object = page()
        self.asked = 0
        self.woken: list[Key] = []
        self.reader = UsageReader(self.woken.extend, clock=lambda: self.now, ask=self._ask)

    async def _ask(self, _: aiohttp.ClientSession, __: str) -> object:
        self.asked += 1
        if isinstance(self.page, Exception):
            raise self.page
        return self.page

    async def turn(self) -> float:
        """Let the leader's next turn come; how long that took."""
        before, asked = self.now, self.asked
        self.now = self.reader._turns["uid-0"].at
        self.reader._more.set()
        turn = self.reader._turns["uid-0"]
        await until(lambda: self.asked > asked and self.reader._turns["uid-0"] != turn)
        return self.now - before


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    task = asyncio.create_task(made.reader.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0)


def test_a_leader_is_asked_every_five_minutes_and_only_news_wake_its_deployment() -> None:
    async def check() -> None:
        async with site() as here:
            here.reader.want(KEY, [leader()])
            for _ in range(20):
                await asyncio.sleep(0)
            assert here.asked == 0
            assert await here.turn() == ASK_SECONDS == 300.0
            assert here.reader.heard(KEY) == {"uid-0": USED}
            assert here.woken == [KEY]
            here.reader.want(KEY, [leader()])
            assert await here.turn() == 300.0
            assert here.woken == [KEY]
            here.page = page(replace(USED, kv_cache=0.4))
            await here.turn()
            assert here.woken == [KEY, KEY]
            assert here.reader.heard(KEY)["uid-0"].kv_cache == 0.4

    asyncio.run(check())


@pytest.mark.parametrize(
    "answer",
    [
        aiohttp.ClientConnectionError("no route"),
        TimeoutError(),
        page(None),
        page(incarnation=4),
        page(usage={"revision": "llama-abc", "busySeconds": 1e9}),
        "a string",
    ],
    ids=repr,
)
def test_no_answer_is_asked_for_ever_more_rarely_and_what_was_said_is_dropped(
    answer: object,
) -> None:
    async def check() -> None:
        async with site() as here:
            here.reader.want(KEY, [leader()])
            await here.turn()
            here.page = answer
            waits = [await here.turn() for _ in range(7)]
            assert waits == [300.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0, 3600.0]
            assert dict(here.reader.heard(KEY)) == {}
            assert here.woken == [KEY]
            late = replace(here.reader._turns["uid-0"], tries=5000)
            here.reader._turns["uid-0"] = late
            await here.turn()
            assert here.reader._turns["uid-0"].at - here.now == 3600.0
            here.page = page()
            await here.turn()
            assert await here.turn() == 300.0

    asyncio.run(check())


def test_who_is_not_wanted_is_not_asked_and_a_deployment_that_is_gone_leaves_nothing() -> None:
    async def check() -> None:
        async with site() as here:
            here.reader.want(KEY, [leader(), leader("uid-1", ip="")])
            assert set(here.reader._turns) == {"uid-0"}
            await here.turn()
            here.reader.want(KEY, [])
            assert here.reader._turns == {}
            assert here.reader._heard == {}
            here.reader.want(KEY, [leader()])
            await here.turn()
            here.reader.forget(KEY)
            assert (here.reader._turns, here.reader._heard) == ({}, {})

    asyncio.run(check())
