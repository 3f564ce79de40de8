"""Slow is not dead, and dead again and again is told with the words of the one that died first."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.real.site import AT_ONCE, READY_SECONDS, Site
from tests.support import real_registry
from tests.support.history import History, Life, watched
from tests.support.kube import Json
from tests.support.operator import Operator
from tests.support.real_faults import faults
from tests.support.real_recovery import asked

from shardwright.api import names
from shardwright.runtimes.tensorrt_versions import known_image

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VERSION = "1.2.1"
RANK, IMAGE, DIES = "slow-rank", "slow-image", "dies"
PYTORCH: Json = {"engine": {"backend": "PyTorch"}}
LAST_WORDS = "fault dies: exit at loaded"


@pytest.fixture(scope="module", params=[10, pytest.param(60, marks=pytest.mark.soak)])
def slow(request: pytest.FixtureRequest) -> int:
    """How slow, in seconds."""
    seconds: int = request.param
    return seconds


@pytest.fixture(scope="module")
def timeouts(slow: int) -> Mapping[str, float]:
    """Deadlines that what is slow meets, and a budget that is soon spent."""
    return {
        "bindSeconds": 30,
        "startSeconds": 180 + slow,
        "readySeconds": 180 + slow,
        # With a quarter at most on top of each, whose double is told from it on any machine.
        "restartBackoffSeconds": 4,
        "restartBackoffMaxSeconds": 8,
        "restartBudget": 2,
    }


@dataclass(frozen=True, slots=True)
class Slow:
    """Three deployments that were made at once, each with its own trouble."""

    site: Site
    seconds: int
    struck: Path
    history: History
    began: float


@pytest.fixture(scope="module")
def troubled(slow: int, running: Operator, shared_site: Site) -> Iterator[Slow]:
    """One with a slow rank, one whose image comes slowly on all nodes but one, one that dies."""
    image = known_image(VERSION)
    assert image is not None
    rules = (
        {"id": "slow", "at": "load", "act": "slow", "seconds": slow, "times": 1}
        | {"where": {"rank": 2, "pod": f"{RANK}-*"}},
        {"id": "dies", "at": "loaded", "act": "exit", "code": 7}
        | {"where": {"rank": 2, "pod": f"{DIES}-*"}},
    )
    with ExitStack() as stack:
        for number, node in enumerate(shared_site.sandbox.real_nodes().values()):
            late = slow if number else 0
            stack.enter_context(real_registry.registry(node, image, late))
        struck = stack.enter_context(faults(shared_site.sandbox, *rules))
        history = stack.enter_context(watched(shared_site.kube))
        began = time.monotonic()
        shared_site.create(RANK, 2, 2, **PYTORCH)
        # Another content: a proof of the one must not be the other's.
        limits = {"limits": {"maxBatchSize": AT_ONCE // 2}}
        shared_site.create(DIES, 2, 2, engine={**PYTORCH["engine"], **limits})
        engine = {**PYTORCH["engine"], "version": VERSION, "image": real_registry.REFERENCE}
        shared_site.create(IMAGE, 1, 2, engine=engine)
        yield Slow(shared_site, slow, struck, history, began)


def start_seconds(pod: Json) -> float:
    """From bound to running, by the clocks of the cluster: whole seconds."""
    bound = next(one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled")
    (container,) = pod["status"]["containerStatuses"]
    return _seconds(container["state"]["running"]["startedAt"]) - _seconds(
        bound["lastTransitionTime"]
    )


def _seconds(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def never_restarted(troubled: Slow, name: str) -> None:
    kube = troubled.site.kube
    assert troubled.history.incarnations(name, 0) == [1]
    [group] = kube.get(name)["status"]["groups"]
    assert (group["restarts"], group["cause"]) == (0, "")
    for pod in kube.pods(name):
        (container,) = pod["status"]["containerStatuses"]
        assert container["restartCount"] == 0
    (leader,) = troubled.site.leaders(name)
    assert asked(troubled.site, leader) == []


def test_a_slow_rank_is_waited_for(troubled: Slow) -> None:
    troubled.site.ready(RANK, READY_SECONDS + troubled.seconds)
    assert [path.name for path in troubled.struck.glob("slow.*")] == ["slow.0"]
    assert time.monotonic() - troubled.began > troubled.seconds
    never_restarted(troubled, RANK)


def test_a_slow_image_is_waited_for(troubled: Slow) -> None:
    troubled.site.ready(IMAGE, READY_SECONDS + troubled.seconds)
    late = [start_seconds(pod) for pod in troubled.site.kube.pods(IMAGE)]
    assert max(late) >= troubled.seconds - 1, "no pod was late"
    never_restarted(troubled, IMAGE)


def test_a_rank_that_always_dies_stops_it_with_its_own_last_words(troubled: Slow) -> None:
    kube = troubled.site.kube
    said = kube.wait_reason(DIES, "Stalled", "ProofFailed", 180)
    assert said["status"] == "True"
    told = said["message"]
    for word in ("RankFailed", "rank 2 exited with code 7", LAST_WORDS):
        assert word in told
    for victim in ("rank 0", "rank 1", "rank 3", "PeerLost", "mpirun"):
        assert victim not in told, "a victim is blamed as well"
    assert troubled.history.incarnations(DIES, 0) == [1, 2, 3]
    lives = list(troubled.history.of(DIES, 0))
    born = {number: min(_of(lives, number, "created")) for number in (2, 3)}
    # The wait counts from the first pod that is seen to end, which may be told here a moment later:
    # four seconds, then eight.
    waits = [born[number + 1] - min(_of(lives, number, "gone")) for number in (1, 2)]
    assert waits[0] > 0, "it does not wait"
    assert waits[1] - waits[0] > 0.5, "it does not back off"
    kube.wait("no pod is left", lambda: not kube.pods(DIES, live=False), 60)
    assert not kube.wait_quietly(3, lambda: kube.pods(DIES)), "it is tried again by itself"


def _of(lives: list[Life], incarnation: int, moment: str) -> list[float]:
    found = [getattr(life, moment) for life in lives if life.incarnation == incarnation]
    return [at for at in found if at is not None]


@pytest.mark.parametrize("slow", [pytest.param(60, marks=pytest.mark.soak)], indirect=True)
def test_soak_a_proven_replica_that_always_dies_is_held_until_the_user_frees_it(
    troubled: Slow,
) -> None:
    site, kube = troubled.site, troubled.site.kube
    site.ready(RANK)
    dies = {"id": "later", "at": "step", "act": "exit", "code": 9}
    dies |= {"where": {"rank": 3, "pod": f"{RANK}-*"}}
    with faults(site.sandbox, dies):
        said = kube.wait_reason(RANK, "Stalled", "RestartBudgetSpent", 240)
        for word in ("rank 3 exited with code 9", "fault later: exit at step"):
            assert word in said["message"]
        [group] = kube.get(RANK)["status"]["groups"]
        assert (group["held"], group["restarts"]) == (True, 3)
        kube.wait("a held group holds no pod", lambda: not kube.pods(RANK, live=False), 60)
    kube.annotate(RANK, **{f"{names.GROUP}/restartedAt": "2026-01-01T00:00:00Z"})
    kube.wait_reason(RANK, "Ready", "AllReplicasReady", 120)
    assert kube.get(RANK)["status"]["groups"][0]["restarts"] == 0
