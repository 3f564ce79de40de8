"""What would have to be different for another choice, each worked out by deciding anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from shardwright.api.serving import WeightPrecision
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
        *_precision(question, decision, best, scores),
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


def _precision(
    question: Question, decision: Decision, best: Scored, scores: Scores
) -> Iterator[str]:
    """The faster precision that was not needed, or the exact one that was too large."""
    objective = question.workload.objective
    scored = scores(objective)
    dropped = {one.code: set[WeightPrecision | None]() for one in decision.dropped}
    for one in decision.dropped:
        dropped[one.code].add(one.scored.option.precision.weights)

    def asked(weights: WeightPrecision | None) -> Scored | None:
        """What the whole decision gives when these weights are asked for."""
        alike = [one for one in scored if one.option.precision.weights is weights]
        return decide(question, alike, objective).best

    if question.limits.weights is None and question.limits.weight_bits is None:
        spared = {
            weights
            for code in ("PrecisionNeedNotShrink", "PrecisionLosesMore")
            for weights in dropped.get(code, ())
        } - {best.option.precision.weights}
        others = [found for weights in sorted(spared, key=str) if (found := asked(weights))]
        top = max(others, key=lambda one: one.score, default=None)
        if top is not None and top.score >= _NOTABLE * best.score:
            loss = accuracy_loss(top.option.precision)
            cost = "an accuracy that nobody published" if loss is None else f"{loss:g} % accuracy"
            yield (
                f"quantization.weights {top.option.precision.weights}: "
                f"{_times(objective, top.score / best.score)}, for {cost}; {describe(top)}"
            )
    if WeightPrecision.NONE in dropped.get("ShrinkBeforeSplit", ()):
        plain = asked(WeightPrecision.NONE)
        if plain is not None:
            yield (
                "quantization.weights None: no loss of accuracy, "
                f"{_times(objective, plain.score / best.score)}; {describe(plain)}"
            )
    if question.limits.weights is WeightPrecision.INT8:
        yield (
            "quantization.weights INT8SmoothQuant: multiplies in INT8 too, where INT8 only stores "
            "the weights so; FP8 where the GPU has it"
        )


def _times(objective: Objective, ratio: float) -> str:
    """A ratio of two scores in the words of the objective."""
    if objective is Objective.LATENCY:
        return f"{ratio:.1f} times as fast an answer"
    if objective is Objective.BALANCED:
        return f"{ratio:.1f} times as good in tokens a second for each GPU and each user together"
    return f"{ratio:.1f} times the tokens a second from each GPU"


def _load(question: Question, best: Scored) -> Iterator[str]:
    wanted, held = question.workload.concurrency, best.held
    if held >= wanted:
        yield (
            f"more than {counted(held, 'request')} in flight: "
            f"{counted(best.option.replicas, 'such replica')} cannot hold them"
        )
