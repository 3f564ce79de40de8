"""In which order refusals are told: the cause before what follows from it.

A refusal rests on some of the choices that a plan makes. Where the user has made all of these, no
plan can lift it: it is the cause, and first. Then comes what was counted and found too large, or
lacks GPUs: that is the fleet's word. Then what one of the user's choices has a part in. Last are
refusals of numbers that nobody asked for: the planner tried them, and tells why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum

from shardwright.sizing.question import Limits
from shardwright.sizing.result import Rejection

_SPLIT = frozenset({"tensor", "pipeline", "expert", "attention_data"})
_PRECISION = frozenset({"weights", "kv_cache"})
_ALL = frozenset({"product"}) | _PRECISION | _SPLIT

# Choices of a plan, by their names in `Limits`, that a refusal rests on. Model, runtime, load and
# nodes are given: they are no choices.
RESTS_ON: Mapping[str, frozenset[str]] = {
    "RequestTooLong": frozenset(),
    "ProductNotFound": frozenset({"product"}),
    "ProductUnknown": frozenset({"product"}),
    "PrecisionNotSupported": _PRECISION,
    "ModelAlreadyQuantized": frozenset({"weights"}),
    "ExpertsNotDivisible": frozenset({"expert"}),
    "AttentionDataNotSupported": frozenset({"attention_data"}),
    "AttentionDataWithoutExperts": frozenset({"attention_data"}),
    "GroupsNotDivisible": frozenset({"tensor", "expert", "attention_data"}),
    "TensorOutsideDomain": frozenset({"tensor", "product"}),
    "HeadsNotDivisible": frozenset({"tensor", "attention_data"}),
    "VocabularyNotDivisible": frozenset({"tensor", "attention_data"}),
    "AllReduceSizeNotSupported": frozenset({"tensor"}),
    "WidthNotDivisible": frozenset({"tensor", "expert", "attention_data"}),
    "QuantizationGroupSplit": frozenset({"tensor", "expert", "attention_data", "weights"}),
    "QuantizationBlockSplit": frozenset({"tensor", "expert", "attention_data", "weights"}),
    "MoreStagesThanLayers": frozenset({"pipeline"}),
    "NotEnoughGPUs": frozenset({"tensor", "pipeline", "product"}),
    "NotEnoughNodes": frozenset({"tensor", "pipeline", "product"}),
    "NotEnoughGPUsForReplicas": _ALL | {"replicas"},
    "DoesNotFit": _ALL,
    "TooLittleHeadroom": _ALL,
    "LongestRequestDoesNotFit": _ALL,
    "StagesUnbalanced": _ALL,
}


class Rank(IntEnum):
    """How soon a refusal is told."""

    CAUSE = 0
    TOO_LARGE = 1
    PARTLY_ASKED = 2
    NOT_ASKED = 3


def ranks(rejected: Iterable[Rejection], limits: Limits) -> Callable[[Rejection], Rank]:
    """The rank of each of these refusals, for what the user has fixed."""
    products = {one.product for one in rejected if one.product is not None}
    fixed = _fixed(limits, one_product=len(products) <= 1)
    return lambda one: _rank(one, fixed)


def told_of(one: Rejection, rank: Rank) -> Rejection:
    """The refusal; a cause without the choices that it does not rest on, which say nothing."""
    rests_on = RESTS_ON.get(one.code)
    if rank is not Rank.CAUSE or rests_on is None:
        return one
    return replace(
        one,
        product=one.product if "product" in rests_on else None,
        shape=one.shape if rests_on & {"tensor", "pipeline"} else None,
        precision=one.precision if rests_on & _PRECISION else None,
    )


def _fixed(limits: Limits, *, one_product: bool) -> frozenset[str]:
    """The choices that are none any more; where there is one product, it is as good as asked."""
    fixed = {name for name in (*_ALL, "replicas") if getattr(limits, name) is not None}
    if fixed & {"expert", "attention_data"}:
        # One that is left out beside the other is 1.
        fixed |= {"expert", "attention_data"}
    return frozenset(fixed | ({"product"} if one_product else set()))


def _rank(one: Rejection, fixed: frozenset[str]) -> Rank:
    rests_on = RESTS_ON.get(one.code)
    if rests_on is None:  # a runtime's own
        rests_on = _PRECISION if one.shape is None else _PRECISION | _SPLIT
    if rests_on <= fixed:
        return Rank.CAUSE
    if one.memory is not None or one.code.startswith("NotEnough"):
        return Rank.TOO_LARGE
    return Rank.PARTLY_ASKED if rests_on & (fixed - {"product"}) else Rank.NOT_ASKED
