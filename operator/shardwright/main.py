"""Every kopf handler of the operator: a login, and one event handler a kind.

kopf lists and watches. It writes nothing: there are no handlers that need annotations, finalizers
or a peering object, events are not posted through it, and what it shows goes straight into the
store. What happens then is in `control`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import kopf
import structlog

from shardwright.api.settings import Settings
from shardwright.apply.client import load_configuration
from shardwright.apply.kinds import kind_of
from shardwright.control.loop import MakeReconcile, Sink, Watching, WatchOrder, run_operator
from shardwright.control.watched import WATCHES, Watch

_log = structlog.get_logger(__name__)
_LOGIN_MINUTES: Final = 10


def handlers(watches: Sequence[Watch], sink: Sink, kubeconfig: str = "") -> kopf.OperatorRegistry:
    """The operator's handlers.

    Args:
        watches: The kinds to watch.
        sink: Where their events go.
        kubeconfig: As for `load_configuration`.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection(kubeconfig)

    for watch in watches:
        entry = kind_of(watch.kind)
        group, _, version = entry.api_version.rpartition("/")

        async def event(event: kopf.RawEvent, kind: str = watch.kind, **_: Any) -> None:
            sink.event(kind, event["type"], dict(event["object"]))

        kopf.on.event(group, version, entry.plural, registry=registry, id=watch.kind)(event)
    return registry


async def connection(kubeconfig: str = "") -> kopf.ConnectionInfo:
    """Credentials for kopf, to be read again before a projected token ends (after an hour)."""
    read = await load_configuration(kubeconfig)
    _, _, token = str(read.api_key.get("BearerToken", "")).rpartition(" ")
    return kopf.ConnectionInfo(
        server=str(read.host),
        ca_path=read.ssl_ca_cert,
        insecure=not read.verify_ssl,
        token=token or None,
        certificate_path=read.cert_file,
        private_key_path=read.key_file,
        proxy_url=read.proxy,
        expiration=datetime.now(UTC) + timedelta(minutes=_LOGIN_MINUTES),
    )


def kopf_settings(watches: Sequence[Watch]) -> kopf.OperatorSettings:
    """Settings of kopf itself: silent, patient with the network, never with a dead stream."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    settings.peering.standalone = True
    # discovery at the start is enough; following CRDs and namespaces would need more rights
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 310
    settings.watching.connect_timeout = 30
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    for watch in watches:
        if watch.labels:
            entry = kind_of(watch.kind)
            group, _, version = entry.api_version.rpartition("/")
            settings.watching.label_selectors[group, version, entry.plural] = watch.labels
    return settings


class _NoDiffs(kopf.DiffBaseStorage):
    """No handler asks what changed, so no essence of an object is made.

    kopf would deep-copy every object at every event for it: half of the operator's time while many
    deployments come up.
    """

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:  # noqa: ARG002
        return cast("kopf.BodyEssence", {})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is ever written to an object."""


class _NoProgress(kopf.StatusProgressStorage):
    """No handler is ever retried by kopf, so there is no progress to look for."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class _EveryTask(Collection[asyncio.Task[Any]]):
    """To kopf, every task but its own root tasks is somebody else's.

    When it stops it would otherwise cancel whatever was started after it, which in this process is
    the answer to a probe as well as a pass.
    """

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(asyncio.all_tasks())

    def __len__(self) -> int:
        return len(asyncio.all_tasks())


def watching(served: Sequence[str], kubeconfig: str = "") -> Watching:
    """The watches: of the whole cluster, or, of most kinds, of the served namespaces only."""

    async def watch(order: WatchOrder) -> None:
        everywhere = tuple(one for one in WATCHES if one.everywhere or not served)
        some = tuple(one for one in WATCHES if one not in everywhere)
        async with asyncio.TaskGroup() as group:
            group.create_task(_watch(order, everywhere, (), kubeconfig))
            if some:
                group.create_task(_watch(order, some, tuple(served), kubeconfig))

    return watch


async def _watch(
    order: WatchOrder, watches: Sequence[Watch], namespaces: Sequence[str], kubeconfig: str
) -> None:
    tasks = await kopf.spawn_tasks(
        registry=handlers(watches, order.sink, kubeconfig),
        settings=kopf_settings(watches),
        # only peering uses it, but kopf would ask for the user's name, which containers may lack
        identity=cast("Any", "shardwright"),
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=order.stop,
    )
    order.spawned()
    await kopf.run_tasks(tasks, ignored=_EveryTask())


async def operate(
    settings: Settings, make_reconcile: MakeReconcile, *, kubeconfig: str = ""
) -> None:
    """Run the operator until it is told to stop. Raises what `run_operator` raises."""
    try:
        await run_operator(
            settings,
            make_reconcile,
            watching(settings.watch_namespaces, kubeconfig),
            kubeconfig=kubeconfig,
        )
    finally:
        asyncio.get_running_loop().set_exception_handler(closing)


def closing(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's exception handler once everything has ended.

    kopf leaves its streams of events half-way, and asyncio closes them last of all. That one does
    not like it is no error of a process that has nothing left to do.
    """
    if "asyncgen" in context:
        _log.debug("a stream did not close", error=repr(context.get("exception")))
    else:
        loop.default_exception_handler(context)
