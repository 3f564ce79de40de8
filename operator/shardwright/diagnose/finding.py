"""What a rule answers: a cause, how well the facts fit it, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from shardwright.diagnose.observed import Observed


class Fit(StrEnum):
    """How well the known facts fit a cause."""

    SHOWN = "Shown"  # they show it
    POSSIBLE = "Possible"  # a fact that would decide is not known
    RULED_OUT = "RuledOut"  # they speak against it


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause.

    Attributes:
        rule: Name of the rule, stable.
        fit: How well the facts fit.
        cause: What is wrong, in a sentence.
        evidence: The facts that speak for it, against it, or that are missing.
        remedies: What to change, the best first; none when it is ruled out.
        source: Where the rule comes from, for those who want to read on.
    """

    rule: str
    fit: Fit
    cause: str
    evidence: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    source: str = ""

    @property
    def found(self) -> bool:
        """Whether it is a cause to look at."""
        return self.fit is not Fit.RULED_OUT


Rule = Callable[[Observed], Finding | None]
"""None when the rule has nothing to say: its symptom is not seen and no fact shows its cause."""
