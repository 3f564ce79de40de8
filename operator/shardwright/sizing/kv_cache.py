"""What a token and a sequence take in the KV cache of one GPU of every stage.

vLLM pools models with several kinds of layers in groups of equally many layer slots
(`get_kv_cache_groups`): with 10 full and 52 sliding layers a token takes 10 × (1 + 6) = 70 slots.
Window layers save nothing before `window − 1 + tokens of one forward pass`, because a whole chunk
is written before old tokens are dropped (`SlidingWindowSpec`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from shardwright.api.serving import KVPrecision
from shardwright.sizing.model import Attention, AttentionKind, Model
from shardwright.sizing.partition import Remainder, layers_of_stages
from shardwright.sizing.shape import Shape
from shardwright.sizing.weights import BYTES_16_BIT, kv_heads_of_rank

_BYTES: dict[KVPrecision, int] = {
    KVPrecision.NONE: BYTES_16_BIT,
    KVPrecision.FP8: 1,
    KVPrecision.INT8: 1,
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a runtime pools the cache.

    Attributes:
        block: Tokens of one block.
        grouped: Whether layers of different kinds share one pool in equal groups, as vLLM does.
        ratio: Up to this ratio between the largest and the smallest kind, groups take the size of
            the largest.
    """

    block: int
    grouped: bool
    ratio: float


@dataclass(frozen=True, slots=True)
class Kind:
    """Layers of one stage that keep the same number of tokens.

    Attributes:
        window: Tokens looked back at; 0 for all.
        token_bytes: Bytes of one token in all layer slots of the kind, padding slots included.
        state_bytes: Bytes of a sequence's state, whatever its length.
    """

    window: int
    token_bytes: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class StageCache:
    """The KV cache of one GPU of a stage.

    Attributes:
        token_bytes: Bytes of one token while every layer keeps it.
        kinds: The stage's layers by what they keep.
        block: Tokens of one block.
    """

    token_bytes: int
    kinds: tuple[Kind, ...]
    block: int

    def tokens(self, pool: int) -> int:
        """Tokens that a pool of so many bytes holds, in whole blocks."""
        if pool <= 0 or not self.token_bytes:
            return 0
        return pool // (self.token_bytes * self.block) * self.block

    def sequence_bytes(self, length: int, chunk: int) -> int:
        """Bytes of one sequence of `length` tokens that is read `chunk` tokens at a time."""
        total = 0
        for kind in self.kinds:
            total += kind.state_bytes
            if not kind.token_bytes:
                continue
            blocks = -(-length // self.block)
            if kind.window:
                kept = -(-min(length, kind.window - 1 + chunk) // self.block) + 1
                blocks = min(blocks, kept)
            total += blocks * self.block * kind.token_bytes
        return total


@dataclass(frozen=True, slots=True)
class _Page:
    """What one layer stores: bytes of a token on one rank, or of a sequence's state."""

    kind: AttentionKind
    window: int
    token_bytes: int
    state_bytes: int


def token_bytes(attention: Attention, precision: KVPrecision, tensor: int) -> int:
    """Bytes of one token in one layer on one of `tensor` ranks.

    MLA's entry is the same on every rank: it is not divided.
    """
    size = _BYTES[precision]
    if attention.latent:
        return (attention.kv_lora_rank + attention.rope_dim) * size
    if attention.kind is AttentionKind.LINEAR:
        return 0
    values = attention.value_dim or attention.head_dim
    return kv_heads_of_rank(attention.kv_heads, tensor) * (attention.head_dim + values) * size


def _page(attention: Attention, precision: KVPrecision, tensor: int) -> _Page:
    state = -(-attention.state_bytes // tensor)
    return _Page(
        kind=attention.kind,
        window=attention.window if attention.kind is AttentionKind.SLIDING else 0,
        token_bytes=token_bytes(attention, precision, tensor),
        state_bytes=state,
    )


@functools.lru_cache(maxsize=65536)
def stage_caches(
    model: Model, precision: KVPrecision, shape: Shape, remainder: Remainder, pooling: Pooling
) -> tuple[StageCache, ...]:
    """The cache of one GPU of every stage.

    Attention is split over the ranks of one attention group; the groups hold different sequences.
    """
    ranks = shape.tensor // shape.attention_data
    pages: list[tuple[int, _Page]] = []
    known: dict[Attention, _Page] = {}
    for number, layer in enumerate(model.layers):
        attention = layer.attention
        page = known.get(attention) or _page(attention, precision, ranks)
        known[attention] = page
        if page.token_bytes or page.state_bytes:
            pages.append((number, page))
    stages = layers_of_stages(len(model.layers), shape.pipeline, remainder)
    if pooling.grouped and len({page for _, page in pages}) > 1:
        return tuple(_grouped(pages, numbers, pooling) for numbers in stages)
    return tuple(_plain(pages, numbers, pooling) for numbers in stages)


def _plain(pages: list[tuple[int, _Page]], numbers: range, pooling: Pooling) -> StageCache:
    """Every layer takes what it stores."""
    counts: dict[_Page, int] = {}
    for number, page in pages:
        if number in numbers:
            counts[page] = counts.get(page, 0) + 1
    return StageCache(
        token_bytes=sum(page.token_bytes * count for page, count in counts.items()),
        kinds=tuple(
            Kind(page.window, page.token_bytes * count, page.state_bytes * count)
            for page, count in counts.items()
        ),
        block=pooling.block,
    )


def _grouped(pages: list[tuple[int, _Page]], numbers: range, pooling: Pooling) -> StageCache:
    """Groups as vLLM makes them: one page size, equal slots, every n-th layer to a group.

    A stage has as many slots as its fullest group has layers there.
    """
    layers: dict[_Page, list[int]] = {}
    for number, page in pages:
        layers.setdefault(page, []).append(number)
    smallest = min(map(len, layers.values()))
    largest = max(map(len, layers.values()))
    size = largest if largest < smallest * pooling.ratio else smallest
    groups = [
        (page, [number for number in members[first::count] if number in numbers])
        for page, members in layers.items()
        for count in (-(-len(members) // size),)
        for first in range(count)
    ]
    slots = max(len(members) for _, members in groups)
    token = max(page.token_bytes for page in layers)
    state = max(page.state_bytes for page in layers)
    # A page holds a block of tokens or one state: blocks grow until the largest state fits.
    block = pooling.block
    if state and token:
        block = max(block, math.ceil(state / token / block) * block)
    kinds = tuple(
        Kind(page.window, slots * token, 0)
        if page.token_bytes
        else Kind(0, 0, slots * (token * block or state))
        for page, _ in groups
    )
    return StageCache(token_bytes=len(groups) * slots * token, kinds=kinds, block=block)
