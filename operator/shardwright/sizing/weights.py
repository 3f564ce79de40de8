"""Bytes of weights on one GPU of every stage.

What quantization leaves in 16 bits is counted so: embedding table, output head, norms, biases,
routers, and whatever the checkpoint's own ignore list names.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from shardwright.api.serving import WeightPrecision
from shardwright.sizing.ignored import ignoring
from shardwright.sizing.model import CheckpointPrecision, Layer, Model
from shardwright.sizing.modules import Matrix, Split, matrices
from shardwright.sizing.partition import Remainder, layers_of_stages
from shardwright.sizing.shape import Shape

BYTES_16_BIT = 2
# Every runtime pads the table so that ranks share it evenly (vLLM: DEFAULT_VOCAB_PADDING_SIZE).
VOCABULARY_PADDING = 64
# Weights that share one scale where the API has no field for it.
_AWQ_GROUP = 128
_MX_GROUP = 32
_NV_GROUP = 16
_BLOCK_SCALE = 32

# Bits of one quantized weight, its share of scales (and zero points) included.
_BITS: dict[WeightPrecision, float] = {
    WeightPrecision.NONE: 16,
    WeightPrecision.FP8: 8,
    WeightPrecision.INT8: 8,
    WeightPrecision.INT8_SMOOTHQUANT: 8,
    WeightPrecision.INT4_AWQ: 4 + 16 / _AWQ_GROUP,
    WeightPrecision.W4A8_AWQ: 4 + 16 / _AWQ_GROUP,
    # GPTQ files carry packed zero points, symmetric or not.
    WeightPrecision.INT4_GPTQ: 4 + (16 + 4) / _AWQ_GROUP,
    WeightPrecision.NVFP4: 4 + 8 / _NV_GROUP,
}


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """One layer's bytes by the way they are split; `kv` and `experts` are for all heads, experts.

    `quantized_experts` is the part of `experts` that is stored in the checkpoint's own format.
    """

    ranks: float
    kv: float
    experts: float
    whole: float
    kv_heads: int
    expert_count: int
    quantized_experts: float


def checkpoint_bits(checkpoint: CheckpointPrecision) -> float:
    """Bits of one quantized weight of a checkpoint, scales and zero points included.

    MX formats share an 8-bit scale among 32 weights (OCP MX 1.0), NVFP4 an 8-bit one among 16,
    integer formats a 16-bit one a group, with zero points of the weights' width if asymmetric.
    Blocks of FP8 share a 32-bit one (DeepSeek-V3, README_WEIGHTS.md: weight_scale_inv).
    """
    if not checkpoint.method:
        return 16
    bits, group = checkpoint.weight_bits, checkpoint.group_size
    if all(checkpoint.block):
        return bits + _BLOCK_SCALE / math.prod(checkpoint.block)
    if checkpoint.method == "mxfp4":
        return bits + 8 / (group or _MX_GROUP)
    if not group:
        return bits
    if group == _NV_GROUP:
        return bits + 8 / group
    zero = 0.0 if checkpoint.symmetric and checkpoint.method != "gptq" else bits
    return bits + (16 + zero) / group


@functools.lru_cache(maxsize=512)
def as_stored(model: Model, weights: WeightPrecision | None) -> bool:
    """Whether a precision is the checkpoint's own, so that its ignore list counts.

    None always is; so is the named precision of as many bits as a quantized checkpoint has.
    """
    checkpoint = model.checkpoint
    if weights is None or not checkpoint.method:
        return weights is None or weights is WeightPrecision.NONE
    if weights is WeightPrecision.NVFP4 or checkpoint.group_size == _NV_GROUP:
        return weights is WeightPrecision.NVFP4 and checkpoint.group_size == _NV_GROUP
    if weights is WeightPrecision.NONE or checkpoint.method == "mxfp4":
        return False
    return int(_BITS[weights]) == int(checkpoint.weight_bits)


def bits_per_weight(model: Model, weights: WeightPrecision | None) -> float:
    """Bits of one weight that quantization reaches; None is the checkpoint's own precision."""
    if weights is None or as_stored(model, weights):
        return checkpoint_bits(model.checkpoint)
    return _BITS[weights]


@functools.lru_cache(maxsize=512)
def layer_bytes(model: Model, weights: WeightPrecision | None) -> tuple[LayerBytes, ...]:
    """Every layer's bytes; equal layers are the same object."""
    bits = bits_per_weight(model, weights)
    own = as_stored(model, weights)
    kept_whole = kept_in_16_bit(model) if own else _not_quantizable
    known: dict[tuple[Layer, tuple[bool, ...]], LayerBytes] = {}
    every: list[LayerBytes] = []
    for number, layer in enumerate(model.layers):
        parts = tuple(matrices(layer, model.hidden))
        paths = [f"layers.{number}.{part.path}" for part in parts]
        kept = tuple(kept_whole(part, path) for part, path in zip(parts, paths, strict=True))
        if (layer, kept) not in known:
            known[layer, kept] = _sum(layer, parts, kept, bits)
        every.append(known[layer, kept])
    return tuple(every)


def kept_in_16_bit(model: Model) -> Callable[[Matrix, str], bool]:
    """Tells of a matrix and its path, from `layers` on, whether the checkpoint keeps 16 bits."""
    ignored, targets = ignoring(model.checkpoint.ignored), model.checkpoint.targets
    targeted = ignoring(targets)

    def kept(part: Matrix, path: str) -> bool:
        return not part.quantizable or ignored(path) or (bool(targets) and not targeted(path))

    return kept


def _not_quantizable(part: Matrix, _path: str) -> bool:
    return not part.quantizable


def _sum(
    layer: Layer, parts: tuple[Matrix, ...], kept: tuple[bool, ...], bits: float
) -> LayerBytes:
    sums = dict.fromkeys(Split, 0.0)
    sums[Split.WHOLE] = float(layer.replicated * BYTES_16_BIT)
    quantized_experts = 0.0
    for part, plain in zip(parts, kept, strict=True):
        amount = part.weights * (16 if plain else bits) / 8
        sums[part.split] += amount + part.biases * BYTES_16_BIT
        if part.split is Split.EXPERTS and not plain:
            quantized_experts += amount
    return LayerBytes(
        ranks=sums[Split.RANKS],
        kv=sums[Split.KV_HEADS],
        experts=sums[Split.EXPERTS],
        whole=sums[Split.WHOLE],
        kv_heads=layer.attention.kv_heads,
        expert_count=layer.feed_forward.experts,
        quantized_experts=quantized_experts,
    )


def kv_heads_of_rank(kv_heads: int, tensor: int) -> int:
    """Whole KV heads that one rank holds: never fewer than one, so that heads repeat."""
    return max(1, -(-kv_heads // tensor))


def split_layer(layer: LayerBytes, shape: Shape, inflation: float = 1.0) -> float:
    """Bytes of one layer on one rank.

    Args:
        layer: The layer.
        shape: How it is split. Attention, dense blocks and shared experts are split over the ranks
            of one attention group (`tensor / attention_data`); routed experts over all ranks, whole
            ones over the expert-parallel groups, each cut over the ranks of its group.
        inflation: How much larger the runtime's layout of quantized experts is than the file's.
    """
    group = shape.tensor // shape.attention_data
    total = layer.ranks / group + layer.whole
    if layer.kv_heads:
        total += layer.kv * kv_heads_of_rank(layer.kv_heads, group) / layer.kv_heads
    if layer.expert_count:
        here = -(-layer.expert_count // shape.expert) / layer.expert_count
        inside = shape.tensor // shape.expert
        experts = layer.experts + (inflation - 1) * layer.quantized_experts
        total += experts * here / inside
    return total


def table_bytes(model: Model, ranks: int) -> int:
    """Bytes of one rank's part of the embedding table or of the output head."""
    padded = -(-model.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
    return -(-padded * model.hidden * BYTES_16_BIT // ranks)


@functools.lru_cache(maxsize=65536)
def stage_weights(
    model: Model,
    weights: WeightPrecision | None,
    shape: Shape,
    remainder: Remainder,
    inflation: float = 1.0,
) -> tuple[int, ...]:
    """Bytes of weights on one GPU of every stage.

    The first stage holds the embedding table and a vision tower, the last the output head; a tied
    table stands on both ends when there is more than one stage. Every stage holds the rotary table
    of all positions (vLLM's `RotaryEmbedding` builds it for `max_position_embeddings`).
    """
    group = shape.tensor // shape.attention_data
    layers = layer_bytes(model, weights)
    split: dict[int, float] = {}
    for layer in layers:
        if id(layer) not in split:
            split[id(layer)] = split_layer(layer, shape, inflation)
    table = table_bytes(model, group)
    rotary = model.max_positions * model.rotary_dim * BYTES_16_BIT
    stages = layers_of_stages(len(layers), shape.pipeline, remainder)
    result = []
    for stage, numbers in enumerate(stages):
        total = rotary + sum(split[id(layers[number])] for number in numbers)
        if stage == 0:
            total += table + model.first_parameters * BYTES_16_BIT
            total += model.vision_parameters * BYTES_16_BIT / group
        if stage == len(stages) - 1:
            total += model.last_parameters * BYTES_16_BIT
            if not (model.tied and stage == 0):
                total += table
        result.append(round(total))
    return tuple(result)


def least_weights(model: Model, weights: WeightPrecision | None, shape: Shape) -> int:
    """Bytes of weights that a GPU of the heaviest stage holds at the very least.

    No constant of an engine is in it: layers are spread in the way that is kindest to the heaviest
    stage, and no format grows when it is loaded.
    """
    return min(max(stage_weights(model, weights, shape, remainder)) for remainder in Remainder)


def parameters(model: Model) -> int:
    """Weights of the language model, as publishers count them: towers and draft layers left out."""
    tables = model.vocabulary * model.hidden * (1 if model.tied else 2)
    layers = sum(
        layer.replicated + sum(part.weights + part.biases for part in matrices(layer, model.hidden))
        for layer in model.layers
    )
    return tables + layers + model.first_parameters + model.last_parameters


def checkpoint_bytes(model: Model, weights: WeightPrecision | None) -> int:
    """Bytes of all weights in one precision, on one GPU of any size, the rotary table left out."""
    return stage_weights(model, weights, Shape(), Remainder.FIRST)[0] - (
        model.max_positions * model.rotary_dim * BYTES_16_BIT
    )
