"""Asks leaders what their ranks talk over: the runner in a pod has no way to the API server.

One answer an incarnation is enough; it goes into status. Pods that cannot be reached are asked
again ever more rarely, and nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import aiohttp
import structlog

from shardwright.control.leaders import LeaderReader, Turn, backoff, same_leader
from shardwright.control.queue import Key
from shardwright.observe.world import PodView
from shardwright.runner.contract import (
    StageLinks,
    links_heard,
)

_log = structlog.get_logger(__name__)
_FIRST_RETRY_SECONDS: Final = 5.0
_LAST_RETRY_SECONDS: Final = 600.0

Stages = Mapping[int, StageLinks]


class LinkReader(LeaderReader[Turn, Stages]):
    """Keeps whom to ask and what was answered, by deployment and the UID of the leader's pod."""

    def want(self, key: Key, leaders: Iterable[PodView], there: Collection[str]) -> None:
        """Ask exactly these leaders of a deployment; `there` are the UIDs of its pods."""
        wanted = {pod.uid: pod for pod in leaders if pod.ip}
        self._leave(key, wanted, there)
        heard = self.heard(key)
        for uid, pod in wanted.items():
            if uid not in self._turns and uid not in heard:
                self._turns[uid] = Turn(key, pod, self._clock())
                self._more.set()

    async def _one(self, session: aiohttp.ClientSession, wanted: Turn) -> None:
        pod = wanted.pod
        try:
            page = await self._ask(session, pod.ip)
            same_leader(wanted.key.name, wanted.pod, page)
            stages = links_heard(page)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            wait = backoff(_FIRST_RETRY_SECONDS, wanted.tries, _LAST_RETRY_SECONDS)
            later = replace(wanted, at=self._clock() + wait, tries=wanted.tries + 1)
            if self._again(wanted, later) and not wanted.tries:
                _log.info("leader does not tell its links", pod=pod.name, error=repr(error))
            return
        if self._turns.get(pod.uid) == wanted:
            del self._turns[pod.uid]
            self._heard.setdefault(wanted.key, {})[pod.uid] = stages
            self._add({wanted.key})
