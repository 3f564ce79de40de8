"""A replica that is told to end finishes what runs in it, and others get what comes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.real.site import CHAT, MODEL, Asked, Site
from tests.support.client_loop import problem
from tests.support.kube import Json, ready
from tests.support.operator import Operator
from tests.support.real_faults import faults
from tests.support.real_processes import PROC, processes
from tests.support.standin_model import ANSWER_TOKENS

from shardwright.api import names
from shardwright.runner.serve.inflight import in_flight, read_table

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME = "tiny"
IN_FLIGHT = 50
DRAIN_SECONDS = 60
# A batch of eight, twelve tokens each: fifty requests take some ten seconds.
_GROUP = (names.LABEL_REPLICA, names.LABEL_INCARNATION)
SLOW_STEP = {"id": "step", "at": "step", "act": "slow", "seconds": 0.1, "where": {"rank": 0}}


@pytest.fixture(scope="module")
def timeouts() -> Mapping[str, float]:
    """Nothing here fails: there is time for a busy machine."""
    return {"bindSeconds": 30, "startSeconds": 60, "readySeconds": 120}


@pytest.fixture(scope="module")
def drained(running: Operator, shared_site: Site) -> Site:
    """Two replicas behind the Service."""
    rollout = {"drainTimeoutSeconds": DRAIN_SECONDS, "maxSurge": 1, "maxUnavailable": 1}
    engine = {"backend": "PyTorch"}
    shared_site.create(NAME, 1, 2, replicas=2, engine=engine, rollout=rollout)
    shared_site.ready(NAME)
    return shared_site


def connections(leader: Json) -> int:
    """Connections that the leader's engine has open, from the kernel's table of its network."""
    inside = processes({leader["metadata"]["uid"]})
    if not inside:
        return 0
    folder = PROC / str(inside[0].pid) / "net"
    tables = [(folder / name).read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    return in_flight([line for text in tables for line in read_table(text)], names.PORT_HTTP)


@contextmanager
def many(site: Site, leader: Json) -> Iterator[list[Future[str]]]:
    """So many requests to one leader, all of them begun; each future is what was wrong."""
    url = f"http://{leader['status']['podIP']}:{names.PORT_HTTP}{CHAT}"
    prompts = list(site.reference.items())
    with ThreadPoolExecutor(IN_FLIGHT) as workers:
        asked = [
            workers.submit(
                problem, url, MODEL, *prompts[number % len(prompts)], ANSWER_TOKENS, DRAIN_SECONDS
            )
            for number in range(IN_FLIGHT)
        ]
        site.kube.wait("all are in flight", lambda: connections(leader) >= IN_FLIGHT, 10, 0.02)
        yield asked


def wrong(asked: list[Asked]) -> list[str]:
    assert asked
    return [one.problem for one in asked if one.problem]


def endpoints(site: Site) -> set[str]:
    """Addresses that the Service sends new requests to."""
    slices = site.kube.raw(
        f"/apis/discovery.k8s.io/v1/namespaces/{site.kube.namespace}/endpointslices",
        labelSelector=f"kubernetes.io/service-name={NAME}",
    )["items"]
    return {
        address
        for one in slices
        for endpoint in one.get("endpoints") or []
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    }


@pytest.mark.parametrize("stage", [0, 1], ids=[names.ROLE_LEADER, names.ROLE_WORKER])
def test_a_replica_whose_pod_is_deleted_finishes_what_runs_and_gets_nothing_new(
    stage: int, drained: Site, tmp_path: Path
) -> None:
    kube = drained.kube
    leader, other = drained.leaders(NAME)
    old, stays = leader["status"]["podIP"], other["status"]["podIP"]
    with (
        faults(drained.sandbox, SLOW_STEP),
        drained.clients(NAME, tmp_path, at_once=4, seconds=DRAIN_SECONDS) as asked,
        many(drained, leader) as running,
    ):
        kube.core.delete_namespaced_pod(_sibling(drained, leader, stage), kube.namespace)
        kube.wait("the Service leaves it out", lambda: endpoints(drained) == {stays}, 10, 0.02)
        assert not any(one.done() for one in running[-8:]), "it was left out too late to show it"
        # kube-proxy hears of it a moment later; what has come until then is answered too
        time.sleep(1)
        seen = [connections(leader)]
        while not all(one.done() for one in running):
            seen.append(connections(leader))
            time.sleep(0.05)
        assert all(later <= earlier for earlier, later in itertools.pairwise(seen))
        assert [text for one in running if (text := one.result())] == []
        kube.wait("it is gone", lambda: old not in _addresses(drained), DRAIN_SECONDS)
        drained.ready(NAME)
    assert wrong(asked) == []


def test_a_rolling_change_breaks_no_request(drained: Site, tmp_path: Path) -> None:
    kube = drained.kube
    before = {pod["metadata"]["uid"] for pod in kube.pods(NAME)}
    with (
        faults(drained.sandbox, {**SLOW_STEP, "seconds": 0.05}),
        drained.clients(NAME, tmp_path, 0.0, IN_FLIGHT, DRAIN_SECONDS) as asked,
    ):
        kube.wait(
            "so many are in flight",
            lambda: sum(map(connections, drained.leaders(NAME))) >= IN_FLIGHT,
            10,
            0.02,
        )
        kube.edit(NAME, {"pod": {"env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}})
        drained.ready(NAME, 240)
        pods = kube.pods(NAME)
        assert all(ready(pod) for pod in pods)
        assert not before & {pod["metadata"]["uid"] for pod in pods}
    assert wrong(asked) == []
    assert len(asked) > IN_FLIGHT


def _sibling(site: Site, leader: Json, stage: int) -> str:
    """Name of the pod of a stage of the leader's group."""
    wanted = {
        **{name: leader["metadata"]["labels"][name] for name in _GROUP},
        names.LABEL_STAGE: str(stage),
    }
    (found,) = [
        str(pod["metadata"]["name"])
        for pod in site.kube.pods(NAME)
        if wanted.items() <= pod["metadata"]["labels"].items()
    ]
    return found


def _addresses(site: Site) -> set[str]:
    return {pod["status"].get("podIP") for pod in site.kube.pods(NAME, live=False)}
