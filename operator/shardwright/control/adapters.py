"""Asks leaders which adapters they have loaded: often while that changes, then ever more rarely.

A leader's runner loads what the table says by itself; what is heard here only goes into status, and
nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
import structlog

from shardwright.control.leaders import LeaderReader, Turn, backoff, same_leader
from shardwright.control.queue import Key
from shardwright.observe.world import PodView
from shardwright.runner.contract import AdaptersHeard, adapters_heard

_log = structlog.get_logger(__name__)
_SOON_SECONDS: Final = 1.0
_SETTLED_SECONDS: Final = 30.0
_LAST_RETRY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Watched(Turn):
    """A leader that is asked; `digest` names the table that it is to have.

    `same` counts answers in a row that told nothing new.
    """

    digest: str = ""
    same: int = 0


class AdapterReader(LeaderReader[_Watched, AdaptersHeard]):
    """Keeps whom to ask and what was answered last, by the UID of the leader's pod."""

    def want(self, key: Key, leaders: Iterable[tuple[PodView, str]]) -> None:
        """Ask exactly these leaders of a deployment, at once those that have another table.

        `leaders` are their pods, each with the digest of the table that it is to have.
        """
        wanted = {pod.uid: (pod, digest) for pod, digest in leaders if pod.ip}
        self._leave(key, wanted, wanted)
        for uid, (pod, digest) in wanted.items():
            known = self._turns.get(uid)
            if known is None or known.digest != digest:
                self._turns[uid] = _Watched(key, pod, self._clock(), digest=digest)
                self._more.set()

    async def _one(self, session: aiohttp.ClientSession, one: _Watched) -> None:
        pod = one.pod
        try:
            page = await self._ask(session, pod.ip)
            same_leader(one.key.name, pod, page)
            found = adapters_heard(page)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if not one.tries:
                _log.info("leader does not tell its adapters", pod=pod.name, error=repr(error))
            wait = backoff(_SOON_SECONDS, one.tries, _LAST_RETRY_SECONDS)
            self._again(one, replace(one, at=self._clock() + wait, tries=one.tries + 1))
            return
        news = self.heard(one.key).get(pod.uid) != found
        settled = found.table == one.digest and not found.troubles
        same = 0 if news or settled else one.same + 1
        # Trouble that stands, of files or of a server, is asked about as rarely as what is settled.
        wait = _SETTLED_SECONDS if settled else backoff(_SOON_SECONDS, same, _SETTLED_SECONDS)
        later = replace(one, at=self._clock() + wait, tries=0, same=same)
        if self._again(one, later) and news:
            self._heard.setdefault(one.key, {})[pod.uid] = found
            self._add({one.key})
