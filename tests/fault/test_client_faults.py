"""The client against an API server that misbehaves (scripted answers of kmock)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import kmock as mocks
import pytest
from kubernetes.aio.client import ApiClient, Configuration

from shardwright.api.names import MANAGER_CHILDREN
from shardwright.api.settings import LeaseSettings
from shardwright.apply import errors
from shardwright.apply.client import Cluster
from shardwright.apply.kinds import CONFIG_MAP, POD
from shardwright.control.lease import Elector

# scripted answers only: the emulator would answer some verbs by itself
pytestmark = pytest.mark.kmock(cls=mocks.RawHandler)

BODY = {"metadata": {"namespace": "llm", "name": "p"}}
PODS = "/api/v1/namespaces/llm/pods"
POD_PATH = f"{PODS}/p"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/system/leases"

Calls = list[tuple[int, str]]


@pytest.fixture
async def calls() -> Calls:
    return []


@pytest.fixture
async def api(kmock: Any) -> AsyncIterator[ApiClient]:
    configuration = Configuration(host=str(kmock.url).rstrip("/"))
    async with ApiClient(configuration) as client:
        yield client


@pytest.fixture
async def cluster(api: ApiClient, calls: Calls) -> Cluster:
    """With a deadline that only a call that hangs reaches."""
    return Cluster(
        api,
        call_seconds=120.0,
        on_request=lambda code, method, _host, _seconds: calls.append((code, method)),
    )


class Mute:
    """An answer that comes long after whoever asks must have given up; whether it came."""

    def __init__(self) -> None:
        self.answered = False

    async def __call__(self) -> None:
        await asyncio.sleep(30)
        self.answered = True


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_read_survives_a_passing_refusal(
    kmock: Any, cluster: Cluster, calls: Calls, status: int
) -> None:
    kmock[f"get {POD_PATH}"][:2] << status << {"message": "not now"} << {"Retry-After": "0"}
    kmock[f"get {POD_PATH}"] << {"kind": "Pod"}
    assert (await cluster.get(POD, "llm", "p"))["kind"] == "Pod"
    assert calls == [(status, "GET"), (status, "GET"), (200, "GET")]


async def test_a_read_waits_as_long_as_the_server_asks(kmock: Any, cluster: Cluster) -> None:
    kmock[f"get {POD_PATH}"][:1] << 429 << {"message": "not now"} << {"Retry-After": "1"}
    kmock[f"get {POD_PATH}"] << {"kind": "Pod"}
    began = asyncio.get_running_loop().time()
    await cluster.get(POD, "llm", "p")
    assert asyncio.get_running_loop().time() - began >= 1.0


async def test_a_read_gives_up_before_its_deadline_with_the_servers_words(
    kmock: Any, cluster: Cluster
) -> None:
    kmock[f"get {POD_PATH}"] << 429 << {"message": "too many"} << {"Retry-After": "3600"}
    with pytest.raises(errors.TooManyRequests, match="too many") as raised:
        await cluster.get(POD, "llm", "p")
    assert raised.value.retry_after == 3600


Write = Callable[[Cluster], Awaitable[object]]
METHODS = ("post", "put", "patch", "delete")
WRITES: dict[str, Write] = {
    "create": lambda cluster: cluster.create(POD, BODY),
    "apply": lambda cluster: cluster.apply(POD, BODY, manager=MANAGER_CHILDREN),
    "patch": lambda cluster: cluster.json_patch(POD, "llm", "p", []),
    "delete": lambda cluster: cluster.delete(POD, "llm", "p", uid="u"),
    "replace": lambda cluster: cluster.replace(POD, BODY),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("status", "kind"), [(503, errors.Unavailable), (429, errors.TooManyRequests)]
)
async def test_a_write_is_never_repeated(
    kmock: Any,
    cluster: Cluster,
    calls: Calls,
    write: str,
    status: int,
    kind: type[errors.ClusterError],
) -> None:
    for method in METHODS:
        kmock[method] << status << {"message": "not now"}
    with pytest.raises(kind):
        await WRITES[write](cluster)
    assert len(calls) == 1


@pytest.mark.parametrize("write", WRITES)
async def test_without_the_lease_nothing_is_sent(
    kmock: Any, cluster: Cluster, calls: Calls, write: str
) -> None:
    for method in METHODS:
        kmock[method] << {"kind": "Pod"}
    with pytest.raises(errors.LeaseLost):
        await WRITES[write](cluster.fenced(lambda: 0.0))
    assert calls == []


async def test_reads_need_no_lease(kmock: Any, cluster: Cluster) -> None:
    kmock[f"get {POD_PATH}"] << {"kind": "Pod"}
    assert await cluster.fenced(lambda: 0.0).get(POD, "llm", "p")


async def test_no_write_outlives_the_lease(kmock: Any, cluster: Cluster, calls: Calls) -> None:
    mute = Mute()
    kmock[f"post {PODS}"] << mute << {"kind": "Pod"}
    with pytest.raises(errors.Unavailable, match=r"no answer within 0\.3 s"):
        await cluster.fenced(lambda: 0.3).create(POD, BODY)
    assert not mute.answered
    assert calls == [(0, "POST")]


async def test_a_mute_server_is_left_at_the_deadline(kmock: Any, api: ApiClient) -> None:
    mute = Mute()
    kmock[f"get {POD_PATH}"] << mute << {"kind": "Pod"}
    with pytest.raises(errors.Unavailable, match="no answer"):
        await Cluster(api, call_seconds=1.0).get(POD, "llm", "p")
    assert not mute.answered


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with ApiClient(Configuration(host="http://127.0.0.1:1")) as api:
        with pytest.raises(errors.Unavailable, match="Connect"):
            await Cluster(api, call_seconds=120.0).create(POD, BODY)


async def test_an_answer_that_is_no_json_is_unavailable(kmock: Any, cluster: Cluster) -> None:
    kmock[f"post {PODS}"] << b"<html>login</html>"
    with pytest.raises(errors.Unavailable, match="not JSON: b'<html>login"):
        await cluster.create(POD, BODY)


async def test_a_list_starts_again_when_its_token_grew_too_old(
    kmock: Any, cluster: Cluster
) -> None:
    def page(items: list[str], token: str = "") -> dict[str, Any]:
        meta = {"resourceVersion": "7", "continue": token}
        return {"metadata": meta, "items": [{"metadata": {"name": name}} for name in items]}

    path = f"get {PODS}"
    kmock[path][:1] << page(["a"], "t1")
    kmock[path][:1] << 410 << {"reason": "Expired", "message": "too old"}
    kmock[path][:1] << page(["a"], "t2")
    kmock[path] << page(["b"])
    listing = await cluster.list(POD, "llm")
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert listing.resource_version == 7


async def test_an_expired_token_is_read_again_for_reads(kmock: Any) -> None:
    kmock[f"get {POD_PATH}"][:1] << 401 << {"message": "Unauthorized"}
    kmock[f"get {POD_PATH}"] << {"kind": "Pod"}
    reloads: list[int] = []

    async def reload() -> Configuration:
        reloads.append(1)
        return Configuration(api_key={"BearerToken": "Bearer fresh"})

    configuration = Configuration(host=str(kmock.url).rstrip("/"))
    async with ApiClient(configuration) as api:
        await Cluster(api, reload=reload).get(POD, "llm", "p")
    assert reloads == [1]
    assert kmock[f"get {POD_PATH}"][-1].headers["Authorization"] == "Bearer fresh"


async def test_an_unknown_kind_is_a_programming_error(cluster: Cluster) -> None:
    with pytest.raises(KeyError, match="'Pdo' is not one of"):
        await cluster.get("Pdo", "llm", "p")


async def test_a_status_without_a_resource_version_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match=r"without metadata\.resourceVersion"):
        await cluster.apply_status(CONFIG_MAP, BODY, manager="m")


async def test_a_lease_is_given_up_in_time_when_the_server_goes_mute(
    kmock: Any, cluster: Cluster
) -> None:
    """Real time: no answer ever comes, and the hold still ends at the renew deadline."""
    kmock[f"get {LEASES}/shardwright"][:1] << 404
    kmock[f"post {LEASES}"] << {"metadata": {"resourceVersion": "1"}, "spec": {}}
    mute = Mute()
    kmock[f"get {LEASES}/shardwright"] << mute << {}
    loop = asyncio.get_running_loop()
    elector = Elector(
        cluster,
        LeaseSettings(duration_seconds=0.9, renew_seconds=0.6, retry_seconds=0.1),
        namespace="system",
        identity="me",
        clock=loop.time,
    )
    began = loop.time()
    await elector.acquire()
    with pytest.raises(errors.LeaseLost):
        await elector.hold()
    assert loop.time() - began >= 0.5
    assert not mute.answered
    assert not elector.leading
