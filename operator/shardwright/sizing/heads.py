"""Which numbers of ranks share a model's attention heads evenly."""

from __future__ import annotations

import functools

from shardwright.runtimes.base import Refusal
from shardwright.sizing.model import AttentionKind, Model
from shardwright.words import counted


@functools.lru_cache(maxsize=4096)
def heads_refusal(model: Model, ranks: int) -> Refusal | None:
    """Why so many ranks cannot share the heads evenly, and how many can."""
    bad = bad_heads(model, ranks)
    if not bad:
        return None
    heads, kv_heads = bad
    good = [size for size in range(1, heads + 1) if not bad_heads(model, size)]
    smaller = [size for size in good if size < ranks][-1:]
    larger = [size for size in good if size > ranks][:1]
    offer = " or ".join(str(size) for size in [*larger, *smaller])
    return Refusal(
        "HeadsNotDivisible",
        f"tensor {ranks} does not share {counted(heads, 'attention head')} and "
        f"{counted(kv_heads, 'KV head')} evenly; use {offer}",
    )


def bad_heads(model: Model, ranks: int) -> tuple[int, int] | None:
    """The heads and KV heads of a layer that the ranks cannot share; None where they can."""
    for heads, kv_heads, latent in _head_counts(model):
        if heads % ranks or (not latent and kv_heads % ranks and ranks % kv_heads):
            return heads, kv_heads
    return None


@functools.lru_cache(maxsize=256)
def _head_counts(model: Model) -> frozenset[tuple[int, int, bool]]:
    return frozenset(
        (layer.attention.heads, layer.attention.kv_heads, layer.attention.latent)
        for layer in model.layers
        if layer.attention.kind is not AttentionKind.LINEAR and layer.attention.kv_heads
    )
