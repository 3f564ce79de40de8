"""Why the others were not chosen, grouped by reason: causes first, then what came closest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwright.cli import wording
from shardwright.sizing.memory_rules import held_words
from shardwright.sizing.order import ranks, told_of
from shardwright.sizing.question import Limits
from shardwright.sizing.result import Rejection

_BEST = float("inf")


@dataclass(frozen=True, slots=True)
class Remark:
    """One message, and whom it is about.

    Attributes:
        subject: The closest of those it is about, in words.
        message: The reason.
        numbers: Speed or memory of that one, where they were worked out; "" otherwise.
        count: How many it is about.
    """

    subject: str
    message: str
    numbers: str
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    """All rejections with one code.

    Attributes:
        code: The reason as a word.
        count: How many.
        possible: Whether these would run, and lost.
        remarks: Different messages, the closest first.
    """

    code: str
    count: int
    possible: bool
    remarks: tuple[Remark, ...]


def grouped(rejected: Sequence[Rejection], limits: Limits) -> tuple[Group, ...]:
    """Rejections by code: those that would run first, then causes before what follows from them.

    Args:
        rejected: All of a choice.
        limits: What the user has fixed, on which it depends what a cause is (`sizing.order`).
    """
    rank = ranks(rejected, limits)

    def nearness(rejection: Rejection) -> tuple[float, ...]:
        return (-rank(rejection), *_closeness(rejection))

    several = len({rejection.product for rejection in rejected}) > 1
    codes = dict.fromkeys(rejection.code for rejection in rejected)
    groups = [
        _group(
            code,
            [
                told_of(one, rank(one))
                for one in sorted(_of(code, rejected), key=nearness, reverse=True)
            ],
            product=several,
        )
        for code in codes
    ]
    best = {code: max(map(nearness, _of(code, rejected))) for code in codes}
    return tuple(
        sorted(
            groups,
            key=lambda group: (
                not group.possible,
                tuple(-part for part in best[group.code]),
                group.code,
            ),
        )
    )


def _of(code: str, rejected: Sequence[Rejection]) -> list[Rejection]:
    return [rejection for rejection in rejected if rejection.code == code]


def _group(code: str, rejected: Sequence[Rejection], *, product: bool) -> Group:
    """A group of rejections that are in the order of telling."""
    remarks: dict[str, list[Rejection]] = {}
    for rejection in rejected:
        remarks.setdefault(rejection.message, []).append(rejection)
    return Group(
        code=code,
        count=len(rejected),
        possible=any(rejection.score is not None for rejection in rejected),
        remarks=tuple(
            Remark(subject(some[0], product=product), message, numbers(some[0]), len(some))
            for message, some in remarks.items()
        ),
    )


def _closeness(rejection: Rejection) -> tuple[float, ...]:
    """Larger is closer: by score where it would run, else by how far it came, and by size.

    Whatever was counted came furthest, then what only lacked free GPUs, then a split that some rule
    forbids, then a precision; of a quantized checkpoint's precisions its own is the closest.
    """
    score = rejection.score if rejection.score is not None else -_BEST
    pools = [stage.kv_pool for stage in rejection.memory.stages] if rejection.memory else [-_BEST]
    shape, precision = rejection.shape, rejection.precision
    world, tensor = (shape.world_size, shape.tensor) if shape is not None else (0, 0)
    own = precision is not None and precision.weights is None
    return (
        score,
        float(min(pools)),
        float(rejection.code == "NotEnoughGPUs"),
        float(shape is not None),
        float(own),
        world,
        tensor,
    )


def subject(rejection: Rejection, *, product: bool = True) -> str:
    """Whom a rejection is about; a part that is None stands for all.

    Args:
        rejection: One of them.
        product: Whether the GPU product is said; it need not be where there is one only.
    """
    parts = []
    if rejection.shape is not None:
        parts.append(wording.split(rejection.shape))
    if rejection.precision is not None:
        parts.append(wording.precision(rejection.precision))
    text = ", ".join(parts)
    if rejection.product is not None and product:
        text = f"{text} on {rejection.product}" if text else rejection.product
    return text or "everything"


def numbers(rejection: Rejection) -> str:
    """Speed of what would run, memory of what was counted, "" of the rest."""
    if rejection.estimate is not None:
        found = rejection.estimate
        return (
            f"{wording.milliseconds(found.tpot_seconds)} a token, "
            f"{found.tokens_per_second_per_gpu:,.0f} tokens/s a GPU, room for "
            f"{wording.counted(found.capacity, 'request')} a replica"
        )
    if rejection.memory is not None:
        tight = min(rejection.memory.stages, key=lambda stage: stage.kv_pool)
        return (
            f"{wording.gib(tight.before_cache)} of {wording.gib(tight.total)} GiB a GPU before any "
            f"KV cache, {held_words(tight)}"
        )
    return ""


def total(groups: Iterable[Group]) -> int:
    """How many rejections there are."""
    return sum(group.count for group in groups)
