"""Which precisions are looked at on a GPU: those that model, GPU and runtime take together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.api.serving import Backend, KVPrecision, WeightPrecision
from shardwright.runtimes.base import Refusal
from shardwright.sizing.pools import Pool
from shardwright.sizing.precisions import BITS, arithmetic, checkpoint_weights, words
from shardwright.sizing.question import Question
from shardwright.sizing.result import Rejection
from shardwright.sizing.rules import already_quantized
from shardwright.sizing.runtime_says import RuntimeVoice
from shardwright.sizing.shape import Precision

# What is looked at while the weights' precision is open. The rest is served when asked for: NVFP4
# and GPTQ need a checkpoint made elsewhere, W4A8 and weight-only INT8 are never ahead of these.
_OPEN_WEIGHTS = (
    WeightPrecision.NONE,
    WeightPrecision.FP8,
    WeightPrecision.INT4_AWQ,
    WeightPrecision.INT8_SMOOTHQUANT,
)
_OF_BITS = {
    16: (WeightPrecision.NONE,),
    8: (WeightPrecision.FP8, WeightPrecision.INT8_SMOOTHQUANT),
    4: (WeightPrecision.NVFP4, WeightPrecision.INT4_AWQ),
}
_OPEN_CACHE = (KVPrecision.NONE, KVPrecision.FP8)
# Stored in FP8, computed in 16 bits: Ampere converts (vLLM, "Quantized KV Cache").
_FP8_CACHE = (8, 0)


def precisions(
    question: Question, pool: Pool, voice: RuntimeVoice, refused: list[Rejection]
) -> Iterator[Precision]:
    """Precisions that model, GPU and runtime take, 16 bits first."""
    limits = question.limits
    caches = _OPEN_CACHE if limits.kv_cache is None else (limits.kv_cache,)
    for weights in _weights(question, refused, pool):
        for cache in caches:
            precision = Precision(weights, cache)
            refusal = _refuse_precision(question, pool, precision, voice)
            if refusal is None:
                yield precision
            else:
                refused.append(Rejection(refusal.reason, refusal.message, pool.product, precision))


def _weights(
    question: Question, refused: list[Rejection], pool: Pool
) -> Sequence[WeightPrecision | None]:
    model, limits = question.model, question.limits
    if limits.weights is not None:
        asked: Sequence[WeightPrecision] = (limits.weights,)
    elif limits.weight_bits is not None:
        asked = _OF_BITS[limits.weight_bits]
    else:
        asked = _OPEN_WEIGHTS
    if not model.checkpoint.method:
        return asked
    own = checkpoint_weights(model)
    compiled = question.engine.backend == Backend.TENSORRT
    served = own if own is WeightPrecision.INT4_GPTQ and compiled else None
    bits = BITS[own] if own else round(model.checkpoint.weight_bits)
    for weights in asked:
        # `None` in a spec means "as it comes".
        as_it_comes = weights is WeightPrecision.NONE and limits.weight_bits is None
        if as_it_comes or weights is own or bits == limits.weight_bits:
            continue
        if refusal := already_quantized(model, weights):
            refused.append(
                Rejection(refusal.reason, refusal.message, pool.product, Precision(weights))
            )
    open_ = limits.weights is None and limits.weight_bits is None
    fits = open_ or bits == limits.weight_bits or limits.weights in (own, WeightPrecision.NONE)
    return (served,) if fits else ()


def _refuse_precision(
    question: Question, pool: Pool, precision: Precision, voice: RuntimeVoice
) -> Refusal | None:
    how = arithmetic(question.model, precision.weights, pool.hardware, question.engine)
    if how.kind is None:
        return Refusal(
            "PrecisionNotSupported",
            f"{words(precision)}: {pool.product} has no tensor cores for {how.wanted}",
        )
    if precision.kv_cache is KVPrecision.FP8 and pool.compute < _FP8_CACHE:
        return Refusal(
            "PrecisionNotSupported",
            f"{words(precision)}: an FP8 cache needs compute capability "
            f"{_FP8_CACHE[0]}.{_FP8_CACHE[1]}; {pool.product} has "
            f"{pool.compute[0]}.{pool.compute[1]}",
        )
    return voice.on_precision(pool, precision)
