"""What watches miss is listed, and a process that hangs says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shardwright.apply.errors import Unavailable
from shardwright.apply.kinds import NODE, POD
from shardwright.control.http import Health, measure_lag
from shardwright.control.metrics import Metrics
from shardwright.control.refresh import Refresher
from shardwright.control.watched import WATCHES, Watch


class Fills:
    """Takes note of the lists, and can fail."""

    def __init__(self) -> None:
        self.rounds: list[set[str]] = []
        self.at: list[float] = []
        self.fail = False

    def forget(self) -> None:
        """The lists so far."""
        self.rounds.clear()
        self.at.clear()

    async def __call__(self, watches: tuple[Watch, ...]) -> None:
        self.at.append(time.monotonic())
        self.rounds.append({watch.kind for watch in watches})
        if self.fail:
            raise ExceptionGroup("lists", [Unavailable("list", 503, "", "away")])


@asynccontextmanager
async def refreshing(
    fills: Fills, *, period: float = 60.0, quiet: float = 0.05
) -> AsyncIterator[Refresher]:
    refresher = Refresher(
        fills,
        resync_seconds=period,
        clock=time.monotonic,
        quiet_seconds=quiet,
        jitter=lambda: 0.5,
    )
    task = asyncio.create_task(refresher.run())
    yield refresher
    task.cancel()


async def rounds(fills: Fills, count: int) -> None:
    async with asyncio.timeout(60):
        while len(fills.rounds) < count:  # noqa: ASYNC110 - a list, filled elsewhere
            await asyncio.sleep(0.01)


async def test_everything_is_listed_once_the_watches_have_begun() -> None:
    fills = Fills()
    async with refreshing(fills):
        await rounds(fills, 1)
        await asyncio.sleep(0.2)
    assert fills.rounds == [{watch.kind for watch in WATCHES}]


async def test_a_kind_whose_watch_listed_anew_is_listed_after_the_last_of_it() -> None:
    fills, quiet = Fills(), 0.5
    shown: list[float] = []
    async with refreshing(fills, quiet=quiet) as refresher:
        await rounds(fills, 1)
        fills.forget()
        for _ in range(4):
            shown.append(time.monotonic())
            refresher.watch_listed(POD)
            await asyncio.sleep(0.2)
        async with asyncio.timeout(60):
            while not fills.at or fills.at[-1] < shown[-1]:  # noqa: ASYNC110 - as in rounds
                await asyncio.sleep(0.01)
    # Once, unless this process has stood still in between; never while more may be under way.
    assert all(kinds == {POD} for kinds in fills.rounds)
    for at in fills.at:
        assert at - max(moment for moment in shown if moment <= at) >= quiet


async def test_everything_is_listed_from_time_to_time() -> None:
    fills = Fills()
    async with refreshing(fills, period=0.1):
        await rounds(fills, 3)
    assert all(NODE in kinds for kinds in fills.rounds)


async def test_a_list_that_fails_is_taken_again_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shardwright.control.refresh._RETRY_SECONDS", 0.05)
    fills = Fills()
    fills.fail = True
    async with refreshing(fills):
        await rounds(fills, 3)


def test_a_queue_that_stands_still_makes_the_process_unhealthy() -> None:
    health = Health(stuck=lambda: 301.0)
    assert health.unhealthy() == "queue stands still for 301 s, limit 300 s"
    assert Health(stuck=lambda: 299.0).unhealthy() == ""


def test_a_lagging_loop_makes_the_process_unhealthy() -> None:
    assert Health(lag=31.0).unhealthy() == "event loop lags 31 s, limit 30 s"


def test_a_leader_is_ready_when_its_store_is_filled_a_standby_at_once() -> None:
    assert Health().unready() == ""
    assert Health(leading=True).unready() == "cluster is being read"
    assert Health(leading=True, filled=True).unready() == ""


async def test_the_lag_of_the_loop_is_measured() -> None:
    health, metrics = Health(), Metrics()
    task = asyncio.create_task(measure_lag(health, metrics, clock=time.monotonic, period=0.02))
    await asyncio.sleep(0.01)
    time.sleep(0.3)  # noqa: ASYNC251 - this is the fault
    for _ in range(3):
        await asyncio.sleep(0)
    assert health.lag > 0.2
    value = metrics.registry.get_sample_value("shardwright_event_loop_lag_seconds")
    assert value == health.lag
    task.cancel()
