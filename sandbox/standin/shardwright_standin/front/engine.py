"""The HTTP side's connection to rank 0: requests there, tokens and statistics back."""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from typing import Any

from shardwright_standin.model.likelihood import Score
from shardwright_standin.ranks.loading import LoadOrder

_RETRY_SECONDS = 0.1
# TensorRT-LLM's max_stats_len: older iterations are dropped when nobody reads /metrics.
_KEPT_ITERATIONS = 1000
_News = tuple[int, str, Sequence[Score]]


class EngineFailedError(RuntimeError):
    """The ranks could not load, or are gone; the message is the first cause."""


class AdaptError(ValueError):
    """A rank cannot load an adapter; the message is its own."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine takes at once and in one sequence, in tokens and requests."""

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    max_input_len: int


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which log probabilities are asked for.

    `top` is how many of the likeliest tokens are told in each place; `prompt`: in the prompt's
    places too.
    """

    top: int
    prompt: bool


@dataclass(slots=True)
class Generation:
    """One request's tokens as they come; times are of the monotonic clock, in seconds.

    `scores` has one for each token so far that log probabilities were asked for: of the prompt's
    from the second on where they were, then of the produced ones.
    """

    number: int
    started: float
    first_token: float = 0.0
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    scores: list[Score] = field(default_factory=list)
    _news: queue.SimpleQueue[_News | None] = field(default_factory=queue.SimpleQueue)

    def put(self, token: int, ended: str, scores: Sequence[Score] = ()) -> None:
        """A token came."""
        self._news.put((token, ended, scores))

    def fail(self) -> None:
        """No more tokens will come."""
        self._news.put(None)

    def stream(self) -> Iterator[int]:
        """The tokens, each as it comes.

        Raises:
            EngineFailedError: When the ranks are gone before the last one.
        """
        while not self.finish:
            news = self._news.get()
            if news is None:
                raise EngineFailedError("the engine is gone")
            token, self.finish, scores = news
            self.scores += scores
            self.first_token = self.first_token or time.monotonic()
            self.tokens.append(token)
            yield token


class Engine:
    """Loaded ranks; `dead` is set when they are gone."""

    def __init__(self, connection: Connection, limits: Limits, stop_token: int) -> None:
        self.limits, self.stop_token = limits, stop_token
        self.dead = threading.Event()
        self.iterations: deque[dict[str, Any]] = deque(maxlen=_KEPT_ITERATIONS)
        self.last: dict[str, Any] = {"numActiveRequests": 0, "numQueuedRequests": 0, "kvTokens": 0}
        self._connection = connection
        self._sending = threading.Lock()
        self._running: dict[int, Generation] = {}
        self._numbers = itertools.count(1)
        self._adapting = threading.Lock()
        self._adapted: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def in_flight(self) -> int:
        """Requests that are running or waiting."""
        return len(self._running)

    def submit(
        self,
        prompt: list[int],
        budget: int,
        stop: int,
        adapter: str = "",
        scoring: Scoring | None = None,
    ) -> Generation:
        """Ask for at most `budget` tokens, up to and with the token `stop` (−1 for none).

        Raises:
            EngineFailedError: When the ranks are gone.
        """
        generation = Generation(next(self._numbers), time.monotonic())
        self._running[generation.number] = generation
        if self.dead.is_set():
            self._running.pop(generation.number, None)
            raise EngineFailedError("the engine is gone")
        message = {
            "do": "submit",
            "number": generation.number,
            "prompt": prompt,
            "budget": budget,
            "stop": stop,
            "adapter": adapter,
        }
        if scoring is not None:
            message |= {"top": scoring.top, "echo": scoring.prompt}
        self._send(message)
        return generation

    def adapt(self, key: str, folder: str, modules: tuple[str, ...]) -> None:
        """Have all ranks load an adapter's update of these modules.

        Raises:
            AdaptError: One cannot.
            EngineFailedError: When the ranks are gone.
        """
        with self._adapting:
            self._send({"do": "adapt", "adapter": key, "folder": folder, "modules": modules})
            wrong = self._adapted.get()
        if wrong is None:
            raise EngineFailedError("the engine is gone")
        if wrong:
            raise AdaptError(wrong)

    def cancel(self, generation: Generation) -> None:
        """Forget a request whose client is gone."""
        if self._running.pop(generation.number, None) is not None and not self.dead.is_set():
            self._rest()
            self._send({"do": "cancel", "number": generation.number})

    def stop(self) -> None:
        """Let the ranks end."""
        if not self.dead.is_set():
            self._send({"do": "stop"})

    def close(self) -> None:
        """Leave the ranks to the next HTTP side."""
        self._connection.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise EngineFailedError(f"the engine is gone: {error}") from error

    def _rest(self) -> None:
        """Without requests there are no iterations, and so none that would say so."""
        if not self._running:
            self.last = {**self.last, "numActiveRequests": 0, "numQueuedRequests": 0}

    def _listen(self) -> None:
        try:
            while True:
                message = json.loads(self._connection.recv_bytes())
                if message["event"] == "adapted":
                    self._adapted.put(message["error"])
                    continue
                self.last = message["stats"]
                self.iterations.append({"at": time.time(), **message["stats"]})
                scores = dict(message["scores"])
                told = [
                    (generation, number, token, ended)
                    for number, token, ended in message["tokens"]
                    if (generation := self._running.get(number)) is not None
                ]
                for _, number, _, ended in told:
                    if ended:
                        self._running.pop(number, None)
                # Before the last tokens go: whoever has them may look at the metrics.
                self._rest()
                for generation, number, token, ended in told:
                    generation.put(token, ended, scores.get(number, ()))
        except (OSError, EOFError):
            self.dead.set()
            self._adapted.put(None)
            for generation in list(self._running.values()):
                generation.fail()


def connect(
    address: tuple[str, int],
    key: bytes,
    order: LoadOrder,
    limits: Limits,
    stop_token: int,
    ranks_alive: Callable[[], bool],
) -> Engine:
    """Wait for rank 0, have all ranks load, and log their warnings and reports.

    Args:
        address: Where rank 0 listens.
        key: What it wants to see.
        order: What to load.
        limits: Of batch and sequence.
        stop_token: The token that ends a sequence.
        ranks_alive: Whether the ranks' processes still run.

    Raises:
        EngineFailedError: When the ranks ended, or one could not load.
    """
    while True:
        if not ranks_alive():
            raise EngineFailedError("the ranks ended before the engine was loaded")
        try:
            connection = Client(address, authkey=key)
            break
        except ConnectionError:
            time.sleep(_RETRY_SECONDS)
    message = {
        "do": "load",
        "load": order.encoded(),
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
    }
    try:
        connection.send_bytes(json.dumps(message).encode())
        answers = json.loads(connection.recv_bytes())["answers"]
    except (OSError, EOFError) as error:
        raise EngineFailedError("the ranks ended while the engine was loading") from error
    failed = [answer for answer in answers if "error" in answer]
    if failed:
        first = failed[0]
        raise EngineFailedError(f"{first['trace']}\nrank {first['rank']}: {first['error']}")
    lines = [line for answer in answers for line in (*answer["warnings"], answer["report"])]
    # In one piece: unbuffered, a print writes a line and its end apart.
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()
    return Engine(connection, limits, stop_token)
