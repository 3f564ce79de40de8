"""What serves goes on serving: through every kind of rollout, and when an old replica dies in it.

The floor is `replicas − maxUnavailable` whole and ready groups, and one when a single replica has
surge to spare; the watcher sees every state that the API server stored, so nothing slips by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.support.kube import H100, H200, Json, Kube, ready
from tests.support.operator import PATIENT, SETTINGS, Operator
from tests.support.watcher import Watcher, served_as, watching

from shardwright_sandbox.nodes import kill_kubelet
from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule
from shardwright_sandbox.pytest_plugin import FleetMaker

pytestmark = pytest.mark.e2e

# No deadline is tested here: none may pass on a slow machine, and be counted as a restart.
OPERATOR = PATIENT

PATIENCE = 120.0
NAME = "llama"
_PERMANENT = {"outcome": "Permanent", "reason": "ToolFailed", "message": "out of memory"}


@pytest.fixture
def nodes(fleet: FleetMaker) -> list[str]:
    return fleet(
        [
            {"name": "served-h100", "count": 6, "gpu": {"product": H100, "count": 8}},
            {"name": "served-h200", "count": 4, "gpu": {"product": H200, "count": 8}},
        ]
    )


@pytest.fixture
def watcher(kube: Kube) -> Iterator[Watcher]:
    with watching(kube.api, kube.namespace) as found:
        yield found


@dataclass(frozen=True)
class Size:
    """How many replicas, how they may move, and how many must be ready at every moment."""

    replicas: int
    max_surge: int
    max_unavailable: int
    floor: int

    def __str__(self) -> str:
        return f"{self.replicas}-replicas-surge-{self.max_surge}-down-{self.max_unavailable}"

    def spec(self) -> Json:
        return {
            "parallelism": {"tensor": 4, "pipeline": 2},
            "replicas": self.replicas,
            "rollout": {"maxSurge": self.max_surge, "maxUnavailable": self.max_unavailable},
        }


SIZES = [
    Size(replicas=1, max_surge=1, max_unavailable=1, floor=1),
    Size(replicas=2, max_surge=0, max_unavailable=1, floor=1),
    Size(replicas=2, max_surge=1, max_unavailable=0, floor=2),
    Size(replicas=3, max_surge=1, max_unavailable=1, floor=2),
]


def _edit(change: Json) -> Callable[[Kube], None]:
    def do(kube: Kube) -> None:
        kube.edit(NAME, change)

    return do


def _restart(kube: Kube) -> None:
    kube.annotate(NAME, **{"shardwright.dev/restartedAt": "2026-01-01T00:00:00Z"})


ROLLOUTS: dict[str, Callable[[Kube], None]] = {
    "another-split": _edit({"parallelism": {"tensor": 2, "pipeline": 2}}),
    "another-number-of-stages": _edit({"parallelism": {"tensor": 4, "pipeline": 1}}),
    "another-GPU": _edit({"gpu": {"product": H200}}),
    "pod-settings": _edit({"pod": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}}),
    "restartedAt": _restart,
}


def _start(kube: Kube, size: Size) -> set[str]:
    """A Ready deployment; the UIDs of its pods."""
    kube.create(NAME, size.spec())
    kube.wait_ready(NAME, PATIENCE)
    return _uids(kube)


def _uids(kube: Kube) -> set[str]:
    return {pod["metadata"]["uid"] for pod in kube.pods(NAME)}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_a_rollout_never_goes_below_the_floor_nor_above_the_surge(
    running: Operator,
    kube: Kube,
    nodes: list[str],
    player: PlayerControl,
    watcher: Watcher,
    size: Size,
    rollout: str,
) -> None:
    old = _start(kube, size)
    # New groups take a moment, so that one taken down too early would be missed.
    player.delays(ready=0.4)
    mark = watcher.mark()
    ROLLOUTS[rollout](kube)
    kube.wait_replaced(NAME, old, PATIENCE)
    assert watcher.least_ready_since(mark, NAME) >= size.floor, watcher.story_since(mark, NAME)
    # A candidate is beside, until it is proven; it is no surge.
    beside = watcher.candidates_since(mark, NAME)
    assert beside == (1 if rollout.startswith("another") else 0)
    assert watcher.most_groups_since(mark, NAME) <= size.replicas + max(size.max_surge, beside)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_failed_build_takes_nothing_down(
    running: Operator,
    kube: Kube,
    nodes: list[str],
    player: PlayerControl,
    watcher: Watcher,
    size: Size,
) -> None:
    old = _start(kube, size)
    player.fail_step("engine", **_PERMANENT, log_tail="CUDA out of memory")
    mark = watcher.mark()
    kube.edit(NAME, {"engine": {"limits": {"maxBatchSize": 32}}})
    stalled = kube.wait_reason(NAME, "Stalled", "ToolFailed", PATIENCE)
    assert stalled["status"] == "True"
    assert "out of memory" in stalled["message"]
    watcher.wait_quiet(1.5, PATIENCE)
    assert _uids(kube) == old
    assert watcher.least_ready_since(mark, NAME) == size.replicas
    assert watcher.born_since(mark, NAME) == []
    assert kube.condition(NAME, "Available")["status"] == "True"

    # What the message says: the annotation has the same engine tried again, beside what serves.
    assert "shardwright.dev/restartedAt" in stalled["message"]
    kube.annotate(NAME, **{"shardwright.dev/restartedAt": "1"})
    kube.wait_replaced(NAME, old, PATIENCE)
    assert watcher.least_ready_since(mark, NAME) >= size.floor, watcher.story_since(mark, NAME)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_failed_candidate_takes_nothing_down(
    running: Operator,
    kube: Kube,
    nodes: list[str],
    player: PlayerControl,
    watcher: Watcher,
    size: Size,
) -> None:
    old = _start(kube, size)
    highest = kube.get(NAME)["status"]["incarnations"]
    candidate = Match(namespace=kube.namespace, role="leader", incarnation=str(highest + 1))
    player.add(Rule(act=Act.FAIL, match=candidate, **_PERMANENT))
    mark = watcher.mark()
    kube.edit(NAME, {"engine": {"limits": {"maxBatchSize": 32}}})
    stalled = kube.wait_reason(NAME, "Stalled", "ProofFailed", PATIENCE)
    assert stalled["status"] == "True"
    watcher.wait_quiet(1.5, PATIENCE)
    assert _uids(kube) == old
    assert watcher.least_ready_since(mark, NAME) == size.replicas
    assert watcher.candidates_since(mark, NAME) == 1
    assert kube.condition(NAME, "Available")["status"] == "True"


# An old replica dies while the next revision is not proven.

PAIR = Size(replicas=2, max_surge=0, max_unavailable=1, floor=1)


def _building(kube: Kube, player: PlayerControl) -> None:
    player.add(Rule(act=Act.HANG, match=Match(namespace=kube.namespace, step="engine"), times=None))
    kube.edit(NAME, {"parallelism": {"tensor": 2, "pipeline": 1}})
    kube.wait_reason(NAME, "EngineReady", "Building", PATIENCE)
    kube.wait(
        "the build begun", lambda: any(job["status"].get("active") for job in kube.jobs()), PATIENCE
    )


def _build_failed(kube: Kube, player: PlayerControl) -> None:
    player.fail_step("engine", **_PERMANENT)
    kube.edit(NAME, {"parallelism": {"tensor": 2, "pipeline": 1}})
    kube.wait_reason(NAME, "Stalled", "ToolFailed", PATIENCE)


def _candidate_failed(kube: Kube, player: PlayerControl) -> None:
    highest = kube.get(NAME)["status"]["incarnations"]
    match = Match(namespace=kube.namespace, role="leader", incarnation=str(highest + 1))
    player.add(Rule(act=Act.FAIL, match=match, **_PERMANENT))
    kube.edit(NAME, {"parallelism": {"tensor": 2, "pipeline": 1}})
    kube.wait_reason(NAME, "Stalled", "ProofFailed", PATIENCE)


def _refused(kube: Kube, player: PlayerControl) -> None:
    kube.edit(NAME, {"parallelism": {"tensor": 16, "pipeline": 1}})
    kube.wait_reason(NAME, "Accepted", "TensorParallelExceedsNVLinkDomain", PATIENCE)


def _fetching(kube: Kube, player: PlayerControl) -> None:
    player.add(Rule(act=Act.HANG, match=Match(namespace=kube.namespace, step="model"), times=None))
    kube.edit(NAME, {"model": {"uri": "hf://Qwen/Qwen3-8B@main"}})
    kube.wait_reason(NAME, "Accepted", "FetchingModel", PATIENCE)


STATES: dict[str, Callable[[Kube, PlayerControl], None]] = {
    "while-the-next-model-is-fetched": _fetching,
    "while-the-next-engine-is-built": _building,
    "after-a-failed-build": _build_failed,
    "after-a-failed-candidate": _candidate_failed,
    "under-a-refused-spec": _refused,
}


def _pod_deleted(kube: Kube, pod: Json) -> None:
    kube.core.delete_namespaced_pod(pod["metadata"]["name"], kube.namespace, grace_period_seconds=0)


def _node_killed(kube: Kube, pod: Json) -> None:
    kill_kubelet(kube.api, pod["spec"]["nodeName"])


DEATHS: dict[str, Callable[[Kube, Json], None]] = {
    "its-pod-is-deleted-by-force": _pod_deleted,
    "its-node-dies": _node_killed,
}


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("state", STATES)
def test_a_dead_old_replica_comes_back_as_what_it_was(
    running: Operator,
    kube: Kube,
    nodes: list[str],
    player: PlayerControl,
    watcher: Watcher,
    state: str,
    death: str,
) -> None:
    _start(kube, PAIR)
    was = [served_as(pod) for pod in kube.pods(NAME)]
    assert all(item == was[0] for item in was)
    assert (was[0]["tensor"], was[0]["pipeline"], was[0]["step"]) == (4, 2, "engine")
    STATES[state](kube, player)
    watcher.wait_quiet(0.5, PATIENCE)
    pods = {_place(pod): pod for pod in kube.pods(NAME)}
    assert sorted(pods) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]

    mark = watcher.mark()
    victim = pods["1", "1"]
    DEATHS[death](kube, victim)

    def back() -> dict[tuple[str, str], Json] | None:
        now = {_place(pod): pod for pod in kube.pods(NAME)}
        whole = (
            sorted(now) == sorted(pods)
            and all(_uid(now["1", stage]) != _uid(pods["1", stage]) for stage in ("0", "1"))
            and all(ready(pod) for pod in now.values())
            and kube.get(NAME)["status"]["readyReplicas"] == 2
        )
        return now if whole else None

    now = kube.wait("replica 1 whole again", back, PATIENCE)
    assert [served_as(pod) for pod in now.values()] == was
    assert [_uid(now["0", stage]) for stage in ("0", "1")] == [
        _uid(pods["0", stage]) for stage in ("0", "1")
    ]
    if death == "its-node-dies":
        assert victim["spec"]["nodeName"] not in {
            now["1", stage]["spec"]["nodeName"] for stage in ("0", "1")
        }
    assert watcher.least_ready_since(mark, NAME) == 1
    assert watcher.candidates_since(mark, NAME) == 0
    assert watcher.revisions_since(mark) == []
    watcher.wait_quiet(1.0, PATIENCE)
    assert len(watcher.born_since(mark, NAME)) == 2


def test_the_build_that_an_old_replica_died_in_still_ends_in_the_new_revision(
    running: Operator,
    kube: Kube,
    nodes: list[str],
    player: PlayerControl,
    watcher: Watcher,
) -> None:
    _start(kube, PAIR)
    _building(kube, player)
    mark = watcher.mark()
    victim = kube.pods(NAME)[0]
    _node_killed(kube, victim)
    kube.wait("the loss seen", lambda: watcher.least_ready_since(mark, NAME) == 1, PATIENCE)
    player.reset()
    kube.wait(
        "both replicas on the new split",
        lambda: (
            [served_as(pod)["tensor"] for pod in kube.pods(NAME)] == [2, 2]
            and kube.get(NAME)["status"]["readyReplicas"] == 2
        ),
        PATIENCE,
    )
    # What is left on the dead node cannot end, and holds nothing up.
    kube.wait_ready(NAME, PATIENCE)
    assert watcher.least_ready_since(mark, NAME) >= PAIR.floor, watcher.story_since(mark, NAME)


@pytest.mark.parametrize(
    "size",
    [Size(2, 0, 1, floor=1), Size(2, 1, 0, floor=2), Size(1, 1, 1, floor=1)],
    ids=str,
)
def test_a_proven_revision_whose_first_new_group_spends_its_budget_is_rolled_back(
    running: Operator,
    kube: Kube,
    nodes: list[str],
    player: PlayerControl,
    watcher: Watcher,
    size: Size,
) -> None:
    kube.create(NAME, size.spec() | {"parallelism": {"tensor": 4, "pipeline": 1}})
    kube.wait_ready(NAME, PATIENCE)
    old = served_as(kube.pods(NAME)[0])
    budget = SETTINGS["timeouts"]["restartBudget"]
    highest = kube.get(NAME)["status"]["incarnations"]
    # The first start of the new group and every restart of it fail; whatever comes then would not.
    rules = [
        Rule(
            act=Act.FAIL,
            match=Match(namespace=kube.namespace, incarnation=str(highest + 1 + number)),
            outcome="Environment",
            reason="RankDied",
            message="rank 3 died",
        )
        for number in range(budget + 1)
    ]
    player.add(*rules)
    mark = watcher.mark()
    kube.edit(NAME, {"pod": {"env": [{"name": "NCCL_ALGO", "value": "Nonsense"}]}})
    stalled = kube.wait_reason(NAME, "Stalled", "RolledBack", PATIENCE)
    assert stalled["status"] == "True"
    assert "rank 3 died" in stalled["message"]
    assert old["revision"] in stalled["message"]
    # The player counts after the deed.
    kube.wait(
        "each start but none after them failed by order",
        lambda: [player.hits(rule) for rule in rules] == [1] * (budget + 1),
    )

    def old_everywhere() -> bool:
        served = [served_as(pod) for pod in kube.pods(NAME)]
        return (
            served == [old] * size.replicas
            and kube.get(NAME)["status"]["readyReplicas"] == size.replicas
        )

    kube.wait("the old revision everywhere", old_everywhere, PATIENCE)
    watcher.wait_quiet(1.5, PATIENCE)
    assert old_everywhere()
    assert watcher.least_ready_since(mark, NAME) >= size.floor, watcher.story_since(mark, NAME)
    assert watcher.candidates_since(mark, NAME) == 0
    assert watcher.jobs_since(mark) == {}
    assert kube.condition(NAME, "Stalled")["reason"] == "RolledBack"

    # Another edit is another try.
    kube.edit(NAME, {"pod": {"env": [{"name": "NCCL_ALGO", "value": "Ring"}]}})
    found = kube.wait_ready(NAME, PATIENCE)
    assert found["status"]["engine"]["serving"]["key"] == old["key"]
    assert watcher.least_ready_since(mark, NAME) >= size.floor, watcher.story_since(mark, NAME)


def _place(pod: Json) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels["shardwright.dev/replica"], labels["shardwright.dev/stage"]


def _uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])
