"""Leader election on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shardwright.api.settings import LeaseSettings
from shardwright.apply.client import Cluster, connect
from shardwright.apply.errors import LeaseLost
from shardwright.apply.kinds import LEASE
from shardwright.control.lease import Elector
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.pytest_plugin import Namespace

pytestmark = pytest.mark.apiserver
TIMES = LeaseSettings(duration_seconds=2, renew_seconds=1.5, retry_seconds=0.2)
SLACK = LeaseSettings(duration_seconds=12, renew_seconds=11, retry_seconds=0.2)
LONG = LeaseSettings(duration_seconds=120, renew_seconds=100, retry_seconds=0.2)


@pytest.fixture
async def cluster(sandbox: Sandbox) -> AsyncIterator[Cluster]:
    async with connect(str(sandbox.kubeconfig)) as connected:
        yield connected


def elector(
    cluster: Cluster, namespace: Namespace, identity: str, times: LeaseSettings = TIMES
) -> Elector:
    return Elector(
        cluster,
        times,
        namespace=str(namespace),
        identity=identity,
        clock=asyncio.get_running_loop().time,
    )


async def test_one_leads_for_longer_than_the_lease_lasts_while_the_other_waits(
    cluster: Cluster, namespace: Namespace
) -> None:
    one = elector(cluster, namespace, "one", SLACK)
    two = elector(cluster, namespace, "two", SLACK)
    await one.acquire()
    held = asyncio.create_task(one.hold())
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(13)
    assert one.leading
    assert not waiting.done()
    held.cancel()
    waiting.cancel()


async def test_the_other_follows_at_once_after_a_release(
    cluster: Cluster, namespace: Namespace
) -> None:
    one = elector(cluster, namespace, "one", LONG)
    two = elector(cluster, namespace, "two", LONG)
    await one.acquire()
    held = asyncio.create_task(one.hold())
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(1)
    assert not waiting.done()
    held.cancel()
    await one.release()
    async with asyncio.timeout(LONG.duration_seconds / 2):
        await waiting
    assert two.leading
    lease = await cluster.get(LEASE, str(namespace), LONG.name)
    assert lease["spec"]["holderIdentity"] == "two"
    assert lease["spec"]["leaseTransitions"] == 1
    await two.release()


async def test_a_holder_that_died_is_followed_after_the_leases_end(
    cluster: Cluster, namespace: Namespace
) -> None:
    dead, two = elector(cluster, namespace, "dead"), elector(cluster, namespace, "two")
    await dead.acquire()
    began = asyncio.get_running_loop().time()
    await two.acquire()
    assert asyncio.get_running_loop().time() - began >= 1.9
    assert not dead.leading, "its own clock had told it before"
    with pytest.raises(LeaseLost):
        await dead.hold()
    await two.release()


async def test_of_many_at_once_exactly_one_wins(cluster: Cluster, namespace: Namespace) -> None:
    many = [elector(cluster, namespace, f"e{number}", LONG) for number in range(8)]
    tasks = [asyncio.create_task(one.acquire()) for one in many]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(1)
    assert sum(task.done() for task in tasks) == 1
    assert sum(one.leading for one in many) == 1
    for task in tasks:
        task.cancel()
