"""The matrices of one layer: their names, sizes, and how tensor and expert parallelism split them.

Sizes after the reference implementations of the families in Hugging Face transformers; the splits
are those of vLLM's and TensorRT-LLM's parallel linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from shardwright.sizing.model import Attention, AttentionKind, FeedForward, Layer


class Split(StrEnum):
    """How the ranks of a stage share a matrix."""

    RANKS = "Ranks"  # equal parts over the ranks of one attention group
    KV_HEADS = "KVHeads"  # whole heads: repeated once there are more ranks than heads
    EXPERTS = "Experts"  # over all ranks of the stage, by experts or inside each expert
    WHOLE = "Whole"  # every rank holds all of it


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix, or the matrices of one kind of all experts.

    Attributes:
        path: Module's name below its layer.
        inputs: Elements in.
        outputs: Elements out.
        split: How the ranks share it.
        bias: Whether it has one, of `outputs` elements, always in 16 bits.
        copies: Experts; 1 otherwise.
        by_inputs: Whether ranks share the inputs (row-parallel) rather than the outputs.
        quantizable: False for routers, which every tool leaves in 16 bits.
    """

    path: str
    inputs: int
    outputs: int
    split: Split
    bias: bool = False
    copies: int = 1
    by_inputs: bool = False
    quantizable: bool = True

    @property
    def weights(self) -> int:
        """Elements without biases."""
        return self.copies * self.inputs * self.outputs

    @property
    def biases(self) -> int:
        """Elements of biases."""
        return self.copies * self.outputs if self.bias else 0


def matrices(layer: Layer, hidden: int) -> Iterator[Matrix]:
    """Every matrix of a layer; norms and the like are `Layer.replicated`."""
    yield from _attention(layer.attention, hidden)
    yield from _feed_forward(layer.feed_forward, hidden)


def _attention(attention: Attention, hidden: int) -> Iterator[Matrix]:
    if attention.kind is AttentionKind.LINEAR:
        if attention.parameters:
            yield Matrix("linear_attn.in_proj", attention.parameters, 1, Split.RANKS)
        return
    if attention.latent:
        yield from _latent(attention, hidden)
        return
    queries = attention.heads * attention.head_dim * (2 if attention.output_gate else 1)
    keys = attention.kv_heads * attention.head_dim
    values = attention.kv_heads * attention.value_dim
    bias = attention.bias
    yield Matrix("self_attn.q_proj", hidden, queries, Split.RANKS, bias)
    yield Matrix("self_attn.k_proj", hidden, keys, Split.KV_HEADS, bias)
    yield Matrix("self_attn.v_proj", hidden, values, Split.KV_HEADS, bias)
    yield _output(attention, hidden)


def _output(attention: Attention, hidden: int) -> Matrix:
    width = attention.heads * attention.value_dim
    bias = attention.output_bias
    return Matrix("self_attn.o_proj", width, hidden, Split.RANKS, bias, by_inputs=True)


def _latent(attention: Attention, hidden: int) -> Iterator[Matrix]:
    """MLA: the down-projections are whole on every rank, the rest is split by heads."""
    queries = attention.heads * attention.head_dim
    if attention.q_lora_rank:
        rank = attention.q_lora_rank
        yield Matrix("self_attn.q_a_proj", hidden, rank, Split.WHOLE)
        yield Matrix("self_attn.q_b_proj", rank, queries, Split.RANKS)
    else:
        yield Matrix("self_attn.q_proj", hidden, queries, Split.RANKS)
    compressed = attention.kv_lora_rank + attention.rope_dim
    yield Matrix("self_attn.kv_a_proj_with_mqa", hidden, compressed, Split.WHOLE)
    expanded = attention.heads * (attention.head_dim - attention.rope_dim + attention.value_dim)
    yield Matrix("self_attn.kv_b_proj", attention.kv_lora_rank, expanded, Split.RANKS)
    yield _output(attention, hidden)


def _feed_forward(block: FeedForward, hidden: int) -> Iterator[Matrix]:
    if not block.experts:
        if block.width:
            yield from _block("mlp", block, block.width, hidden, 1)
        return
    yield Matrix("mlp.gate", hidden, block.experts, Split.WHOLE, block.bias, quantizable=False)
    yield from _block("mlp.experts.0", block, block.width, hidden, block.experts)
    if block.shared_width:
        yield from _block("mlp.shared_experts", block, block.shared_width, hidden, 1)


def _block(path: str, block: FeedForward, width: int, hidden: int, copies: int) -> Iterator[Matrix]:
    """Gate, up and down of one block, or of `copies` experts of the same size."""
    split = Split.EXPERTS if "experts." in path else Split.RANKS
    names = ("gate_proj", "up_proj") if block.gated else ("up_proj",)
    for name in names:
        yield Matrix(f"{path}.{name}", hidden, width, split, block.bias, copies)
    yield Matrix(f"{path}.down_proj", width, hidden, split, block.bias, copies, by_inputs=True)
