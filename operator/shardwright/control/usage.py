"""Asks leaders now and then how their engines were used of late: what advice rests on.

A leader's runner sums up by itself; what is heard here only ends in status, rarely, and nothing
waits for it. A leader that is idle always tells the same, and wakes nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import aiohttp
import structlog

from shardwright.control.leaders import LeaderReader, Turn, backoff, same_leader
from shardwright.control.queue import Key
from shardwright.observe.world import PodView
from shardwright.runner.contract import Usage, usage_heard

_log = structlog.get_logger(__name__)
ASK_SECONDS: Final = 300.0
_LAST_RETRY_SECONDS: Final = 3600.0


class UsageReader(LeaderReader[Turn, Usage]):
    """Keeps whom to ask and what was answered last, by the UID of the leader's pod."""

    def want(self, key: Key, leaders: Iterable[PodView]) -> None:
        """Ask exactly these leaders of a deployment, each for the first time in a while."""
        wanted = {pod.uid: pod for pod in leaders if pod.ip}
        self._leave(key, wanted, wanted)
        for uid, pod in wanted.items():
            if uid not in self._turns:
                self._turns[uid] = Turn(key, pod, self._clock() + ASK_SECONDS)
                self._more.set()

    async def _one(self, session: aiohttp.ClientSession, turn: Turn) -> None:
        pod = turn.pod
        try:
            page = await self._ask(session, pod.ip)
            same_leader(turn.key.name, pod, page)
            found = usage_heard(page)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            wait = backoff(ASK_SECONDS, turn.tries, _LAST_RETRY_SECONDS)
            if not self._again(turn, replace(turn, at=self._clock() + wait, tries=turn.tries + 1)):
                return
            if not turn.tries:
                _log.info("leader does not tell its usage", pod=pod.name, error=repr(error))
            # What it said before is of another time.
            self._heard.get(turn.key, {}).pop(pod.uid, None)
            return
        if not self._again(turn, replace(turn, at=self._clock() + ASK_SECONDS, tries=0)):
            return
        heard = self._heard.setdefault(turn.key, {})
        if heard.get(pod.uid) != found:
            heard[pod.uid] = found
            self._add({turn.key})
