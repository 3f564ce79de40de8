"""What one GPU of a stage reads and computes for a token: the sums that the estimates rest on.

Geometry, splits and stored bits are those of the memory model (`modules`, `weights`); here they
are counted as multiplications and as bytes that a pass reads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from shardwright.api.serving import WeightPrecision
from shardwright.sizing.model import AttentionKind, Layer, Model
from shardwright.sizing.modules import Split, matrices
from shardwright.sizing.shape import Shape
from shardwright.sizing.weights import layer_bytes, split_layer, table_bytes


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Attention layers of one stage that look back equally far.

    Attributes:
        window: Tokens looked back at; 0 for all.
        layers: How many there are.
        prefill: Multiply-adds of one query-key pair on one rank, while a prompt is read.
        decode: The same while decoding; MLA then works on compressed entries for all heads.
    """

    window: int
    layers: int
    prefill: float
    decode: float

    def seen(self, context: float) -> float:
        """Tokens that a query at the end of `context` looks at."""
        return min(context, self.window) if self.window else context

    def pairs(self, tokens: int) -> float:
        """Query-key pairs of a prompt: every token with itself and those before it."""
        if not self.window or tokens <= self.window:
            return tokens * (tokens + 1) / 2
        return self.window * (self.window + 1) / 2 + (tokens - self.window) * self.window


@dataclass(frozen=True, slots=True)
class StageWork:
    """One GPU of a stage.

    Attributes:
        layers: Layers of the stage.
        moe_layers: Those of them with routed experts.
        dense_bytes: Weights that every pass reads, the output head included.
        dense_macs: Multiply-adds of one token of the GPU's own attention group.
        expert_bytes: Weights of all routed experts on this GPU.
        expert_macs: Multiply-adds in experts of one token of the stage, in the mean over its GPUs.
        head_macs: Multiply-adds of the output head for one token; 0 before the last stage.
        attention: The stage's attention layers by window.
        experts: Routed experts of a layer.
        active: Experts that a token goes through.
    """

    layers: int
    moe_layers: int
    dense_bytes: float
    dense_macs: float
    expert_bytes: float
    expert_macs: float
    head_macs: float
    attention: tuple[AttentionWork, ...]
    experts: int
    active: int

    def touched(self, tokens: float) -> float:
        """Share of the experts that a pass of so many tokens goes through, if all are as likely."""
        if not self.experts:
            return 0.0
        return 1.0 - float((1 - self.active / self.experts) ** tokens)

    def cache_share(self, context: float) -> float:
        """Part of a sequence's entries that a step reads, windows counted; 1 without windows."""
        layers = sum(kind.layers for kind in self.attention)
        if not layers or not context:
            return 1.0
        return sum(kind.seen(context) * kind.layers for kind in self.attention) / context / layers


@dataclass(frozen=True, slots=True)
class _LayerWork:
    dense_bytes: float
    dense_macs: float
    expert_bytes: float
    expert_macs: float
    window: int
    attends: bool
    prefill: float
    decode: float
    experts: int
    active: int


@functools.lru_cache(maxsize=65536)
def stages_work(
    model: Model, weights: WeightPrecision | None, shape: Shape, layers: tuple[int, ...]
) -> tuple[StageWork, ...]:
    """Every stage's work on one GPU.

    Args:
        model: The model.
        weights: Precision of the weights; None is the checkpoint's own.
        shape: How a replica is split.
        layers: Layers of every stage, as the memory plan counts them.
    """
    group = shape.tensor // shape.attention_data
    stored = layer_bytes(model, weights)
    known: dict[tuple[Layer, int], _LayerWork] = {}
    every = []
    for layer, size in zip(model.layers, stored, strict=True):
        key = (layer, id(size))
        if key not in known:
            resident = split_layer(size, shape)
            experts = size.experts / shape.tensor if size.expert_count else 0.0
            known[key] = _layer_work(model, layer, shape, resident, min(experts, resident))
        every.append(known[key])
    table = table_bytes(model, group)
    result = []
    start = 0
    for number, count in enumerate(layers):
        last = number == len(layers) - 1
        result.append(
            _stage(
                every[start : start + count],
                head_bytes=table if last else 0,
                head_macs=model.vocabulary * model.hidden / group if last else 0.0,
            )
        )
        start += count
    return tuple(result)


def _layer_work(
    model: Model, layer: Layer, shape: Shape, resident: float, experts: float
) -> _LayerWork:
    group = shape.tensor // shape.attention_data
    attention, block = layer.attention, layer.feed_forward
    dense = routed = 0.0
    for part in matrices(layer, model.hidden):
        if part.split is Split.EXPERTS:
            routed += part.weights
        elif part.split is Split.WHOLE:
            dense += part.weights
        else:
            dense += part.weights / group
    heads = attention.heads / group
    prefill = heads * (attention.head_dim + (attention.value_dim or attention.head_dim))
    decode = prefill
    if attention.latent:
        decode = heads * (2 * attention.kv_lora_rank + attention.rope_dim)
    active = routed * block.active / block.experts / shape.tensor if block.experts else 0.0
    return _LayerWork(
        dense_bytes=resident - experts,
        dense_macs=dense,
        expert_bytes=experts,
        expert_macs=active,
        window=attention.window if attention.kind is AttentionKind.SLIDING else 0,
        attends=attention.kind is not AttentionKind.LINEAR,
        prefill=prefill,
        decode=decode,
        experts=block.experts,
        active=block.active,
    )


def _stage(layers: list[_LayerWork], *, head_bytes: float, head_macs: float) -> StageWork:
    routed = [layer for layer in layers if layer.experts]
    windows = sorted({layer.window for layer in layers if layer.attends})
    kinds = []
    for window in windows:
        alike = [layer for layer in layers if layer.attends and layer.window == window]
        kinds.append(
            AttentionWork(
                window=window,
                layers=len(alike),
                prefill=sum(layer.prefill for layer in alike),
                decode=sum(layer.decode for layer in alike),
            )
        )
    return StageWork(
        layers=len(layers),
        moe_layers=len(routed),
        dense_bytes=sum(layer.dense_bytes for layer in layers) + head_bytes,
        dense_macs=sum(layer.dense_macs for layer in layers),
        expert_bytes=sum(layer.expert_bytes for layer in layers),
        expert_macs=sum(layer.expert_macs for layer in layers),
        head_macs=head_macs,
        attention=tuple(kinds),
        experts=routed[0].experts if routed else 0,
        active=routed[0].active if routed else 0,
    )
