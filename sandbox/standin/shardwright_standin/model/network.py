"""One rank's share of the transformer, and what it says to the other ranks meanwhile.

Tensor-parallel: each rank holds some heads, MLP columns and vocabulary rows; the two row-parallel
products of a layer are added over the stage's ranks (all-reduce), the logits are joined
(all-gather). Pipeline-parallel: the activations go on to the rank of the next stage with the same
tensor rank. RMSNorm, rotary positions (pairs half a head apart), grouped-query attention and a
gated SiLU MLP as in Llama.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardwright_standin.model.geometry import Geometry
from shardwright_standin.model.order import Array, project, tree_sum
from shardwright_standin.model.shards import Place, Weights, own_heads, own_kv_heads, stage_layers

# New tokens of which attention's scores are held at once, each by as many as were before it.
_TURN = 64


class Neighbours(Protocol):
    """What a rank needs of the others; rows are (tokens, hidden), float64."""

    def gather(self, rows: Array) -> list[Array]:
        """The arrays of all tensor ranks of this stage, in rank order."""

    def forward(self, rows: Array) -> None:
        """Hand activations to the next stage."""

    def previous(self) -> Array:
        """Take activations from the stage before."""


@dataclass(frozen=True, slots=True)
class Feed:
    """New tokens of one sequence; `position` is the first one's, `adapter` empty for none.

    `every` asks for the logits of each of these tokens, not of the last alone.
    """

    sequence: int
    tokens: tuple[int, ...]
    position: int
    adapter: str = ""
    every: bool = False

    @property
    def rows(self) -> int:
        """How many rows of logits it asks for."""
        return len(self.tokens) if self.every else 1


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Array  # (hidden)
    query: Array  # (hidden, own heads × head_dim)
    key: Array  # (hidden, own KV heads × head_dim)
    value: Array
    output: Array  # (own heads, head_dim, hidden)
    post_norm: Array
    gate: Array  # (hidden, own columns)
    up: Array
    down: Array  # (own heads, mlp_group, hidden)


@dataclass(slots=True)
class _Cache:
    """Keys and values of one sequence: per layer (own KV heads, tokens so far, head_dim)."""

    keys: list[Array]
    values: list[Array]


@dataclass(slots=True)
class Shard:
    """One rank, ready to compute."""

    shape: Geometry
    place: Place
    layers: list[_Layer]
    embedding: Array | None
    final_norm: Array | None
    head: Array | None  # (hidden, own vocabulary rows)
    weights: Weights = field(default_factory=dict)
    _caches: dict[int, _Cache] = field(default_factory=dict)

    @classmethod
    def load(cls, shape: Geometry, place: Place, weights: Weights) -> Shard:
        """From a rank's tensors by their TensorRT-LLM names, as `shards.cut` makes them.

        Raises:
            KeyError: When a tensor of this rank is missing.
        """
        own = {name: value.astype(np.float64) for name, value in weights.items()}
        count = len(stage_layers(shape.layers, place.pipeline, place.stage))
        return cls(
            shape=shape,
            place=place,
            layers=[_layer(shape, place, own, index) for index in range(count)],
            embedding=own["transformer.vocab_embedding.weight"] if place.first_stage else None,
            final_norm=own["transformer.ln_f.weight"] if place.last_stage else None,
            head=_turned(own["lm_head.weight"]) if place.last_stage else None,
            weights=weights,
        )

    def forget(self, sequence: int) -> None:
        """Drop a sequence's keys and values."""
        self._caches.pop(sequence, None)

    def step(self, feeds: Sequence[Feed], near: Neighbours) -> Array | None:
        """Run new tokens through this rank's layers.

        Returns:
            Logits (rows, vocabulary) on the last stage's ranks, `Feed.rows` of each sequence in the
            order of `feeds`; None on the others.
        """
        if self.embedding is None:
            rows = near.previous()
        else:
            rows = self.embedding[[token for feed in feeds for token in feed.tokens]]
        for index, layer in enumerate(self.layers):
            normed = _norm(rows, layer.input_norm, self.shape.norm_epsilon)
            attended = self._attend(index, layer, normed, feeds)
            rows = rows + tree_sum(near.gather(attended))
            normed = _norm(rows, layer.post_norm, self.shape.norm_epsilon)
            rows = rows + tree_sum(near.gather(self._widen(layer, normed)))
        if self.head is None or self.final_norm is None:
            near.forward(rows)
            return None
        normed = _norm(rows[_asked(feeds)], self.final_norm, self.shape.norm_epsilon)
        return np.concatenate(near.gather(project(normed, self.head)), axis=1)

    def _attend(self, index: int, layer: _Layer, rows: Array, feeds: Sequence[Feed]) -> Array:
        """This rank's part of the attention's output, before the sum over ranks."""
        parts: list[Array] = []
        start = 0
        for feed in feeds:
            stop = start + len(feed.tokens)
            parts.append(self._attend_one(index, layer, rows[start:stop], feed))
            start = stop
        return np.concatenate(parts)

    def _attend_one(self, index: int, layer: _Layer, rows: Array, feed: Feed) -> Array:
        shape, cache = self.shape, self._cache(feed.sequence)
        positions = np.arange(feed.position, feed.position + len(feed.tokens))
        key = _rotate(self._by_head(project(rows, layer.key)), positions, shape.rope_theta)
        cache.keys[index] = np.concatenate((cache.keys[index], key), axis=1)
        value = self._by_head(project(rows, layer.value))
        cache.values[index] = np.concatenate((cache.values[index], value), axis=1)
        query = _rotate(self._by_head(project(rows, layer.query)), positions, shape.rope_theta)
        group = shape.heads // shape.kv_heads
        first = own_kv_heads(shape, self.place).start
        kv_heads = [head // group - first for head in own_heads(shape, self.place)]
        mixed = _mix(query, cache.keys[index][kv_heads], cache.values[index][kv_heads], positions)
        return tree_sum(list(project(mixed, layer.output)))

    def _widen(self, layer: _Layer, rows: Array) -> Array:
        """This rank's part of the MLP's output, before the sum over ranks."""
        gate = project(rows, layer.gate)
        active = gate / (1.0 + np.exp(-gate)) * project(rows, layer.up)
        grouped = active.reshape(len(rows), -1, self.shape.mlp_group).swapaxes(0, 1)
        return tree_sum(list(project(grouped, layer.down)))

    def _by_head(self, rows: Array) -> Array:
        """(tokens, heads × head_dim) as (heads, tokens, head_dim)."""
        return rows.reshape(len(rows), -1, self.shape.head_dim).swapaxes(0, 1)

    def _cache(self, sequence: int) -> _Cache:
        cache = self._caches.get(sequence)
        if cache is None:
            kv_heads = len(own_kv_heads(self.shape, self.place))
            empty = np.zeros((kv_heads, 0, self.shape.head_dim))
            cache = _Cache(keys=[empty] * len(self.layers), values=[empty] * len(self.layers))
            self._caches[sequence] = cache
        return cache


class Alone:
    """The neighbours of the only rank."""

    def gather(self, rows: Array) -> list[Array]:
        """There is one array."""
        return [rows]

    def forward(self, rows: Array) -> None:
        """There is no next stage.

        Raises:
            RuntimeError: Always: a single rank is first and last stage.
        """
        raise RuntimeError(f"a single rank has no next stage for {rows.shape[0]} rows")

    def previous(self) -> Array:
        """There is no stage before.

        Raises:
            RuntimeError: Always: a single rank is first and last stage.
        """
        raise RuntimeError("a single rank has no stage before it")


def generate(shard: Shard, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy decoding on a whole model: the reference that split models are compared with."""
    tokens: list[int] = []
    feed = Feed(0, tuple(prompt), 0)
    while len(tokens) < count:
        logits = shard.step((feed,), Alone())
        if logits is None:
            raise RuntimeError("generate needs a shard that is first and last stage")
        token = greedy(logits)[0]
        tokens.append(token)
        if token == shard.shape.eos:
            break
        feed = Feed(0, (token,), len(prompt) + len(tokens) - 1)
    shard.forget(0)
    return tokens


def greedy(logits: Array) -> list[int]:
    """The likeliest token of each row, the lowest of equals."""
    return [int(token) for token in np.argmax(logits, axis=1)]


def _asked(feeds: Sequence[Feed]) -> NDArray[np.int64]:
    """Which rows of an iteration have logits."""
    ends = np.cumsum([len(feed.tokens) for feed in feeds])
    spans = zip(ends, feeds, strict=True)
    return np.concatenate([np.arange(end - feed.rows, end) for end, feed in spans])


def _mix(query: Array, keys: Array, values: Array, positions: NDArray[np.int64]) -> Array:
    """Causal softmax attention: (heads, new tokens, head_dim), in turns of `_TURN` new tokens.

    What a token may not see is left out behind the last that it sees, or has weight 0: neither
    changes a sum that runs in index order.
    """
    turns = [slice(at, at + _TURN) for at in range(0, len(positions), _TURN)]
    parts = []
    for turn in turns:
        seen = int(positions[turn][-1]) + 1
        parts.append(_mix_some(query[:, turn], keys[:, :seen], values[:, :seen], positions[turn]))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _mix_some(query: Array, keys: Array, values: Array, positions: NDArray[np.int64]) -> Array:
    length = keys.shape[1]
    turned = keys.swapaxes(1, 2)
    if length == 1:  # one column is summed in another order, so give it a neighbour
        turned = np.concatenate((turned, np.zeros_like(turned)), axis=2)
    scores = project(query, turned)[:, :, :length] / np.sqrt(query.shape[2])
    scores[:, np.arange(length)[None, :] > positions[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    # The ones give the sum of the weights in the same order as the weighted values.
    ones = np.ones((*values.shape[:2], 1))
    summed = project(weights, np.concatenate((values, ones), axis=2))
    return summed[:, :, :-1] / summed[:, :, -1:]


def _norm(rows: Array, scale: Array, epsilon: float) -> Array:
    normed: Array = rows / np.sqrt(np.mean(rows * rows, axis=1, keepdims=True) + epsilon) * scale
    return normed


def _rotate(heads: Array, positions: NDArray[np.int64], theta: float) -> Array:
    half = heads.shape[2] // 2
    frequencies = theta ** (-np.arange(half) / half)
    angles = positions[:, None] * frequencies[None, :]
    cosine, sine = np.cos(angles), np.sin(angles)
    left, right = heads[:, :, :half], heads[:, :, half:]
    return np.concatenate((left * cosine - right * sine, right * cosine + left * sine), axis=2)


def _turned(weight: Array) -> Array:
    """A weight (out, in) as (in, out)."""
    return np.ascontiguousarray(weight.T)


def _layer(shape: Geometry, place: Place, own: dict[str, Array], index: int) -> _Layer:
    name = f"transformer.layers.{index}"
    heads = len(own_heads(shape, place)) * shape.head_dim
    keys = heads + len(own_kv_heads(shape, place)) * shape.head_dim
    qkv = own[f"{name}.attention.qkv.weight"]
    return _Layer(
        input_norm=own[f"{name}.input_layernorm.weight"],
        query=_turned(qkv[:heads]),
        key=_turned(qkv[heads:keys]),
        value=_turned(qkv[keys:]),
        output=_turned(own[f"{name}.attention.dense.weight"]).reshape(
            -1, shape.head_dim, shape.hidden
        ),
        post_norm=own[f"{name}.post_layernorm.weight"],
        gate=_turned(own[f"{name}.mlp.fc.weight"]),
        up=_turned(own[f"{name}.mlp.gate.weight"]),
        down=_turned(own[f"{name}.mlp.proj.weight"]).reshape(-1, shape.mlp_group, shape.hidden),
    )
