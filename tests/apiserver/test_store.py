"""The store and the whole process on a real API server, with kopf's real watches."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from kubernetes import client
from tests.support.specs import MINIMAL_SPEC

from shardwright.api import names
from shardwright.api.settings import LeaseSettings, Settings
from shardwright.apply.client import Cluster, connect
from shardwright.apply.kinds import CONFIG_MAP, DEPLOYMENT, LEASE, POD
from shardwright.control.loop import Parts, run_operator
from shardwright.control.queue import Key, Result
from shardwright.control.store import Store
from shardwright.main import watching
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.pytest_plugin import Namespace

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def cluster(sandbox: Sandbox) -> AsyncIterator[Cluster]:
    async with connect(str(sandbox.kubeconfig)) as connected:
        yield connected


def deployment(namespace: Namespace, name: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": DEPLOYMENT,
        "metadata": {"namespace": str(namespace), "name": name},
        "spec": dict(MINIMAL_SPEC),
    }


def pod(namespace: Namespace, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": POD,
        "metadata": {"namespace": str(namespace), "name": name},
        "spec": {
            "schedulingGates": [{"name": names.SCHEDULING_GATE}],
            "containers": [{"name": "c", "image": "x"}],
        },
    }


async def eventually(condition: Callable[[], object], seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - it is a cluster that is waited for
            await asyncio.sleep(0.02)


async def test_lists_fill_the_store_and_a_later_one_finds_what_went(
    cluster: Cluster, namespace: Namespace
) -> None:
    store = Store(Settings())
    kept = await cluster.create(POD, pod(namespace, "kept"))
    gone = await cluster.create(POD, pod(namespace, "gone"))
    await cluster.create(DEPLOYMENT, deployment(namespace, "a"))
    await store.fill(cluster)
    assert store.pods.get(str(namespace), "gone") is not None
    view = store.deployment(str(namespace), "a")
    assert view is not None
    assert view.spec["replicas"] == 1, "as the server filled it in"
    await cluster.delete(POD, str(namespace), "gone", uid=gone["metadata"]["uid"], grace_seconds=0)
    await store.fill(cluster)
    assert store.pods.get(str(namespace), "gone") is None
    assert store.pods.get(str(namespace), "kept") is not None
    store.event(POD, "MODIFIED", gone)
    store.event(POD, "MODIFIED", kept)
    assert store.pods.get(str(namespace), "gone") is None


@dataclass
class Running:
    """An operator in this process whose passes are only written down."""

    stop: asyncio.Event
    task: asyncio.Task[None]
    passes: list[Key] = field(default_factory=list)
    parts: list[Parts] = field(default_factory=list)
    port: list[int] = field(default_factory=list)

    def seen(self, *names_: str) -> set[Key]:
        return {key for key in self.passes if key.name in names_}


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(sandbox: Sandbox, namespace: Namespace) -> AsyncIterator[Start]:
    running: list[Running] = []

    async def begin(*served: str) -> Running:
        found = Running(asyncio.Event(), asyncio.current_task())  # type: ignore[arg-type]

        def make(parts: Parts) -> Callable[[Key], Awaitable[Result]]:
            found.parts.append(parts)

            async def reconcile(key: Key) -> Result:
                found.passes.append(key)
                return Result()

            return reconcile

        settings = Settings(
            namespace=str(namespace),
            http_port=0,
            watch_namespaces=list(served),
            lease=LeaseSettings(duration_seconds=60, renew_seconds=40, retry_seconds=0.3),
        )
        kubeconfig = str(sandbox.kubeconfig)
        found.task = asyncio.create_task(
            run_operator(
                settings,
                make,
                watching(settings.watch_namespaces, kubeconfig),
                kubeconfig=kubeconfig,
                stop=found.stop,
                on_http=found.port.append,
            )
        )
        running.append(found)
        return found

    yield begin
    for one in running:
        one.stop.set()
        with contextlib.suppress(asyncio.CancelledError):
            async with asyncio.timeout(120):
                await one.task
    await _leave_nothing()


async def _leave_nothing() -> None:
    """End what kopf leaves behind when it is stopped while it still looks around.

    Requests that it had not begun yet outlive it, and open a session that nobody closes. A process
    ends with them; this one goes on, and the garbage collector would blame another test.
    """
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    del left
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def ask(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def test_the_process_takes_the_lease_fills_watches_works_and_leaves_no_mark(
    start: Start, cluster: Cluster, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    await cluster.create(DEPLOYMENT, deployment(namespace, "before"))
    operator = await start()
    await eventually(lambda: operator.seen("before"))
    assert (await ask(operator.port[0], "/readyz")) == (200, "ok")
    assert (await ask(operator.port[0], "/healthz")) == (200, "ok")
    made = await cluster.create(DEPLOYMENT, deployment(namespace, "after"))
    await eventually(lambda: operator.seen("after"))
    _, metrics = await ask(operator.port[0], "/metrics")
    assert 'leader_election_master_status{name="shardwright"} 1.0' in metrics
    assert (
        f'shardwright_resource_info{{backend="TensorRT",name="after",namespace="{namespace}"'
        in (metrics)
    )
    await asyncio.sleep(1)
    now = await cluster.get(DEPLOYMENT, str(namespace), "after")
    assert now["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert not now["metadata"].get("annotations")
    assert not now["metadata"].get("finalizers")
    await cluster.delete(DEPLOYMENT, str(namespace), "after", uid=made["metadata"]["uid"])
    await eventually(lambda: operator.parts[0].store.deployment(str(namespace), "after") is None)
    operator.stop.set()
    async with asyncio.timeout(120):
        await operator.task
    lease = await cluster.get(LEASE, str(namespace), "shardwright")
    assert not lease["spec"].get("holderIdentity")


async def test_a_standby_takes_over_and_only_then_makes_passes(
    start: Start, cluster: Cluster, namespace: Namespace
) -> None:
    await cluster.create(DEPLOYMENT, deployment(namespace, "a"))
    first = await start()
    await eventually(lambda: first.seen("a"))
    second = await start()
    await eventually(lambda: second.port)
    assert (await ask(second.port[0], "/readyz"))[0] == 200
    await asyncio.sleep(1)
    assert second.passes == []
    first.stop.set()
    await eventually(lambda: second.seen("a"))
    async with asyncio.timeout(120):
        await first.task


async def test_only_served_namespaces_are_worked_on_but_all_pods_are_known(
    start: Start, cluster: Cluster, namespace: Namespace, sandbox: Sandbox
) -> None:
    foreign = f"{namespace}-x"
    core = client.CoreV1Api(sandbox.api)
    core.create_namespace({"metadata": {"name": foreign}})
    try:
        operator = await start(str(namespace))
        await eventually(lambda: operator.parts and operator.parts[0].store.all_keys() == set())
        body = deployment(namespace, "foreign")
        body["metadata"]["namespace"] = foreign
        await cluster.create(DEPLOYMENT, body)
        other = pod(namespace, "other")
        other["metadata"]["namespace"] = foreign
        await eventually(lambda: core.list_namespaced_service_account(foreign).items)
        await cluster.create(POD, other)
        await cluster.create(DEPLOYMENT, deployment(namespace, "served"))
        await eventually(lambda: operator.seen("served"))
        await eventually(lambda: operator.parts[0].store.pods.get(foreign, "other"))
        assert not operator.seen("foreign")
    finally:
        core.delete_namespace(foreign)


async def test_a_config_map_that_is_not_ours_is_not_watched(
    start: Start, cluster: Cluster, namespace: Namespace
) -> None:
    operator = await start()
    await eventually(lambda: operator.parts)
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_RUNNER: "true"}
    for name, its in (("theirs", {names.LABEL_RUNNER: "true"}), ("ours", labels)):
        meta = {"namespace": str(namespace), "name": name, "labels": its}
        await cluster.create(CONFIG_MAP, {"apiVersion": "v1", "kind": CONFIG_MAP, "metadata": meta})
    store = operator.parts[0].store
    await eventually(lambda: store.runners_in(str(namespace)))
    assert [item.name for item in store.runners_in(str(namespace))] == ["ours"]
