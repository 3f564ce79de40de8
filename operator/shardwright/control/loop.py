"""One operator process from start to end: what runs, in which order, and how it stops.

Order: HTTP → CRD check → Lease → store filled → watches → workers. Until the Lease is ours nothing
but probes runs; until the lists taken under it are in, nothing is decided.

Any end of any part ends the process: by SIGTERM in order (running passes may finish, the Lease is
released, exit 0), by anything else with an error, and the kubelet starts it anew. SIGKILL is safe
at any moment, since nothing lives only in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from shardwright.api.settings import Settings
from shardwright.apply.client import CALL_SECONDS, Cluster, connect
from shardwright.apply.executor import Executor
from shardwright.control.adapters import AdapterReader
from shardwright.control.crd import check_crd
from shardwright.control.http import Health, measure_lag, serve
from shardwright.control.lease import Elector
from shardwright.control.links import LinkReader
from shardwright.control.metrics import Metrics
from shardwright.control.queue import DRAIN_SECONDS, Key, Reconcile, Result, Workers
from shardwright.control.refresh import Refresher
from shardwright.control.store import Store
from shardwright.control.usage import UsageReader
from shardwright.control.watched import Watch

_log = structlog.get_logger(__name__)
_CALL_SHARE: Final = 0.8  # of the renew deadline
_INVENTORY_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a reconciler is made of: the only things it may touch.

    `cluster` and `executor` are fenced by the Lease. `add_after` wakes a key later.
    """

    settings: Settings
    cluster: Cluster
    store: Store
    executor: Executor
    metrics: Metrics
    links: LinkReader
    adapters: AdapterReader
    usage: UsageReader
    add: Callable[[set[Key]], None]
    add_after: Callable[[Key, float], None]


MakeReconcile = Callable[[Parts], Reconcile]


@dataclass(frozen=True, slots=True)
class Sink:
    """Where watch events go: the store, and the refresher that follows a watch's own list."""

    store: Store
    refresher: Refresher

    def event(self, kind: str, event_type: str | None, body: dict[str, Any]) -> None:
        """Take one event; the type None marks an object of a watch's list."""
        if event_type is None:
            self.refresher.watch_listed(kind)
        self.store.event(kind, event_type, body)


@dataclass(frozen=True, slots=True)
class WatchOrder:
    """What the watches are told.

    `stop` ends them in order. `spawned` is to be called once they run: kopf takes the process's
    signals when it starts, and this takes them back.
    """

    cluster: Cluster
    sink: Sink
    stop: asyncio.Event
    spawned: Callable[[], None]


Watching = Callable[[WatchOrder], Coroutine[Any, Any, None]]


class EndedEarly(RuntimeError):  # noqa: N818
    """A part that should run for ever came to an end."""


async def run_operator(
    settings: Settings,
    make_reconcile: MakeReconcile,
    watching: Watching,
    *,
    kubeconfig: str = "",
    clock: Callable[[], float] = time.monotonic,
    stop: asyncio.Event | None = None,
    metrics: Metrics | None = None,
    on_http: Callable[[int], None] = lambda _: None,
) -> None:
    """Run until `stop` is set (SIGTERM and SIGINT set it), then end in order.

    Args:
        settings: The operator's configuration.
        make_reconcile: Makes the function that carries out one pass.
        watching: Runs the watches, feeding the sink.
        kubeconfig: A path; empty is KUBECONFIG or the pod's service account.
        clock: Monotonic seconds.
        stop: Set from outside in tests.
        metrics: A fresh set unless given.
        on_http: Called with the port of probes and metrics.

    Raises:
        CRDError: If the cluster's CRD does not fit.
        LeaseLost: If another process took over.
        BaseExceptionGroup: What ended one of the parts.
    """
    metrics = metrics if metrics is not None else Metrics()
    stop = stop if stop is not None else asyncio.Event()
    health = Health()
    identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    call_seconds = min(CALL_SECONDS, _CALL_SHARE * settings.lease.renew_seconds)
    async with (
        serve(health, metrics, settings.http_port) as port,
        connect(kubeconfig, on_request=metrics.on_request, call_seconds=call_seconds) as cluster,
    ):
        on_http(port)
        handle_signals(stop)
        await check_crd(cluster)
        leader_gauge = metrics.leader.labels(settings.lease.name)

        def on_change(leading: bool) -> None:  # noqa: FBT001 - a state
            health.leading = leading
            leader_gauge.set(float(leading))

        elector = Elector(
            cluster,
            settings.lease,
            namespace=settings.namespace,
            identity=identity,
            clock=clock,
            on_change=on_change,
        )
        operator = _Operator(
            settings, cluster, elector, health, metrics, identity, clock, make_reconcile, watching
        )
        await operator.run(stop)


def handle_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT set `stop`. Only the main thread may; elsewhere nothing is done."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
            loop.add_signal_handler(number, stop.set)


class _Operator:
    """The parts of a process that leads, or waits to."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        elector: Elector,
        health: Health,
        metrics: Metrics,
        identity: str,
        clock: Callable[[], float],
        make_reconcile: MakeReconcile,
        watching: Watching,
    ) -> None:
        self._settings = settings
        self._plain = cluster
        self._elector = elector if settings.lease.enabled else None
        self._health = health
        self._metrics = metrics
        self._clock = clock
        self._watching = watching
        fenced = cluster.fenced(elector.remaining) if settings.lease.enabled else cluster
        self._store = Store(settings, metrics=metrics)
        self._refresher = Refresher(self._fill, resync_seconds=settings.resync_seconds, clock=clock)
        executor = Executor(fenced, self._store, instance=identity)

        self._workers = Workers(
            self._pass, concurrency=settings.concurrency, metrics=metrics, clock=clock
        )
        self._links = LinkReader(self._workers.add, clock=clock)
        self._adapters = AdapterReader(self._workers.add, clock=clock)
        self._usage = UsageReader(self._workers.add, clock=clock)
        self._reconcile = make_reconcile(
            Parts(
                settings=settings,
                cluster=fenced,
                store=self._store,
                executor=executor,
                metrics=metrics,
                links=self._links,
                adapters=self._adapters,
                usage=self._usage,
                add=self._workers.add,
                add_after=self._workers.add_after,
            )
        )
        self._store.listen(self._workers.add)
        health.stuck = self._workers.queue.stuck_seconds

    async def run(self, stop: asyncio.Event) -> None:
        tasks = [
            self._task("loop lag", measure_lag(self._health, self._metrics, clock=self._clock))
        ]
        try:
            if self._elector is not None:
                taken = self._task("lease wanted", self._elector.acquire())
                if not await _before(stop, taken, *tasks):
                    return
                tasks.append(self._task("lease", self._elector.hold()))
            filled = self._task("first lists", self._store.fill(self._plain))
            if not await _before(stop, filled, *tasks):
                return
            self._health.filled = True
            _log.info("store filled", deployments=len(self._store.deployments))
            await self._lead(stop, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._elector is not None:
                await self._elector.release()

    async def _lead(self, stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
        stop_watching = asyncio.Event()
        order = WatchOrder(
            self._plain,
            Sink(self._store, self._refresher),
            stop_watching,
            lambda: handle_signals(stop),
        )
        self._workers.add(self._store.all_keys())
        parts = [
            self._task("watches", self._watching(order)),
            self._task("refresher", self._refresher.run()),
            self._task("resync", self._resync()),
            self._task("inventory", self._inventory()),
            self._task("links", self._links.run()),
            self._task("adapters", self._adapters.run()),
            self._task("usage", self._usage.run()),
            self._task("workers", self._workers.run()),
        ]
        watches, *others = parts
        try:
            forever = self._task("stop wanted", _until(stop))
            parts.append(forever)
            await _before(stop, forever, *tasks, *parts[:-1])
        finally:
            # no new pass; those that run may end, and need lease and loop for it
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            lost = self._elector is not None and not self._elector.leading
            cancelled = await self._workers.drain(0 if lost else DRAIN_SECONDS)
            _log.info("passes ended", cancelled=cancelled)
            stop_watching.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS / 4):
                    await asyncio.gather(watches, return_exceptions=True)
            for task in parts:
                task.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _pass(self, key: Key) -> Result:
        return await self._reconcile(key)

    async def _fill(self, watches: tuple[Watch, ...]) -> None:
        await self._store.fill(self._plain, watches)

    async def _resync(self) -> None:
        """Run every key now and then, spread over the period."""
        period = self._settings.resync_seconds
        while True:
            for key in self._store.all_keys():
                self._workers.add_after(key, period * (0.5 + 0.5 * random.random()))  # noqa: S311
            await asyncio.sleep(period)

    async def _inventory(self) -> None:
        while True:
            self._metrics.inventory(self._store.nodes.values(), self._store.usage.by_node())
            await asyncio.sleep(_INVENTORY_SECONDS)

    @staticmethod
    def _task(name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=name)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


async def _before(
    stop: asyncio.Event, wanted: asyncio.Task[None], *forever: asyncio.Task[None]
) -> bool:
    """Wait for `wanted`; False if `stop` was set first.

    Raises:
        EndedEarly: If one of `forever` returned. What it raised is raised as it is.
    """
    stopped = asyncio.create_task(_until(stop), name="stop")
    try:
        await asyncio.wait([wanted, stopped, *forever], return_when=asyncio.FIRST_COMPLETED)
        for task in forever:
            if task.done():
                task.result()
                raise EndedEarly(f"{task.get_name()} came to an end")
        if wanted.done():
            wanted.result()
            return True
        return False
    finally:
        stopped.cancel()
        if not wanted.done():
            wanted.cancel()
            await asyncio.gather(wanted, return_exceptions=True)
