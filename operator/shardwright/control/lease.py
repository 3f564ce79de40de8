"""Leader election over a coordination.k8s.io/v1 Lease: one process acts at a time.

The packaged elector of the Kubernetes client lives on after connection errors (two leaders), does
not notice a crashed leader task, uses the wall clock and releases nothing. This one is small enough
to be read: every change is a PUT with the resourceVersion that was read; how old another holder's
sign of life is, is measured with our own monotonic clock from when we saw it (clocks of nodes
differ); `remaining()` counts from *before* the last successful renewal was sent, and writes are
fenced with it, so that none of them outlives our certain hold. A Lease does not stop a process that
is already past that check: every write is idempotent besides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import structlog

from shardwright.api.settings import LeaseSettings
from shardwright.apply.client import Body, Cluster
from shardwright.apply.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    LeaseLost,
    NotFound,
)
from shardwright.apply.kinds import LEASE, kind_of, meta

_log = structlog.get_logger(__name__)


class _Turn(Enum):
    """Whose turn it is after a look at the Lease."""

    OURS = 1
    THEIRS = 2
    UNKNOWN = 3  # somebody wrote between our read and our write


@dataclass(frozen=True, slots=True)
class _Seen:
    """Somebody's sign of life, and when we saw it first on our clock."""

    holder: str
    version: str
    at: float


class Elector:
    """Takes, keeps and releases one Lease.

    Args:
        cluster: Not fenced, with calls shorter than the renew deadline.
        settings: Name and times.
        namespace: Of the Lease.
        identity: Unique to this process, also after a restart.
        clock: Monotonic seconds.
        wall: For the times written into the Lease, which only people read.
        sleep: As `asyncio.sleep`.
        on_change: Called with True when the Lease becomes ours and False when it stops being.

    Raises:
        ValueError: If the times do not leave room: retry < renew deadline < duration.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: LeaseSettings,
        *,
        namespace: str,
        identity: str,
        clock: Callable[[], float],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        if not settings.retry_seconds < settings.renew_seconds < settings.duration_seconds:
            raise ValueError(
                f"lease: retrySeconds {settings.retry_seconds:g} < renewSeconds "
                f"{settings.renew_seconds:g} < durationSeconds {settings.duration_seconds:g} must "
                "hold, or a holder could act after another has taken over; the usual is 2, 10, 15"
            )
        self._cluster = cluster
        self._settings = settings
        self._namespace = namespace
        self.identity = identity
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._on_change = on_change
        self._seen: _Seen | None = None
        self._until: float | None = None  # our certain hold; None while we are no leader
        self._lease: Body | None = None

    @property
    def leading(self) -> bool:
        """Whether the Lease is certainly ours now."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """Seconds for which the Lease is certainly ours, 0 when it is not."""
        return max(0.0, self._until - self._clock()) if self._until is not None else 0.0

    async def acquire(self) -> None:
        """Wait until the Lease is ours. Errors of the API server are waited out."""
        while True:
            try:
                if await self._try() is _Turn.OURS:
                    _log.info("lease acquired", lease=self._settings.name, identity=self.identity)
                    self._on_change(True)  # noqa: FBT003
                    return
            except ClusterError as error:
                _log.warning("lease not acquired", lease=self._settings.name, error=str(error))
            await self._sleep(self._settings.retry_seconds)

    async def hold(self) -> None:
        """Renew until the Lease is lost.

        Raises:
            LeaseLost: When another took it, or it could not be renewed within the deadline.
        """
        while True:
            await self._sleep(self._settings.retry_seconds)
            try:
                # a renewal that comes later than the deadline is worth nothing
                async with asyncio.timeout(self.remaining()):
                    ours = await self._try()
                if ours is _Turn.THEIRS:
                    self._lose(f"it belongs to {self._seen.holder if self._seen else ''} now")
            except TimeoutError:
                self._lose("it could not be renewed in time")
            except ClusterError as error:
                if self.remaining() <= 0:
                    self._lose(f"it could not be renewed in time: {error}")
                _log.warning("lease not renewed", remaining=self.remaining(), error=str(error))

    async def release(self) -> None:
        """Give the Lease back so that the next process need not wait for its end.

        Does nothing when it is not ours. A failure is logged: then the others wait.
        """
        if not self.leading or self._lease is None:
            return
        lease, left = self._lease, self.remaining()
        self._until = None
        self._on_change(False)  # noqa: FBT003
        try:
            async with asyncio.timeout(left):
                await self._give_back(lease)
        except (ClusterError, TimeoutError) as error:
            _log.warning("lease not released", lease=self._settings.name, error=str(error))
        else:
            _log.info("lease released", lease=self._settings.name)

    async def _give_back(self, lease: Body) -> None:
        """Write the Lease without a holder, for as long as the holder is this process.

        The last version that was heard of is not always the last: a renewal that was cancelled on
        its way may have been carried out all the same.
        """
        while _holder(lease) == self.identity:
            transitions = _spec(lease).get("leaseTransitions") or 0
            body = self._body(lease, holder="", transitions=transitions)
            body["spec"]["leaseDurationSeconds"] = 1
            try:
                await self._cluster.replace(LEASE, body)
            except Conflict:
                lease = await self._cluster.get(LEASE, self._namespace, self._settings.name)
            else:
                return

    async def _try(self) -> _Turn:
        """Take or renew the Lease; whose it is afterwards."""
        began = self._clock()
        try:
            lease = await self._cluster.get(LEASE, self._namespace, self._settings.name)
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                body = self._body(None, holder=self.identity, transitions=0)
                return self._held(began, await self._cluster.create(LEASE, body))
            return _Turn.UNKNOWN
        holder = _holder(lease)
        if holder and holder != self.identity and not self._expired(lease, holder):
            return _Turn.THEIRS
        transitions = int(_spec(lease).get("leaseTransitions") or 0)
        transitions += holder != self.identity
        try:
            made = await self._cluster.replace(
                LEASE, self._body(lease, holder=self.identity, transitions=transitions)
            )
        except Conflict:
            return _Turn.UNKNOWN  # somebody wrote in between; look again
        return self._held(began, made)

    def _expired(self, lease: Body, holder: str) -> bool:
        """Whether another holder gave no sign of life for its whole duration, on our clock."""
        version = str(meta(lease).get("resourceVersion", ""))
        if self._seen is None or (self._seen.holder, self._seen.version) != (holder, version):
            self._seen = _Seen(holder, version, self._clock())
        if self._until is not None:
            return False  # it was ours and is another's: that is the end, not a chance
        duration = float(_spec(lease).get("leaseDurationSeconds") or 0)
        duration = duration or self._settings.duration_seconds
        return self._clock() - self._seen.at >= duration

    def _held(self, began: float, lease: Body) -> _Turn:
        self._lease = lease
        self._until = began + self._settings.renew_seconds
        return _Turn.OURS if self.leading else _Turn.UNKNOWN

    def _lose(self, why: str) -> None:
        self._until = None
        self._on_change(False)  # noqa: FBT003
        raise LeaseLost(f"lease {self._settings.name}", 0, "LeaseLost", why)

    def _body(self, lease: Body | None, *, holder: str, transitions: int) -> Body:
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = _spec(lease or {})
        acquired = before.get("acquireTime") if before.get("holderIdentity") == holder else now
        identity: dict[str, Any] = {"namespace": self._namespace, "name": self._settings.name}
        if lease is not None:
            identity["resourceVersion"] = meta(lease)["resourceVersion"]
        return {
            "apiVersion": kind_of(LEASE).api_version,
            "kind": LEASE,
            "metadata": identity,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": round(self._settings.duration_seconds),
                "acquireTime": acquired or now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }


def _spec(lease: Body) -> dict[str, Any]:
    found: dict[str, Any] = lease.get("spec") or {}
    return found


def _holder(lease: Body) -> str:
    return str(_spec(lease).get("holderIdentity") or "")
