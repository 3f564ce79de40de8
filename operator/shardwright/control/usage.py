"""Asks leaders now and then how their engines were used of late: what advice rests on.

A leader's runner sums up by itself; what is heard here only ends in status, rarely, and nothing
waits for it. A leader that is idle always tells the same, and wakes nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import aiohttp
import structlog

from shardwright.control.leaders import Ask, LeaderReader, Turn, same_leader
from shardwright.control.queue import Key
from shardwright.observe.world import PodView
from shardwright.runner.contract import Usage, usage_heard

_log = structlog.get_logger(__name__)
ASK_SECONDS: Final = 300.0
_LAST_RETRY_SECONDS: Final = 3600.0
_DOUBLINGS: Final = 8

_NOTHING: Final[Mapping[str, Usage]] = MappingProxyType({})


class UsageReader(LeaderReader[Turn]):
    """Keeps whom to ask and what was answered last, by the UID of the leader's pod."""

    def __init__(
        self,
        add: Callable[[set[Key]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        ask: Ask | None = None,
    ) -> None:
        """`add` wakes a deployment of which a leader has told something new."""
        super().__init__(add, clock=clock, ask=ask)
        self._heard: dict[Key, dict[str, Usage]] = {}

    def heard(self, key: Key) -> Mapping[str, Usage]:
        """What the deployment's leaders have told last, by pod UID."""
        return self._heard.get(key, _NOTHING)

    def want(self, key: Key, leaders: Iterable[PodView]) -> None:
        """Ask exactly these leaders of a deployment, each for the first time in a while."""
        wanted = {pod.uid: pod for pod in leaders if pod.ip}
        self._leave(key, wanted)
        heard = self._heard.get(key, {})
        for uid in [uid for uid in heard if uid not in wanted]:
            del heard[uid]
        if not heard:
            self._heard.pop(key, None)
        for uid, pod in wanted.items():
            if uid not in self._turns:
                self._turns[uid] = Turn(key, pod, self._clock() + ASK_SECONDS)
                self._more.set()

    def forget(self, key: Key) -> None:
        """A deployment is gone."""
        self.want(key, ())

    async def _one(self, session: aiohttp.ClientSession, turn: Turn) -> None:
        pod = turn.pod
        try:
            page = await self._ask(session, pod.ip)
            same_leader(turn.key.name, pod, page)
            found = usage_heard(page)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if self._turns.get(pod.uid) != turn:
                return
            if not turn.tries:
                _log.info("leader does not tell its usage", pod=pod.name, error=repr(error))
            wait = min(ASK_SECONDS * 2 ** min(turn.tries, _DOUBLINGS), _LAST_RETRY_SECONDS)
            self._turns[pod.uid] = replace(turn, at=self._clock() + wait, tries=turn.tries + 1)
            # What it said before is of another time.
            self._heard.get(turn.key, {}).pop(pod.uid, None)
            return
        if self._turns.get(pod.uid) != turn:
            return
        self._turns[pod.uid] = replace(turn, at=self._clock() + ASK_SECONDS, tries=0)
        heard = self._heard.setdefault(turn.key, {})
        if heard.get(pod.uid) != found:
            heard[pod.uid] = found
            self._add({turn.key})
