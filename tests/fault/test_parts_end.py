"""One process from start to end against a scripted API server: order, and any end is the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import kmock as mocks
import pytest
import yaml

from shardwright.api.crd import crd
from shardwright.api.names import API_VERSION, PLURAL
from shardwright.api.settings import LeaseSettings, Settings
from shardwright.apply.errors import LeaseLost
from shardwright.control.crd import CRDError, crd_problem
from shardwright.control.loop import EndedEarly, MakeReconcile, Parts, WatchOrder, run_operator
from shardwright.control.queue import Key, Result

pytestmark = pytest.mark.kmock(cls=mocks.RawHandler)

CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/llmdeployments.shardwright.dev"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/shardwright-system/leases"
SETTINGS = Settings(
    http_port=0,
    lease=LeaseSettings(duration_seconds=120, renew_seconds=100, retry_seconds=0.1),
)
HANGS = 60.0


@pytest.fixture
def lease(kmock: Any) -> dict[str, Any]:
    """The Lease as it is kept, free at first; whoever writes it gets it."""
    state: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": ""}}

    def write(request: Any) -> dict[str, Any]:
        state["spec"] = request.data["spec"]
        return state

    kmock[f"get {LEASES}/shardwright"] << (lambda: state)
    kmock[f"put {LEASES}/shardwright"] << write
    return state


@pytest.fixture
def kubeconfig(kmock: Any, lease: dict[str, Any], tmp_path: Path) -> str:
    """A kubeconfig for a server that has the CRD, an empty cluster, and one LLMDeployment."""
    kmock[f"get {CRD_PATH}"] << crd()
    kmock[f"get /apis/{API_VERSION}/{PLURAL}"] << {
        "metadata": {"resourceVersion": "5"},
        "items": [
            {
                "metadata": {
                    "namespace": "llm",
                    "name": "a",
                    "uid": "u",
                    "resourceVersion": "3",
                    "generation": 1,
                },
                "spec": {},
            }
        ],
    }
    kmock["get"] ** -1 << {"metadata": {"resourceVersion": "5"}, "items": []}
    server = {"name": "k", "cluster": {"server": str(kmock.url).rstrip("/")}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [server],
        "users": [{"name": "k", "user": {"token": "t"}}],
        "contexts": [{"name": "k", "context": {"cluster": "k", "user": "k"}}],
        "current-context": "k",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return str(path)


async def until_stopped(order: WatchOrder) -> None:
    order.spawned()
    await order.stop.wait()


async def run(
    kubeconfig: str,
    reconcile: Callable[[Key], Awaitable[Result]],
    watch: Any = until_stopped,
    stop: asyncio.Event | None = None,
    settings: Settings = SETTINGS,
) -> None:
    make: MakeReconcile = lambda _parts: reconcile  # noqa: E731
    async with asyncio.timeout(HANGS):
        await run_operator(settings, make, watch, kubeconfig=kubeconfig, stop=stop)


async def test_everything_starts_in_order_and_ends_in_order(
    lease: dict[str, Any], kubeconfig: str
) -> None:
    stop = asyncio.Event()
    seen: list[str] = []

    async def reconcile(key: Key) -> Result:
        assert lease["spec"]["holderIdentity"], "the Lease comes first"
        seen.append(str(key))
        if key.kind == "deployment":
            asyncio.get_running_loop().call_later(0.1, stop.set)
            await asyncio.sleep(0.3)
            seen.append("ended")
        return Result()

    await run(kubeconfig, reconcile, stop=stop)
    assert seen[0] in ("deployment/llm/a", "namespace/llm")
    assert "ended" in seen, "a running pass may end"
    assert lease["spec"]["holderIdentity"] == "", "the Lease is given back"


async def test_a_watch_that_dies_ends_the_process(lease: dict[str, Any], kubeconfig: str) -> None:
    async def dies(order: WatchOrder) -> None:
        order.spawned()
        raise ConnectionError("watch broken")

    async def reconcile(_: Key) -> Result:
        return Result()

    with pytest.raises(ConnectionError, match="watch broken"):
        await run(kubeconfig, reconcile, dies)
    assert lease["spec"]["holderIdentity"] == ""


async def test_a_watch_that_just_returns_ends_the_process_with_an_error(kubeconfig: str) -> None:
    async def returns(order: WatchOrder) -> None:
        order.spawned()

    async def reconcile(_: Key) -> Result:
        return Result()

    with pytest.raises(EndedEarly, match="watches came to an end"):
        await run(kubeconfig, reconcile, returns)


async def test_a_stolen_lease_ends_the_process_and_cancels_what_runs(
    lease: dict[str, Any], kubeconfig: str
) -> None:
    cancelled: list[Key] = []

    async def reconcile(key: Key) -> Result:
        try:
            while True:
                # This server takes a renewal that was on its way, as a real one would not.
                lease["spec"] = {"holderIdentity": "thief", "leaseDurationSeconds": 15}
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            cancelled.append(key)
            raise
        return Result()

    with pytest.raises(LeaseLost, match="thief"):
        await run(kubeconfig, reconcile)
    assert cancelled
    assert lease["spec"]["holderIdentity"] == "thief", "and is not touched any more"


async def test_a_standby_that_is_stopped_has_read_and_decided_nothing(
    kmock: Any, lease: dict[str, Any], kubeconfig: str
) -> None:
    lease["spec"] = {"holderIdentity": "other", "leaseDurationSeconds": 600}
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, stop.set)

    async def reconcile(_: Key) -> Result:
        raise AssertionError("a standby makes no pass")

    await run(kubeconfig, reconcile, stop=stop)
    assert len(kmock["get /api/v1/pods"]) == 0
    assert lease["spec"]["holderIdentity"] == "other"


async def test_what_a_pass_writes_without_the_lease_is_not_sent(
    kmock: Any, kubeconfig: str
) -> None:
    """The parts that a reconciler gets are fenced."""
    made: list[Parts] = []
    stop = asyncio.Event()

    def make(parts: Parts) -> Callable[[Key], Awaitable[Result]]:
        made.append(parts)

        async def reconcile(_: Key) -> Result:
            stop.set()
            return Result()

        return reconcile

    async with asyncio.timeout(HANGS):
        await run_operator(SETTINGS, make, until_stopped, kubeconfig=kubeconfig, stop=stop)
    with pytest.raises(LeaseLost):
        await made[0].cluster.create("Pod", {"metadata": {"namespace": "llm", "name": "p"}})


async def test_an_older_crd_is_refused_with_the_fields_it_lacks(kmock: Any, tmp_path: Path) -> None:
    old = crd()
    schema = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["spec"]["properties"]["rollout"]
    del schema["spec"]["properties"]["engine"]["properties"]["limits"]["properties"]["maxSeqLen"]
    assert crd_problem(crd()) == ""
    problem = crd_problem(old)
    assert "spec.rollout" in problem
    assert "spec.engine.limits.maxSeqLen" in problem
    assert "kubectl apply --server-side" in problem


async def test_a_cluster_without_the_crd_is_refused_with_what_to_do(
    kmock: Any, kubeconfig: str
) -> None:
    kmock[f"get {CRD_PATH}"] ** 9 << 404 << {"reason": "NotFound", "message": "not found"}

    async def reconcile(_: Key) -> Result:
        return Result()

    with pytest.raises(CRDError, match="install the CRD of this version first"):
        await run(kubeconfig, reconcile)
