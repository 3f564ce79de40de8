"""How the process ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from shardwright.main import closing


@asynccontextmanager
async def stubborn() -> AsyncIterator[None]:
    """Like kopf's streaming block: it does not stop when it is told to."""
    with suppress(GeneratorExit):
        yield
    yield


async def stream() -> AsyncIterator[int]:
    async with stubborn():
        yield 1


async def left_half_way(*, ended: bool) -> None:
    events = stream()
    await anext(events)
    if ended:
        asyncio.get_running_loop().set_exception_handler(closing)
    _kept.append(events)


_kept: list[AsyncIterator[int]] = []


@pytest.mark.parametrize("ended", [True, False])
def test_a_stream_left_half_way_is_an_error_only_while_something_runs(
    ended: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(left_half_way(ended=ended))
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert bool(errors) is not ended


def test_anything_else_that_goes_wrong_at_the_end_is_still_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    try:
        closing(loop, {"message": "Task was destroyed but it is pending!"})
    finally:
        loop.close()
    assert "Task was destroyed" in caplog.text
