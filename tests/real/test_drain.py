"""A replica that is told to end finishes what runs in it, and others get what comes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NAME = "tiny"
IN_FLIGHT = 50
PODS = 4
DRAIN_SECONDS = 240
_GROUP = (names.LABEL_REPLICA, names.LABEL_INCARNATION)
# An answer takes twelve steps, so that none ends while requests come together.
HELD_STEP = {"id": "step", "at": "step", "act": "slow", "seconds": 5, "where": {"rank": 0}}


@pytest.fixture(scope="module")
def timeouts() -> Mapping[str, float]:
    """Nothing here fails: there is time for a busy machine."""
    return {"bindSeconds": 60, "startSeconds": 180, "readySeconds": 240}


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
    found = processes({leader["metadata"]["uid"]})
    runner = next((one for one in found if one.part == "runner"), None)
    if runner is None:
        return 0
    folder = PROC / str(runner.pid) / "net"
    try:
        tables = [(folder / name).read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    except OSError:
        return 0  # it has ended meanwhile
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
        site.kube.wait("all are in flight", lambda: connections(leader) >= IN_FLIGHT, 60, 0.02)
        yield asked


def wrong(asked: list[Asked]) -> list[str]:
    assert asked
    return [one.problem for one in asked if one.problem]


def whole(site: Site, before: set[str]) -> bool:
    """Whether all pods of both replicas are there and ready, and none of those of before is."""
    pods = site.kube.pods(NAME, live=False)
    return (
        len(pods) == PODS
        and all(ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)
        and not before & {pod["metadata"]["uid"] for pod in pods}
    )


@pytest.mark.parametrize("stage", [0, 1], ids=[names.ROLE_LEADER, names.ROLE_WORKER])
def test_a_replica_whose_pod_is_deleted_finishes_what_runs_and_gets_nothing_new(
    stage: int, drained: Site, tmp_path: Path
) -> None:
    kube = drained.kube
    leader, other = drained.leaders(NAME)
    stays = other["status"]["podIP"]
    held = {**HELD_STEP, "where": {"rank": 0, "pod": leader["metadata"]["name"]}}
    with (
        drained.clients(NAME, tmp_path, at_once=4, seconds=DRAIN_SECONDS) as asked,
        ExitStack() as stack,
        ExitStack() as hold,
    ):
        hold.enter_context(faults(drained.sandbox, held))
        running = stack.enter_context(many(drained, leader))
        kube.core.delete_namespaced_pod(_sibling(drained, leader, stage), kube.namespace)
        kube.wait("clients get to the other", lambda: drained.routed(NAME) == {stays}, 60, 0.02)
        assert not any(one.done() for one in running), "it was left out too late to show it"
        hold.close()
        seen = [connections(leader)]
        while not all(one.done() for one in running):
            seen.append(connections(leader))
            time.sleep(0.05)
        assert all(later <= earlier for earlier, later in itertools.pairwise(seen))
        assert [text for one in running if (text := one.result())] == []
        gone = {leader["metadata"]["uid"]}
        kube.wait("two replicas again", lambda: whole(drained, gone), DRAIN_SECONDS)
        drained.ready(NAME)
    assert wrong(asked) == []


def test_a_rolling_change_breaks_no_request(drained: Site, tmp_path: Path) -> None:
    kube = drained.kube
    before = {pod["metadata"]["uid"] for pod in kube.pods(NAME)}
    leaders = drained.leaders(NAME)
    with drained.clients(NAME, tmp_path, 0.0, IN_FLIGHT, DRAIN_SECONDS) as asked:
        with faults(drained.sandbox, HELD_STEP):
            kube.wait(
                "so many are in flight",
                lambda: sum(map(connections, leaders)) >= IN_FLIGHT,
                60,
                0.02,
            )
        with faults(drained.sandbox, {**HELD_STEP, "seconds": 0.05}):
            kube.edit(NAME, {"pod": {"env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}})
            kube.wait("other pods serve", lambda: whole(drained, before), DRAIN_SECONDS)
            drained.ready(NAME)
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
