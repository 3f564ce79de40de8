"""How likely the model finds each token of a text, by the logits of the tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright_standin.model.network import Alone, Feed, Shard
from shardwright_standin.model.order import Array

# A token's log probability in nats, and the likeliest tokens in its place with theirs.
Score = tuple[float, list[tuple[int, float]]]


def log_softmax(logits: Array) -> Array:
    """Log probabilities in nats of logits (rows, vocabulary), in float64."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def scores(logits: Array, targets: Sequence[int], top: int) -> list[Score]:
    """What each row of logits says of the token that came next.

    Args:
        logits: (tokens, vocabulary).
        targets: The token that came after each.
        top: How many of the likeliest to tell; of equals the lower token comes first, as in
            `network.greedy`.
    """
    found = log_softmax(logits)
    order = np.argsort(-found, axis=1, kind="stable")[:, :top]
    return [
        (float(row[target]), [(int(token), float(row[token])) for token in likeliest])
        for row, target, likeliest in zip(found, targets, order, strict=True)
    ]


def log_probabilities(shard: Shard, tokens: Sequence[int]) -> list[float]:
    """Of each token but the first, by a whole model that is given them one at a time.

    The reference that split models are compared with, as `network.generate` is for tokens.
    """
    found = []
    for position, token in enumerate(tokens[:-1]):
        logits = shard.step((Feed(0, (token,), position),), Alone())
        if logits is None:
            raise RuntimeError("a reference needs a shard that is first and last stage")
        found.append(float(log_softmax(logits)[0, tokens[position + 1]]))
    shard.forget(0)
    return found
