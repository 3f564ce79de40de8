"""Whether speculative decoding pays, from what was accepted.

After Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding"
(ICML 2023, arXiv:2211.17192): if each drafted token is accepted with probability a, independently
of the others, a pass over g drafts gives (1 - a^(g + 1)) / (1 - a) tokens (their equation 1), and
costs gc + 1 passes of the model, c being a pass of the draft's (their theorem 3.8). That holds
where passes wait for weights. At large batches they wait for arithmetic, and a pass over g + 1
tokens of each request then costs up to g + 1 times as much; `ridge` says from how many tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.api.serving import WeightPrecision
from shardwright.sizing.hardware import NumberType, UnknownHardwareError, hardware
from shardwright.sizing.precisions import BITS, multiplied

# Halvings of the range in which a probability is searched: finer than any measurement.
_HALVINGS = 40
# Longer drafts than these are not suggested: a was measured on shorter ones.
_LONGEST = 8


@dataclass(frozen=True, slots=True)
class Drafting:
    """How tokens are drafted.

    Attributes:
        length: Tokens that are drafted at a time, g.
        cost: What a drafted token costs, as a share of a pass of the model, c.
        ridge: Tokens in a pass from which on arithmetic takes longer than reading the weights; 0
            where that is not known, and every pass is taken to wait for weights.
    """

    length: int
    cost: float
    ridge: float = 0.0


def tokens_a_pass(alpha: float, length: int) -> float:
    """Tokens that a pass over so many drafts gives on average, 1 to `length` + 1."""
    return sum(alpha**power for power in range(length + 1))


def alpha_of(acceptance: float, length: int) -> float:
    """The probability with which a drafted token was accepted, from the tokens a pass gave."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_a_pass(middle, length) < acceptance else (low, middle)
    return (low + high) / 2


def ridge_of(product: str, weights: str) -> float:
    """Tokens in a pass at which a GPU takes as long to multiply as to read weights; 0: not known.

    A weight is read once a pass (its bytes over the memory's rate) and multiplied and added once
    for each token (2 operations), by the vendor's data sheet.
    """
    try:
        known, precision = hardware(product), WeightPrecision(weights)
    except (UnknownHardwareError, ValueError):
        return 0.0
    wanted = multiplied(precision)
    kinds = (wanted, NumberType.BF16, NumberType.FP16)
    rate = next((known.flops(kind) for kind in kinds if kind in known.tflops), None)
    return 0.0 if rate is None else rate * BITS[precision] / 8 / (2 * known.memory_gbps * 1e9)


def speedup(alpha: float, drafting: Drafting, concurrency: int) -> float:
    """Tokens a second with drafts over those without, at so many requests at once."""
    plain = _pass(concurrency, drafting.ridge)
    verify = _pass(concurrency * (drafting.length + 1), drafting.ridge)
    drafts = drafting.length * drafting.cost * plain
    return tokens_a_pass(alpha, drafting.length) * plain / (drafts + verify)


def best_length(alpha: float, drafting: Drafting, concurrency: int) -> int:
    """The draft length that gives the most at this concurrency; 0: none pays."""
    lengths = range(1, max(_LONGEST, drafting.length) + 1)
    gains = {
        length: speedup(alpha, Drafting(length, drafting.cost, drafting.ridge), concurrency)
        for length in lengths
    }
    best = max(lengths, key=lambda length: gains[length])
    return best if gains[best] > 1 else 0


def _pass(tokens: int, ridge: float) -> float:
    return max(1.0, tokens / ridge) if ridge else 1.0
