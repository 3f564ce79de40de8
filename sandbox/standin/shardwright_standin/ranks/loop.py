"""The loop of every rank: rank 0 gives orders, the others carry them out with it."""

from __future__ import annotations

import itertools
import json
import sys
import time
import traceback
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Protocol

from shardwright_standin.faults import Faults
from shardwright_standin.model import adapter, likelihood
from shardwright_standin.model.network import Feed, Shard, greedy
from shardwright_standin.model.shards import Place
from shardwright_standin.ranks.loading import decode_order, load
from shardwright_standin.ranks.scheduler import Request, Scheduler
from shardwright_standin.ranks.transport import Tag, Transport, Wired

_IDLE_SECONDS = 0.5
# The tokens of a step in the order of its feeds, and the scores of the sequences that are told any.
Stepped = tuple[list[int], list[tuple[int, list[likelihood.Score]]]]


class Channel(Protocol):
    """Messages with the HTTP side, as JSON."""

    def poll(self, timeout: float) -> bool:
        """Whether a message came within so many seconds."""

    def recv_bytes(self) -> bytes:
        """The next message; EOFError when the other side is gone."""

    def send_bytes(self, data: bytes) -> None:
        """Send one."""


class Rank:
    """What one rank does with an order; all ranks get the same orders in the same order."""

    def __init__(self, transport: Transport, faults: Faults) -> None:
        self.transport, self.faults = transport, faults
        self._shard: Shard | None = None
        self._adapted: dict[str, Shard] = {}
        faults.learn(rank=transport.rank)

    def follow(self) -> None:
        """Carry out rank 0's orders until it says stop."""
        while True:
            order = json.loads(self.transport.receive(0, Tag.ORDER))
            if order["do"] == "stop":
                return
            answer = self.carry_out(order)
            if answer is not None:
                tag = Tag.TOKENS if order["do"] == "step" else Tag.ANSWER
                self.transport.send(0, tag, json.dumps(answer).encode())

    def carry_out(self, order: dict[str, Any]) -> Any:  # noqa: ANN401
        """Load: a report. Step: tokens and scores on the last stage's first rank, else None."""
        if order["do"] == "load":
            return self._load(order["load"])
        if order["do"] == "adapt":
            return self._adapt(order)
        if order["do"] == "unload":
            self._shard = None
            self._adapted = {}
            return None
        return self._step(order)

    def _load(self, raw: dict[str, Any]) -> dict[str, Any]:
        self._shard = None
        order = decode_order(raw)
        place = Place(self.transport.rank, order.tensor, order.pipeline)
        self.faults.learn(stage=place.stage, tensor_rank=place.tensor_rank)
        try:
            self.faults.reach("load")
            shard, report, warnings = load(order, self.transport.rank, self.transport.size)
            self.faults.reach("loaded")
        # A rank that cannot load says why to rank 0, whatever it is, as the real worker does.
        except Exception as error:  # noqa: BLE001
            return {
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc(),
                "rank": self.transport.rank,
            }
        self._shard = shard
        return {"report": report.line(), "rank": self.transport.rank, "warnings": warnings}

    def _adapt(self, order: dict[str, Any]) -> dict[str, Any]:
        """Keep a shard with an adapter's update beside the base model's own."""
        base = self._shard
        if base is None:
            raise RuntimeError(f"rank {self.transport.rank} was told to adapt before it loaded")
        try:
            folder, modules = Path(order["folder"]), tuple(order["modules"])
            weights = adapter.adapted(base.weights, folder, base.shape, base.place, modules)
        # Whatever is wrong with a stranger's files is told, and ends no rank.
        except Exception as error:  # noqa: BLE001
            return {"error": str(error), "rank": self.transport.rank}
        self._adapted[order["adapter"]] = Shard.load(base.shape, base.place, weights)
        return {"rank": self.transport.rank}

    def _step(self, order: dict[str, Any]) -> Stepped | None:
        if self._shard is None:
            raise RuntimeError(f"rank {self.transport.rank} was told to run before it loaded")
        self.faults.reach("step")
        for number in order["forget"]:
            for shard in (self._shard, *self._adapted.values()):
                shard.forget(number)
        feeds = [Feed(number, tuple(tokens), *rest) for number, tokens, *rest in order["feeds"]]
        if not feeds:
            return None
        place = self._shard.place
        tops = dict(order["tops"])
        tokens: dict[int, int] = {}
        scores: dict[int, list[likelihood.Score]] = {}
        # All ranks take the adapters in the same order, one after the other.
        for name in sorted({feed.adapter for feed in feeds}):
            shard = self._adapted[name] if name else self._shard
            own = [feed for feed in feeds if feed.adapter == name]
            logits = shard.step(own, Wired(self.transport, place))
            if logits is None:
                continue
            ends = list(itertools.accumulate(feed.rows for feed in own))
            for feed, end, token in zip(
                own, ends, greedy(logits[[end - 1 for end in ends]]), strict=True
            ):
                tokens[feed.sequence] = token
                if place.tensor_rank == 0 and feed.sequence in tops:
                    came = [*feed.tokens[1:], token][-feed.rows :]
                    rows = logits[end - feed.rows : end]
                    scores[feed.sequence] = likelihood.scores(rows, came, tops[feed.sequence])
        if not tokens or place.tensor_rank != 0:
            return None
        return [tokens[feed.sequence] for feed in feeds], list(scores.items())


class Leader:
    """Rank 0: takes requests from the HTTP side, plans iterations, leads the others."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._transport = rank.transport
        self._scheduler = Scheduler(1, 1)
        self._forget: list[int] = []
        self._source = 0
        self._iteration = 0

    def accept_from(self, listener: Listener, *, once: bool) -> None:
        """Serve one HTTP side after the other until told to stop; `once` stops after the first."""
        stopped = False
        while not stopped:
            try:
                connection = listener.accept()
            except (AuthenticationError, EOFError, ConnectionError) as error:
                # Whoever lacks the key, or only looks whether the port is open, is not let in.
                sys.stderr.write(f"[rank 0] connection refused: {error!r}\n")
                continue
            with connection:
                stopped = self.serve(connection) or once
        self._order({"do": "stop"})

    def serve(self, channel: Channel | Connection) -> bool:
        """Serve one HTTP side until it goes (False) or says stop (True)."""
        try:
            while True:
                busy = bool(self._scheduler.running or self._scheduler.waiting or self._forget)
                while channel.poll(0 if busy else _IDLE_SECONDS):
                    message = json.loads(channel.recv_bytes())
                    if message["do"] == "stop":
                        return True
                    self._take(message, channel)
                    busy = True
                if self._scheduler.running or self._scheduler.waiting or self._forget:
                    self._iterate(channel)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._order({"do": "unload"})
            self._rank.carry_out({"do": "unload"})
            self._scheduler = Scheduler(1, 1)
            self._forget = []
            return False

    def _take(self, message: dict[str, Any], channel: Channel | Connection) -> None:
        if message["do"] == "load":
            answers = self._load(message)
            channel.send_bytes(json.dumps({"event": "loaded", "answers": answers}).encode())
        elif message["do"] == "submit":
            self._scheduler.submit(
                Request(
                    number=message["number"],
                    prompt=tuple(message["prompt"]),
                    budget=message["budget"],
                    stop=message["stop"],
                    adapter=message.get("adapter", ""),
                    top=message.get("top"),
                    echo=message.get("echo", False),
                )
            )
        elif message["do"] == "adapt":
            answers = self._all(message)
            wrong = next((one["error"] for one in answers if "error" in one), "")
            event = {"event": "adapted", "adapter": message["adapter"], "error": wrong}
            channel.send_bytes(json.dumps(event).encode())
        elif self._scheduler.cancel(message["number"]):
            self._forget.append(message["number"])

    def _load(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        self._scheduler = Scheduler(message["max_batch_size"], message["max_num_tokens"])
        self._forget = []
        raw = message["load"]
        self._source = (raw["pipeline"] - 1) * raw["tensor"]
        return self._all({"do": "load", "load": raw})

    def _all(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """Give an order that every rank answers; the answers by rank."""
        self._order(order)
        answers = [self._rank.carry_out(order)]
        answers += [
            json.loads(self._transport.receive(peer, Tag.ANSWER))
            for peer in range(1, self._transport.size)
        ]
        return answers

    def _iterate(self, channel: Channel | Connection) -> None:
        started = time.monotonic()
        feeds = self._scheduler.plan()
        order = {
            "do": "step",
            "feeds": [
                [feed.sequence, feed.tokens, feed.position, feed.adapter, feed.every]
                for feed in feeds
            ],
            "tops": self._scheduler.tops(),
            "forget": self._forget,
        }
        self._forget = []
        self._order(order)
        stepped = self._rank.carry_out(order)
        if not feeds:
            return
        if stepped is None:
            stepped = json.loads(self._transport.receive(self._source, Tag.TOKENS))
        tokens, scores = stepped
        events = self._scheduler.accept(feeds, tokens)
        self._forget = [number for number, _, ended in events if ended]
        self._iteration += 1
        stats = {
            "iter": self._iteration,
            "iterLatencyMS": (time.monotonic() - started) * 1000,
            "numActiveRequests": len(feeds),
            "numQueuedRequests": len(self._scheduler.waiting),
            "numNewTokens": sum(len(feed.tokens) for feed in feeds),
            "kvTokens": sum(feed.position + len(feed.tokens) for feed in feeds),
        }
        event = {"event": "step", "tokens": events, "scores": scores, "stats": stats}
        channel.send_bytes(json.dumps(event).encode())

    def _order(self, order: dict[str, Any]) -> None:
        data = json.dumps(order).encode()
        for peer in range(1, self._transport.size):
            self._transport.send(peer, Tag.ORDER, data)
