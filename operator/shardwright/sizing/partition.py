"""Which layers stand on which pipeline stage: every runtime leaves a remainder elsewhere."""

from __future__ import annotations

import functools
from enum import StrEnum


class Remainder(StrEnum):
    """Where the layers go that the stages do not divide.

    `BEFORE_LAST` is vLLM's `get_pp_indices` (one each to the stages before the last, from behind);
    `FIRST` is TensorRT-LLM's `Mapping.pp_layers` (one each to the first stages).
    """

    BEFORE_LAST = "BeforeLast"
    FIRST = "First"


@functools.lru_cache(maxsize=4096)
def layers_of_stages(layers: int, stages: int, remainder: Remainder) -> tuple[range, ...]:
    """Layer numbers of every stage, in order; a stage is empty when there are too few layers."""
    counts = [layers // stages] * stages
    for extra in range(layers % stages):
        counts[extra if remainder is Remainder.FIRST else -2 - extra] += 1
    ranges = []
    start = 0
    for count in counts:
        ranges.append(range(start, start + count))
        start += count
    return tuple(ranges)
