"""One process leads at a time, and knows for how long for certain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.leases import Clock, LeaseServer

from shardwright.api.settings import LeaseSettings
from shardwright.apply.errors import LeaseLost
from shardwright.control.lease import Elector


def elector(
    server: LeaseServer, clock: Clock, identity: str = "me", **settings: Any
) -> tuple[Elector, list[bool]]:
    changes: list[bool] = []
    made = Elector(
        server,  # type: ignore[arg-type]
        LeaseSettings(**settings),
        namespace="system",
        identity=identity,
        clock=clock,
        sleep=clock.sleep,
        on_change=changes.append,
    )
    return made, changes


async def test_a_lease_that_nobody_has_is_taken_at_once() -> None:
    server, clock = LeaseServer(), Clock()
    me, changes = elector(server, clock)
    await me.acquire()
    assert server.holder == "me"
    assert me.leading
    assert me.remaining() == 10.0
    assert changes == [True]
    assert clock.now == 1000.0


async def test_a_released_lease_is_taken_without_waiting_for_its_end() -> None:
    server, clock = LeaseServer(), Clock()
    server.put("", duration=15)
    me, _ = elector(server, clock)
    await me.acquire()
    assert clock.now == 1000.0
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 4


@pytest.mark.parametrize(
    "renewed", ["1970-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z", ""]
)
async def test_another_holders_clock_does_not_matter_only_its_silence_does(renewed: str) -> None:
    server, clock = LeaseServer(), Clock()
    server.put("other", duration=15, renewed=renewed)
    me, _ = elector(server, clock)
    await me.acquire()
    assert server.holder == "me"
    assert 1015.0 <= clock.now <= 1017.0


async def test_a_holder_that_renews_keeps_the_lease() -> None:
    server, clock = LeaseServer(), Clock()
    server.put("other")
    clock.on_tick = lambda: server.put("other") if clock.now < 1300 else None
    me, _ = elector(server, clock)
    await me.acquire()
    assert clock.now >= 1300 + 13


async def test_the_certain_hold_counts_from_before_the_renewal_was_sent() -> None:
    server, clock = LeaseServer(), Clock()
    me, _ = elector(server, clock)

    def slow() -> None:
        clock.now += 4

    server.put("")
    server.before_replace = slow
    await me.acquire()
    assert me.remaining() == 6.0


async def test_an_api_server_away_longer_than_the_deadline_ends_the_hold() -> None:
    server, clock = LeaseServer(), Clock()
    me, changes = elector(server, clock)
    await me.acquire()
    server.away = True
    with pytest.raises(LeaseLost, match="could not be renewed in time"):
        await me.hold()
    assert clock.now == 1010.0
    assert not me.leading
    assert changes == [True, False]


async def test_a_short_absence_of_the_api_server_is_survived() -> None:
    server, clock = LeaseServer(), Clock()
    me, _ = elector(server, clock)
    await me.acquire()

    def tick() -> None:
        server.away = 1001 < clock.now < 1009
        if clock.now > 1100:
            server.put("thief")

    clock.on_tick = tick
    with pytest.raises(LeaseLost, match="belongs to thief"):
        await me.hold()
    assert clock.now > 1100


async def test_a_stolen_lease_is_lost_at_once_and_not_taken_back() -> None:
    server, clock = LeaseServer(), Clock()
    me, _ = elector(server, clock)
    await me.acquire()
    server.put("thief", duration=0)
    with pytest.raises(LeaseLost, match="belongs to thief"):
        await me.hold()
    assert server.holder == "thief"
    assert me.remaining() == 0.0


async def test_somebody_elses_note_on_the_lease_is_no_loss() -> None:
    server, clock = LeaseServer(), Clock()
    me, _ = elector(server, clock)
    await me.acquire()
    noted: list[float] = []

    def note() -> None:
        if not noted:
            noted.append(clock.now)
            server.put("me")  # an annotation, say: same holder, new resourceVersion

    server.before_replace = note
    clock.on_tick = lambda: server.put("thief") if clock.now > 1050 else None
    with pytest.raises(LeaseLost, match="thief"):
        await me.hold()
    assert noted
    assert clock.now > 1050


async def test_two_that_see_the_same_silence_do_not_both_win() -> None:
    server, clock = LeaseServer(), Clock()
    server.put("gone")
    one, _ = elector(server, clock, "one")
    two, _ = elector(server, clock, "two")
    running = {asyncio.create_task(item.acquire()) for item in (one, two)}
    done, pending = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    assert [one.leading, two.leading].count(True) == 1
    for task in pending:
        task.cancel()


async def test_release_leaves_no_holder_and_does_it_once() -> None:
    server, clock = LeaseServer(), Clock()
    me, changes = elector(server, clock)
    await me.acquire()
    await me.release()
    await me.release()
    assert server.holder == ""
    assert server.writes == 2
    assert changes == [True, False]


async def test_a_renewal_that_was_cancelled_on_its_way_does_not_hinder_the_release() -> None:
    server, clock = LeaseServer(), Clock()
    me, _ = elector(server, clock)
    await me.acquire()
    server.put("me")  # carried out, though nobody waited for the answer
    await me.release()
    assert server.holder == ""
    assert server.lease is not None
    assert server.lease["spec"]["leaseDurationSeconds"] == 1


async def test_what_another_has_taken_meanwhile_is_left_alone() -> None:
    server, clock = LeaseServer(), Clock()
    me, changes = elector(server, clock)
    await me.acquire()
    server.put("other")
    await me.release()
    assert server.holder == "other"
    assert changes == [True, False]


async def test_a_lease_that_is_no_longer_ours_is_not_released() -> None:
    server, clock = LeaseServer(), Clock()
    me, _ = elector(server, clock)
    await me.acquire()
    clock.now += 11
    await me.release()
    assert server.writes == 1


@pytest.mark.parametrize(("retry", "renew", "duration"), [(2, 15, 15), (10, 10, 15), (2, 20, 15)])
def test_times_that_allow_two_leaders_are_refused(
    retry: float, renew: float, duration: float
) -> None:
    with pytest.raises(ValueError, match=r"retrySeconds .* < renewSeconds .* < durationSeconds"):
        elector(
            LeaseServer(),
            Clock(),
            retry_seconds=retry,
            renew_seconds=renew,
            duration_seconds=duration,
        )
