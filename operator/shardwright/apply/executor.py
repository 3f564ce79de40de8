"""Carries out writes in order and tells the store what the server answered.

What the server returns is newer than any watch event that is still under way, so it is put into the
store at once: the next pass sees its own writes. What went wrong is sorted into what the next pass
must know (`stale`, `blocked`, `quota`) and what nobody can act on (raised).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from shardwright.api.names import LABEL_CLAIM_UID, LABEL_KEY, LABEL_STEP, MANAGER_STATUS
from shardwright.apply.client import Body, Cluster
from shardwright.apply.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    LeaseLost,
    NotFound,
    PatchRejected,
)
from shardwright.apply.events import event_body
from shardwright.apply.kinds import BUDGET, EVENT, JOB, SERVICE, meta
from shardwright.apply.writes import (
    Apply,
    ApplyStatus,
    Create,
    Delete,
    Patch,
    PostEvent,
    Together,
    Write,
)

_log = structlog.get_logger(__name__)
_REMEMBERED = 8192
_JOB_IDENTITY = (LABEL_STEP, LABEL_KEY, LABEL_CLAIM_UID)


@dataclass(frozen=True, slots=True)
class Version:
    """Which state of which object: generation counts where the kind has one, else the version."""

    uid: str
    generation: int
    resource_version: int

    def same_content(self, other: Version) -> bool:
        """Whether nobody changed the content in between (status does not count)."""
        if self.uid != other.uid:
            return False
        if self.generation and other.generation:
            return self.generation == other.generation
        return self.resource_version == other.resource_version


class Cache(Protocol):
    """What the executor needs of the store. `by` is the key whose pass wrote."""

    def observed(self, kind: str, body: Body, *, by: object = None) -> None:
        """The server answered with this object."""

    def vanished(self, kind: str, namespace: str, name: str, uid: str, by: object = None) -> None:
        """The server says that the object with this uid is gone."""

    def version(self, kind: str, namespace: str, name: str) -> Version | None:
        """Which state of the object is known, None if none is."""


@dataclass(slots=True)
class Outcome:
    """How a list of writes went.

    Attributes:
        done: Writes that were carried out, or were true already.
        skipped: Applies left out because nothing would have changed.
        stale: What was read is out of date: look again soon.
        blocked: Names taken by an object that is another's or is being deleted: wait for it.
        quota: The server's words when a ResourceQuota refused a create, else empty.
        left_out: Writes that were not tried, since an earlier group did not come through.
    """

    done: int = 0
    skipped: int = 0
    stale: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    quota: str = ""
    left_out: int = 0

    @property
    def complete(self) -> bool:
        """Whether everything asked for is now true."""
        return not (self.stale or self.blocked or self.quota or self.left_out)


class Executor:
    """Carries out writes through one cluster into one store.

    It remembers what was applied, so that a pass that wants what is there already costs no request.
    """

    def __init__(
        self, cluster: Cluster, cache: Cache, *, instance: str, parallel: int = 16
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._instance = instance
        self._parallel = parallel
        self._applied: dict[tuple[str, str, str], tuple[str, Version]] = {}

    async def execute(self, writes: Sequence[Write | Together], *, by: object = None) -> Outcome:
        """Carry out `writes` in order; stop after the first group that does not come through.

        Args:
            writes: The members of a `Together` run at the same time, at most `parallel` of them.
            by: The key whose pass this is: the store does not wake it for its own writes.

        Raises:
            ClusterError: What the caller cannot act on by looking again: content that the server
                refuses, missing rights, no answer, a lost Lease. The rest of its group has run.
        """
        outcome = Outcome()
        room = asyncio.Semaphore(self._parallel)
        for number, item in enumerate(writes):
            group = item.writes if isinstance(item, Together) else (item,)
            if outcome.stale or outcome.blocked or outcome.quota:
                rest = writes[number:]
                outcome.left_out = sum(
                    len(one.writes) if isinstance(one, Together) else 1 for one in rest
                )
                break
            await self._group(group, outcome, room, by)
        return outcome

    async def _group(
        self, group: Iterable[Write], outcome: Outcome, room: asyncio.Semaphore, by: object
    ) -> None:
        async def one(write: Write) -> None:
            async with room:
                await self._one(write, outcome, by)

        ended = await asyncio.gather(*(one(write) for write in group), return_exceptions=True)
        failures = [error for error in ended if isinstance(error, BaseException)]
        for further in failures[1:]:
            _log.warning("write failed", error=str(further))
        if failures:
            raise failures[0]

    async def _one(self, write: Write, outcome: Outcome, by: object) -> None:
        match write:
            case Create():
                await self._create(write, outcome, by)
            case Apply():
                await self._apply(write, outcome, by)
            case ApplyStatus():
                await self._status(write, outcome, by)
            case Patch():
                await self._patch(write, outcome, by)
            case Delete():
                await self._delete(write, outcome, by)
            case PostEvent():
                await self._event(write, outcome)

    async def _create(self, write: Create, outcome: Outcome, by: object) -> None:
        try:
            made = await self._cluster.create(write.kind, write.body)
        except AlreadyExists:
            await self._adopt(write, outcome, by)
        except Forbidden as error:
            if not error.quota:
                raise
            outcome.quota = error.message
        else:
            if write.kind in (SERVICE, BUDGET):
                # What is applied from now on was created: nothing to apply before it changes.
                self._applied[_place(write)] = (_digest(write.body), version_of(made))
            self._cache.observed(write.kind, made, by=by)
            outcome.done += 1

    async def _adopt(self, write: Create, outcome: Outcome, by: object) -> None:
        """The name is taken: by what an earlier pass made, or by something to wait for?"""
        wanted = meta(write.body)
        namespace, name = str(wanted.get("namespace", "")), str(wanted["name"])
        try:
            there = await self._cluster.get(write.kind, namespace, name)
        except NotFound:
            outcome.stale.append(f"{write.kind} {name} went while it was looked at")
            return
        self._cache.observed(write.kind, there, by=by)
        if problem := _not_ours(write, there):
            outcome.blocked.append(f"{write.kind} {name} {problem}")
        else:
            outcome.done += 1

    async def _apply(self, write: Apply, outcome: Outcome, by: object) -> None:
        place = _place(write)
        digest = _digest(write.body)
        now = self._cache.version(*place)
        before = self._applied.get(place)
        if before and now and before[0] == digest and before[1].same_content(now):
            outcome.skipped += 1
            return
        try:
            made = await self._cluster.apply(write.kind, write.body, manager=write.manager)
        except Conflict as error:
            outcome.stale.append(str(error))
            return
        self._remember(place, digest, version_of(made))
        self._cache.observed(write.kind, made, by=by)
        outcome.done += 1

    def _remember(self, place: tuple[str, str, str], digest: str, version: Version) -> None:
        self._applied[place] = (digest, version)
        if len(self._applied) > _REMEMBERED:
            # what went without a delete of ours: owners took it along
            kept = {one: it for one, it in self._applied.items() if self._cache.version(*one)}
            self._applied = kept

    async def _status(self, write: ApplyStatus, outcome: Outcome, by: object) -> None:
        found = meta(write.body)
        try:
            made = await self._cluster.apply_status(write.kind, write.body, manager=MANAGER_STATUS)
        except Conflict as error:
            outcome.stale.append(str(error))
        except NotFound as error:
            outcome.stale.append(str(error))
            self._cache.vanished(
                write.kind, str(found["namespace"]), str(found["name"]), str(found["uid"]), by
            )
        else:
            self._cache.observed(write.kind, made, by=by)
            outcome.done += 1

    async def _patch(self, write: Patch, outcome: Outcome, by: object) -> None:
        same: Mapping[str, Any] = {"op": "test", "path": "/metadata/uid", "value": write.uid}
        ops = write.ops if same in write.ops else [same, *write.ops]
        try:
            made = await self._cluster.json_patch(write.kind, write.namespace, write.name, ops)
        except (PatchRejected, Conflict) as error:
            outcome.stale.append(str(error))
        except NotFound as error:
            outcome.stale.append(str(error))
            self._cache.vanished(write.kind, write.namespace, write.name, write.uid, by)
        else:
            self._cache.observed(write.kind, made, by=by)
            outcome.done += 1

    async def _delete(self, write: Delete, outcome: Outcome, by: object) -> None:
        place = (write.kind, write.namespace, write.name)
        try:
            left = await self._cluster.delete(
                *place, uid=write.uid, grace_seconds=write.grace_seconds
            )
        except (NotFound, Conflict):
            # a conflict is about the uid: the name is another object's now, ours is gone
            self._cache.vanished(*place, write.uid, by)
        else:
            if left.get("kind") == write.kind:
                self._cache.observed(write.kind, left, by=by)
            else:
                self._cache.vanished(*place, write.uid, by)
        self._applied.pop(place, None)
        outcome.done += 1

    async def _event(self, write: PostEvent, outcome: Outcome) -> None:
        """Events are a courtesy: one that cannot be posted is logged and holds up nothing."""
        try:
            await self._cluster.create(EVENT, event_body(write, self._instance))
        except AlreadyExists:
            pass
        except LeaseLost:
            raise
        except ClusterError as error:
            _log.warning("event not posted", reason=write.reason, error=str(error))
            return
        outcome.done += 1


def _place(write: Create | Apply) -> tuple[str, str, str]:
    found = meta(write.body)
    return write.kind, str(found.get("namespace", "")), str(found["name"])


def _digest(body: Body) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def version_of(body: Body) -> Version:
    """The version an object is in."""
    found = meta(body)
    return Version(
        uid=str(found.get("uid", "")),
        generation=int(found.get("generation") or 0),
        resource_version=int(found.get("resourceVersion") or 0),
    )


def _not_ours(write: Create, there: Body) -> str:
    """Why the object that has the name is not what `write` would have created, or empty."""
    found = meta(there)
    if found.get("deletionTimestamp"):
        return "is being deleted"
    owners = {owner.get("uid") for owner in found.get("ownerReferences") or ()}
    if write.expect_owner_uid and write.expect_owner_uid not in owners:
        return f"belongs to {', '.join(sorted(map(str, owners))) or 'nobody'}"
    if write.kind == JOB:
        wanted, has = meta(write.body).get("labels") or {}, found.get("labels") or {}
        for label in _JOB_IDENTITY:
            if wanted.get(label) != has.get(label):
                return f"has {label}={has.get(label)}, not {wanted.get(label)}"
    return ""
