"""Sums up looks at an engine over the last half hour, minute by minute. Pure but for its own sums.

A mean over time answers what a single look cannot: whether a KV cache is nearly full for long. Time
without requests counts nothing: an idle engine's cache is empty, and that says nothing of its size.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from shardwright.runner.contract import KV_HIGH, USAGE_SECONDS, Usage

_BUCKET_SECONDS = 60
# Of one minute so many adapters are told apart: clients may name others than the deployment's.
_MOST_NAMES = 64


@dataclass(frozen=True)
class Seen:
    """One look at an engine; what it does not tell is None.

    `adapters` are those that have requests. `drafted` and `accepted` are its counters' values.
    """

    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    acceptance: float | None = None
    adapters: Collection[str] | None = None

    @property
    def busy(self) -> bool:
        """Whether requests are under way."""
        return bool(self.running or self.waiting)


@dataclass
class _Mean:
    """A mean over time."""

    total: float = 0.0
    seconds: float = 0.0

    def add(self, value: float | None, seconds: float) -> None:
        if value is not None:
            self.total += value * seconds
            self.seconds += seconds


@dataclass
class _Minute:
    busy: float = 0.0
    kv_cache: _Mean = field(default_factory=_Mean)
    kv_high: _Mean = field(default_factory=_Mean)
    running: _Mean = field(default_factory=_Mean)
    acceptance: _Mean = field(default_factory=_Mean)
    drafted: float = 0.0
    accepted: float = 0.0
    told: float = 0.0
    alone: dict[str, float] = field(default_factory=dict)


class Window:
    """The last USAGE_SECONDS of one engine; as long as a list of minutes, whatever it does."""

    def __init__(self, revision: str, longest: float) -> None:
        """Nothing seen yet.

        Args:
            revision: Which revision the engine is of.
            longest: Seconds that one look stands for at most: what passed between two of them that
                are further apart is not known.
        """
        self._revision, self._longest = revision, longest
        self._minutes: dict[int, _Minute] = {}
        self._at: float | None = None
        self._counted: tuple[float, float] | None = None

    def add(self, at: float, seen: Seen) -> None:
        """One more look; it stands for the time since the one before.

        Args:
            at: Of a clock that never goes back, in seconds.
            seen: What was seen.
        """
        passed = 0.0 if self._at is None else min(at - self._at, self._longest)
        self._at = at
        minute = self._minutes.setdefault(int(at // _BUCKET_SECONDS), _Minute())
        self._forget(at)
        self._count(minute, seen)
        if not seen.busy:
            return
        minute.busy += passed
        minute.kv_cache.add(seen.kv_cache, passed)
        high = None if seen.kv_cache is None else float(seen.kv_cache > KV_HIGH)
        minute.kv_high.add(high, passed)
        minute.running.add(seen.running, passed)
        minute.acceptance.add(seen.acceptance, passed)
        if seen.adapters is None:
            return
        minute.told += passed
        names = set(seen.adapters)
        if len(names) == 1:
            name = names.pop()
            if name in minute.alone or len(minute.alone) < _MOST_NAMES:
                minute.alone[name] = minute.alone.get(name, 0.0) + passed

    def usage(self, now: float) -> Usage:
        """The sum of it at a time of the same clock."""
        self._forget(now)
        minutes = list(self._minutes.values())
        told = sum(minute.told for minute in minutes)
        return Usage(
            revision=self._revision,
            busy_seconds=min(sum(minute.busy for minute in minutes), USAGE_SECONDS),
            kv_cache=_mean([minute.kv_cache for minute in minutes]),
            kv_high=_mean([minute.kv_high for minute in minutes]) or 0.0,
            running=_mean([minute.running for minute in minutes]) or 0.0,
            drafted=sum(minute.drafted for minute in minutes),
            accepted=sum(minute.accepted for minute in minutes),
            acceptance=_mean([minute.acceptance for minute in minutes]),
            alone=_shares(minutes, told) if told else None,
        )

    def _count(self, minute: _Minute, seen: Seen) -> None:
        """What counters went up by; one that is lower than before began anew."""
        if seen.drafted is None or seen.accepted is None:
            return
        before, self._counted = self._counted, (seen.drafted, seen.accepted)
        if before is not None and seen.drafted >= before[0] and seen.accepted >= before[1]:
            minute.drafted += seen.drafted - before[0]
            minute.accepted += seen.accepted - before[1]

    def _forget(self, now: float) -> None:
        first = int((now - USAGE_SECONDS) // _BUCKET_SECONDS)
        for minute in [minute for minute in self._minutes if minute <= first]:
            del self._minutes[minute]


def _mean(parts: list[_Mean]) -> float | None:
    seconds = sum(part.seconds for part in parts)
    return sum(part.total for part in parts) / seconds if seconds else None


def _shares(minutes: list[_Minute], told: float) -> dict[str, float]:
    """The adapters that were alone for longest."""
    found: dict[str, float] = {}
    for minute in minutes:
        for name, seconds in minute.alone.items():
            found[name] = found.get(name, 0.0) + seconds
    longest = sorted(found, key=lambda name: (-found[name], name))[:_MOST_NAMES]
    return {name: found[name] / told for name in longest}
