"""The work queue: no two passes of one key, nobody forgotten, nobody starved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shardwright.apply.errors import Invalid, LeaseLost, Unavailable
from shardwright.control.metrics import CONTROLLER, Metrics
from shardwright.control.queue import Key, Result, Workers, WorkQueue

KEYS = [Key("deployment", "llm", name) for name in "abcd"]
A, B, C, _ = KEYS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock, jitter=lambda: 0.0, backoff=(1.0, 10.0))


def test_a_key_added_twice_runs_once() -> None:
    work = queue(Clock())
    work.add(A)
    work.add(A)
    assert work.take() == A
    assert work.take() is None


def test_keys_run_in_the_order_in_which_they_came() -> None:
    work = queue(Clock())
    for key in (B, A, C):
        work.add(key)
    work.add(B)
    assert [work.take(), work.take(), work.take()] == [B, A, C]


def test_a_key_added_while_it_runs_runs_again_afterwards_behind_the_others() -> None:
    work = queue(Clock())
    work.add(A)
    assert work.take() == A
    work.add(A)
    work.add(A)
    work.add(B)
    assert work.take() == B
    assert work.take() is None
    work.done(A)
    assert work.take() == A
    work.done(A)
    assert work.take() is None


def test_the_earliest_of_several_delays_wins() -> None:
    clock = Clock()
    work = queue(clock)
    work.add_after(A, 5)
    work.add_after(A, 2)
    work.add_after(A, 9)
    assert work.next_due() == 2
    assert work.take() is None
    clock.now = 2
    assert work.take() == A
    work.done(A)
    clock.now = 100
    assert work.take() is None


def test_an_event_ends_a_delay() -> None:
    work = queue(Clock())
    work.add_after(A, 100)
    work.add(A)
    assert work.take() == A
    assert work.next_due() is None


def test_the_backoff_doubles_up_to_its_cap_and_starts_anew_after_success() -> None:
    clock = Clock()
    work = queue(clock)
    delays = []
    for _ in range(6):
        delays.append(work.add_rate_limited(A))
        clock.now += delays[-1]
        assert work.take() == A
        work.done(A)
    assert delays == [1, 2, 4, 8, 10, 10]
    work.forget(A)
    assert work.add_rate_limited(A) == 1


def test_jitter_only_shortens_a_backoff() -> None:
    work = WorkQueue(Clock(), jitter=lambda: 0.999, backoff=(10.0, 100.0))
    assert 8.0 < work.add_rate_limited(A) < 8.01


def test_a_queue_that_waits_long_without_moving_is_stuck() -> None:
    clock = Clock()
    work = queue(clock)
    clock.now = 1000
    assert work.stuck_seconds() == 0
    work.add(A)
    work.add(B)
    clock.now = 1050
    assert work.stuck_seconds() == 50
    work.take()
    assert work.stuck_seconds() == 0
    clock.now = 1400
    assert work.stuck_seconds() == 350
    work.done(A)
    assert work.stuck_seconds() == 0


class QueueMachine(RuleBasedStateMachine):
    """Against a model: when each key must run next, and which run now."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = queue(self.clock)
        self.due: dict[Key, float] = {}
        self.running: set[Key] = set()

    @rule(key=st.sampled_from(KEYS))
    def add(self, key: Key) -> None:
        self.queue.add(key)
        self.due[key] = min(self.due.get(key, self.clock.now), self.clock.now)

    @rule(key=st.sampled_from(KEYS), seconds=st.integers(1, 20))
    def add_after(self, key: Key, seconds: int) -> None:
        self.queue.add_after(key, seconds)
        due = self.clock.now + seconds
        self.due[key] = min(self.due.get(key, due), due)

    @rule(seconds=st.integers(1, 15))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def take(self) -> None:
        ripe = {
            key for key, at in self.due.items() if at <= self.clock.now and key not in self.running
        }
        key = self.queue.take()
        if key is None:
            assert not ripe
            return
        assert key in ripe
        del self.due[key]
        self.running.add(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(key)
        self.queue.done(key)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.queue.running == len(self.running)
        waits = [at - self.clock.now for key, at in self.due.items() if key not in self.running]
        soonest = self.queue.next_due()
        if len(self.queue) == 0 and waits and min(waits) > 0:
            assert soonest is not None
            assert soonest <= min(waits)

    def teardown(self) -> None:
        """Everything asked for runs in the end."""
        for key in sorted(self.running):
            self.queue.done(key)
        self.running.clear()
        self.clock.now += 1000
        seen = set()
        while (key := self.queue.take()) is not None:
            seen.add(key)
            self.queue.done(key)
        assert seen == set(self.due)


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestQueueMachine = QueueMachine.TestCase


class Reconcile:
    """Passes whose results the test gives."""

    def __init__(self, *answers: Result | Exception) -> None:
        self.answers = iter(answers)
        self.seen: list[Key] = []
        self.overlap = 0
        self._now: list[Key] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, key: Key) -> Result:
        self.seen.append(key)
        assert key not in self._now, "two passes of one key at a time"
        self._now.append(key)
        self.overlap = max(self.overlap, len(self._now))
        try:
            await self.gate.wait()
        finally:
            self._now.remove(key)
        answer = next(self.answers, Result())
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    return Metrics()


def workers(reconcile: Reconcile, metrics: Metrics, concurrency: int = 4) -> Workers:
    return Workers(reconcile, concurrency=concurrency, metrics=metrics, clock=time.monotonic)


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - whatever the condition is about
            await asyncio.sleep(0.005)


async def test_at_most_so_many_passes_run_at_a_time(metrics: Metrics) -> None:
    reconcile = Reconcile()
    reconcile.gate.clear()
    crew = workers(reconcile, metrics, concurrency=2)
    running = asyncio.create_task(crew.run())
    crew.add(KEYS)
    await until(lambda: len(reconcile.seen) == 2)
    await asyncio.sleep(0.02)
    assert len(reconcile.seen) == 2
    reconcile.gate.set()
    await until(lambda: len(reconcile.seen) == 4)
    assert reconcile.overlap == 2
    running.cancel()


async def test_a_pass_that_fails_is_tried_again_and_disturbs_no_other(metrics: Metrics) -> None:
    reconcile = Reconcile(Unavailable("get", 503, "", "away"), Result(), ValueError("odd spec"))
    crew = workers(reconcile, metrics, concurrency=1)
    running = asyncio.create_task(crew.run())
    crew.add([A, B])
    await until(lambda: len(reconcile.seen) >= 4)
    assert reconcile.seen[:2] == [A, B]
    assert set(reconcile.seen[2:4]) <= {A, B}
    assert (
        metrics.registry.get_sample_value(
            "controller_runtime_reconcile_errors_total", {"controller": CONTROLLER}
        )
        == 2
    )
    assert (
        metrics.registry.get_sample_value(
            "controller_runtime_reconcile_panics_total", {"controller": CONTROLLER}
        )
        == 1
    )
    running.cancel()


async def test_results_are_counted_under_the_names_of_controller_runtime(metrics: Metrics) -> None:
    reconcile = Reconcile(
        Result(),
        Result(requeue_after=100),
        Result(requeue=True),
        Invalid("create", 422, "Invalid", "spec.containers: Required value"),
    )
    crew = workers(reconcile, metrics, concurrency=1)
    running = asyncio.create_task(crew.run())
    crew.add(KEYS)
    await until(lambda: len(reconcile.seen) >= 4)
    await until(lambda: crew.queue.running == 0)
    for result in ("success", "requeue_after", "requeue", "error"):
        assert metrics.registry.get_sample_value(
            "controller_runtime_reconcile_total", {"controller": CONTROLLER, "result": result}
        ), result
    assert (
        metrics.registry.get_sample_value(
            "controller_runtime_terminal_reconcile_errors_total", {"controller": CONTROLLER}
        )
        == 1
    )
    running.cancel()


async def test_a_lost_lease_ends_the_workers(metrics: Metrics) -> None:
    crew = workers(Reconcile(LeaseLost("create", 0, "LeaseLost", "not ours")), metrics)
    crew.add([A])
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(60):
            await crew.run()


async def test_draining_lets_a_running_pass_end(metrics: Metrics) -> None:
    reconcile = Reconcile()
    reconcile.gate.clear()
    crew = workers(reconcile, metrics)
    running = asyncio.create_task(crew.run())
    crew.add([A])
    await until(lambda: reconcile.seen)
    running.cancel()
    asyncio.get_running_loop().call_later(0.05, reconcile.gate.set)
    assert await crew.drain(60) == 0
    assert crew.queue.running == 0


async def test_draining_is_bounded(metrics: Metrics) -> None:
    reconcile = Reconcile()
    reconcile.gate.clear()
    crew = workers(reconcile, metrics)
    running = asyncio.create_task(crew.run())
    crew.add([A, B])
    await until(lambda: len(reconcile.seen) == 2)
    running.cancel()
    assert await crew.drain(0.05) == 2
    assert crew.queue.running == 0
