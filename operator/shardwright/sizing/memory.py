"""What one shape takes on every GPU, and what is left for the KV cache: the minimum decides.

vLLM:          pool = fraction × total − weights − activation − runtime
SGLang:        pool = fraction × total − weights
TensorRT-LLM:  pool = fraction × (total − weights − activation − runtime)

Sources: vLLM's `determine_available_memory`, SGLang's `mem_fraction_static`, TensorRT-LLM's
`free_gpu_memory_fraction` and its page on memory. Pure: the same question gives the same answer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from shardwright.sizing.activation import stage_activation
from shardwright.sizing.constants import Budget, EngineConstants, constants_of, loaded_ratio
from shardwright.sizing.extras import draft_model, lora_bytes, own_draft, with_draft
from shardwright.sizing.gpus import gpu_class
from shardwright.sizing.kv_cache import StageCache, stage_caches
from shardwright.sizing.model import AttentionKind, Model
from shardwright.sizing.partition import layers_of_stages
from shardwright.sizing.question import GIB
from shardwright.sizing.shape import (
    EngineSettings,
    GPUMemory,
    MemoryPlan,
    Precision,
    Shape,
    StageMemory,
)
from shardwright.sizing.weights import as_stored, stage_weights

# Runs with tensor parallelism were published for so many GPUs.
_MEASURED_TENSOR = 4


def plan_memory(
    model: Model,
    shape: Shape,
    precision: Precision,
    engine: EngineSettings,
    gpu: GPUMemory,
    *,
    kv_pool: Sequence[int] | None = None,
    draft: Model | None = None,
) -> MemoryPlan:
    """Memory of one GPU of every stage, in bytes.

    Args:
        model: What is served.
        shape: How one replica is split.
        precision: Of weights and KV cache.
        engine: The runtime and its limits.
        gpu: The GPU as its driver reports it; all of a replica are alike.
        kv_pool: Replaces the pool that is worked out: one value for every stage, or one a stage.
        draft: A model of its own that drafts tokens, on the GPUs of the last stage; None takes the
            engine's.

    Raises:
        ValueError: The shape cannot be counted (more stages than layers, groups that do not divide
            the ranks), no row of constants is for the runtime, or `kv_pool` has another length.
    """
    _check(model, shape, kv_pool)
    draft = draft or engine.draft
    constants, _ = constants_of(engine)
    ratio = _ratio(model, precision, gpu.product)
    remainder = constants.remainder
    weights = stage_weights(model, precision.weights, shape, remainder, ratio)
    caches = stage_caches(model, precision.kv_cache, shape, remainder, constants.pooling)
    adapters = lora_bytes(
        model, shape, engine.lora_slots, engine.lora_rank, remainder, engine.lora_modules
    )
    drafted, cache_of_draft = _draft(model, precision, shape, engine, constants, draft)
    runtime, outside = _runtime(constants, shape)
    last = shape.pipeline - 1
    stages = []
    for stage, (held, cache) in enumerate(zip(weights, caches, strict=True)):
        extra = drafted if stage == last else 0
        whole = with_draft(cache, cache_of_draft) if stage == last and cache_of_draft else cache
        activation = stage_activation(model, shape, engine, constants, stage)
        loaded = held + adapters[stage] + extra
        if kv_pool is None:
            pool = _pool(constants.budget, engine.memory_fraction, gpu, loaded, activation, runtime)
        else:
            pool = kv_pool[stage if len(kv_pool) > 1 else 0]
        sequence = whole.sequence_bytes(engine.max_seq_len, engine.max_num_tokens)
        stages.append(
            StageMemory(
                stage=stage,
                layers=_layers(model, shape, stage, constants),
                weights=held,
                activation=activation,
                runtime=runtime,
                lora=adapters[stage],
                draft=extra,
                kv_pool=pool,
                kv_bytes_per_token=whole.token_bytes,
                kv_tokens=whole.tokens(pool) * shape.attention_data,
                total=gpu.total,
                kv_bytes_per_sequence=sequence,
                kv_sequences=max(0, pool) * shape.attention_data / sequence if sequence else 0.0,
                outside=outside,
            )
        )
    return MemoryPlan(
        stages=tuple(stages),
        constants=constants.row,
        sources=constants.sources,
        notes=_notes(model, precision, engine, gpu.product, shape, draft is not None)
        + tight(stages, engine),
    )


def tight(stages: Sequence[StageMemory], engine: EngineSettings) -> tuple[str, ...]:
    """What must be said when the room beside the fraction is too small for what stands there."""
    least = min(stages, key=lambda stage: stage.left)
    if least.left >= 0 or least.kv_pool <= 0:
        return ()
    wanted = engine.memory_fraction + least.left / least.total
    return (
        (
            f"stage {least.stage} is promised {-least.left / GIB:.2f} GiB more than the GPU has, "
            "by estimates of context, graphs and buffers beside the KV cache: a memory fraction of "
            f"{max(0.0, wanted):.2f} is safer than {engine.memory_fraction:g}"
        ),
    )


def _check(model: Model, shape: Shape, kv_pool: Sequence[int] | None) -> None:
    if shape.pipeline > len(model.layers):
        raise ValueError(
            f"pipeline {shape.pipeline} exceeds the {len(model.layers)} layers of {model.name}: "
            "a stage would be empty"
        )
    for name, value in (("expert", shape.expert), ("attentionData", shape.attention_data)):
        if value < 1 or shape.tensor % value:
            raise ValueError(
                f"{name} {value} does not divide tensor {shape.tensor}: every group needs as many "
                "ranks"
            )
    if kv_pool is not None and len(kv_pool) not in (1, shape.pipeline):
        raise ValueError(
            f"kvPool has {len(kv_pool)} values for {shape.pipeline} stages; give one, or one a "
            "stage"
        )


def _pool(
    budget: Budget, fraction: float, gpu: GPUMemory, loaded: int, activation: int, runtime: int
) -> int:
    if budget is Budget.OF_TOTAL:
        return int(fraction * gpu.total) - loaded - activation - runtime
    if budget is Budget.STATIC:
        return int(fraction * gpu.total) - loaded
    free = gpu.total - loaded - activation - runtime
    # What is missing is missing whole: a fraction of it would look smaller than it is.
    return int(fraction * free) if free > 0 else free


def _runtime(constants: EngineConstants, shape: Shape) -> tuple[int, int]:
    """Bytes inside and outside the budget that are neither weights, activation nor cache."""
    if shape.tensor > 1:
        inside, outside = constants.runtime_tensor_bytes, constants.context_tensor_bytes
    elif shape.pipeline > 1:
        inside, outside = constants.runtime_pipeline_bytes, constants.context_tensor_bytes
    else:
        inside, outside = constants.runtime_bytes, constants.context_bytes
    if constants.graphs_inside:
        inside += constants.graphs_bytes
    else:
        outside += constants.graphs_bytes
    return round(inside), round(outside)


def _runtime_constant(shape: Shape) -> str:
    """The constant that `_runtime` takes for a shape, by its name in the table."""
    if shape.tensor > 1:
        return "nonTorchTensorGiB"
    return "nonTorchPipelineGiB" if shape.pipeline > 1 else "nonTorchGiB"


def _draft(
    model: Model,
    precision: Precision,
    shape: Shape,
    engine: EngineSettings,
    constants: EngineConstants,
    draft: Model | None,
) -> tuple[int, StageCache | None]:
    if draft is not None:
        return draft_model(draft, precision.kv_cache, shape, constants.pooling)
    if engine.own_draft:
        block = constants.pooling.block
        return own_draft(model, precision.weights, precision.kv_cache, shape, block)
    return 0, None


def _layers(model: Model, shape: Shape, stage: int, constants: EngineConstants) -> int:
    return len(layers_of_stages(len(model.layers), shape.pipeline, constants.remainder)[stage])


def _ratio(model: Model, precision: Precision, product: str) -> float:
    if not as_stored(model, precision.weights):
        return 1.0
    return loaded_ratio(model.checkpoint.method, gpu_class(product)) or 1.0


@functools.lru_cache(maxsize=4096)
def _notes(
    model: Model,
    precision: Precision,
    engine: EngineSettings,
    product: str,
    shape: Shape,
    drafted: bool,  # noqa: FBT001 - part of a cache's key
) -> tuple[str, ...]:
    """What no measurement covers, or what the reader would not expect."""
    constants, notes = constants_of(engine)
    here = gpu_class(product)
    said = [*model.notes, *notes, *constants.notes]
    used = _runtime_constant(shape)
    said.extend(text for name, text in constants.assumed if name == used)
    if constants.measured and here != constants.gpu_class:
        said.append(
            f"{constants.row} was measured on {constants.measured}, not on "
            f"{product or 'this GPU'}: activation and runtime may differ"
        )
    method = model.checkpoint.method
    stored = as_stored(model, precision.weights)
    if method and not stored:
        said.append(
            f"the checkpoint is quantized by {method}; another precision needs the model's 16-bit "
            "checkpoint"
        )
    if stored and loaded_ratio(method, here) is None:
        said.append(
            f"{method} weights are counted as the file stores them: what the kernels' layout adds "
            f"on {here or 'this GPU'} is not measured (6 % on Hopper)"
        )
    if shape.tensor > _MEASURED_TENSOR and constants.measured:
        said.append(
            f"tensor {shape.tensor}: communication buffers are those of 2 to 4 GPUs, the most that "
            "is measured"
        )
    kinds = {layer.attention.kind for layer in model.layers}
    if AttentionKind.LINEAR in kinds or (len(kinds) > 1 and not constants.pooling.grouped):
        said.append(
            f"{constants.engine}: how it pools {' and '.join(sorted(kinds))} layers is not measured"
        )
    if engine.lora_slots and model.experts:
        said.append("LoRA slots of routed experts are not counted")
    if engine.own_draft or drafted:
        said.append("the draft's activation is not counted; its graphs neither")
    if shape.attention_data > 1 or shape.expert > 1:
        said.append("all-to-all buffers of expert parallelism are not counted: none is published")
    return tuple(said)
