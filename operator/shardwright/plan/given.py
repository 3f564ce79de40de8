"""A shape that the user gave: what speaks against it, and what it holds.

Refused is what no setting of an engine can cure, whatever the constants of the memory model: blocks
of a checkpoint that are torn, and weights that alone are larger than the GPU. Where only estimates
say that it does not fit, the engine itself has the last word, and the plan carries a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.api.asked import AskedSpec
from shardwright.api.serving import EngineSpec, Parallelism
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.gpus import DriverMemory
from shardwright.plan.question import (
    engine_settings,
    model_of,
    shape_of,
    shape_words,
    workload_of,
)
from shardwright.plan.resolve import Planned
from shardwright.plan.room import memory_plan, precision_of, room_of
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime
from shardwright.sizing.blocks import block_refusal
from shardwright.sizing.constants import constants_of
from shardwright.sizing.memory import tight
from shardwright.sizing.memory_rules import held_words
from shardwright.sizing.model import Model
from shardwright.sizing.question import GIB
from shardwright.sizing.shape import MemoryPlan, Shape
from shardwright.sizing.weights import least_weights
from shardwright.words import counted

WARNING = "warning: "
# How many times the GPUs that weights alone need are looked at for a shape that fits.
_FURTHER = 4


def given_room(
    asked: AskedSpec,
    spec: LLMDeploymentSpec,
    facts: ModelFacts,
    gpu: DriverMemory,
    *,
    domain: int = 0,
    draft: ModelFacts | None = None,
) -> Planned | Refusal:
    """The memory of a shape that the user gave, with a warning where it may not fit.

    It is refused where the checkpoint's blocks would be torn, where weights alone exceed what a
    driver reports, and where the engine's constants are measured and not one sequence of the
    longest length finds room.

    Args:
        asked: The user's spec.
        spec: The same with nothing open.
        facts: The model's.
        gpu: Memory of one GPU as a process sees it, and whether that is certain.
        domain: GPUs of the largest NVLink domain, for the shape that is offered instead; 0 offers
            no larger tensor than the given one.
        draft: Facts of the draft model that the spec names.
    """
    model = model_of(facts, spec.model.uri)
    if isinstance(model, Refusal):
        return Planned()
    shape = _shape(spec)
    torn = block_refusal(model, precision_of(spec, model), shape)
    if torn is not None:
        return torn
    plan = memory_plan(spec, model, gpu.total, draft)
    too_heavy = _weights_exceed(spec, model, gpu)
    if too_heavy and not gpu.doubt:
        offer = _nearest(spec, facts, model, gpu, domain)
        return Refusal("DoesNotFit", f"{too_heavy}: no setting of the engine cures that; {offer}")
    if plan is None:
        doubtful = (f"{WARNING}{too_heavy}; {gpu.doubt}",) if too_heavy else ()
        return Planned(reasons=doubtful)
    lacking = does_not_fit(spec, plan)
    if lacking and measured(spec.engine) and not gpu.doubt:
        return Refusal("DoesNotFit", f"{lacking}; {_nearest(spec, facts, model, gpu, domain)}")
    warned: tuple[str, ...] = ()
    if lacking:
        warned = (f"{WARNING}by estimate it does not fit: {lacking}",)
    room = tight(plan.stages, engine_settings(spec.engine))
    warned += tuple(WARNING + words for words in room)
    return Planned(room=room_of(plan), reasons=(*_given_words(asked, plan), *warned))


def does_not_fit(spec: LLMDeploymentSpec, plan: MemoryPlan) -> str:
    """Why a shape holds not one sequence of the longest length; empty when it does."""
    if plan.concurrency >= 1:
        return ""
    worst = min(plan.stages, key=lambda stage: stage.kv_pool)
    return (
        f"{_split(spec)}: stage {worst.stage} needs {worst.before_cache / GIB:.1f} GiB of a "
        f"GPU's {worst.total / GIB:.1f} GiB ({held_words(worst)}) before any KV cache, and "
        f"{max(0, worst.kv_pool) / GIB:.1f} GiB hold {max(0, plan.kv_tokens)} tokens, fewer than "
        f"one sequence of maxSeqLen {spec.engine.limits.max_seq_len}; use more GPUs (tensor, "
        f"pipeline), fewer bits (quantization){_shorter(plan)}, or leave parallelism out to "
        "have it chosen"
    )


def _shorter(plan: MemoryPlan) -> str:
    return f", a maxSeqLen of at most {plan.kv_tokens}" if plan.kv_tokens > 0 else ""


def measured(engine: EngineSpec) -> bool:
    """Whether the memory constants of this engine come from measurements alone."""
    constants, _ = constants_of(engine_settings(engine))
    return bool(constants.measured) and not constants.assumed


def _shape(spec: LLMDeploymentSpec) -> Shape:
    return shape_of(spec)


def _split(spec: LLMDeploymentSpec) -> str:
    shape = _shape(spec)
    return f"{shape_words(shape)} on {spec.gpu.product}"


def _weights_exceed(spec: LLMDeploymentSpec, model: Model, gpu: DriverMemory) -> str:
    """Why weights alone cannot lie on the GPUs; empty when they can."""
    shape = _shape(spec)
    if shape.pipeline > len(model.layers):
        return ""
    weights = least_weights(model, precision_of(spec, model).weights, shape)
    if weights <= gpu.total:
        return ""
    return (
        f"{_split(spec)}: the weights alone are {weights / GIB:.1f} GiB on a GPU of the heaviest "
        f"stage, and a GPU has {gpu.total / GIB:.1f} GiB in all"
    )


def _nearest(
    spec: LLMDeploymentSpec, facts: ModelFacts, model: Model, gpu: DriverMemory, domain: int
) -> str:
    """The shape on fewest GPUs that fits, as far as the memory model tells; in words."""
    weights = precision_of(spec, model).weights
    for shape in _larger(spec, model, gpu, domain):
        split = Parallelism(tensor=shape.tensor, pipeline=shape.pipeline)
        other = spec.model_copy(update={"parallelism": split})
        if runtime(spec.engine.runtime).refuse_model(other, facts) is not None:
            continue
        if block_refusal(model, precision_of(spec, model), shape) is not None:
            continue
        plan = memory_plan(other, model, gpu.total)
        held = least_weights(model, weights, shape)
        if held > gpu.total or (plan is not None and plan.concurrency < 1):
            continue
        room = f", KV cache for {counted(plan.kv_tokens, 'token')}" if plan is not None else ""
        return (
            f"the nearest shape that fits is tensor {shape.tensor}, pipeline {shape.pipeline} "
            f"({held / GIB:.1f} GiB of weights a GPU{room}); fewer bits (quantization) take less, "
            "and parallelism left out is chosen"
        )
    return "use fewer bits (quantization), or leave parallelism out to have it chosen"


def _larger(
    spec: LLMDeploymentSpec, model: Model, gpu: DriverMemory, domain: int
) -> Iterator[Shape]:
    """Shapes of more GPUs than the given one, fewest GPUs and fewest stages first."""
    given = _shape(spec)
    weights = least_weights(model, precision_of(spec, model).weights, Shape())
    widest = max(domain, given.tensor)
    most = _FURTHER * max(given.world_size, -(-weights // gpu.total))
    ranks = [2**power for power in range(widest.bit_length()) if 2**power <= widest]
    shapes = [
        Shape(tensor, pipeline)
        for tensor in sorted({*ranks, given.tensor})
        for pipeline in range(1, min(len(model.layers), most // tensor) + 1)
        if tensor * pipeline > given.world_size
        # More stages than the user has only once ranks fill the domain.
        and (pipeline <= given.pipeline or tensor == widest)
    ]
    return iter(sorted(shapes, key=lambda shape: (shape.world_size, shape.pipeline)))


def _given_words(asked: AskedSpec, plan: MemoryPlan) -> tuple[str, ...]:
    """What a given shape holds, and how much of the workload that is."""
    longest = asked.engine.limits.max_seq_len
    held = int(max(0.0, plan.concurrency))
    said = [
        (
            f"the shape is the spec's own; KV cache for {counted(max(0, plan.kv_tokens), 'token')} "
            f"a replica, {counted(held, 'sequence')} of maxSeqLen {longest}"
        )
    ]
    if asked.workload is not None:
        load, replicas = workload_of(asked), max(1, asked.replicas)
        # Every attention group has a batch of its own.
        batch = asked.engine.limits.max_batch_size * (asked.attention_data or 1)
        each = min(batch, max(0, plan.kv_tokens) // load.request_len)
        said.append(
            f"room for {counted(each, 'request')} of {load.request_len} tokens in a replica, "
            f"{each * replicas:,} in {counted(replicas, 'replica')}; the workload asks for "
            f"{load.concurrency:,}"
        )
    return tuple(said)
