"""All that the operator knows of the cluster, as views, with the indexes that passes need.

It is fed from three sides: watch events (kopf's `on.event`), the server's answers to our own writes
(so a pass sees what the one before it wrote), and lists of our own. kopf's indexes would do the
first only: their start costs grow faster than the objects (measured for 2,000: 11.7 s, plain events
2.1 s), they cannot take an answer to a write, and like every watch they miss deletions that happen
between two lists. So lists taken here close the gaps: once under a new Lease, before anything is
placed, once when the watches run, after each time a watch had to list anew, and from time to time.

A change wakes the keys that depend on it (`control.wake`), except the one whose pass made it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from shardwright.api.names import LABEL_ADAPTERS, LABEL_RECORD, LABEL_RUNNER
from shardwright.api.settings import Settings
from shardwright.apply.client import Body, Cluster
from shardwright.apply.errors import NotFound
from shardwright.apply.executor import Version, version_of
from shardwright.apply.kinds import (
    BUDGET,
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    REVISION,
    SERVICE,
    SLICE,
    VOLUME,
    meta,
)
from shardwright.control import wake
from shardwright.control.metrics import Metrics
from shardwright.control.queue import Key
from shardwright.control.tables import Change, Table
from shardwright.control.trimmed import (
    trimmed_claim,
    trimmed_node,
    trimmed_slice,
    trimmed_volume,
)
from shardwright.control.views import Views
from shardwright.control.watched import WATCHES, Watch
from shardwright.observe.nodes import node_view
from shardwright.observe.projections import (
    child_view,
    deployment_view,
    job_view,
    pod_view,
    record_view,
    revision_view,
)
from shardwright.observe.world import DeploymentView

_log = structlog.get_logger(__name__)
_RECORDS: Final = "Record"  # tables of their own for each kind of our ConfigMaps
_RUNNERS: Final = "Runner"
_ADAPTERS: Final = "Adapters"
_CONFIG_MAPS: Final = (_RECORDS, _RUNNERS, _ADAPTERS)
# What reading raises of an object that anybody may have written: wrong kinds, numbers without end,
# JSON that is nested without end.
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class Store(Views):
    """Views of everything that is watched. Single-threaded: used from one event loop.

    Args:
        settings: Which namespaces are served, and how nodes are read.
        metrics: Where the series of LLMDeployments and what cannot be read are kept.
    """

    def __init__(self, settings: Settings, *, metrics: Metrics | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._metrics = metrics
        if metrics is not None:
            metrics.watch(lambda: self.deployments)
        self._listeners: list[Callable[[set[Key]], None]] = []
        self._tables: Mapping[str, tuple[Table[Any], Callable[[Body], Any]]] = {
            DEPLOYMENT: (self.deployments, deployment_view),
            POD: (self.pods, pod_view),
            JOB: (self.jobs, job_view),
            _RECORDS: (self.records, record_view),
            _RUNNERS: (self.runners, child_view),
            _ADAPTERS: (self.adapters, child_view),
            REVISION: (self.revisions, revision_view),
            SERVICE: (self.services, child_view),
            BUDGET: (self.budgets, child_view),
            CLAIM: (self.claim_bodies, trimmed_claim),
            VOLUME: (self.volumes, trimmed_volume),
            NODE: (self.node_bodies, trimmed_node),
            SLICE: (self.slices, trimmed_slice),
        }

    def listen(self, listener: Callable[[set[Key]], None]) -> None:
        """Call `listener` with the keys that a change wakes."""
        self._listeners.append(listener)

    # What feeds it.

    def event(self, kind: str, event_type: str | None, body: Body) -> None:
        """A watch event; kopf's type None stands for an object of its list."""
        if event_type == "DELETED":
            found = meta(body)
            place = (str(found.get("namespace", "")), str(found["name"]))
            self._remove(kind, place, str(found["uid"]), int(found.get("resourceVersion") or 0))
        else:
            self.observed(kind, body)

    def observed(self, kind: str, body: Body, *, by: object = None) -> None:
        """The server showed this object."""
        self._wake(self._take(kind, body), by)

    def vanished(self, kind: str, namespace: str, name: str, uid: str, by: object = None) -> None:
        """The server says that the object with this uid is gone."""
        self._remove(kind, (namespace, name), uid, 0, by)

    def version(self, kind: str, namespace: str, name: str) -> Version | None:
        """Which state of the object is known; None for none, and for kinds that are not watched."""
        for one in _CONFIG_MAPS if kind == CONFIG_MAP else (kind,):
            if one in self._tables and (found := self._tables[one][0].entry(namespace, name)):
                return found.version
        return None

    async def fill(self, cluster: Cluster, watches: Iterable[Watch] = WATCHES) -> None:
        """Take lists of the kinds and make the store agree with them.

        What is newer than its list stays; what an older list does not know is removed.

        Raises:
            ClusterError: If a list cannot be taken; what came of the others is kept.
        """
        async with asyncio.TaskGroup() as group:
            for watch in watches:
                group.create_task(self._fill_one(cluster, watch))

    async def _fill_one(self, cluster: Cluster, watch: Watch) -> None:
        served = self._settings.watch_namespaces
        scopes = [""] if watch.everywhere or not served else served
        for namespace in scopes:
            if self._metrics:
                self._metrics.relists.inc()
            try:
                listing = await cluster.list(watch.kind, namespace, labels=watch.labels)
            except NotFound:
                if not watch.optional:
                    raise
                continue
            keys: set[Key] = set()
            listed: set[tuple[str, str]] = set()
            for body in listing.items:
                found = meta(body)
                listed.add((str(found.get("namespace", "")), str(found["name"])))
                keys |= self._take(watch.kind, body)
            for one in _CONFIG_MAPS if watch.kind == CONFIG_MAP else (watch.kind,):
                table, _ = self._tables[one]
                for change in table.retain(
                    listed,
                    listing.resource_version,
                    lambda place, scope=namespace: not scope or place[0] == scope,  # type: ignore[misc]
                ):
                    keys |= self._changed(one, change)
            self._wake(keys, None)

    def _take(self, kind: str, body: Body) -> set[Key]:
        table_kind = _table_of(kind, body)
        if table_kind is None or table_kind not in self._tables:
            return set()  # ours, but nothing is decided by it: a token's Secret
        table, project = self._tables[table_kind]
        found = meta(body)
        place = (str(found.get("namespace", "")), str(found["name"]))
        version = version_of(body)
        entry = table.entry(*place)
        if entry and entry.version.resource_version >= version.resource_version:
            return set()  # seen already: most watch events follow the answer to our own write
        try:
            change = table.put(place, version, project(body))
        except _UNREADABLE as error:
            # one odd object must not blind the operator for all others; it is counted and said
            if self._metrics:
                self._metrics.unreadable.labels(kind).inc()
            _log.error("object cannot be read", kind=kind, object="/".join(place), error=str(error))
            return set()
        return self._changed(table_kind, change) if change else set()

    def _remove(
        self, kind: str, place: tuple[str, str], uid: str, version: int, by: object = None
    ) -> None:
        for one in _CONFIG_MAPS if kind == CONFIG_MAP else (kind,):
            if one in self._tables and (change := self._tables[one][0].remove(place, uid, version)):
                self._wake(self._changed(one, change), by)

    def _changed(self, kind: str, change: Change[Any]) -> set[Key]:
        """Keep what is derived in step with a change, and say which keys it wakes."""
        old = change.old.view if change.old else None
        new = change.new.view if change.new else None
        if kind in (NODE, SLICE):
            return self._inventory_changed(kind, change.place, old, new)
        if kind == POD:
            if old is not None and (new is None or new.uid != old.uid):
                self.usage.remove_pod(old.uid)
            if new is not None:
                self.usage.put_pod(new)
        elif kind == JOB:
            if old is not None and (new is None or new.uid != old.uid):
                self.usage.remove_job(old.uid)
            if new is not None:
                self.usage.put_job(new)
        elif kind == DEPLOYMENT:
            self._deployment_changed(old, new)
        return wake.affected(self, kind, change)

    def _deployment_changed(self, old: DeploymentView | None, new: DeploymentView | None) -> None:
        if new is None and old is not None:
            key = Key("deployment", old.namespace, old.name)
            self.waiters.discard(key)
            self.planned.discard(key)
            self.interests.pop(key, None)

    def _inventory_changed(
        self, kind: str, place: tuple[str, str], old: Body | None, new: Body | None
    ) -> set[Key]:
        names = {place[1]} if kind == NODE else _nodes_of_slices(old, new)
        if "" in names:
            names = {name for _, name in self._node_places()}
        keys: set[Key] = set()
        for name in names:
            before = self.nodes.get(name)
            body = self.node_bodies.get("", name)
            if body is None:
                self.nodes.pop(name, None)
            else:
                slices = [*self.slices.by("node", name), *self.slices.by("node", "")]
                self.nodes[name] = node_view(body, self._settings, slices)
            if before != self.nodes.get(name):
                self.inventory_version += 1
                keys |= wake.on_node(self, name)
        return keys

    def _node_places(self) -> list[tuple[str, str]]:
        return [("", meta(body)["name"]) for body in self.node_bodies]

    def _wake(self, keys: set[Key], by: object) -> None:
        keys = {key for key in keys if key != by}
        if keys:
            for listener in self._listeners:
                listener(keys)


def _table_of(kind: str, body: Body) -> str | None:
    if kind != CONFIG_MAP:
        return kind
    labels = meta(body).get("labels") or {}
    if LABEL_RECORD in labels:
        return _RECORDS
    if LABEL_ADAPTERS in labels:
        return _ADAPTERS
    return _RUNNERS if LABEL_RUNNER in labels else None


def _nodes_of_slices(old: Body | None, new: Body | None) -> set[str]:
    """Nodes whose devices a slice lists; "" when it does not name one."""
    return {body["spec"].get("nodeName", "") for body in (old, new) if body is not None}
