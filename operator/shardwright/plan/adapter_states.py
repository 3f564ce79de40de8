"""What became of each adapter: as its files say, and as the leaders that serve have it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shardwright.plan.attempts import Chain
from shardwright.runner.contract import (
    ADAPTER_FAILED,
    Adapter,
    AdaptersHeard,
    AdapterTable,
    encode,
    table_digest,
)

# Numbers of adapters go up to this: JSON's readers hold 53 bits exactly, runtimes take 64.
_NUMBERS: Final = (1 << 52) - 1


class AdapterState(StrEnum):
    """What became of an adapter. Ready: leaders are told to have it loaded."""

    FETCHING = "Fetching"
    READY = "Ready"
    INVALID = "Invalid"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Found:
    """One adapter of the spec; `entry` is what leaders are told of it, when it is Ready."""

    name: str
    state: AdapterState
    reason: str
    message: str = ""
    entry: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Adapters:
    """All adapters of a spec, in its order.

    `chains` are the fetches, by names that no revision has. `table` is None where leaders are to
    be left as they are.
    """

    found: tuple[Found, ...] = ()
    chains: Mapping[str, Chain] = field(default_factory=dict)
    table: AdapterTable | None = None

    @property
    def digest(self) -> str:
        """Names the table, empty without one."""
        return table_digest(encode(self.table)) if self.table is not None else ""


def number_of(key: str, commit: str) -> int:
    """The number of an adapter's files: from 1, the same for the same key and commit.

    Runtimes that keep adapters by number take two of one number for the same; of 64 adapters any
    two have one number with a chance of 64²/2 ÷ 2⁵², below one in 10¹².
    """
    digest = hashlib.sha256(f"{key}/{commit}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _NUMBERS + 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """An adapter as the leaders have it: loaded on `count` of `leaders`."""

    found: Found
    count: int
    leaders: int
    trouble: str = ""

    @property
    def state(self) -> AdapterState:
        """Failed too when a server did not take it."""
        return AdapterState.FAILED if self.trouble else self.found.state

    @property
    def everywhere(self) -> bool:
        """Whether every leader has it."""
        return self.state is AdapterState.READY and self.count == self.leaders


def loaded(
    adapters: Adapters, leaders: Iterable[str], heard: Mapping[str, AdaptersHeard]
) -> tuple[Loaded, ...]:
    """What became of each adapter on the leaders of serving groups.

    Args:
        adapters: The spec's.
        leaders: UIDs of their pods.
        heard: What they have told, by UID; an answer about an older table does not count.
    """
    uids = tuple(leaders)
    told = [heard[uid] for uid in uids if uid in heard and heard[uid].table == adapters.digest]
    result = []
    for found in adapters.found:
        troubles = [one.troubles[found.name] for one in told if found.name in one.troubles]
        failed = [words for state, words in troubles if state == ADAPTER_FAILED]
        count = sum(found.name in one.loaded for one in told) if found.entry is not None else 0
        trouble = failed[0] if failed and found.entry is not None else ""
        result.append(Loaded(found, count, len(uids), trouble))
    return tuple(result)
