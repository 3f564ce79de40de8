"""One step of narrowing down: what is kept, and why the rest is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.sizing.score import Scored


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a step turned away, and why."""

    scored: Scored
    code: str
    message: str


def keep(
    left: list[Scored],
    passes: Callable[[Scored], bool],
    why: Callable[[Scored], tuple[str, str]],
    dropped: list[Dropped],
) -> list[Scored]:
    """Those that pass, unless none does."""
    kept = [one for one in left if passes(one)]
    if not kept or len(kept) == len(left):
        return left
    dropped += [Dropped(one, *why(one)) for one in left if not passes(one)]
    return kept
