"""What would have to be different for another choice, each worked out by deciding anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.precisions import accuracy_loss, words
from shardwright.sizing.preferences import Decision, decide
from shardwright.sizing.question import Objective, Question
from shardwright.sizing.score import Scored
from shardwright.words import counted

# A gain below this is not worth a sentence.
_NOTABLE = 1.15

Scores = Callable[[Objective], Sequence[Scored]]


def would_change(question: Question, decision: Decision, scores: Scores) -> tuple[str, ...]:
    """Other objectives, another precision, more load.

    Args:
        question: What was asked.
        decision: What came of it.
        scores: All options, timed for an objective.
    """
    best = decision.best
    if best is None:
        return ()
    return (
        *_objectives(question, best, scores),
        *_precision(question, decision, best),
        *_load(question, best),
    )


def describe(one: Scored) -> str:
    """In a few words: `2 × tensor 8, FP8 weights, 16-bit KV cache, on NVIDIA-H200`."""
    shape = one.option.shape
    split = f"{one.option.replicas} × tensor {shape.tensor}"
    if shape.pipeline > 1:
        split += f" pipeline {shape.pipeline}"
    if shape.expert > 1:
        split += f" expert {shape.expert}"
    if shape.attention_data > 1:
        split += f" attentionData {shape.attention_data}"
    return f"{split}, {words(one.option.precision)}, on {one.option.pool.product}"


def _objectives(question: Question, best: Scored, scores: Scores) -> Iterator[str]:
    for objective in Objective:
        if objective is question.workload.objective:
            continue
        other = decide(question, scores(objective), objective).best
        if other is not None and _key(other) != _key(best):
            yield f"objective {objective}: {describe(other)}"


def _key(one: Scored) -> tuple[object, ...]:
    return one.option.pool.product, one.option.precision, one.option.shape


def _precision(question: Question, decision: Decision, best: Scored) -> Iterator[str]:
    """The faster precision that was not needed, or the exact one that was too large."""
    open_ = question.limits.weights is None and question.limits.weight_bits is None
    faster = [
        one.scored
        for one in decision.dropped
        if one.code in ("PrecisionNeedNotShrink", "PrecisionLosesMore")
        and one.scored.score >= _NOTABLE * best.score
    ]
    if open_ and faster:
        top = max(faster, key=lambda one: one.score)
        loss = accuracy_loss(top.option.precision)
        cost = "an accuracy that nobody published" if loss is None else f"{loss:g} % accuracy"
        yield (
            f"quantization.weights {top.option.precision.weights}: {top.score / best.score:.1f} "
            f"times the score, for {cost}; {describe(top)}"
        )
    plain = [one.scored for one in decision.dropped if one.code == "ShrinkBeforeSplit"]
    if plain:
        smallest = min(plain, key=lambda one: (one.world_size, _cache_bits(one), -one.score))
        yield f"quantization.weights None, for no loss: {describe(smallest)}"
    fp8 = question.limits.weights is WeightPrecision.INT8
    if fp8:
        yield (
            "quantization.weights INT8SmoothQuant: multiplies in INT8 too, where INT8 only stores "
            "the weights so; FP8 where the GPU has it"
        )


def _cache_bits(one: Scored) -> bool:
    return one.option.precision.kv_cache is not KVPrecision.NONE


def _load(question: Question, best: Scored) -> Iterator[str]:
    wanted, held = question.workload.concurrency, best.held
    if held >= wanted:
        yield (
            f"more than {counted(held, 'request')} in flight: "
            f"{counted(best.option.replicas, 'such replica')} cannot hold them"
        )
