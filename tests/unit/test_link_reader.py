"""Leaders are asked over HTTP, once, and those that do not answer ever more rarely."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from shardwright.api import names
from shardwright.control import leaders
from shardwright.control.links import LinkReader
from shardwright.control.queue import Key
from shardwright.observe.world import PodView
from shardwright.runner.contract import STATUS_PATH, StageLinks

KEY = Key("deployment", "llm", "llama")
PAGE: dict[str, Any] = {
    "deployment": "llama",
    "replica": 0,
    "incarnation": 3,
    "links": {"0": StageLinks("NVLink", "RDMA").told()},
}


def leader(uid: str = "uid-0", ip: str = "10.0.0.1", incarnation: int = 3) -> PodView:
    labels = {names.LABEL_REPLICA: "0", names.LABEL_INCARNATION: str(incarnation)}
    return PodView("llm", "llama-0", uid, labels=labels, ip=ip)


class Asked:
    """Plays the network: what each address answers, and how often it was asked."""

    def __init__(self, **pages: Any) -> None:
        self.pages = {name.replace("_", "."): page for name, page in pages.items()}
        self.count: dict[str, int] = {}

    async def __call__(self, _: aiohttp.ClientSession, address: str) -> object:
        self.count[address] = self.count.get(address, 0) + 1
        page = self.pages.get(address)
        if isinstance(page, Exception):
            raise page
        return page


@asynccontextmanager
async def reading(
    ask: Asked, clock: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[tuple[LinkReader, list[Key]]]:
    woken: list[Key] = []
    reader = LinkReader(woken.extend, clock=clock, ask=ask)
    task = asyncio.create_task(reader.run())
    try:
        yield reader, woken
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not done():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0)


def test_an_answer_wakes_the_deployment_and_is_not_asked_for_again() -> None:
    async def check() -> None:
        ask = Asked(**{"10_0_0_1": PAGE})
        async with reading(ask) as (reader, woken):
            reader.want(KEY, [leader()], {"uid-0"})
            await until(lambda: woken)
            assert woken == [KEY]
            assert reader.heard(KEY) == {"uid-0": {0: StageLinks("NVLink", "RDMA")}}
            reader.want(KEY, [leader()], {"uid-0"})
            for _ in range(20):
                await asyncio.sleep(0)
            assert ask.count == {"10.0.0.1": 1}

    asyncio.run(check())


@pytest.mark.parametrize(
    "page",
    [
        aiohttp.ClientConnectionError("no route"),
        TimeoutError(),
        ValueError("not JSON"),
        "a string",
        {**PAGE, "incarnation": 4},
        {**PAGE, "replica": 1},
        {**PAGE, "deployment": "other"},
        {**PAGE, "links": None},
    ],
    ids=repr,
)
def test_no_answer_or_a_strangers_is_asked_again_later_and_later(page: object) -> None:
    async def check() -> None:
        now = [100.0]
        ask = Asked(**{"10_0_0_1": page})
        async with reading(ask, lambda: now[0]) as (reader, woken):
            reader.want(KEY, [leader()], {"uid-0"})
            waits = []
            for count in range(1, 12):
                await until(lambda count=count: ask.count.get("10.0.0.1") == count)
                await until(lambda count=count: reader._turns["uid-0"].tries == count)
                waits.append(reader._turns["uid-0"].at - now[0])
                now[0] = reader._turns["uid-0"].at
                reader._more.set()
            assert waits[:3] == [5.0, 10.0, 20.0]
            assert waits[-1] == 600.0
            assert woken == []
            assert not reader.heard(KEY)

    asyncio.run(check())


def test_who_is_not_wanted_any_more_is_not_asked_and_what_it_said_is_dropped() -> None:
    async def check() -> None:
        ask = Asked(**{"10_0_0_1": PAGE, "10_0_0_2": TimeoutError()})
        async with reading(ask) as (reader, woken):
            reader.want(KEY, [leader(), leader("uid-1", "10.0.0.2")], {"uid-0", "uid-1"})
            await until(lambda: woken and ask.count.get("10.0.0.2"))
            reader.want(KEY, [], {"uid-1"})
            assert not reader.heard(KEY)
            assert reader._turns == {}
            reader.want(KEY, [leader()], {"uid-0"})
            await until(lambda: reader.heard(KEY))
            reader.forget(KEY)
            assert not reader.heard(KEY)

    asyncio.run(check())


def test_a_leader_without_an_address_is_not_asked() -> None:
    async def check() -> None:
        ask = Asked()
        async with reading(ask) as (reader, _):
            reader.want(KEY, [leader(ip="")], {"uid-0"})
            for _ in range(20):
                await asyncio.sleep(0)
            assert ask.count == {}

    asyncio.run(check())


async def _served(body: bytes, status: int, monkeypatch: pytest.MonkeyPatch) -> object:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers={"Location": "http://127.0.0.1:1/"})

    app = web.Application()
    app.router.add_get(STATUS_PATH, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    monkeypatch.setattr(leaders, "PORT_RUNNER", port)
    try:
        async with aiohttp.ClientSession() as session:
            return await leaders.ask_leader(session, "127.0.0.1")
    finally:
        await runner.cleanup()


def test_the_page_is_read_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(_served(b'{"ready": true}', 200, monkeypatch)) == {"ready": True}


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"x" * (2**20 + 1), 200, ValueError),
        (b"not json", 200, ValueError),
        (b"{}", 503, aiohttp.ClientResponseError),
    ],
)
def test_a_bad_page_is_an_error(
    body: bytes, status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error):
        asyncio.run(_served(body, status, monkeypatch))


def test_a_pod_cannot_send_the_operator_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((aiohttp.ClientResponseError, ValueError)):
        asyncio.run(_served(b"", 302, monkeypatch))


def test_a_page_that_is_nested_without_end_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the address of a leader's pod answers; it must not end the reader."""

    async def check() -> None:
        async def deep(_: web.Request) -> web.Response:
            return web.Response(text="[" * 100_000)

        app = web.Application()
        app.router.add_get(STATUS_PATH, deep)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        monkeypatch.setattr(leaders, "PORT_RUNNER", runner.addresses[0][1])
        try:
            async with aiohttp.ClientSession() as session:
                with pytest.raises(ValueError, match="nested too deep"):
                    await leaders.ask_leader(session, "127.0.0.1")
        finally:
            await runner.cleanup()

    asyncio.run(check())
