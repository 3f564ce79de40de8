"""What ranks send each other through, and the transport inside one process.

Tags keep kinds of messages apart; messages of one sender and tag arrive in order.
"""

from __future__ import annotations

import queue
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np

from shardwright_standin.model.order import Array
from shardwright_standin.model.shards import Place


class Tag(IntEnum):
    """Kinds of messages."""

    ORDER = 1  # rank 0 to all: what to do next
    ANSWER = 2  # a rank to rank 0: how loading went
    TOKENS = 3  # the last stage to rank 0
    REDUCE = 4  # partial sums and logits inside a stage
    FORWARD = 5  # activations to the next stage


class LostPeerError(ConnectionError):
    """Another rank is gone."""


class Transport(Protocol):
    """Reliable ordered messages between `size` ranks."""

    rank: int
    size: int

    def send(self, peer: int, tag: Tag, data: bytes) -> None:
        """Send to a rank; returns once the data may be reused."""

    def receive(self, peer: int, tag: Tag) -> bytes:
        """Wait for the next message of a rank and tag.

        Raises:
            LostPeerError: When that rank is gone.
        """

    def close(self) -> None:
        """Leave the group."""


class InProcess:
    """One rank of a group that lives in the threads of one process."""

    def __init__(
        self, rank: int, boxes: dict[tuple[int, int, Tag], queue.SimpleQueue[bytes]]
    ) -> None:
        self.rank = rank
        self._boxes = boxes
        self.size = 1 + max(receiver for _, receiver, _ in boxes)

    @classmethod
    def group(cls, size: int) -> list[InProcess]:
        """All ranks of a group."""
        boxes: dict[tuple[int, int, Tag], queue.SimpleQueue[bytes]] = {
            (sender, receiver, tag): queue.SimpleQueue()
            for sender in range(size)
            for receiver in range(size)
            for tag in Tag
        }
        return [cls(rank, boxes) for rank in range(size)]

    def send(self, peer: int, tag: Tag, data: bytes) -> None:
        """Put into the receiver's box."""
        self._boxes[self.rank, peer, tag].put(data)

    def receive(self, peer: int, tag: Tag) -> bytes:
        """Take from the own box."""
        return self._boxes[peer, self.rank, tag].get()

    def close(self) -> None:
        """Nothing is held."""


class Wired:
    """`network.Neighbours` over a transport: rows travel as float64 with their shape in front."""

    def __init__(self, transport: Transport, place: Place) -> None:
        self._transport, self._place = transport, place

    def gather(self, rows: Array) -> list[Array]:
        """Exchange with every tensor rank of the stage; all receive the same list."""
        own = self._transport.rank
        others = [peer for peer in self._place.peers if peer != own]
        packed = pack(rows)
        for peer in others:
            self._transport.send(peer, Tag.REDUCE, packed)
        parts = {peer: unpack(self._transport.receive(peer, Tag.REDUCE)) for peer in others}
        parts[own] = rows
        return [parts[peer] for peer in self._place.peers]

    def forward(self, rows: Array) -> None:
        """To the rank of the next stage with the same tensor rank."""
        self._transport.send(self._transport.rank + self._place.tensor, Tag.FORWARD, pack(rows))

    def previous(self) -> Array:
        """From the rank of the stage before with the same tensor rank."""
        sender = self._transport.rank - self._place.tensor
        return unpack(self._transport.receive(sender, Tag.FORWARD))


def pack(rows: Array) -> bytes:
    """Rows (n, width) as bytes."""
    shape: Sequence[int] = rows.shape
    return np.asarray(shape, "<u4").tobytes() + np.ascontiguousarray(rows, "<f8").tobytes()


def unpack(data: bytes) -> Array:
    """The rows that `pack` packed."""
    count, width = np.frombuffer(data, "<u4", 2)
    rows: Array = np.frombuffer(data, "<f8", offset=8).reshape(int(count), int(width))
    return rows
