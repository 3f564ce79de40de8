"""What a shape holds on its GPUs, as it is kept in a revision and shown in status."""

from __future__ import annotations

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.plan.question import engine_settings, shape_of
from shardwright.resolved import Room, StageRoom
from shardwright.runner.contract import ModelFacts
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.model import Model
from shardwright.sizing.shape import GPUMemory, MemoryPlan, Precision


def precision_of(spec: LLMDeploymentSpec, model: Model) -> Precision:
    """The precision that is really served: a quantized checkpoint's own, whatever the spec says."""
    own = model.checkpoint.method != ""
    return Precision(None if own else spec.quantization.weights, spec.quantization.kv_cache)


def memory_plan(
    spec: LLMDeploymentSpec, model: Model, gpu_bytes: int, draft: ModelFacts | None = None
) -> MemoryPlan | None:
    """The memory plan of a shape; None where it cannot be counted for this engine."""
    shape = shape_of(spec)
    if shape.pipeline > len(model.layers):
        return None
    gpu = GPUMemory(gpu_bytes, spec.gpu.product)
    try:
        engine = engine_settings(spec.engine, spec.lora, spec.speculative, draft)
        return plan_memory(model, shape, precision_of(spec, model), engine, gpu)
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
                lora=stage.lora,
                draft=stage.draft,
                activation=stage.activation,
                runtime=stage.runtime,
                kv_cache=stage.kv_pool,
                kv_tokens=stage.kv_tokens,
            )
            for stage in plan.stages
        ),
        plan.constants,
    )
