"""Blocks of weights that share a scale: a rank's part of a matrix must be whole blocks.

Block-wise FP8 (DeepSeek-V3: one scale for 128 × 128 weights) has no scale for half a block, so that
engines refuse such a split when they load it: vLLM's `validate_block_quant_shapes`, and the same
check of its experts (vllm-project/vllm#17569: Qwen3-235B-A22B-FP8 over 8 ranks, 192 of 1,536).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from shardwright.runtimes.base import Refusal
from shardwright.sizing.heads import bad_heads
from shardwright.sizing.model import AttentionKind, Model
from shardwright.sizing.modules import Split, matrices
from shardwright.sizing.shape import Precision, Shape
from shardwright.sizing.weights import as_stored, kept_in_16_bit, kv_heads_of_rank

_NUMBER = re.compile(r"\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Side:
    """The side of a matrix that ranks cut.

    Attributes:
        name: The matrix below its layer, `mlp.experts.gate_proj`.
        size: Elements of this side; of one expert.
        block: Elements of it that a block spans.
        split: How the ranks share it.
        kv_heads: Whole heads that are shared, where `split` is by them.
    """

    name: str
    size: int
    block: int
    split: Split
    kv_heads: int

    def part(self, shape: Shape) -> int:
        """Elements of a rank, rounded down."""
        group = shape.tensor // shape.attention_data
        if self.split is Split.KV_HEADS:
            return kv_heads_of_rank(self.kv_heads, group) * (self.size // self.kv_heads)
        ranks = shape.tensor // shape.expert if self.split is Split.EXPERTS else group
        return self.size // ranks

    def torn(self, shape: Shape) -> bool:
        """Whether a rank's part ends inside a block; a side that is not cut never does."""
        part = self.part(shape)
        return part != self.size and part % self.block != 0


def torn_side(model: Model, shape: Shape) -> Side | None:
    """The first side whose blocks this split tears; None where all stay whole."""
    return next((side for side in _sides(model) if side.torn(shape)), None)


@functools.lru_cache(maxsize=256)
def _sides(model: Model) -> tuple[Side, ...]:
    """Every side that may be cut of the matrices that are stored in blocks, once each."""
    outputs, inputs = model.checkpoint.block
    if not (outputs and inputs):
        return ()
    kept = kept_in_16_bit(model)
    found: dict[Side, None] = {}
    for number, layer in enumerate(model.layers):
        # A linear layer's projections have no geometry here, only their number of weights.
        linear = layer.attention.kind is AttentionKind.LINEAR
        for part in matrices(layer, model.hidden):
            known = not (linear and part.path.startswith("linear_attn"))
            if part.split is Split.WHOLE or kept(part, f"layers.{number}.{part.path}") or not known:
                continue
            side = Side(
                name=_NUMBER.sub("", part.path),
                size=part.inputs if part.by_inputs else part.outputs,
                block=inputs if part.by_inputs else outputs,
                split=part.split,
                kv_heads=layer.attention.kv_heads if part.split is Split.KV_HEADS else 0,
            )
            found[side] = None
    return tuple(found)


def block_refusal(model: Model, precision: Precision, shape: Shape) -> Refusal | None:
    """What a block-wise checkpoint says against a split, whatever the runtime and the GPUs."""
    if not as_stored(model, precision.weights):
        return None
    return _block_refusal(model, shape.tensor, shape.expert, shape.attention_data)


@functools.lru_cache(maxsize=4096)
def _block_refusal(model: Model, tensor: int, expert: int, data: int) -> Refusal | None:
    shape = Shape(tensor, 1, expert, data)
    side = torn_side(model, shape)
    if side is None:
        return None
    fit = next(
        size
        for size in range(tensor - 1, 0, -1)
        if tensor % size == 0
        and not bad_heads(model, size)
        and torn_side(model, Shape(size)) is None
    )
    return Refusal(
        "QuantizationBlockSplit",
        f"tensor {tensor} leaves {side.part(shape)} of {side.name}'s {side.size} to a rank, no "
        f"multiple of the {side.block} that share a scale in the checkpoint's blocks "
        f"({'×'.join(map(str, model.checkpoint.block))}): half a block has no scale; use tensor "
        f"{fit}, or the model's 16-bit original",
    )
