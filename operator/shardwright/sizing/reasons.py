"""A plan in words: why it looks as it does, and what limits the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.hardware import NumberType
from shardwright.sizing.memory_rules import HEADROOM
from shardwright.sizing.model import Model
from shardwright.sizing.precisions import ACCURACY_SOURCE, accuracy_loss, sixteen_bit, words
from shardwright.sizing.preferences import Decision, on_target
from shardwright.sizing.question import GIB, Objective, Question
from shardwright.sizing.result import Candidate, Rejection
from shardwright.sizing.score import Scored
from shardwright.words import counted

_FAR = 2**62


def reasons_of(
    question: Question, decision: Decision, refused: Sequence[Rejection] = ()
) -> tuple[str, ...]:
    """Why precision, shape and number of replicas are what they are; empty without a plan.

    Args:
        question: What was asked.
        decision: What came of it.
        refused: What was not possible at all.
    """
    best = decision.best
    if best is None:
        return ()
    said = [
        _why_precision(question, decision, best, refused),
        *_why_cache(question, decision, best, refused),
        _why_sixteen_bit(question.model, best),
        _why_shape(question, best),
        _why_replicas(question, best),
        _why_headroom(best),
    ]
    if not on_target(question, best):
        said.append("no candidate keeps the wanted latencies; this one is the best without them")
    if best.held < question.workload.concurrency:
        said.append(
            f"room for {best.held:,} of {counted(question.workload.concurrency, 'request')} in "
            f"{counted(best.option.replicas, 'replica')}; the others wait"
        )
    return tuple(said)


def _why_precision(
    question: Question, decision: Decision, best: Scored, refused: Sequence[Rejection]
) -> str:
    weights = best.option.precision.weights
    text = words(best.option.precision)
    limits = question.limits
    if limits.weights is not None or limits.weight_bits is not None:
        return f"{text}: the weights are fixed by the request"
    if weights is None:
        return f"{text}: a quantized checkpoint is served as it comes"
    if weights is WeightPrecision.NONE:
        if any(
            one.code == "PrecisionNeedNotShrink"
            and one.scored.option.pool.product == best.option.pool.product
            for one in decision.dropped
        ):
            return f"{text}: fewer bits would save no GPU"
        return f"{text}: no smaller precision is possible here"
    plain = [
        one.message
        for one in decision.dropped
        if one.code == "ShrinkBeforeSplit"
        and one.scored.option.pool.product == best.option.pool.product
    ]
    loss = accuracy_loss(best.option.precision)
    cost = "" if loss is None else f"; published loss {loss:g} % ({ACCURACY_SOURCE})"
    if plain:
        return f"{text}: shrinking goes before splitting: {plain[0]}{cost}"
    why = _why_not_plain(decision, refused, best.option.pool.product)
    return f"{text}: 16 bits do not do: {why}{cost}"


def _why_not_plain(decision: Decision, refused: Sequence[Rejection], product: str) -> str:
    """Why this product has no 16-bit plan: what turned the best of them away, or refused them."""
    dropped = [
        one
        for one in decision.dropped
        if one.scored.option.pool.product == product
        and one.scored.option.precision.weights is WeightPrecision.NONE
    ]
    if dropped:
        return max(dropped, key=lambda one: one.scored.score).message
    mine = [
        one
        for one in refused
        if one.product in (product, None)
        and one.precision is not None
        and one.precision.weights is WeightPrecision.NONE
    ]
    return max(mine, key=_telling).message if mine else "they do not fit"


def _telling(refused: Rejection) -> tuple[bool, int]:
    """A refusal of the precision as a whole says most; else that of what nearly fitted."""
    pools = [stage.kv_pool for stage in refused.memory.stages] if refused.memory else []
    return refused.shape is None, min(pools, default=-_FAR)


def _why_cache(
    question: Question, decision: Decision, best: Scored, refused: Sequence[Rejection]
) -> Iterator[str]:
    """Why the KV cache is not kept in 16 bits, where it is not."""
    held = best.option.precision
    if held.kv_cache is KVPrecision.NONE:
        return
    text = f"{held.kv_cache.value} KV cache"
    product = best.option.pool.product
    if question.limits.kv_cache is not None:
        yield f"{text}: fixed by the request"
        return
    larger = [
        one.message
        for one in decision.dropped
        if one.code == "CacheTooLarge" and one.scored.option.pool.product == product
    ]
    never = [
        one.message
        for one in refused
        if one.shape is None
        and one.product == product
        and one.precision == replace(held, kv_cache=KVPrecision.NONE)
    ]
    if larger or never:
        yield f"{text}: {(larger or never)[0]}"
    else:
        yield f"{text}: there is less room than load in 16 bits, and more requests at once pay"


def _why_sixteen_bit(model: Model, best: Scored) -> str:
    kind = sixteen_bit(model, best.option.pool.hardware)
    if kind is NumberType.BF16:
        return (
            f"BF16 for all that stays in 16 bits: the model was trained in {model.dtype}, and FP16 "
            "ends at 65,504, where BF16's larger activations turn into infinities"
        )
    if model.dtype == "bfloat16":
        return (
            f"FP16 for all that stays in 16 bits: {best.option.pool.product} has no BF16; the "
            "model was trained in it, so look at the answers for overflows"
        )
    return f"FP16 for all that stays in 16 bits: the model's own type ({model.dtype})"


def _why_shape(question: Question, best: Scored) -> str:
    shape, pool = best.option.shape, best.option.pool
    parts = [f"tensor {shape.tensor}"]
    nvlink = pool.has_nvlink(shape.tensor)
    if shape.tensor > 1:
        parts.append("inside one NVLink domain" if nvlink else "over PCIe inside one node")
    if shape.pipeline > 1:
        nodes = len(set(pool.stage_nodes(shape)))
        where = f"over {nodes} nodes" if nodes > 1 else "inside one node"
        parts.append(f"with pipeline {shape.pipeline} {where}")
    if shape.expert > 1:
        parts.append(f"with experts whole on {shape.expert} ranks")
    if shape.attention_data > 1:
        parts.append(f"and attention by data in {shape.attention_data} groups")
    text = " ".join(parts)
    fixed = question.limits.tensor is not None or question.limits.pipeline is not None
    objective = question.workload.objective
    if fixed:
        return f"{text}: fixed by the request as far as it names them"
    if objective is Objective.LATENCY:
        return f"{text}: a larger group is taken as long as it answers a tenth faster"
    if objective in (Objective.THROUGHPUT, Objective.OFFLINE):
        return f"{text}: most tokens a second from each GPU, the rest goes into replicas"
    return f"{text}: best in tokens a second for each GPU and for each user together"


def _why_replicas(question: Question, best: Scored) -> str:
    option = best.option
    if question.limits.replicas is not None:
        return f"{counted(option.replicas, 'replica')}: fixed by the request"
    load = f"{counted(question.workload.concurrency, 'request')} in flight"
    count = counted(option.replicas, "replica")
    if option.replicas < option.fitting:
        return f"{count}: one for each request in flight; more would have nothing to do"
    if best.needed < option.replicas:
        return f"{count}: what the free GPUs hold; {best.needed} would do for {load}"
    return f"{count}: what the free GPUs hold"


def _why_headroom(best: Scored) -> str:
    tightest = min(best.option.memory.stages, key=lambda stage: stage.kv_pool / stage.total)
    return (
        f"{tightest.kv_pool / GIB:.1f} GiB of {tightest.total / GIB:.1f} GiB a GPU are left for "
        f"the KV cache (at least {HEADROOM:.0%} is required)"
    )


def second_reasons(decision: Decision, second: Scored) -> tuple[str, ...]:
    """Why the chosen one went before it."""
    return tuple(
        f"{one.code}: {one.message}"
        for one in decision.dropped
        if one.scored.option is second.option
    )[:1]


def notes_of(question: Question, chosen: Candidate | None) -> tuple[str, ...]:
    """What the answer rests on that was assumed, left out or never measured."""
    said = list(question.fleet.skipped)
    if chosen is not None:
        carriers = [group for group in question.fleet.groups if group.name in chosen.node_groups]
        if chosen.nodes_per_replica > 1:
            said += sorted(
                {
                    f"network: {group.fabric.kind}, {group.fabric.gigabytes_per_second:g} GB/s a "
                    f"GPU ({group.fabric.source})"
                    for group in carriers
                    if group.fabric.source
                }
            )
        if any(group.possible for group in carriers):
            said.append("some of these nodes do not exist yet: an autoscaler may bring them")
        said += chosen.memory.notes
    said.append("times are estimates for comparing plans, not promises; see docs/choosing.md")
    return tuple(said)
