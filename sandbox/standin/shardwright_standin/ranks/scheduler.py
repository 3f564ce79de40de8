"""Which sequences run in the next iteration: in-flight batching on rank 0.

A new request waits until the batch has room for it and its whole prompt fits among the iteration's
tokens; then it stays until its last token (capacity policy GUARANTEED_NO_EVICT).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwright_standin.model.network import Feed


@dataclass(slots=True)
class Request:
    """One request: its tokens so far and how many more it may have.

    `top` is how many of the likeliest tokens are told beside the log probability of each produced
    one, and of each of the prompt's with `echo`; None for no log probabilities.
    """

    number: int
    prompt: tuple[int, ...]
    budget: int
    stop: int
    adapter: str = ""
    top: int | None = None
    echo: bool = False
    produced: list[int] = field(default_factory=list)

    def feed(self) -> Feed:
        """The tokens the network has not seen yet."""
        if not self.produced:
            every = self.echo and self.top is not None
            return Feed(self.number, self.prompt, 0, self.adapter, every)
        position = len(self.prompt) + len(self.produced) - 1
        return Feed(self.number, (self.produced[-1],), position, self.adapter)

    def take(self, token: int) -> str:
        """Add a token; why the sequence is over, or nothing."""
        self.produced.append(token)
        if token == self.stop:
            return "stop"
        return "length" if len(self.produced) >= self.budget else ""


@dataclass(slots=True)
class Scheduler:
    """Requests in arrival order; limits as in the engine."""

    max_batch_size: int
    max_num_tokens: int
    waiting: deque[Request] = field(default_factory=deque)
    running: dict[int, Request] = field(default_factory=dict)

    def submit(self, sequence: Request) -> None:
        """Add a request at the end of the queue."""
        self.waiting.append(sequence)

    def cancel(self, number: int) -> bool:
        """Drop a request; True when the ranks hold keys and values of it."""
        self.waiting = deque(one for one in self.waiting if one.number != number)
        return self.running.pop(number, None) is not None

    def plan(self) -> list[Feed]:
        """The next iteration's work; empty when nothing is asked for."""
        room = self.max_num_tokens - len(self.running)
        while self.waiting and len(self.running) < self.max_batch_size:
            first = self.waiting[0]
            if len(first.prompt) > room and self.running:
                break
            room -= len(first.prompt)
            self.running[first.number] = self.waiting.popleft()
        return [sequence.feed() for sequence in self.running.values()]

    def tops(self) -> list[tuple[int, int]]:
        """The running requests that are told log probabilities, each with its `top`."""
        return [(one.number, one.top) for one in self.running.values() if one.top is not None]

    def accept(self, feeds: Sequence[Feed], tokens: Sequence[int]) -> list[tuple[int, int, str]]:
        """Give each sequence its token: (request, token, why it is over or empty)."""
        events = []
        for feed, token in zip(feeds, tokens, strict=True):
            ended = self.running[feed.sequence].take(token)
            if ended:
                del self.running[feed.sequence]
            events.append((feed.sequence, token, ended))
        return events
