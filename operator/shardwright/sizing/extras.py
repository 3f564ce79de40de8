"""What stands on the GPUs beside the model itself: adapter slots and whatever drafts tokens."""

from __future__ import annotations

import functools
import math

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.kv_cache import Kind, Pooling, StageCache, stage_caches, token_bytes
from shardwright.sizing.model import Model
from shardwright.sizing.modules import Matrix, Split, matrices
from shardwright.sizing.partition import Remainder, layers_of_stages
from shardwright.sizing.shape import Shape
from shardwright.sizing.weights import (
    BYTES_16_BIT,
    kv_heads_of_rank,
    layer_bytes,
    split_layer,
    stage_weights,
)


@functools.lru_cache(maxsize=4096)
def lora_bytes(
    model: Model,
    shape: Shape,
    slots: int,
    rank: int,
    remainder: Remainder,
    modules: tuple[str, ...] = (),
) -> tuple[int, ...]:
    """Bytes of adapter slots on one GPU of every stage.

    Slots are taken before any adapter is loaded, at the highest rank: slots × rank × (inputs +
    outputs) of every attention and dense projection, in 16 bits, or of those of `modules` (the last
    part of their names) where that is not empty. Of a matrix whose outputs are
    shared the inputs' half is whole on every rank, and the other way round (vLLM's
    `ColumnParallelLinearWithLoRA`, `RowParallelLinearWithLoRA`). Routed experts are left out.
    """
    ranks = shape.tensor // shape.attention_data
    stages = layers_of_stages(len(model.layers), shape.pipeline, remainder)
    if not slots or not rank:
        return (0,) * len(stages)
    sizes = {
        layer: sum(
            _adapted(part, layer.attention.kv_heads, ranks)
            for part in matrices(layer, model.hidden)
            if part.split in (Split.RANKS, Split.KV_HEADS)
            and part.outputs > 1
            and (not modules or part.path.rsplit(".", 1)[-1] in modules)
        )
        for layer in set(model.layers)
    }
    return tuple(
        math.ceil(slots * rank * BYTES_16_BIT * sum(sizes[model.layers[n]] for n in numbers))
        for numbers in stages
    )


def _adapted(part: Matrix, kv_heads: int, ranks: int) -> float:
    if part.split is Split.KV_HEADS:
        return part.inputs + part.outputs * kv_heads_of_rank(kv_heads, ranks) / kv_heads
    if part.by_inputs:
        return part.inputs / ranks + part.outputs
    return part.inputs + part.outputs / ranks


@functools.lru_cache(maxsize=4096)
def own_draft(
    model: Model,
    weights: WeightPrecision | None,
    kv_cache: KVPrecision,
    shape: Shape,
    block: int,
) -> tuple[int, StageCache]:
    """Weights and cache of the multi-token-prediction layers, all on the last stage.

    Each is taken as one more of the last layer, with a projection of twice the hidden size in front
    (DeepSeek-V3's `eh_proj`), which every rank holds whole; embedding and head are the model's own.

    Raises:
        ValueError: The checkpoint has no such layers.
    """
    if not model.draft_layers:
        raise ValueError(
            f"ownDraft: {model.name} has no multi-token-prediction layers; name a draft model or "
            "leave speculation off"
        )
    last = model.layers[-1].attention
    layer = split_layer(layer_bytes(model, weights)[-1], shape)
    projection = 2 * model.hidden * model.hidden * BYTES_16_BIT
    ranks = shape.tensor // shape.attention_data
    token = model.draft_layers * token_bytes(last, kv_cache, ranks)
    cache = StageCache(token, (Kind(last.window, token, 0),), block)
    return round(model.draft_layers * (layer + projection)), cache


@functools.lru_cache(maxsize=4096)
def draft_model(
    draft: Model, kv_cache: KVPrecision, shape: Shape, pooling: Pooling
) -> tuple[int, StageCache]:
    """Weights and cache of a separate draft model, split like the last stage that it stands on."""
    alone = Shape(tensor=shape.tensor, attention_data=shape.attention_data)
    remainder = Remainder.FIRST
    return (
        stage_weights(draft, None, alone, remainder)[0],
        stage_caches(draft, kv_cache, alone, remainder, pooling)[0],
    )


@functools.lru_cache(maxsize=4096)
def with_draft(cache: StageCache, draft: StageCache) -> StageCache:
    """The last stage's cache with the draft's layers beside its own."""
    return StageCache(
        token_bytes=cache.token_bytes + draft.token_bytes,
        kinds=cache.kinds + draft.kinds,
        block=cache.block,
    )
