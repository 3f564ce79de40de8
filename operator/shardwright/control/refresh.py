"""Closes the gaps that watches leave: lists of our own, when and as seldom as they are needed.

A watch that has to start anew (its resourceVersion was too old) lists, but a list does not say what
was deleted in between. kopf marks objects of a list with the event type None; seen here, that kind
is listed once more shortly after. Everything is listed from time to time besides.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from shardwright.apply.errors import ClusterError
from shardwright.control.watched import WATCHES, Watch

_log = structlog.get_logger(__name__)
QUIET_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 5.0
# a full round is eleven lists or so: twice the resync keeps an idle operator below one request a
# minute, and what it looks for is a gap that nothing else has shown
_ROUND: Final = 2.0
_JITTER: Final = 0.2

Fill = Callable[[tuple[Watch, ...]], Awaitable[None]]


class Refresher:
    """Lists kinds when their watch has listed, and all of them now and then.

    Args:
        fill: Lists kinds into the store.
        resync_seconds: Half the time between two full rounds.
        clock: Monotonic seconds.
        quiet_seconds: How long after the last object of a watch's list we take ours.
    """

    def __init__(
        self,
        fill: Fill,
        *,
        resync_seconds: float,
        clock: Callable[[], float],
        quiet_seconds: float = QUIET_SECONDS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._fill = fill
        self._period = _ROUND * resync_seconds
        self._clock = clock
        self._quiet = quiet_seconds
        self._jitter = jitter
        self._asked: dict[str, float] = {}
        self._wake = asyncio.Event()

    def watch_listed(self, kind: str) -> None:
        """A watch of `kind` showed an object of its list: ours follows once it is through."""
        if kind not in self._asked:
            self._wake.set()
        self._asked[kind] = self._clock() + self._quiet

    async def run(self) -> None:
        """List what is due, for ever. The first round comes when the watches have begun."""
        for watch in WATCHES:
            self.watch_listed(watch.kind)
        round_at = self._clock() + self._spread()
        while True:
            now = self._clock()
            if now >= round_at:
                round_at = now + self._spread()
                self._asked.update({watch.kind: now for watch in WATCHES})
            due = tuple(watch for watch in WATCHES if self._asked.get(watch.kind, now + 1) <= now)
            if due:
                await self._list(due)
            next_at = min([round_at, *self._asked.values()])
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, next_at - self._clock())):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _list(self, due: tuple[Watch, ...]) -> None:
        for watch in due:
            del self._asked[watch.kind]
        try:
            await self._fill(due)
        except* ClusterError as group:
            _log.warning("lists not taken", errors=[str(error) for error in group.exceptions])
            again = self._clock() + _RETRY_SECONDS
            for watch in due:
                self._asked.setdefault(watch.kind, again)

    def _spread(self) -> float:
        return self._period * (1 + _JITTER * (2 * self._jitter() - 1))
