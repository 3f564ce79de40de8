"""Asks leaders what their ranks talk over: the runner in a pod has no way to the API server.

One answer an incarnation is enough; it goes into status. Pods that cannot be reached are asked
again ever more rarely, and nothing waits for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import aiohttp
import structlog

from shardwright.api.names import PORT_RUNNER
from shardwright.control.queue import Key
from shardwright.observe.world import PodView
from shardwright.plan.groups import slot_of
from shardwright.runner.contract import (
    STATUS_PATH,
    ContractError,
    StageLinks,
    links_heard,
    read_json,
)

_log = structlog.get_logger(__name__)
_ASK_SECONDS: Final = 3.0
_PARALLEL: Final = 8
_FIRST_RETRY_SECONDS: Final = 5.0
_LAST_RETRY_SECONDS: Final = 600.0
_LIMIT_BYTES: Final = 2**20

Stages = Mapping[int, StageLinks]
Ask = Callable[[aiohttp.ClientSession, str], Awaitable[object]]
_NOTHING: Final[Mapping[str, Stages]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A leader to be asked, not before `at`."""

    key: Key
    pod: PodView
    at: float
    tries: int = 0


class LinkReader:
    """Keeps whom to ask and what was answered, by deployment and the UID of the leader's pod."""

    def __init__(
        self,
        add: Callable[[set[Key]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        ask: Ask | None = None,
    ) -> None:
        """`add` wakes a deployment whose leader has answered."""
        self._add = add
        self._clock = clock
        self._ask: Ask = ask if ask is not None else ask_leader
        self._wanted: dict[str, _Wanted] = {}
        self._heard: dict[Key, dict[str, Stages]] = {}
        self._more = asyncio.Event()

    def heard(self, key: Key) -> Mapping[str, Stages]:
        """What the deployment's leaders have answered, by pod UID."""
        return self._heard.get(key, _NOTHING)

    def want(self, key: Key, leaders: Iterable[PodView], there: Collection[str]) -> None:
        """Ask exactly these leaders of a deployment; `there` are the UIDs of its pods."""
        wanted = {pod.uid: pod for pod in leaders if pod.ip}
        for uid in [uid for uid, one in self._wanted.items() if one.key == key]:
            if uid not in wanted:
                del self._wanted[uid]
        heard = self._heard.get(key, {})
        for uid in [uid for uid in heard if uid not in there]:
            del heard[uid]
        for uid, pod in wanted.items():
            if uid not in self._wanted and uid not in heard:
                self._wanted[uid] = _Wanted(key, pod, self._clock())
                self._more.set()

    def forget(self, key: Key) -> None:
        """A deployment is gone."""
        self.want(key, (), ())
        self._heard.pop(key, None)

    async def run(self) -> None:
        """Ask for ever, a few at a time."""
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                self._more.clear()
                now = self._clock()
                due = [one for one in self._wanted.values() if one.at <= now][:_PARALLEL]
                if due:
                    await asyncio.gather(*(self._one(session, one) for one in due))
                    continue
                next_at = min((one.at for one in self._wanted.values()), default=None)
                try:
                    async with asyncio.timeout(None if next_at is None else next_at - now):
                        await self._more.wait()
                except TimeoutError:
                    continue

    async def _one(self, session: aiohttp.ClientSession, wanted: _Wanted) -> None:
        pod = wanted.pod
        try:
            page = await self._ask(session, pod.ip)
            same_leader(wanted.key.name, wanted.pod, page)
            stages = links_heard(page)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if self._wanted.get(pod.uid) != wanted:
                return
            if not wanted.tries:
                _log.info("leader does not tell its links", pod=pod.name, error=repr(error))
            wait = min(_FIRST_RETRY_SECONDS * 2**wanted.tries, _LAST_RETRY_SECONDS)
            again = replace(wanted, at=self._clock() + wait, tries=wanted.tries + 1)
            self._wanted[pod.uid] = again
            return
        if self._wanted.get(pod.uid) == wanted:
            del self._wanted[pod.uid]
            self._heard.setdefault(wanted.key, {})[pod.uid] = stages
            self._add({wanted.key})


def same_leader(deployment: str, pod: PodView, page: object) -> None:
    """Addresses are used again: what answers must be the incarnation that was asked.

    Raises:
        ContractError: It is another one, or no status page.
    """
    if not isinstance(page, dict):
        raise ContractError("the status page is no object")
    asked = (deployment, *slot_of(pod))
    found = (page.get("deployment"), page.get("replica"), page.get("incarnation"))
    if found != asked:
        raise ContractError(f"{pod.ip} answers for {found}, asked for {asked}")


async def ask_leader(session: aiohttp.ClientSession, address: str) -> object:
    """The status page of the runner at a pod's IP address.

    Raises:
        aiohttp.ClientError, TimeoutError, OSError: No answer, or no good one.
        ValueError: It is not JSON, or too long.
    """
    host = f"[{address}]" if ":" in address else address
    async with session.get(
        f"http://{host}:{PORT_RUNNER}{STATUS_PATH}", allow_redirects=False
    ) as answer:
        answer.raise_for_status()
        text = await answer.content.read(_LIMIT_BYTES + 1)
        if len(text) > _LIMIT_BYTES:
            raise ValueError(f"the status page is longer than {_LIMIT_BYTES} bytes")
        found: object = read_json(text)
        return found
