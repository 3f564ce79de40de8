"""Where more requests at once stop giving more tokens: the knee of throughput over concurrency.

The method is Kneedle (Satopää, Albrecht, Irwin, Raghavan: "Finding a 'Kneedle' in a Haystack:
Detecting Knee Points in System Behavior", ICDCS Workshops 2011): both axes are scaled to 0…1, and
the knee of a rising curve is where it is farthest above the straight line between its ends. The
concurrency is taken by its logarithm, as sweeps step by it: so the length of the flat part hardly
moves the knee, and a curve in proportion to the concurrency lies below its chord and has none.
Noise is taken out before by isotonic regression (Barlow et al., 1972), since more requests at once
cannot truly give fewer tokens up to the knee; what falls after the highest point (preemption) is
cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

# A curve that never rises farther above its chord than this is still a line: no knee was reached.
_LEAST_RISE = 0.02
# A curve that gains less than this over its whole length was flat from the start.
_LEAST_GAIN = 0.1
# To see a bend takes its two ends and what is between them.
_LEAST_POINTS = 3


class Curve(StrEnum):
    """What the points of a sweep show: a bend among them, or why none can be told."""

    TOO_FEW = "too few points"
    FLAT = "flat"
    RISING = "still rises"
    BENT = "bent"


def knee(concurrency: Sequence[float], throughput: Sequence[float]) -> int | None:
    """Index of the knee; None where the points show none."""
    return bend(concurrency, throughput)[1]


def bend(concurrency: Sequence[float], throughput: Sequence[float]) -> tuple[Curve, int | None]:
    """What the curve is, and the index of its knee if it is bent.

    Args:
        concurrency: Above 0 and rising, as many as `throughput`.
        throughput: Of any unit, none negative.

    Raises:
        ValueError: The sequences differ in length, or concurrency does not rise.
    """
    if len(concurrency) != len(throughput):
        raise ValueError(f"{len(concurrency)} concurrencies, {len(throughput)} throughputs")
    if any(b <= a for a, b in pairwise([0, *concurrency])):
        raise ValueError(f"concurrency must be above 0 and rise: {list(concurrency)}")
    if len(concurrency) < _LEAST_POINTS:
        return Curve.TOO_FEW, None
    smooth = rising(throughput)
    low, high = smooth[0], smooth[-1]
    if high <= 0 or high - low < _LEAST_GAIN * high:
        # Its knee, if it has one, lies before the first point.
        return Curve.FLAT, None
    whole = math.log(concurrency[-1] / concurrency[0])
    above = [
        (y - low) / (high - low) - math.log(x / concurrency[0]) / whole
        for x, y in zip(concurrency, smooth, strict=True)
    ]
    best = max(range(len(above)), key=above.__getitem__)
    return (Curve.BENT, best) if above[best] >= _LEAST_RISE else (Curve.RISING, None)


def rising(values: Sequence[float]) -> list[float]:
    """The rising sequence nearest to these values (least squares), up to their highest; flat after.

    Pool adjacent violators: neighbours out of order become their mean.
    """
    peak = max(range(len(values)), key=values.__getitem__)
    pools: list[tuple[float, int]] = []
    for value in values[: peak + 1]:
        mean, size = float(value), 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean = (mean * size + before * count) / (size + count)
            size += count
        pools.append((mean, size))
    smooth = [mean for mean, size in pools for _ in range(size)]
    return smooth + [smooth[-1]] * (len(values) - len(smooth))
