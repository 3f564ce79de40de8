"""What became of each adapter: as its files say, and as the leaders that serve have it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
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
    """All adapters of a spec, in its order, as each revision that takes adapters can have them.

    `told` is the revision by which status judges them, empty where leaders are to be left as they
    are. `first` is the one whose table also stands under the name that every leader read before
    revisions had tables of their own. `chains` are the fetches, by names that no revision has.
    """

    by_revision: Mapping[str, tuple[Found, ...]] = field(default_factory=dict)
    told: str = ""
    first: str = ""
    chains: Mapping[str, Chain] = field(default_factory=dict)

    @property
    def found(self) -> tuple[Found, ...]:
        """As what the spec asks for can have them."""
        return self.by_revision.get(self.told, ())

    @property
    def tables(self) -> dict[str, AdapterTable]:
        """What the leaders of each revision are told."""
        return {
            revision: AdapterTable(tuple(one.entry for one in found if one.entry is not None))
            for revision, found in self.by_revision.items()
        }

    @property
    def digests(self) -> dict[str, str]:
        """Names each revision's table."""
        return {name: table_digest(encode(table)) for name, table in self.tables.items()}


def number_of(key: str, commit: str) -> int:
    """The number of an adapter's files: from 1, the same for the same key and commit.

    Runtimes that keep adapters by number take two of one number for the same; of 64 adapters any
    two have one number with a chance of 64²/2 ÷ 2⁵², below one in 10¹².
    """
    digest = hashlib.sha256(f"{key}/{commit}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _NUMBERS + 1


@dataclass(frozen=True, slots=True)
class Reader:
    """The leader of a ready group: the UID of its pod, its revision, and its table's digest.

    Without a digest its revision takes no adapters, and it is not asked.
    """

    uid: str
    revision: str
    digest: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """An adapter as the leaders have it: loaded on `count` of `leaders`.

    So many of the leaders are `silent`: nothing is known of what they have loaded. `left_out` has
    what the replicas of other revisions say against it, by revision.
    """

    found: Found
    count: int
    leaders: int
    trouble: str = ""
    silent: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> AdapterState:
        """Failed too when a server did not take it."""
        return AdapterState.FAILED if self.trouble else self.found.state

    @property
    def everywhere(self) -> bool:
        """Whether every leader has it."""
        return self.state is AdapterState.READY and self.count == self.leaders


def loaded(
    adapters: Adapters, readers: Sequence[Reader], heard: Mapping[str, AdaptersHeard]
) -> tuple[Loaded, ...]:
    """What became of each adapter on the leaders of serving groups.

    Args:
        adapters: The spec's.
        readers: These leaders.
        heard: What they have told, by UID; an answer about another table does not count.
    """
    told = [
        heard[one.uid] for one in readers if one.uid in heard and heard[one.uid].table == one.digest
    ]
    others = {one.revision for one in readers} - {adapters.told}
    result = []
    for place, found in enumerate(adapters.found):
        troubles = [one.troubles[found.name] for one in told if found.name in one.troubles]
        failed = [words for state, words in troubles if state == ADAPTER_FAILED]
        count = sum(found.name in one.loaded for one in told)
        left_out = {
            name: _against(adapters.by_revision.get(name, ()), place) for name in sorted(others)
        }
        result.append(
            Loaded(
                found,
                count,
                len(readers),
                failed[0] if failed else "",
                sum(bool(one.digest) for one in readers) - len(told),
                {name: words for name, words in left_out.items() if words},
            )
        )
    return tuple(result)


def _against(found: tuple[Found, ...], place: int) -> str:
    """Why a revision's replicas leave an adapter out, empty if they do not."""
    if not found:
        return "they take no adapters"
    return "" if found[place].entry is not None else found[place].message
