"""The ranks' loop: orders, batching, refusals while loading, and the transports below it."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="the stand-in's arithmetic needs numpy")

from shardwright_standin import faults, gpu
from shardwright_standin.model import geometry, make, network, shards, tokenizer
from shardwright_standin.ports import reserved
from shardwright_standin.ranks.loading import CHECKPOINT, LoadOrder
from shardwright_standin.ranks.loop import Leader, Rank
from shardwright_standin.ranks.scheduler import Request, Scheduler
from shardwright_standin.ranks.tcp import RendezvousError, TCPTransport
from shardwright_standin.ranks.transport import InProcess, LostPeerError, Tag
from tests.standin.running import PROMPTS

WAIT_SECONDS = 60


class Pipe:
    """The HTTP side of a leader, inside the test."""

    def __init__(self) -> None:
        self.to_leader: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.to_test: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._door = threading.Lock()

    def poll(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not self._waiting():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.001)
        return True

    def _waiting(self) -> bool:
        with self._door:
            return not self.to_leader.empty()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is said meanwhile comes to the leader at once."""
        with self._door:
            yield

    def recv_bytes(self) -> bytes:
        return self.to_leader.get()

    def send_bytes(self, data: bytes) -> None:
        self.to_test.put(data)

    def say(self, **message: Any) -> None:
        self.to_leader.put(json.dumps(message).encode())

    def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self.to_test.get(timeout=WAIT_SECONDS))
        return heard


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, gpu.VISIBLE: "0,1,2,3"})


def group(size: int) -> tuple[Pipe, list[threading.Thread]]:
    """Ranks in threads, and the pipe to their leader."""
    pipe = Pipe()
    transports = InProcess.group(size)

    def lead() -> None:
        leader = Leader(Rank(transports[0], faults.Faults(program="test")))
        leader.serve(pipe)
        leader._order({"do": "stop"})

    threads = [threading.Thread(target=lead, daemon=True)]
    threads += [
        threading.Thread(target=Rank(one, faults.Faults(program="test")).follow, daemon=True)
        for one in transports[1:]
    ]
    for thread in threads:
        thread.start()
    return pipe, threads


def load(pipe: Pipe, folder: Path, tensor: int, pipeline: int, **limits: int) -> list[Any]:
    order = LoadOrder(CHECKPOINT, str(folder), tensor, pipeline)
    sizes = {"max_batch_size": 8, "max_num_tokens": 4096, **limits}
    pipe.say(do="load", load=order.encoded(), **sizes)
    answers: list[Any] = pipe.hear()["answers"]
    return answers


def test_ranks_answer_many_requests_at_once_as_the_whole_model_would(model: Path) -> None:
    pipe, threads = group(4)
    answers = load(pipe, model, 2, 2, max_batch_size=6)
    assert [answer["rank"] for answer in answers] == [0, 1, 2, 3]
    assert "stage=1 tensor_rank=0 gpu=2" in answers[2]["report"]
    shape = geometry.read(model)
    place = shards.Place(0, 1, 1)
    whole = network.Shard.load(shape, place, shards.cut(make.read(model), shape, place))
    requests = [(tokenizer.encode(text), 2 + n % 5) for n, text in enumerate(PROMPTS)]
    wanted = {n: network.generate(whole, *request) for n, request in enumerate(requests)}
    with pipe.together():
        for number, (prompt, budget) in enumerate(requests):
            pipe.say(do="submit", number=number, prompt=prompt, budget=budget, stop=shape.eos)
    got: dict[int, list[int]] = {number: [] for number in wanted}
    most = open_requests = 0
    while open_requests < len(wanted):
        message = pipe.hear()
        most = max(most, message["stats"]["numActiveRequests"])
        for number, token, ended in message["tokens"]:
            got[number].append(token)
            open_requests += bool(ended)
    assert got == wanted
    assert most == 6, "the batch is full and no fuller"
    pipe.say(do="stop")
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_a_rank_that_cannot_load_says_why_and_the_others_wait_for_the_next_order(
    model: Path, tmp_path: Path
) -> None:
    pipe, _ = group(2)
    answers = load(pipe, tmp_path / "nothing", 2, 1)
    assert all("config.json cannot be read" in answer["error"] for answer in answers)
    answers = load(pipe, model, 1, 1)
    assert "MPI size 2 != TP size 1 * PP size 1 * CP Size 1" in answers[0]["error"]
    assert ["error" in answer for answer in load(pipe, model, 2, 1)] == [False, False]
    pipe.say(do="stop")


def test_a_rank_without_a_device_of_its_own_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, _ = group(4)
    monkeypatch.setitem(os.environ, gpu.VISIBLE, "0,1")
    order = LoadOrder(CHECKPOINT, str(model), 4, 1, per_node=4)
    pipe.say(do="load", load=order.encoded(), max_batch_size=1, max_num_tokens=1)
    errors = [answer.get("error", "") for answer in pipe.hear()["answers"]]
    assert errors[:2] == ["", ""]
    assert "invalid device ordinal: rank 2 asks for device 2, 2 are visible" in errors[2]
    monkeypatch.setitem(os.environ, gpu.VISIBLE, "none")
    pipe.say(do="load", load=order.encoded(), max_batch_size=1, max_num_tokens=1)
    assert "No CUDA GPUs are available" in pipe.hear()["answers"][0]["error"]
    pipe.say(do="stop")


def test_a_fault_while_loading_reaches_the_rank_it_names(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = tmp_path / "faults.yaml"
    control.write_text(str({"rules": [{"at": "load", "act": "gpu_oom", "where": {"rank": 1}}]}))
    monkeypatch.setitem(os.environ, faults.CONTROL, str(control))
    pipe, _ = group(2)
    answers = load(pipe, model, 2, 1)
    assert "error" not in answers[0]
    assert answers[1]["error"].startswith("OutOfMemoryError: CUDA out of memory")
    pipe.say(do="stop")


def test_a_request_taken_back_frees_its_place(model: Path) -> None:
    pipe, _ = group(1)
    load(pipe, model, 1, 1, max_batch_size=1)
    with pipe.together():
        for number in (1, 2):
            pipe.say(do="submit", number=number, prompt=[1, 2], budget=100_000, stop=-1)
    assert pipe.hear()["stats"]["numQueuedRequests"] == 1
    pipe.say(do="cancel", number=1)
    deadline = time.monotonic() + WAIT_SECONDS
    while pipe.hear()["tokens"][0][0] != 2:
        assert time.monotonic() < deadline
    pipe.say(do="stop")


# --- scheduling ---


def submitted(scheduler: Scheduler, *lengths: int) -> None:
    for number, length in enumerate(lengths):
        scheduler.submit(Request(number, tuple(range(length)), 2, -1))


def numbers(feeds: Sequence[network.Feed]) -> list[int]:
    return [feed.sequence for feed in feeds]


def test_a_prompt_waits_until_the_iteration_has_room_for_all_of_it() -> None:
    scheduler = Scheduler(max_batch_size=8, max_num_tokens=10)
    submitted(scheduler, 6, 5, 1)
    feeds = scheduler.plan()
    assert numbers(feeds) == [0], "the second does not fit, and the third keeps behind it"
    scheduler.accept(feeds, [7])
    feeds = scheduler.plan()
    assert numbers(feeds) == [0, 1, 2]
    assert feeds[0] == network.Feed(0, (7,), 6)


def test_a_prompt_longer_than_an_iteration_runs_alone_rather_than_never() -> None:
    scheduler = Scheduler(max_batch_size=8, max_num_tokens=4)
    submitted(scheduler, 9)
    assert numbers(scheduler.plan()) == [0]


def test_a_sequence_ends_by_its_stop_token_or_its_budget() -> None:
    scheduler = Scheduler(2, 100)
    scheduler.submit(Request(0, (1,), 5, 257))
    scheduler.submit(Request(1, (1,), 1, 257))
    assert scheduler.accept(scheduler.plan(), [257, 3]) == [(0, 257, "stop"), (1, 3, "length")]
    assert scheduler.plan() == []


# --- TCP ---


def meet(size: int, seconds: float = WAIT_SECONDS) -> list[TCPTransport]:
    master = ("127.0.0.1", reserved())
    found: dict[int, TCPTransport] = {}

    def join(rank: int) -> None:
        found[rank] = TCPTransport.meet(rank, size, master, seconds)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in reversed(range(size))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    return [found[rank] for rank in range(size)]


def test_ranks_meet_in_any_order_and_every_pair_can_talk() -> None:
    group_of_four = meet(4)
    for sender in group_of_four:
        for receiver in group_of_four:
            if sender is not receiver:
                # More than a socket's buffer, from both sides before either receives.
                sender.send(receiver.rank, Tag.REDUCE, bytes([sender.rank]) * 100_000)
    for receiver in group_of_four:
        for sender in group_of_four:
            if sender is not receiver:
                data = receiver.receive(sender.rank, Tag.REDUCE)
                assert data == bytes([sender.rank]) * 100_000
    for one in group_of_four:
        one.close()


def test_a_rank_that_is_gone_is_noticed_by_those_who_wait_for_it() -> None:
    first, second = meet(2)
    second.send(0, Tag.FORWARD, b"last words")
    second.close()
    assert first.receive(1, Tag.FORWARD) == b"last words"
    for _ in range(2):
        with pytest.raises(LostPeerError, match="connection to rank 1 closed"):
            first.receive(1, Tag.FORWARD)
    first.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_whose_peers_do_not_come_gives_up_at_its_deadline(rank: int) -> None:
    started = time.monotonic()
    with pytest.raises(RendezvousError):
        TCPTransport.meet(rank, 2, ("127.0.0.1", reserved()), 0.5)
    assert time.monotonic() - started < WAIT_SECONDS
