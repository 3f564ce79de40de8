"""Which precision goes before which: shrink before splitting, no further than saves GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.narrowing import Dropped, keep
from shardwright.sizing.precisions import accuracy_loss, words
from shardwright.sizing.question import Objective
from shardwright.sizing.score import Scored
from shardwright.words import counted

# Up to this many requests in flight, reading weights is all that counts and four bits win
# (NVIDIA/TensorRT-LLM, docs/source/blogs/quantization-in-TRT-LLM.md: "High" up to batch 4).
_FEW_REQUESTS = 4


def weights_in_order(concurrency: int) -> tuple[WeightPrecision | None, ...]:
    """Weight precisions in the order in which they are tried after 16 bits; None is as it comes.

    FP8 loses least where the GPU multiplies it, four bits next; with few requests four bits go
    first. A precision that the GPU or the runtime lacks is not among the candidates, so that on
    GPUs without FP8 four bits follow at once.
    """
    quantized = [
        WeightPrecision.FP8,
        WeightPrecision.NVFP4,
        WeightPrecision.INT4_AWQ,
        WeightPrecision.W4A8_AWQ,
        WeightPrecision.INT8_SMOOTHQUANT,
        WeightPrecision.INT4_GPTQ,
        WeightPrecision.INT8,
    ]
    if concurrency <= _FEW_REQUESTS:
        quantized.remove(WeightPrecision.INT4_AWQ)
        quantized.insert(0, WeightPrecision.INT4_AWQ)
    return (None, WeightPrecision.NONE, *quantized)


def least_loss(left: list[Scored], concurrency: int, dropped: list[Dropped]) -> list[Scored]:
    """Shrink before splitting, and no further than saves GPUs."""
    order = weights_in_order(concurrency)
    plain, *quantized = [weights for weights in order if _smallest(left, weights) is not None]
    chosen = plain
    if quantized and plain is WeightPrecision.NONE:
        own, other = _smallest(left, plain), _smallest(left, quantized[0])
        if own is not None and other is not None and other < own:
            chosen = quantized[0]
    kept = [one for one in left if one.option.precision.weights == chosen]
    size = min(one.world_size for one in kept)
    plain_size = _smallest(left, WeightPrecision.NONE)
    dropped += [
        Dropped(one, *_why_not(one, chosen, size, plain_size))
        for one in left
        if one.option.precision.weights != chosen
    ]
    return kept


def least_loss_of_all(kept: list[list[Scored]], dropped: list[Dropped]) -> list[list[Scored]]:
    """Products that must shrink give way to one that holds 16 bits on as few GPUs.

    Otherwise a precision would be lowered for speed alone: a small GPU that needs four bits may
    answer faster with them than a large one that does not.

    Args:
        kept: What is left of every product, of one precision each.
        dropped: Where those that give way are noted.
    """
    plain = [here for here in kept if not _shrunk(here)]
    fewest = min((_size(here) for here in plain), default=0)
    result = []
    for here in kept:
        if not plain or not _shrunk(here) or _size(here) < fewest:
            result.append(here)
            continue
        roomy = min(plain, key=_size)[0].option.pool.product
        dropped += [
            Dropped(
                one,
                "PrecisionNeedNotShrink",
                f"16 bits fit on as few GPUs of {roomy} ({fewest} a replica); "
                f"{words(one.option.precision)} are not needed",
            )
            for one in here
        ]
    return result


def _shrunk(here: list[Scored]) -> bool:
    """Whether this precision was made by shrinking; a checkpoint's own was not."""
    return here[0].option.precision.weights not in (None, WeightPrecision.NONE)


def _size(here: list[Scored]) -> int:
    return min(one.world_size for one in here)


def cache(
    left: list[Scored], concurrency: int, objective: Objective, dropped: list[Dropped]
) -> list[Scored]:
    """A 16-bit KV cache unless a smaller one saves GPUs, or there is less room than load.

    In the latter case both stay, and the score tells whether more requests at once pay. `Offline`
    is always loaded to the brim.
    """
    size = min(one.world_size for one in left)
    plain = [one for one in left if one.option.precision.kv_cache is KVPrecision.NONE]
    if not plain or len(plain) == len(left):
        return left
    smallest = [one for one in plain if one.world_size == size]
    if not smallest:
        return keep(
            left,
            lambda one: one.option.precision.kv_cache is not KVPrecision.NONE,
            lambda _: ("CacheTooLarge", f"a smaller KV cache saves GPUs: {size} a replica"),
            dropped,
        )
    bound = any(one.option.capacity < _share(one, concurrency, objective) for one in smallest)
    if bound or objective is Objective.OFFLINE:
        return left
    return keep(
        left,
        lambda one: one.option.precision.kv_cache is KVPrecision.NONE,
        lambda _: ("CacheNeedNotShrink", "a 16-bit KV cache holds the load on as few GPUs"),
        dropped,
    )


def _share(one: Scored, concurrency: int, objective: Objective) -> int:
    """Requests that one replica is meant to have in flight."""
    if objective is Objective.THROUGHPUT:
        return concurrency
    return -(-concurrency // one.option.replicas)


def _smallest(left: Iterable[Scored], weights: WeightPrecision | None) -> int | None:
    return min(
        (one.world_size for one in left if one.option.precision.weights == weights), default=None
    )


def _why_not(
    one: Scored, chosen: WeightPrecision | None, size: int, plain_size: int | None
) -> tuple[str, str]:
    loss = accuracy_loss(one.option.precision)
    if chosen is WeightPrecision.NONE:
        cost = f" and lose {loss:g} % (published)" if loss else ""
        return (
            "PrecisionNeedNotShrink",
            (
                f"16 bits fit on as few GPUs ({size} a replica); {words(one.option.precision)} "
                f"are not needed{cost}"
            ),
        )
    if one.option.precision.weights is WeightPrecision.NONE:
        return (
            "ShrinkBeforeSplit",
            (
                f"16 bits need at least {counted(plain_size or 0, 'GPU')} a replica, {chosen} "
                f"weights {size}"
            ),
        )
    return "PrecisionLosesMore", f"{chosen} weights come before these: they lose less, or nothing"
