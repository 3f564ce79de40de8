"""How a leader's engine was used of late, as its runner tells it: what advice rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.runner.contract.folders import ContractError

# Over so long a time a runner sums up, and no longer.
USAGE_SECONDS = 1800
# A KV cache that is fuller than this makes its engine preempt requests.
KV_HIGH = 0.8
# So many adapters are told by name; a deployment has no more, but clients may load others.
_MOST_NAMES = 64
_NAME_CHARS = 200


@dataclass(frozen=True)
class Usage:
    """What was seen of an engine in the last USAGE_SECONDS, while requests were under way.

    Attributes:
        revision: Which revision the replica is of.
        busy_seconds: How much of the time requests were under way. All means are over that.
        kv_cache: Mean share of the KV cache in use, 0 to 1; None where the engine does not tell.
        kv_high: Share of the time in which it was over KV_HIGH.
        running: Mean number of requests that the engine worked on.
        drafted: Tokens that speculative decoding proposed.
        accepted: Those of them that the model accepted.
        acceptance: Mean tokens a step gave a request, where the engine tells that.
        alone: By adapter: share of the time in which it was the only one with requests; None where
            the engine does not tell whose requests it works on.
    """

    revision: str
    busy_seconds: float
    kv_cache: float | None = None
    kv_high: float = 0.0
    running: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    acceptance: float | None = None
    alone: dict[str, float] | None = None

    def told(self) -> dict[str, Any]:
        """As the status page has it; rounded, so that a quiet engine always tells the same."""
        return {
            "revision": self.revision,
            "busySeconds": self.busy_seconds // 60 * 60,
            "kvCache": None if self.kv_cache is None else round(self.kv_cache, 2),
            "kvHigh": round(self.kv_high, 2),
            "running": round(self.running, 1),
            "drafted": round(self.drafted),
            "accepted": round(self.accepted),
            "acceptance": None if self.acceptance is None else round(self.acceptance, 2),
            "alone": None
            if self.alone is None
            else {name: round(share, 2) for name, share in sorted(self.alone.items())},
        }


def usage_heard(page: Any) -> Usage:
    """Usage from the object that a leader answers at STATUS_PATH.

    Raises:
        ContractError: It is no such object, or its numbers cannot be.
    """
    try:
        told = page["usage"]
        alone = told["alone"]
        found = Usage(
            revision=str(told["revision"]),
            busy_seconds=_number(told["busySeconds"], USAGE_SECONDS),
            kv_cache=None if told["kvCache"] is None else _number(told["kvCache"], 1),
            kv_high=_number(told["kvHigh"], 1),
            running=_number(told["running"]),
            drafted=_number(told["drafted"]),
            accepted=_number(told["accepted"]),
            acceptance=None if told["acceptance"] is None else _number(told["acceptance"]),
            alone=None
            if alone is None
            else {_name(name): _number(share, 1) for name, share in alone.items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ContractError(f"the status page tells no usage: {error!r}") from error
    if found.alone is not None and len(found.alone) > _MOST_NAMES:
        raise ContractError(f"the status page tells of {len(found.alone)} adapters")
    return found


def _name(name: object) -> str:
    if not isinstance(name, str) or len(name) > _NAME_CHARS:
        raise ValueError("an adapter's name is no text, or too long")
    return name


def _number(value: object, most: float = 1e15) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    # Compared first: a whole number that no float holds is refused here, not by an OverflowError.
    if not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is not from 0 to {most}")
    return float(value)
