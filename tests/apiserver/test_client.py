"""The client's calls on a real API server: what it really answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes import client
from tests.support.specs import MINIMAL_SPEC

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.apply import errors
from shardwright.apply.client import Cluster, connect
from shardwright.apply.events import event_body
from shardwright.apply.executor import Executor
from shardwright.apply.kinds import CONFIG_MAP, DEPLOYMENT, EVENT, JOB, POD, SECRET, SERVICE
from shardwright.apply.writes import Apply, ApplyStatus, Create, Delete, Patch, PostEvent
from shardwright.control.store import Store
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.pytest_plugin import Namespace

pytestmark = pytest.mark.apiserver
GATE = {"name": names.SCHEDULING_GATE}


@pytest.fixture
async def cluster(sandbox: Sandbox) -> AsyncIterator[Cluster]:
    async with connect(str(sandbox.kubeconfig)) as connected:
        yield connected


def pod(namespace: Namespace, name: str, **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": POD,
        "metadata": {"namespace": str(namespace), "name": name, **meta},
        "spec": {
            "schedulingGates": [GATE],
            "automountServiceAccountToken": False,
            "nodeSelector": {"a": "b"},
            "containers": [{"name": "c", "image": "x"}],
        },
    }


def config_map(namespace: Namespace, name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": CONFIG_MAP,
        "metadata": {"namespace": str(namespace), "name": name},
        "data": data,
    }


def deployment(namespace: Namespace, name: str = "a") -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": DEPLOYMENT,
        "metadata": {"namespace": str(namespace), "name": name},
        "spec": dict(MINIMAL_SPEC),
    }


async def test_create_get_list_and_delete(cluster: Cluster, namespace: Namespace) -> None:
    made = await cluster.create(POD, pod(namespace, "p"))
    uid = made["metadata"]["uid"]
    assert (await cluster.get(POD, str(namespace), "p"))["metadata"]["uid"] == uid
    listing = await cluster.list(POD, str(namespace))
    assert [item["metadata"]["uid"] for item in listing.items] == [uid]
    assert listing.resource_version >= int(made["metadata"]["resourceVersion"])
    with pytest.raises(errors.Conflict, match="UID in the precondition"):
        await cluster.delete(POD, str(namespace), "p", uid="another")
    await cluster.delete(POD, str(namespace), "p", uid=uid, grace_seconds=0)
    with pytest.raises(errors.NotFound):
        await cluster.get(POD, str(namespace), "p")
    with pytest.raises(errors.NotFound):
        await cluster.delete(POD, str(namespace), "p", uid=uid)
    assert not await cluster.exists(POD, str(namespace), "p")


async def test_a_list_goes_through_all_pages(cluster: Cluster, namespace: Namespace) -> None:
    room = asyncio.Semaphore(32)

    async def one(number: int) -> None:
        async with room:
            await cluster.create(CONFIG_MAP, config_map(namespace, f"c{number}"))

    await asyncio.gather(*(one(number) for number in range(520)))
    listing = await cluster.list(CONFIG_MAP, str(namespace))
    found = {item["metadata"]["name"] for item in listing.items}
    assert {f"c{number}" for number in range(520)} <= found


async def test_a_create_is_one_request_and_asks_no_thread(
    sandbox: Sandbox, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So 380 to 420 pods a second were made with the control plane on the same two busy cores.

    A round trip too many (discovery), or a thread to look proxies up in, halved that.
    """
    requests: list[tuple[int, str]] = []
    threads: list[object] = []
    loop = asyncio.get_running_loop()
    run_in_executor = loop.run_in_executor

    def counted(executor: Any, function: Any, *arguments: Any) -> Any:
        threads.append(function)
        return run_in_executor(executor, function, *arguments)

    def noted(code: int, method: str, _host: str, _seconds: float) -> None:
        requests.append((code, method))

    async with connect(str(sandbox.kubeconfig), on_request=noted) as cluster:
        await cluster.create(POD, pod(namespace, "first"))
        requests.clear()
        monkeypatch.setattr(loop, "run_in_executor", counted)
        room = asyncio.Semaphore(32)

        async def one(number: int) -> None:
            async with room:
                await cluster.create(POD, pod(namespace, f"p{number}"))

        await asyncio.gather(*(one(number) for number in range(100)))
    assert requests == [(201, "POST")] * 100
    assert threads == []


async def test_a_taken_name_and_what_the_server_refuses(
    cluster: Cluster, namespace: Namespace
) -> None:
    await cluster.create(POD, pod(namespace, "p"))
    with pytest.raises(errors.AlreadyExists):
        await cluster.create(POD, pod(namespace, "p"))
    with pytest.raises(errors.Invalid, match='unknown field "bogus"'):
        await cluster.create(POD, {**pod(namespace, "q"), "bogus": 1})
    with pytest.raises(errors.Invalid, match=r"spec\.containers: Required value"):
        await cluster.create(POD, {**pod(namespace, "q"), "spec": {"containers": []}})
    body = {**config_map(namespace, "c"), "dat": {"a": "b"}}
    with pytest.raises(errors.Invalid, match=r"\.dat: field not declared in schema"):
        await cluster.apply(CONFIG_MAP, body, manager="m")


async def test_a_patch_that_does_not_fit_is_told_from_content_that_is_invalid(
    cluster: Cluster, namespace: Namespace
) -> None:
    made = await cluster.create(POD, pod(namespace, "p"))
    uid = made["metadata"]["uid"]
    place = (POD, str(namespace), "p")
    gone = {"op": "remove", "path": "/spec/schedulingGates/5"}
    with pytest.raises(errors.PatchRejected):
        await cluster.json_patch(*place, [{"op": "test", "path": "/metadata/uid", "value": "no"}])
    with pytest.raises(errors.PatchRejected):
        await cluster.json_patch(*place, [gone])
    with pytest.raises(errors.Invalid, match="image: Required value"):
        await cluster.json_patch(
            *place, [{"op": "replace", "path": "/spec/containers/0/image", "value": ""}]
        )
    placed = await cluster.json_patch(
        *place,
        [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/spec/nodeSelector/kubernetes.io~1hostname", "value": "n"},
            {"op": "remove", "path": "/spec/schedulingGates/0"},
        ],
    )
    assert placed["spec"]["nodeSelector"]["kubernetes.io/hostname"] == "n"
    assert not placed["spec"].get("schedulingGates")


async def test_a_quota_is_told_from_missing_rights(
    cluster: Cluster, namespace: Namespace, sandbox: Sandbox
) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "0"}}}
    core = client.CoreV1Api(sandbox.api)
    core.create_namespaced_resource_quota(str(namespace), quota)
    async with asyncio.timeout(120):
        # the quota controller counts first, and only then the quota is enforced
        while not (refused := await _refusal(cluster, namespace)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert refused[0].quota
    assert "exceeded quota: q" in refused[0].message


async def _refusal(cluster: Cluster, namespace: Namespace) -> list[errors.Forbidden]:
    try:
        await cluster.create(CONFIG_MAP, config_map(namespace, f"c{time.monotonic_ns()}"))
    except errors.Forbidden as error:
        return [error]
    return []


async def test_status_is_applied_only_onto_the_version_that_was_read(
    cluster: Cluster, namespace: Namespace
) -> None:
    made = await cluster.create(DEPLOYMENT, deployment(namespace))
    status = {"observedGeneration": 1, "readyReplicas": 0}

    def bare(version: str) -> dict[str, Any]:
        meta = {"namespace": str(namespace), "name": "a", "resourceVersion": version}
        kind = {"apiVersion": names.API_VERSION, "kind": DEPLOYMENT}
        return {**kind, "metadata": meta, "status": status}

    version = made["metadata"]["resourceVersion"]
    written = await cluster.apply_status(DEPLOYMENT, bare(version), manager=names.MANAGER_STATUS)
    assert written["status"]["observedGeneration"] == 1
    assert written["metadata"]["generation"] == 1
    status["readyReplicas"] = 5
    with pytest.raises(errors.Conflict):
        await cluster.apply_status(DEPLOYMENT, bare(version), manager=names.MANAGER_STATUS)


async def test_of_a_secret_only_the_metadata_is_read(
    cluster: Cluster, namespace: Namespace, sandbox: Sandbox
) -> None:
    body = {"metadata": {"name": "token"}, "stringData": {"HF_TOKEN": "hidden"}}
    client.CoreV1Api(sandbox.api).create_namespaced_secret(str(namespace), body)
    found = await cluster.get(SECRET, str(namespace), "token")
    assert found["kind"] == "PartialObjectMetadata"
    assert "data" not in found
    assert await cluster.exists(SECRET, str(namespace), "token")
    listing = await cluster.list(SECRET, str(namespace))
    assert all("data" not in item for item in listing.items)


async def test_the_same_event_is_posted_once(cluster: Cluster, namespace: Namespace) -> None:
    made = await cluster.create(DEPLOYMENT, deployment(namespace))
    post = PostEvent(
        str(namespace),
        "a",
        made["metadata"]["uid"],
        "EngineBuilt",
        "engine 1a2b built in 31 min",
        "Build",
        key="1",
        at=time.time(),
    )
    posted = await cluster.create(EVENT, event_body(post, "operator-1"))
    assert posted["regarding"]["name"] == "a"
    with pytest.raises(errors.AlreadyExists):
        await cluster.create(EVENT, event_body(post, "operator-2"))


async def test_a_pass_of_writes_leaves_the_cluster_and_the_store_agreeing(
    cluster: Cluster, namespace: Namespace
) -> None:
    store = Store(Settings())
    executor = Executor(cluster, store, instance="test")
    made = await cluster.create(DEPLOYMENT, deployment(namespace))
    store.observed(DEPLOYMENT, made)
    uid = made["metadata"]["uid"]
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": DEPLOYMENT,
        "name": "a",
        "uid": uid,
        "controller": True,
    }
    body = pod(namespace, "p", ownerReferences=[owner])
    service = {
        "apiVersion": "v1",
        "kind": SERVICE,
        "metadata": {"namespace": str(namespace), "name": "s", "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
    }
    meta = {"namespace": str(namespace), "name": "a"}
    version = made["metadata"]["resourceVersion"]
    status = ApplyStatus(
        {
            "apiVersion": names.API_VERSION,
            "kind": DEPLOYMENT,
            "metadata": {**meta, "resourceVersion": version},
            "status": {"observedGeneration": 1},
        }
    )
    writes = [Apply(SERVICE, service), Create(POD, body, uid)]
    assert (await executor.execute([*writes, status])).done == 3
    again = await executor.execute(writes)
    assert (again.done, again.skipped, again.complete) == (1, 1, True)
    (view,) = store.pods_of(uid)
    assert view.gated
    ops = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    place = (POD, str(namespace), "p")
    assert (await executor.execute([Patch(*place, view.uid, ops)])).complete
    assert (await executor.execute([Patch(*place, view.uid, ops)])).stale
    assert (await executor.execute([Patch(*place, "another", ops)])).stale
    assert not store.pods_of(uid)[0].gated
    assert (await executor.execute([status])).stale, "the object has moved on"
    other = await executor.execute([Create(POD, body, "somebody")])
    assert other.blocked == [f"Pod p belongs to {uid}"]
    assert (await executor.execute([Delete(*place, view.uid, 0)])).complete
    assert (await executor.execute([Delete(*place, view.uid, 0)])).complete


async def test_a_suspended_job_has_the_same_identity_for_two_owners(
    cluster: Cluster, namespace: Namespace
) -> None:
    executor = Executor(cluster, Store(Settings()), instance="test")

    def job(key: str) -> dict[str, Any]:
        labels = {names.LABEL_STEP: "engine", names.LABEL_KEY: key, names.LABEL_CLAIM_UID: "c"}
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}
        return {
            "apiVersion": "batch/v1",
            "kind": JOB,
            "metadata": {"namespace": str(namespace), "name": "j", "labels": labels},
            "spec": {"suspend": True, "template": template},
        }

    assert (await executor.execute([Create(JOB, job("k1"))])).complete
    assert (await executor.execute([Create(JOB, job("k1"))])).complete
    assert (await executor.execute([Create(JOB, job("k2"))])).blocked
