"""Asks leaders for the runner's status page: a few at a time, each not before its turn."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import aiohttp

from shardwright.api.names import PORT_RUNNER
from shardwright.control.queue import Key
from shardwright.observe.world import PodView
from shardwright.plan.groups import slot_of
from shardwright.runner.contract import STATUS_PATH, ContractError, read_json

_ASK_SECONDS: Final = 3.0
_PARALLEL: Final = 8
_LIMIT_BYTES: Final = 2**20
_DOUBLINGS: Final = 30

Ask = Callable[[aiohttp.ClientSession, str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Turn:
    """A leader to be asked, not before `at`; `tries` failed since it last answered."""

    key: Key
    pod: PodView
    at: float
    tries: int = 0


Asked = TypeVar("Asked", bound=Turn)
Told = TypeVar("Told")


class LeaderReader(ABC, Generic[Asked, Told]):
    """Keeps whom to ask and what was told last, by the UID of the leader's pod, and asks them."""

    def __init__(
        self,
        add: Callable[[set[Key]], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        ask: Ask | None = None,
    ) -> None:
        """`add` wakes a deployment of which a leader has told something new."""
        self._add = add
        self._clock = clock
        self._ask: Ask = ask if ask is not None else ask_leader
        self._turns: dict[str, Asked] = {}
        self._heard: dict[Key, dict[str, Told]] = {}
        self._more = asyncio.Event()

    def heard(self, key: Key) -> Mapping[str, Told]:
        """What the deployment's leaders have told last, by pod UID."""
        return self._heard.get(key, {})

    def forget(self, key: Key) -> None:
        """A deployment is gone."""
        self._leave(key, (), ())

    def _leave(self, key: Key, asked: Collection[str], told: Collection[str]) -> None:
        """Ask no other leaders of a deployment than these, and keep the words of no other."""
        for uid in [uid for uid, one in self._turns.items() if one.key == key]:
            if uid not in asked:
                del self._turns[uid]
        heard = self._heard.get(key, {})
        for uid in [uid for uid in heard if uid not in told]:
            del heard[uid]
        if not heard:
            self._heard.pop(key, None)

    def _again(self, one: Asked, later: Asked) -> bool:
        """Give a leader its next turn; False where it is not asked about this any more."""
        if self._turns.get(one.pod.uid) != one:
            return False
        self._turns[one.pod.uid] = later
        return True

    async def run(self) -> None:
        """Ask for ever, a few at a time."""
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            while True:
                self._more.clear()
                now = self._clock()
                due = [one for one in self._turns.values() if one.at <= now][:_PARALLEL]
                if due:
                    await asyncio.gather(*(self._one(session, one) for one in due))
                    continue
                next_at = min((one.at for one in self._turns.values()), default=None)
                try:
                    async with asyncio.timeout(None if next_at is None else next_at - now):
                        await self._more.wait()
                except TimeoutError:
                    continue

    @abstractmethod
    async def _one(self, session: aiohttp.ClientSession, turn: Asked) -> None:
        """Ask one leader, and settle what becomes of its turn."""


def backoff(first: float, times: int, last: float) -> float:
    """Seconds to wait after so many times in vain: doubled each time, from `first` up to `last`."""
    # An exponent without a bound would overflow after a day of them.
    return min(first * 2.0 ** min(times, _DOUBLINGS), last)


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
