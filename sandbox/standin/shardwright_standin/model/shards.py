"""How the weights are cut: heads, MLP columns and vocabulary over tensor ranks, layers over stages.

Global rank = stage × tensor + tensor rank, the tensor rank counting fastest; the first layers of an
uneven split go to the first stages. Source: tensorrt_llm/mapping.py (read at 05ebebb2). Names of
the cut tensors are those of TensorRT-LLM checkpoints, with layers counted from 0 in each stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright_standin.model.geometry import Geometry

Weights = Mapping[str, NDArray[np.float32]]


class ShardError(ValueError):
    """The model cannot be cut like this; the message holds both numbers."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: `tensor` × `pipeline` ranks in all."""

    rank: int
    tensor: int
    pipeline: int

    @property
    def world(self) -> int:
        """Ranks in all."""
        return self.tensor * self.pipeline

    @property
    def stage(self) -> int:
        """Pipeline stage, from 0."""
        return self.rank // self.tensor

    @property
    def tensor_rank(self) -> int:
        """Rank among those that share the stage's layers."""
        return self.rank % self.tensor

    @property
    def peers(self) -> tuple[int, ...]:
        """Global ranks of this stage, by tensor rank."""
        first = self.stage * self.tensor
        return tuple(range(first, first + self.tensor))

    @property
    def first_stage(self) -> bool:
        """Whether this rank embeds tokens."""
        return self.stage == 0

    @property
    def last_stage(self) -> bool:
        """Whether this rank computes logits."""
        return self.stage == self.pipeline - 1


def check(shape: Geometry, tensor: int, pipeline: int) -> None:
    """Whether the model can be cut so.

    Raises:
        ShardError: When heads, KV heads or layers do not allow it.
    """
    if tensor < 1 or pipeline < 1:
        raise ShardError(f"tp_size {tensor} and pp_size {pipeline} must be at least 1")
    if shape.heads % tensor:
        raise ShardError(
            f"Number of attention heads {shape.heads} must be divisible by tp_size {tensor}"
        )
    if shape.kv_heads % tensor and tensor % shape.kv_heads:
        raise ShardError(f"KV heads {shape.kv_heads} and tp_size {tensor} do not divide each other")
    if pipeline > shape.layers:
        raise ShardError(f"pp_size {pipeline} exceeds the number of layers {shape.layers}")


def stage_layers(layers: int, pipeline: int, stage: int) -> range:
    """The layers of a stage, counted over the whole model."""
    each, more = divmod(layers, pipeline)
    start = stage * each + min(stage, more)
    return range(start, start + each + (1 if stage < more else 0))


def own_heads(shape: Geometry, place: Place) -> range:
    """The attention heads of a tensor rank."""
    each = shape.heads // place.tensor
    return range(place.tensor_rank * each, (place.tensor_rank + 1) * each)


def own_kv_heads(shape: Geometry, place: Place) -> range:
    """The KV heads a tensor rank needs; with more ranks than KV heads some hold the same one."""
    group = shape.heads // shape.kv_heads
    heads = own_heads(shape, place)
    return range(heads.start // group, (heads.stop - 1) // group + 1)


def cut(weights: Weights, shape: Geometry, place: Place) -> dict[str, NDArray[np.float32]]:
    """One rank's tensors out of the whole model's, by Hugging Face names.

    Raises:
        ShardError: When a tensor is missing or has another shape than the geometry says.
    """
    part = _Cutter(weights, shape, place)
    tensors: dict[str, NDArray[np.float32]] = {}
    if place.first_stage:
        tensors["transformer.vocab_embedding.weight"] = part.whole(
            "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
        )
    own = stage_layers(shape.layers, place.pipeline, place.stage)
    for local, layer in enumerate(own):
        tensors |= part.layer(f"transformer.layers.{local}", f"model.layers.{layer}")
    if place.last_stage:
        tensors["transformer.ln_f.weight"] = part.whole("model.norm.weight", (shape.hidden,))
        rows = shape.vocabulary // place.tensor
        start = place.tensor_rank * rows
        head = part.whole("lm_head.weight", (shape.vocabulary, shape.hidden))
        tensors["lm_head.weight"] = head[start : start + rows]
    return tensors


class _Cutter:
    def __init__(self, weights: Weights, shape: Geometry, place: Place) -> None:
        self.weights, self.shape = weights, shape
        dim = shape.head_dim
        heads, kv_heads = own_heads(shape, place), own_kv_heads(shape, place)
        self.q_rows = slice(heads.start * dim, heads.stop * dim)
        self.kv_rows = slice(kv_heads.start * dim, kv_heads.stop * dim)
        self.mlp = slice(heads.start * shape.mlp_group, heads.stop * shape.mlp_group)

    def whole(self, name: str, expected: tuple[int, ...]) -> NDArray[np.float32]:
        found = self.weights.get(name)
        if found is None:
            raise ShardError(f"the checkpoint has no tensor {name}")
        if found.shape != expected:
            raise ShardError(f"tensor {name} has shape {found.shape}, config.json says {expected}")
        return found

    def layer(self, target: str, source: str) -> dict[str, NDArray[np.float32]]:
        shape = self.shape
        queries = (shape.heads * shape.head_dim, shape.hidden)
        keys = (shape.kv_heads * shape.head_dim, shape.hidden)
        wide = (shape.intermediate, shape.hidden)
        attention, mlp = f"{source}.self_attn", f"{source}.mlp"
        qkv = (
            self.whole(f"{attention}.q_proj.weight", queries)[self.q_rows],
            self.whole(f"{attention}.k_proj.weight", keys)[self.kv_rows],
            self.whole(f"{attention}.v_proj.weight", keys)[self.kv_rows],
        )
        return {
            f"{target}.input_layernorm.weight": self.whole(
                f"{source}.input_layernorm.weight", (shape.hidden,)
            ),
            f"{target}.attention.qkv.weight": np.concatenate(qkv),
            f"{target}.attention.dense.weight": self.whole(
                f"{attention}.o_proj.weight", queries[::-1]
            )[:, self.q_rows],
            f"{target}.post_layernorm.weight": self.whole(
                f"{source}.post_attention_layernorm.weight", (shape.hidden,)
            ),
            f"{target}.mlp.fc.weight": self.whole(f"{mlp}.gate_proj.weight", wide)[self.mlp],
            f"{target}.mlp.gate.weight": self.whole(f"{mlp}.up_proj.weight", wide)[self.mlp],
            f"{target}.mlp.proj.weight": self.whole(f"{mlp}.down_proj.weight", wide[::-1])[
                :, self.mlp
            ],
        }
