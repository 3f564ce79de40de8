"""The work queue: keys that wait, run, or are due later. Never two passes of one key at a time.

`WorkQueue` is a state machine without a loop or a clock of its own; `Workers` runs it. A key is in
at most one place to wait: ready now (in order of arrival, so that nobody starves), or delayed until
a time, the earliest asked for. A key added while it is worked on runs again afterwards, once,
however often it was added.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from shardwright.apply.errors import ClusterError, Forbidden, Invalid, LeaseLost
from shardwright.control.metrics import CONTROLLER, Metrics

_log = structlog.get_logger(__name__)

BACKOFF_SECONDS: Final = 0.2
BACKOFF_MAX_SECONDS: Final = 300.0
DRAIN_SECONDS: Final = 20.0
_JITTER: Final = 0.2
_GAUGES_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What one pass is about: an LLMDeployment, a claim, or a namespace (then `name` is empty)."""

    kind: Literal["deployment", "claim", "namespace"]
    namespace: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}".rstrip("/")


@dataclass(frozen=True, slots=True)
class Result:
    """What a pass asks for: to be run again after some seconds, or at once with a backoff.

    `requeue` is for passes that saw something stale or blocked; each in a row waits longer.
    """

    requeue_after: float | None = None
    requeue: bool = False


class WorkQueue:
    """Waiting, delayed and running keys.

    Args:
        clock: Monotonic seconds.
        jitter: Uniform in [0, 1), to spread keys that failed together.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        jitter: Callable[[], float] = random.random,
        metrics: Metrics | None = None,
        backoff: tuple[float, float] = (BACKOFF_SECONDS, BACKOFF_MAX_SECONDS),
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._metrics = metrics
        self._first, self._cap = backoff
        self._ready: deque[Key] = deque()
        self._since: dict[Key, float] = {}  # of the ready ones
        self._due: dict[Key, float] = {}  # of the delayed ones
        self._heap: list[tuple[float, Key]] = []  # may hold entries that `_due` has overtaken
        self._running: dict[Key, float] = {}
        self._again: set[Key] = set()  # added while running
        self._failures: dict[Key, int] = {}
        self.moved_at = clock()

    def __len__(self) -> int:
        """Keys that could be taken now, were there workers."""
        return len(self._ready)

    @property
    def running(self) -> int:
        """Keys being worked on."""
        return len(self._running)

    def add(self, key: Key) -> None:
        """Run `key` as soon as a worker is free; a delay it may have is over."""
        self._due.pop(key, None)
        if key in self._running:
            self._again.add(key)
        elif key not in self._since:
            if not self._ready:
                self.moved_at = max(self.moved_at, self._clock())
            self._ready.append(key)
            self._since[key] = self._clock()
        else:
            return
        if self._metrics:
            self._metrics.queue_adds.inc()
            self._metrics.queue_depth.set(len(self._ready))

    def add_after(self, key: Key, seconds: float) -> None:
        """Run `key` in so many seconds, unless it is due earlier anyway."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + seconds
        if key in self._since or key in self._again or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))

    def add_rate_limited(self, key: Key) -> float:
        """Run `key` after its backoff, which doubles with each call until `forget`.

        Returns:
            The delay in seconds.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(self._cap, self._first * 2.0 ** min(failures, 40))
        delay *= 1 - _JITTER * self._jitter()
        self.add_after(key, delay)
        if self._metrics:
            self._metrics.queue_retries.inc()
        return delay

    def forget(self, key: Key) -> None:
        """Start `key`'s backoff anew."""
        self._failures.pop(key, None)

    def next_due(self) -> float | None:
        """Seconds until a delayed key is due, None if none is delayed."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - self._clock()) if self._heap else None

    def take(self) -> Key | None:
        """The key that has waited longest, now running, or None."""
        while (left := self.next_due()) is not None and left <= 0:
            _, key = heapq.heappop(self._heap)
            self.add(key)
        if not self._ready:
            return None
        key = self._ready.popleft()
        now = self._clock()
        waited = now - self._since.pop(key)
        self._running[key] = self.moved_at = now
        # a pass says anew when the next one is due
        self._due.pop(key, None)
        if self._metrics:
            self._metrics.queue_waited.observe(waited)
            self._metrics.queue_depth.set(len(self._ready))
        return key

    def done(self, key: Key) -> None:
        """The pass of `key` is over."""
        now = self._clock()
        began = self._running.pop(key)
        self.moved_at = now
        if self._metrics:
            self._metrics.queue_worked.observe(now - began)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def stuck_seconds(self) -> float:
        """How long no key was taken or finished although some wait; 0 when none waits."""
        return self._clock() - self.moved_at if self._ready else 0.0

    def report(self) -> None:
        """Set the gauges that grow by themselves."""
        if self._metrics:
            ages = [self._clock() - began for began in self._running.values()]
            self._metrics.queue_unfinished.set(sum(ages))
            self._metrics.queue_longest.set(max(ages, default=0.0))


Reconcile = Callable[[Key], Awaitable[Result]]


class Workers:
    """Runs passes of a `WorkQueue`, at most `concurrency` at a time.

    Args:
        reconcile: One pass. What it raises is logged and tried again with a backoff, except a lost
            Lease, which ends `run`.
        concurrency: Passes at a time.
        metrics: Where to count.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        reconcile: Reconcile,
        *,
        concurrency: int,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._reconcile = reconcile
        self._concurrency = concurrency
        self._metrics = metrics
        self._clock = clock
        self.queue = WorkQueue(clock, metrics=metrics)
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: BaseException | None = None
        self._passes = 0
        metrics.max_concurrent.set(concurrency)

    def add(self, keys: Iterable[Key]) -> None:
        """Run `keys` as soon as workers are free."""
        for key in keys:
            self.queue.add(key)
        self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Run `key` in so many seconds, unless it is due earlier anyway."""
        self.queue.add_after(key, seconds)
        self._wake.set()

    async def run(self) -> None:
        """Hand out keys until cancelled; cancelling lets running passes go on (see `drain`).

        Raises:
            LeaseLost: When a pass found the Lease lost.
        """
        while True:
            self._wake.clear()
            while len(self._tasks) < self._concurrency and (key := self.queue.take()) is not None:
                task = asyncio.create_task(self._pass(key), name=f"pass {key}")
                self._tasks.add(task)
                task.add_done_callback(self._ended)
            self.queue.report()
            if self._fatal is not None:
                raise self._fatal
            due = self.queue.next_due()
            # a due key does not end the wait when all workers are busy: the end of a pass does
            wait = _GAUGES_SECONDS if due is None or self._full() else min(_GAUGES_SECONDS, due)
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def drain(self, seconds: float = DRAIN_SECONDS) -> int:
        """Let running passes end; after so many seconds cancel them.

        Returns:
            How many had to be cancelled. Every write of theirs is idempotent.
        """
        if not self._tasks:
            return 0
        _, left = await asyncio.wait(self._tasks, timeout=seconds)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        return len(left)

    def _full(self) -> bool:
        return len(self._tasks) >= self._concurrency

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._metrics.active_workers.set(len(self._tasks))
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal = error
        self._wake.set()

    async def _pass(self, key: Key) -> None:
        began = self._clock()
        self._metrics.active_workers.set(len(self._tasks))
        self._passes += 1
        # a task has a context of its own: nothing to take off again
        structlog.contextvars.bind_contextvars(key=str(key), reconcile_id=self._passes)
        result = "error"
        try:
            result = await self._once(key)
        finally:
            self._metrics.reconcile_total.labels(CONTROLLER, result).inc()
            self._metrics.reconcile_seconds.observe(self._clock() - began)
            self.queue.done(key)

    async def _once(self, key: Key) -> str:
        try:
            wanted = await self._reconcile(key)
        except LeaseLost:
            raise
        except ClusterError as error:
            self._metrics.reconcile_errors.inc()
            if isinstance(error, Invalid) or (isinstance(error, Forbidden) and not error.quota):
                self._metrics.terminal_errors.inc()
            delay = self.queue.add_rate_limited(key)
            _log.warning("pass failed", error=str(error), retry_seconds=delay)
            return "error"
        except Exception:  # noqa: BLE001 - logged in full
            # one broken deployment must not disturb another: logged in full, tried again later
            self._metrics.reconcile_errors.inc()
            self._metrics.panics.inc()
            delay = self.queue.add_rate_limited(key)
            _log.exception("pass failed", retry_seconds=delay)
            return "error"
        if wanted.requeue:
            self.queue.add_rate_limited(key)
            return "requeue"
        self.queue.forget(key)
        if wanted.requeue_after is not None:
            self.queue.add_after(key, wanted.requeue_after)
            return "requeue_after"
        return "success"
