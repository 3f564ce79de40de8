"""How the replicas of a revision were used of late, together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.api.speculative import SpeculationMethod
from shardwright.resolved import Resolved
from shardwright.runner.contract import Usage
from shardwright.sizing.speculation import Drafting, alpha_of, ridge_of

# A leader with requests for less than this says nothing of how its memory suits them.
BUSY_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Used:
    """Means over the time in which leaders had requests; as in `Usage`, of a mean leader.

    `minutes` is that time, of the half hour that each leader looks back.
    """

    minutes: int
    kv_cache: float | None
    kv_high: float
    running: float
    drafted: float
    accepted: float
    acceptance: float | None
    alone: Mapping[str, float] | None

    @property
    def at_once(self) -> int:
        """Requests that a leader works on at a time, at least one."""
        return max(1, round(self.running))

    def tokens_a_pass(self, length: int) -> float | None:
        """Tokens that a pass with `length` drafts gave a request, or None where nobody tells.

        From counters where they moved: a pass gives one token, and the share of its drafts that
        was accepted.
        """
        found = 1 + length * self.accepted / self.drafted if self.drafted else self.acceptance
        return found if found is not None and 1 <= found <= length + 1 else None


@dataclass(frozen=True, slots=True)
class Drafted:
    """With which probability drafts were accepted, how they are made, and tokens a pass."""

    alpha: float
    way: Drafting
    accepted: float


def together(told: Sequence[Usage]) -> Used | None:
    """Several leaders' usage as one; None where none had requests for long enough."""
    busy = [usage for usage in told if usage.busy_seconds >= BUSY_SECONDS]
    if not busy:
        return None
    return Used(
        minutes=round(sum(usage.busy_seconds for usage in busy) / len(busy) / 60),
        kv_cache=_mean(busy, lambda usage: usage.kv_cache),
        kv_high=_mean(busy, lambda usage: usage.kv_high) or 0.0,
        running=_mean(busy, lambda usage: usage.running) or 0.0,
        drafted=sum(usage.drafted for usage in busy),
        accepted=sum(usage.accepted for usage in busy),
        acceptance=_mean(busy, lambda usage: usage.acceptance),
        alone=_shares([usage for usage in busy if usage.alone is not None]),
    )


def _mean(told: Sequence[Usage], of: Callable[[Usage], float | None]) -> float | None:
    """A mean over those that tell, each by the time in which it had requests."""
    known = [(value, usage.busy_seconds) for usage in told if (value := of(usage)) is not None]
    whole = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / whole if known else None


def _shares(told: Sequence[Usage]) -> Mapping[str, float] | None:
    whole = sum(usage.busy_seconds for usage in told)
    found: dict[str, float] = {}
    for usage in told:
        for name, share in (usage.alone or {}).items():
            found[name] = found.get(name, 0.0) + share * usage.busy_seconds / whole
    return found if told else None


def drafting(resolved: Resolved, used: Used) -> Drafted | None:
    """What was accepted of what was drafted; None where that, or its cost, is not known."""
    asked = resolved.spec.speculative
    if asked is None or not used.running:
        return None
    length = asked.max_draft_len
    accepted, cost = used.tokens_a_pass(length), draft_cost(resolved)
    if accepted is None or cost is None:
        return None
    ridge = ridge_of(resolved.spec.gpu.product, resolved.spec.quantization.weights)
    return Drafted(alpha_of(accepted, length), Drafting(length, cost, ridge), accepted)


def draft_cost(resolved: Resolved) -> float | None:
    """What a drafted token costs, as a share of a pass of the model; None where it is not known.

    Words that are looked up in the text cost nothing. Heads draft all their tokens in the one pass.
    Anything else costs its share of the weights, as the memory plan has them.
    """
    asked, room = resolved.spec.speculative, resolved.room
    if asked is None:
        return None
    if asked.method in (SpeculationMethod.NGRAM, SpeculationMethod.MEDUSA):
        return 0.0
    stages = room.stages if room is not None else ()
    draft, model = sum(one.draft for one in stages), sum(one.weights for one in stages)
    return draft / model if draft and model else None
