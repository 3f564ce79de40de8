"""A Lease's API server and a clock, both driven by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shardwright.apply.errors import AlreadyExists, Conflict, NotFound, Unavailable

Body = dict[str, Any]


class Clock:
    """Monotonic seconds that pass only when somebody sleeps."""

    def __init__(self, at: float = 1000.0) -> None:
        self.now = at
        self.on_tick: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_tick()
        await asyncio.sleep(0)


class LeaseServer:
    """Keeps one Lease with a resourceVersion, and can be away."""

    def __init__(self) -> None:
        self.lease: Body | None = None
        self.away = False
        self.before_replace: Callable[[], None] = lambda: None
        self.writes = 0
        self._version = 0

    def put(self, holder: str, *, duration: int = 15, renewed: str = "") -> None:
        """Somebody else writes the Lease."""
        self._version += 1
        self.lease = {
            "metadata": {"name": "shardwright", "resourceVersion": str(self._version)},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": duration,
                "renewTime": renewed,
                "leaseTransitions": 3,
            },
        }

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])

    def _check(self) -> None:
        if self.away:
            raise Unavailable("lease", 0, "Unreachable", "connection refused")

    async def get(self, kind: str, namespace: str, name: str) -> Body:
        self._check()
        if self.lease is None:
            raise NotFound("get", 404, "NotFound", f"{kind} {namespace}/{name}")
        return self.lease

    async def create(self, kind: str, body: Body) -> Body:
        self._check()
        if self.lease is not None:
            raise AlreadyExists("create", 409, "AlreadyExists", kind)
        return self._write(body)

    async def replace(self, kind: str, body: Body) -> Body:
        self._check()
        self.before_replace()
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("replace", 409, "Conflict", kind)
        return self._write(body)

    def _write(self, body: Body) -> Body:
        self._version += 1
        self.writes += 1
        meta = {**body["metadata"], "resourceVersion": str(self._version)}
        self.lease = {**body, "metadata": meta}
        return self.lease
