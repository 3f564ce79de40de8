"""In which order what is possible is narrowed down to one plan, and what each step turns away.

1. Targets for latency are met, where any candidate meets them.
2. The asked concurrency is held, where any candidate holds it.
3. Pipeline stages only between NVLink domains, and no more than are needed; without NVLink stages
   rather than ranks, unless latency is what counts, or ranks are twice as good in all respects.
   `Offline` is exempt from the former.
4. Shrink before splitting: 16 bits if they need no more GPUs for a replica than the best smaller
   precision, else that precision; product by product, and then between products. The KV cache
   shrinks where that saves GPUs; where there is less room than load, as there always is for
   `Offline`, both are compared.
5. The objective's score. For `Latency` a larger replica must be a tenth faster.

A step never leaves nothing: one that no candidate passes is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.api.serving import WeightPrecision
from shardwright.sizing.narrowing import Dropped, keep
from shardwright.sizing.precision_order import cache, least_loss, least_loss_of_all
from shardwright.sizing.precisions import accuracy_loss
from shardwright.sizing.question import Objective, Question
from shardwright.sizing.score import Scored
from shardwright.words import counted

# What a larger replica must gain in latency, or it only takes GPUs from other replicas.
_WORTH = 1.1
# Absolute figures are mostly 1 to 2 times the published ones (docs/choosing.md).
_DOUBT = 2.0
# Scores that are nearer than this are equal: the estimate does not tell them apart.
_EQUAL = 0.98


@dataclass(frozen=True, slots=True)
class Decision:
    """One objective's outcome: the best, or None where nothing was possible."""

    best: Scored | None
    dropped: tuple[Dropped, ...]


def decide(question: Question, scored: Sequence[Scored], objective: Objective) -> Decision:
    """The best of what is possible; steps as in the module's docstring."""
    dropped: list[Dropped] = []
    left = list(scored)
    for step in (_on_target, _holding):
        left = step(question, left, dropped)
    kept: list[list[Scored]] = []
    for product in sorted({one.option.pool.product for one in left}):
        here = [one for one in left if one.option.pool.product == product]
        if objective is not Objective.OFFLINE:
            here = _stages_between_domains(here, dropped)
        if objective is not Objective.LATENCY:
            here = _stages_before_ranks(here, dropped)
        here = least_loss(here, question.workload.concurrency, dropped)
        kept.append(cache(here, question.workload.concurrency, objective, dropped))
    finals = [_fastest(here, objective, dropped) for here in least_loss_of_all(kept, dropped)]
    best = _fastest(finals, objective, dropped) if finals else None
    return Decision(best, tuple(dropped))


def _on_target(question: Question, left: list[Scored], dropped: list[Dropped]) -> list[Scored]:
    ttft, tpot = question.workload.ttft_seconds, question.workload.tpot_seconds

    def why(one: Scored) -> tuple[str, str]:
        timed = one.estimate
        late = []
        if ttft is not None and timed.ttft_seconds > ttft:
            late.append(f"first token after {timed.ttft_seconds:.3g} s, wanted {ttft:g} s")
        if tpot is not None and timed.tpot_seconds > tpot:
            late.append(f"{timed.tpot_seconds:.3g} s a token, wanted {tpot:g} s")
        return "MissesTarget", " and ".join(late)

    return keep(left, lambda one: on_target(question, one), why, dropped)


def on_target(question: Question, one: Scored) -> bool:
    """Whether the wanted latencies are kept, as far as there are any."""
    ttft, tpot = question.workload.ttft_seconds, question.workload.tpot_seconds
    return (ttft is None or one.estimate.ttft_seconds <= ttft) and (
        tpot is None or one.estimate.tpot_seconds <= tpot
    )


def _holding(question: Question, left: list[Scored], dropped: list[Dropped]) -> list[Scored]:
    wanted = question.workload.concurrency

    def why(one: Scored) -> tuple[str, str]:
        return (
            "HoldsTooFew",
            (
                f"room for {one.option.replicas} × {one.option.capacity} = "
                f"{counted(one.held, 'request')} of {question.workload.request_len} tokens, wanted "
                f"are {wanted:,}"
            ),
        )

    return keep(left, lambda one: one.held >= wanted, why, dropped)


def _stages_between_domains(left: list[Scored], dropped: list[Dropped]) -> list[Scored]:
    """Within NVLink, tensor ranks; between domains, as few stages as there must be."""
    linked = [one for one in left if one.option.pool.linked]
    if not linked:
        return left
    widest = max(one.option.shape.tensor for one in linked)

    def whole_domain(one: Scored) -> bool:
        return (
            not one.option.pool.linked
            or one.option.shape.pipeline == 1
            or one.option.shape.tensor == widest
        )

    left = keep(
        left,
        whole_domain,
        lambda one: (
            "PipelineInsideDomain",
            (
                f"pipeline {one.option.shape.pipeline} of tensor {one.option.shape.tensor}: ranks "
                f"in one NVLink domain answer faster than stages in it, up to tensor {widest}; "
                "only the objective Offline looks at this"
            ),
        ),
        dropped,
    )
    fewest: dict[object, int] = {}
    for one in left:
        kind = _kind(one)
        fewest[kind] = min(fewest.get(kind, 1 << 30), one.option.shape.pipeline)
    return keep(
        left,
        lambda one: not one.option.pool.linked or one.option.shape.pipeline == fewest[_kind(one)],
        lambda one: (
            "MoreStagesThanNeeded",
            (
                f"pipeline {fewest[_kind(one)]} is enough for tensor {one.option.shape.tensor}; "
                "more replicas do more than more stages"
            ),
        ),
        dropped,
    )


def _kind(one: Scored) -> object:
    shape = one.option.shape
    return one.option.precision, shape.tensor, shape.expert, shape.attention_data


def _stages_before_ranks(left: list[Scored], dropped: list[Dropped]) -> list[Scored]:
    """Without NVLink, replicas of one GPU or stages go before ranks, precision by precision.

    Stages talk once for all their layers, ranks twice for each (NVIDIA/TensorRT-LLM,
    performance overview of PCIe cards: eight stages give 4.6 times one GPU). A pipeline so long
    that each stage has a few requests reads all its weights for them: where ranks are better than
    it in every respect, by more than estimates err, they stay.
    """
    alone: dict[WeightPrecision | None, Scored] = {}
    for one in left:
        if one.option.shape.tensor == 1 and not one.option.pool.linked:
            weights = one.option.precision.weights
            alone[weights] = max(alone.get(weights, one), one, key=lambda found: found.score)

    def passes(one: Scored) -> bool:
        if one.option.shape.tensor == 1 or one.option.pool.linked:
            return True
        other = alone.get(one.option.precision.weights)
        return other is None or _far_better(one, other)

    return keep(
        left,
        passes,
        lambda one: (
            "TensorWithoutNVLink",
            (
                f"tensor {one.option.shape.tensor}: every layer's sums would cross PCIe; stages or "
                "replicas of one GPU each do not"
            ),
        ),
        dropped,
    )


def _far_better(one: Scored, other: Scored) -> bool:
    """Whether it holds as much, answers faster and does more with each GPU, beyond doubt."""
    mine, theirs = one.estimate, other.estimate
    return (
        one.held >= other.held
        and mine.ttft_seconds * _DOUBT <= theirs.ttft_seconds
        and mine.tpot_seconds * _DOUBT <= theirs.tpot_seconds
        and mine.tokens_per_second_per_gpu >= _DOUBT * theirs.tokens_per_second_per_gpu
    )


def _fastest(left: Sequence[Scored], objective: Objective, dropped: list[Dropped]) -> Scored:
    """By score, with what is equal decided by size and loss."""
    best = _grown(left) if objective is Objective.LATENCY else _equal_best(left)
    dropped += [
        Dropped(one, "Slower", _slower(one, best, objective)) for one in left if one is not best
    ]
    return best


def _grown(left: Sequence[Scored]) -> Scored:
    """The smallest replica, then larger ones as long as each is worth its GPUs."""
    sizes = sorted({one.world_size for one in left})
    best: Scored | None = None
    for size in sizes:
        here = _equal_best([one for one in left if one.world_size == size])
        if best is None or here.score >= _WORTH * best.score:
            best = here
    if best is None:
        raise ValueError("nothing to choose from")
    return best


def _equal_best(left: Sequence[Scored]) -> Scored:
    top = max(one.score for one in left)
    return min((one for one in left if one.score >= _EQUAL * top), key=_order)


def _order(one: Scored) -> tuple[object, ...]:
    shape, precision = one.option.shape, one.option.precision
    return (
        one.world_size,
        accuracy_loss(precision) or 0.0,
        shape.pipeline,
        shape.attention_data,
        shape.expert,
        -one.option.pool.memory.total,
        one.option.pool.product,
        str(precision.weights),
        str(precision.kv_cache),
    )


def _slower(one: Scored, best: Scored, objective: Objective) -> str:
    if one.score >= _EQUAL * best.score and one.score <= best.score / _EQUAL:
        return "as good within what the estimate can tell; the smaller and simpler one is taken"
    if objective is Objective.LATENCY:
        here = f"{one.estimate.tpot_seconds * 1000:.1f} ms a token"
        there = f"{best.estimate.tpot_seconds * 1000:.1f} ms"
        if one.score > best.score:
            return (
                f"{here} against {there}: not a tenth faster, for "
                f"{counted(one.world_size, 'GPU')} a replica"
            )
        return f"{here} against {there}"
    here = f"{one.estimate.tokens_per_second_per_gpu:.0f} tokens/s a GPU"
    there = f"{best.estimate.tokens_per_second_per_gpu:.0f}"
    if objective is Objective.BALANCED:
        here += f" and {one.estimate.tpot_seconds * 1000:.1f} ms a token"
        there += f" and {best.estimate.tpot_seconds * 1000:.1f} ms"
    return f"{here} against {there}"
