"""Probes and metrics over HTTP.

`/healthz` fails when the process should be restarted: the queue stands still although keys wait, or
the event loop lags. `/readyz` fails until the store is filled; a standby, which waits for the
Lease, is ready to do just that. `/metrics` is Prometheus' text format.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from shardwright.control.metrics import Metrics

_log = structlog.get_logger(__name__)
LAG_LIMIT_SECONDS: Final = 30.0
STUCK_LIMIT_SECONDS: Final = 300.0
_LAG_PERIOD_SECONDS: Final = 1.0


@dataclass(slots=True)
class Health:
    """What the probes answer from.

    Attributes:
        leading: Whether this process holds the Lease.
        filled: Whether the store has been filled under it.
        lag: How late the event loop last was, in seconds.
        stuck: Seconds for which keys have waited and none was taken or finished.
    """

    leading: bool = False
    filled: bool = False
    lag: float = 0.0
    stuck: Callable[[], float] = field(default=lambda: 0.0)

    def unhealthy(self) -> str:
        """Why the process should be restarted, empty when it should not."""
        if self.lag > LAG_LIMIT_SECONDS:
            return f"event loop lags {self.lag:.0f} s, limit {LAG_LIMIT_SECONDS:.0f} s"
        if (stuck := self.stuck()) > STUCK_LIMIT_SECONDS:
            return f"queue stands still for {stuck:.0f} s, limit {STUCK_LIMIT_SECONDS:.0f} s"
        return ""

    def unready(self) -> str:
        """Why it is not ready, empty when it is."""
        return "cluster is being read" if self.leading and not self.filled else ""


@asynccontextmanager
async def serve(health: Health, metrics: Metrics, port: int) -> AsyncIterator[int]:
    """Serve for as long as the block runs; gives the port, which the system picks for 0.

    Raises:
        OSError: If the port is taken.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _answer(health.unhealthy())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(health.unready())

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "0.0.0.0", port)  # noqa: S104 - kubelet asks from outside
        await site.start()
        bound = int(runner.addresses[0][1])
        _log.info("probes and metrics served", port=bound)
        yield bound
    finally:
        await runner.cleanup()


async def measure_lag(
    health: Health,
    metrics: Metrics,
    *,
    clock: Callable[[], float],
    period: float = _LAG_PERIOD_SECONDS,
) -> None:
    """Note, for ever, how late the event loop runs what is due."""
    while True:
        began = clock()
        await asyncio.sleep(period)
        health.lag = max(0.0, clock() - began - period)
        metrics.loop_lag.set(health.lag)


def _answer(problem: str) -> web.Response:
    return web.Response(text=problem or "ok", status=503 if problem else 200)
