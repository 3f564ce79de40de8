"""What a shape holds on its GPUs: the memory plan of shapes that are given, and its words."""

from __future__ import annotations

from shardwright.api.asked import AskedSpec
from shardwright.api.serving import EngineSpec
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.plan.question import engine_settings, model_of, workload_of
from shardwright.plan.resolve import Planned
from shardwright.resolved import Room, StageRoom
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.sizing.constants import constants_of
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.question import GIB
from shardwright.sizing.shape import GPUMemory, MemoryPlan, Precision, Shape


def memory_plan(spec: LLMDeploymentSpec, facts: ModelFacts, gpu_bytes: int) -> MemoryPlan | None:
    """The memory plan of a shape; None where the model's sizes, or the engine's, are not known."""
    model = model_of(facts, spec.model.uri)
    if isinstance(model, Refusal):
        return None
    own = model.checkpoint.method != ""
    weights = None if own else spec.quantization.weights
    shape = Shape(spec.parallelism.tensor, spec.parallelism.pipeline)
    if shape.pipeline > len(model.layers):
        return None
    precision = Precision(weights, spec.quantization.kv_cache)
    gpu = GPUMemory(gpu_bytes, spec.gpu.product)
    try:
        return plan_memory(model, shape, precision, engine_settings(spec.engine), gpu)
    except ValueError:
        # No constants are known for this engine, or the shape cannot be counted.
        return None


def room_of(plan: MemoryPlan) -> Room:
    """A memory plan as it is kept and shown."""
    return Room(
        tuple(
            StageRoom(
                stage=stage.stage,
                layers=stage.layers,
                weights=stage.weights,
                activation=stage.activation,
                runtime=stage.runtime,
                kv_cache=stage.kv_pool,
                kv_tokens=stage.kv_tokens,
            )
            for stage in plan.stages
        ),
        plan.constants,
    )


def does_not_fit(spec: LLMDeploymentSpec, plan: MemoryPlan) -> str:
    """Why a shape holds not one sequence of the longest length; empty when it does."""
    if plan.concurrency >= 1:
        return ""
    worst = min(plan.stages, key=lambda stage: stage.kv_pool)
    used = worst.weights + worst.activation + worst.runtime
    return (
        f"tensor {spec.parallelism.tensor} × pipeline {spec.parallelism.pipeline} on "
        f"{spec.gpu.product}: stage {worst.stage} needs {used / GIB:.1f} GiB of a GPU's "
        f"{worst.total / GIB:.1f} GiB (weights {worst.weights / GIB:.1f}) before any KV cache, and "
        f"{max(0, worst.kv_pool) / GIB:.1f} GiB hold {max(0, plan.kv_tokens)} tokens, fewer than "
        f"one sequence of maxSeqLen {spec.engine.limits.max_seq_len}; use more GPUs (tensor, "
        "pipeline), fewer bits (quantization), a shorter maxSeqLen, or leave parallelism out to "
        "have it chosen"
    )


def measured(engine: EngineSpec) -> bool:
    """Whether the memory constants of this engine come from measurements alone."""
    constants, _ = constants_of(engine_settings(engine))
    return bool(constants.measured) and not constants.assumed


def given_room(
    asked: AskedSpec, spec: LLMDeploymentSpec, facts: ModelFacts, gpu_bytes: int
) -> Planned | Refusal:
    """The memory of a shape that the user gave, with a warning where it does not fit.

    It is refused where the engine's constants are measured and not one sequence of the longest
    length finds room; where they are estimates, the engine itself has the last word.

    Args:
        asked: The user's spec.
        spec: The same with nothing open.
        facts: The model's.
        gpu_bytes: Memory of one GPU as a process sees it.
    """
    plan = memory_plan(spec, facts, gpu_bytes)
    if plan is None:
        return Planned()
    lacking = does_not_fit(spec, plan)
    if lacking and measured(spec.engine):
        return Refusal("DoesNotFit", lacking)
    warned = (f"warning: by estimate it does not fit: {lacking}",) if lacking else ()
    return Planned(room=room_of(plan), reasons=(*_given_words(asked, plan), *warned))


def _given_words(asked: AskedSpec, plan: MemoryPlan) -> tuple[str, ...]:
    """What a given shape holds, and how much of the workload that is."""
    longest = asked.engine.limits.max_seq_len
    held = int(max(0.0, plan.concurrency))
    said = [
        (
            f"the shape is the spec's own; KV cache for {max(0, plan.kv_tokens)} tokens a replica, "
            f"{held} sequences of maxSeqLen {longest}"
        )
    ]
    if asked.workload is not None:
        load, replicas = workload_of(asked), max(1, asked.replicas)
        each = min(asked.engine.limits.max_batch_size, max(0, plan.kv_tokens) // load.request_len)
        said.append(
            f"{each} requests of {load.request_len} tokens find room in a replica, {replicas} "
            f"replicas hold {each * replicas}; the workload asks for {load.concurrency}"
        )
    return tuple(said)
