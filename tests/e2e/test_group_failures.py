"""What breaks a replica, and what becomes of it, on the whole operator."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.support.claims import published_lines
from tests.support.history import Life, watched
from tests.support.kube import H100, Kube, condition_of, ready
from tests.support.operator import Operator
from tests.support.watcher import watching

from shardwright.runner.contract import MANIFEST, STEP_ENGINE
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.nodes import kill_kubelet, revive_kubelet, wait_schedulable
from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule
from shardwright_sandbox.pytest_plugin import FleetMaker
from shardwright_sandbox.rest import Json
from shardwright_sandbox.storage import claim_folder

pytestmark = pytest.mark.e2e

NAME = "llama"
PREFIX = "shardwright.dev/"
START_SECONDS = 20
# Deadlines and a Lease that a slow machine does not trip over.
OPERATOR: Json = {
    "timeouts": {"bindSeconds": 60, "startSeconds": START_SECONDS, "readySeconds": 60},
    "lease": {"durationSeconds": 60, "renewSeconds": 40},
}
EDIT: Json = {"engine": {"limits": {"maxBatchSize": 32}}}
OTHER: Json = {"engine": {"limits": {"maxBatchSize": 16}}}
TWO: Json = {"replicas": 2}


@pytest.fixture
def h100s(fleet: FleetMaker) -> list[str]:
    """Eight nodes of eight H100: a replica of two stages takes two of them."""
    return fleet([{"name": "h100", "count": 8, "gpu": {"product": H100, "count": 8}}])


def groups(kube: Kube, name: str = NAME) -> list[Json]:
    found: list[Json] = kube.get(name).get("status", {}).get("groups", [])
    return found


def uids(kube: Kube, name: str = NAME) -> set[str]:
    return {pod["metadata"]["uid"] for pod in kube.pods(name)}


def label(pod: Json, name: str) -> str:
    return str(pod["metadata"]["labels"].get(PREFIX + name, ""))


def member(kube: Kube, stage: int, name: str = NAME) -> Json:
    return next(pod for pod in kube.pods(name) if label(pod, "stage") == str(stage))


def strikes(act: Act, *, times: int | None = 1, **more: Any) -> Rule:
    """A rule for the serving pods of `NAME`; match fields and rule fields by name."""
    match = {name: more.pop(name) for name in list(more) if name in Match.model_fields}
    return Rule.model_validate(
        {"act": act, "match": {"deployment": NAME, **match}, "times": times, **more}
    )


def publishes(sandbox: Sandbox, kube: Kube) -> Counter[str]:
    """How often each step's artifacts were published in this namespace."""
    assert sandbox.layout is not None
    lines = published_lines(sandbox.layout.publishes)
    return Counter(line["step"] for line in lines if line["namespace"] == kube.namespace)


def records(kube: Kube, step: str) -> list[Json]:
    items = kube.raw(
        f"/api/v1/namespaces/{kube.namespace}/configmaps", labelSelector=f"{PREFIX}record"
    )["items"]
    return [item["data"] for item in items if item["data"]["step"] == step]


def job_of(kube: Kube, step: str, key: str = "") -> Json | None:
    """The newest Job of a step (and key)."""
    found = [
        job for job in kube.jobs() if label(job, "step") == step and key in ("", label(job, "key"))
    ]
    return max(found, key=lambda job: int(label(job, "attempt")), default=None)


def job_pods(kube: Kube, step: str) -> list[Json]:
    items: list[Json] = kube.raw(
        f"/api/v1/namespaces/{kube.namespace}/pods", labelSelector=f"{PREFIX}step={step}"
    )["items"]
    return items


def wait_gone(kube: Kube, gone: set[str], name: str = NAME) -> None:
    """Until none of these pods is there any more."""
    kube.wait(
        "the old pods are gone",
        lambda: not gone & {pod["metadata"]["uid"] for pod in kube.pods(name, live=False)},
    )


def token(kube: Kube) -> tuple[str, str]:
    """UID of the leader that owns the only token, and the token as it is stored."""
    secrets = kube.raw(
        f"/api/v1/namespaces/{kube.namespace}/secrets", labelSelector=f"{PREFIX}incarnation"
    )["items"]
    [secret] = secrets
    [owner] = secret["metadata"]["ownerReferences"]
    return owner["uid"], secret["data"]["token"]


# A member dies.


def test_each_incarnation_has_a_token_of_its_own_that_goes_with_it(
    running: Operator, kube: Kube, h100s: list[str]
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    before = uids(kube)
    first = token(kube)
    assert first[0] == member(kube, 0)["metadata"]["uid"]
    kube.core.delete_namespaced_pod(member(kube, 1)["metadata"]["name"], kube.namespace)
    wait_gone(kube, before)
    kube.wait_ready(NAME)
    path = f"/api/v1/namespaces/{kube.namespace}/secrets"
    ours = {"labelSelector": f"{PREFIX}incarnation"}
    kube.wait("the old token is gone", lambda: len(kube.raw(path, **ours)["items"]) == 1)
    second = token(kube)
    assert second[0] == member(kube, 0)["metadata"]["uid"]
    assert first[1] != second[1]
    kube.custom.delete_namespaced_custom_object(
        "shardwright.dev", "v1alpha1", kube.namespace, "llmdeployments", NAME
    )
    kube.wait("no token is left", lambda: not kube.raw(path, **ours)["items"])


def test_a_crashed_worker_takes_its_group_along_once_and_is_named(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    before, worker = uids(kube), member(kube, 1)
    with watched(kube) as history:
        player.add(
            strikes(
                Act.CRASH,
                role="worker",
                outcome="Environment",
                reason="RankFailed",
                message="CUDA error",
            )
        )
        kube.wait("a restart is counted", lambda: groups(kube)[0]["restarts"] == 1)
        kube.wait_ready(NAME)
        wait_gone(kube, before)
        [group] = groups(kube)
        assert (group["incarnation"], group["restarts"]) == (2, 1)
        name, node = worker["metadata"]["name"], worker["spec"]["nodeName"]
        for word in (name, node, "RankFailed", "CUDA error"):
            assert word in group["cause"]
        assert group["reason"] == "RankFailed"
        assert not before & uids(kube), "every sibling is a new pod"
        assert node not in {pod["spec"]["nodeName"] for pod in kube.pods(NAME)}
        assert history.incarnations(NAME, 0) == [1, 2]


def test_a_leader_deleted_in_the_background_is_one_restart_without_blame(
    running: Operator, kube: Kube, h100s: list[str]
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    before = uids(kube)
    with watched(kube) as history:
        kube.core.delete_namespaced_pod(
            member(kube, 0)["metadata"]["name"], kube.namespace, propagation_policy="Background"
        )
        wait_gone(kube, before)
        kube.wait_ready(NAME)
        [group] = groups(kube)
        assert (group["incarnation"], group["restarts"]) == (2, 0)
        assert history.incarnations(NAME, 0) == [1, 2]
    assert not before & uids(kube)


def test_a_slow_image_pull_restarts_nothing_until_the_deadline(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    slow = strikes(Act.NEVER_START, times=None, role="worker", reason="ContainerCreating")
    player.add(slow)
    with watched(kube) as history, watching(kube.api, kube.namespace) as watcher:
        kube.create(NAME)
        kube.wait("a second try", lambda: 2 in history.incarnations(NAME, 0))
        # Nothing was held against it before, and this is what was.
        told = [group for one in watcher.objects(NAME) for group in restarted(one)]
        assert {group["reason"] for group in told} == {"NotStartedInTime"}
        assert (told[0]["incarnation"], told[0]["restarts"]) == (2, 1)
        first, second = (
            next(life for life in history.of(NAME, 0) if life.incarnation == number)
            for number in (1, 2)
        )
        assert stage_of(history.of(NAME, 0), 1, 1).name in told[0]["cause"]
        assert f"did not start within {START_SECONDS} s" in told[0]["cause"]
        # As the API server stamped them: the test itself may look late.
        assert second.stamped - first.stamped >= timedelta(seconds=START_SECONDS)
        player.remove(slow)
        kube.wait_ready(NAME)


def restarted(deployment: Json) -> list[Json]:
    """Groups of one state of a deployment that were restarted."""
    found: list[Json] = deployment.get("status", {}).get("groups", [])
    return [group for group in found if group.get("restarts")]


def stage_of(lives: list[Life], stage: int, incarnation: int) -> Life:
    return next(life for life in lives if (life.stage, life.incarnation) == (stage, incarnation))


def _uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def test_an_image_that_cannot_be_pulled_is_named_at_once_and_restarts_nothing(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    rule = strikes(Act.NEVER_START, times=None, role="worker", reason="ImagePullBackOff")
    player.add(rule)
    with watched(kube) as history, watching(kube.api, kube.namespace) as watcher:
        kube.create(NAME)

        def telling() -> Json | None:
            """The first state that was stored in which the operator says so."""
            states = watcher.objects(NAME)
            reasons = (condition_of(one, "Ready").get("reason") for one in states)
            told = zip(states, reasons, strict=True)
            return next((one for one, reason in told if reason == "ImagePullFailed"), None)

        said = kube.wait("the operator says so", telling)
        assert restarted(said) == []
        message = condition_of(said, "Ready")["message"]
        assert stage_of(history.of(NAME, 0), 1, 1).name in message
        assert "ImagePullBackOff" in message
        assert condition_of(said, "Stalled")["status"] == "False"
        player.remove(rule)
        kube.wait_ready(NAME)


@pytest.mark.parametrize("freed_by", ["an edit", "restartedAt"])
def test_a_crash_loop_backs_off_is_held_with_its_last_words_and_freed_by_the_user(
    freed_by: str, running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    rule = strikes(
        Act.CRASH,
        times=None,
        role="worker",
        outcome="Environment",
        reason="RankFailed",
        message="it dies",
        log_tail="RuntimeError: the last line",
    )
    with watched(kube) as history, watching(kube.api, kube.namespace) as watcher:
        player.add(rule)
        said = kube.wait_reason(NAME, "Stalled", "RestartBudgetSpent")
        assert said["status"] == "True"
        for word in ("it dies", "RuntimeError: the last line", f"{PREFIX}restartedAt"):
            assert word in said["message"]
        [group] = groups(kube)
        assert (group["held"], group["restarts"]) == (True, 4)
        lives = {life.incarnation: life for life in history.of(NAME, 0) if life.stage == 1}
        assert sorted(lives) == [1, 2, 3, 4], "as many restarts as the budget has"
        told = [group for one in watcher.objects(NAME) for group in restarted(one)]
        backoffs = {
            group["restarts"]: datetime.fromisoformat(group["notBefore"])
            for group in told
            if not group["held"]
        }
        # Half a second, doubled each time; all of these times are told in whole seconds.
        for restarts, least in ((1, 0), (2, 1), (3, 2)):
            ended = lives[restarts].finished
            assert ended is not None
            assert backoffs[restarts] - ended >= timedelta(seconds=least)
            assert lives[restarts + 1].stamped >= backoffs[restarts]
        kube.wait("a held group holds no pod", lambda: not kube.pods(NAME, live=False))
        player.remove(rule)
        assert not kube.wait_quietly(3, lambda: kube.pods(NAME)), "it is not tried again by itself"
    if freed_by == "an edit":
        kube.edit(NAME, {"rollout": {"drainTimeoutSeconds": 61}})
    else:
        kube.annotate(NAME, **{f"{PREFIX}restartedAt": "2026-01-01T00:00:00Z"})
    kube.wait_reason(NAME, "Ready", "AllReplicasReady", 60)
    assert groups(kube)[0]["restarts"] == 0


# A candidate.


def test_a_candidate_that_crashes_fails_its_proof_while_the_old_one_serves(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    kube.create(NAME)
    served = kube.wait_ready(NAME)["status"]["engine"]["serving"]
    before = uids(kube)
    player.add(
        strikes(
            Act.FAIL,
            times=None,
            role="leader",
            incarnation="[!1]",
            outcome="Environment",
            reason="RankFailed",
            message="illegal memory access",
            log_tail="the last line",
        )
    )
    with watched(kube) as history:
        kube.edit(NAME, EDIT)
        said = kube.wait_reason(NAME, "Stalled", "ProofFailed", 90)
        for word in ("RankFailed", "illegal memory access", "the last line"):
            assert word in said["message"]
        assert history.incarnations(NAME, 1) == [2, 3, 4], "three tries and no more"
        kube.wait("the candidate is gone", lambda: len(kube.pods(NAME, live=False)) == 2)
    assert uids(kube) == before
    assert all(ready(pod) for pod in kube.pods(NAME))
    status = kube.get(NAME)["status"]
    assert (status["engine"]["serving"], status["readyReplicas"]) == (served, 1)
    assert kube.condition(NAME, "Available")["status"] == "True"
    # A revert needs neither a build nor a proof.
    kube.edit(NAME, {"engine": {"limits": {"maxBatchSize": None}}})
    kube.wait_ready(NAME)
    assert uids(kube) == before


def test_a_candidate_lost_to_its_node_has_not_failed_its_proof(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    before = uids(kube)
    stuck = strikes(Act.NEVER_READY, role="leader", incarnation="2")
    player.add(stuck)
    kube.edit(NAME, EDIT)
    candidate = kube.wait(
        "the candidate's leader runs",
        lambda: [
            pod
            for pod in kube.pods(NAME)
            if label(pod, "incarnation") == "2"
            and label(pod, "stage") == "0"
            and pod["status"].get("phase") == "Running"
        ],
        60,
    )[0]
    assert uids(kube) >= before, "the old one serves on"
    node = candidate["spec"]["nodeName"]
    kill_kubelet(sandbox.api, node)
    kube.wait_ready(NAME, 90)
    homes = {pod["spec"]["nodeName"] for pod in kube.pods(NAME)}
    assert node not in homes
    assert [data["state"] for data in records(kube, "proof")] == ["Ready", "Ready"]
    revive_kubelet(sandbox.api, node)


# Nodes.


def test_a_group_on_dead_nodes_is_replaced_elsewhere_after_the_timer(
    running: Operator, kube: Kube, h100s: list[str], sandbox: Sandbox
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    before = uids(kube)
    dead = {pod["spec"]["nodeName"] for pod in kube.pods(NAME)}
    for node in dead:
        kill_kubelet(sandbox.api, node)
    kube.wait("a restart is counted", lambda: groups(kube)[0]["restarts"] == 1)
    [group] = groups(kube)
    assert group["reason"] == "NodeLost"
    assert any(node in group["cause"] for node in dead)
    kube.wait(
        "the new group is ready",
        lambda: [pod for pod in kube.pods(NAME) if label(pod, "incarnation") == "2" and ready(pod)][
            1:
        ],
        60,
    )
    # Of the old ones a worker may wait still for its leader to have drained.
    new = [pod for pod in kube.pods(NAME) if label(pod, "incarnation") == "2"]
    assert not dead & {pod["spec"]["nodeName"] for pod in new}
    for node in dead:
        revive_kubelet(sandbox.api, node)
    wait_gone(kube, before)
    kube.wait_ready(NAME)
    assert groups(kube)[0]["incarnation"] == 2, "the old node's return changes nothing"


def test_when_most_of_the_fleet_goes_at_once_nothing_is_replaced(
    running: Operator, kube: Kube, fleet: FleetMaker, sandbox: Sandbox
) -> None:
    nodes = fleet([{"name": "h100", "count": 16, "gpu": {"product": H100, "count": 8}}])
    kube.create(NAME, TWO)
    kube.wait_ready(NAME)
    before = uids(kube)
    homes = {pod["spec"]["nodeName"] for pod in kube.pods(NAME)}
    spared, *empty = sorted(set(nodes) - homes)
    assert len(empty) > len(nodes) / 2
    # Those without pods go first and come back last: whenever a home is away, so is most of the
    # fleet, however long each of these requests takes.
    for node in [*empty, *homes]:
        kill_kubelet(sandbox.api, node)
    kube.wait_reason(NAME, "Ready", "ClusterUnreachable")
    # Twice the time after which one node alone would be given up.
    assert not kube.wait_quietly(6, lambda: uids(kube) != before)
    assert [group["restarts"] for group in groups(kube)] == [0, 0]
    for node in homes:
        revive_kubelet(sandbox.api, node)
    wait_schedulable(sandbox.api, sorted(homes), 90)
    for node in empty:
        revive_kubelet(sandbox.api, node)
    wait_schedulable(sandbox.api, nodes, 90)
    kube.wait_ready(NAME)
    assert uids(kube) == before
    assert spared not in {pod["spec"]["nodeName"] for pod in kube.pods(NAME)}


def test_a_step_whose_node_dies_is_tried_elsewhere_and_the_lost_attempt_never_comes_back(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    player.add(Rule(act=Act.HANG, match=Match(step=STEP_ENGINE)))
    kube.create(NAME)
    [first] = kube.wait(
        "the build runs",
        lambda: [pod for pod in job_pods(kube, STEP_ENGINE) if pod["status"]["phase"] == "Running"],
        60,
    )
    node = first["spec"]["nodeName"]
    kill_kubelet(sandbox.api, node)
    kube.wait_ready(NAME, 90)
    built = job_of(kube, STEP_ENGINE)
    assert built is not None
    assert label(built, "attempt") == "2"
    kube.wait(
        "the lost attempt is given up",
        lambda: (
            # It stays, being deleted, until its pod is gone.
            [
                label(job, "attempt")
                for job in kube.jobs()
                if label(job, "step") == STEP_ENGINE and "deletionTimestamp" not in job["metadata"]
            ]
            == ["2"]
        ),
    )
    revive_kubelet(sandbox.api, node)
    kube.wait(
        "its pod goes when the node is back",
        lambda: (
            first["metadata"]["uid"]
            not in {pod["metadata"]["uid"] for pod in job_pods(kube, STEP_ENGINE)}
        ),
    )
    assert publishes(sandbox, kube)[STEP_ENGINE] == 1


def test_a_node_that_does_not_fit_a_good_engine_is_avoided_and_the_record_stays(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    # The group moves, and finds a GPU that is not what the node's label says.
    rule = strikes(
        Act.FAIL, role="worker", outcome="Environment", reason="GPUMismatch", message="is an A100"
    )
    with watched(kube) as history:
        player.add(rule)
        kube.core.delete_namespaced_pod(member(kube, 0)["metadata"]["name"], kube.namespace)
        kube.wait("a restart is counted", lambda: groups(kube)[0]["restarts"] == 1, 60)
        kube.wait_ready(NAME)
        bad = next(
            life.node for life in history.of(NAME, 0) if (life.incarnation, life.stage) == (2, 1)
        )
    [group] = groups(kube)
    assert (group["reason"], group["avoidNodes"]) == ("GPUMismatch", [bad])
    assert bad not in {pod["spec"]["nodeName"] for pod in kube.pods(NAME)}
    assert [data["state"] for data in records(kube, STEP_ENGINE)] == ["Ready"]
    assert publishes(sandbox, kube)[STEP_ENGINE] == 1


# Files.


def test_an_engine_found_bad_by_its_pods_is_trashed_and_built_anew(
    running: Operator, kube: Kube, h100s: list[str], sandbox: Sandbox
) -> None:
    kube.create(NAME)
    key = kube.wait_ready(NAME)["status"]["engine"]["serving"]["key"]
    folder = claim_folder(sandbox.claims, kube.namespace, "models")
    [rank] = folder.glob(f"shardwright/engine/{key}/rank0.engine")
    rank.unlink()
    assert not kube.wait_quietly(1, lambda: groups(kube)[0]["restarts"]), "what is loaded serves"
    kube.core.delete_namespaced_pod(member(kube, 0)["metadata"]["name"], kube.namespace)
    kube.wait("it is built again", lambda: publishes(sandbox, kube)[STEP_ENGINE] == 2, 60)
    kube.wait_reason(NAME, "Ready", "AllReplicasReady", 60)
    [data] = records(kube, STEP_ENGINE)
    assert (data["state"], data["rebuilds"]) == ("Ready", "1")
    assert publishes(sandbox, kube) == {"model": 1, "checkpoint": 1, "engine": 2}
    assert rank.exists()


def test_an_engine_that_is_bad_again_and_again_is_rebuilt_twice_and_then_left_to_the_user(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    player.add(Rule(act=Act.CORRUPT, match=Match(step=STEP_ENGINE), times=None))
    kube.create(NAME)
    said = kube.wait_reason(NAME, "Stalled", "ArtifactUnusable", 120)
    assert said["status"] == "True"
    assert "files are missing" in said["message"] or "rank" in said["message"]
    assert publishes(sandbox, kube)[STEP_ENGINE] == 3
    kube.wait("no pod is left", lambda: not kube.pods(NAME, live=False))
    assert not kube.wait_quietly(3, lambda: publishes(sandbox, kube)[STEP_ENGINE] > 3)


def test_a_checkpoint_that_the_build_finds_damaged_is_made_anew_and_then_the_engine(
    running: Operator, kube: Kube, h100s: list[str], sandbox: Sandbox
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    folder = claim_folder(sandbox.claims, kube.namespace, "models")
    [manifest] = folder.glob(f"shardwright/checkpoint/*/{MANIFEST}")
    before = uids(kube)
    manifest.unlink()
    kube.edit(NAME, EDIT)
    kube.wait_ready(NAME)
    wait_gone(kube, before)
    assert publishes(sandbox, kube) == {"model": 1, "checkpoint": 2, "engine": 2}
    [data] = records(kube, "checkpoint")
    assert (data["state"], data["rebuilds"]) == ("Ready", "1")
    assert manifest.exists()
    [group] = groups(kube)
    assert group["restarts"] == 0


def test_a_checkpoint_that_is_damaged_again_and_again_is_left_to_the_user(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    told = {"outcome": "Environment", "reason": "ManifestMismatch", "message": "rank1 truncated"}
    player.fail_step(STEP_ENGINE, times=None, **told)
    kube.create(NAME)
    said = kube.wait_reason(NAME, "Stalled", "ArtifactUnusable", 120)
    assert "rank1 truncated" in said["message"]
    newest = job_of(kube, "checkpoint")
    assert newest is not None
    assert label(newest, "attempt") == "3"
    # The files are good, whatever the build says of them: nothing is made twice.
    assert publishes(sandbox, kube) == {"model": 1, "checkpoint": 1}


def test_a_build_killed_for_memory_is_tried_once_more_and_then_names_what_to_raise(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    player.fail_step(STEP_ENGINE, times=None, report=False, exit_code=137)
    kube.create(NAME)
    said = kube.wait_reason(NAME, "Stalled", "OutOfMemory", 120)
    assert "64.0 GiB; raise stepResources.memory" in said["message"]
    newest = job_of(kube, STEP_ENGINE)
    assert newest is not None
    assert label(newest, "attempt") == "2"
    homes = {pod["spec"]["nodeName"] for pod in job_pods(kube, STEP_ENGINE)}
    assert len(homes) == 2


# The user changes their mind.


def test_scaled_to_zero_and_back_keeps_everything_but_the_pods(
    running: Operator, kube: Kube, h100s: list[str], sandbox: Sandbox
) -> None:
    kube.create(NAME, TWO)
    kube.wait_ready(NAME)
    built, jobs = publishes(sandbox, kube), _uids(kube.jobs())
    kube.edit(NAME, {"replicas": 0})
    kube.wait_reason(NAME, "Ready", "ScaledToZero")
    assert kube.condition(NAME, "Ready")["status"] == "True"
    assert kube.pods(live=False) == []
    assert len(records(kube, STEP_ENGINE)) == 1
    # The GPUs are free for another: together with it the two would not fit.
    kube.create("other", {"replicas": 4})
    kube.wait_ready("other")
    kube.delete("other")
    kube.edit(NAME, TWO)
    kube.wait_ready(NAME)
    assert len(kube.pods(NAME)) == 4
    assert publishes(sandbox, kube) == built
    assert jobs <= _uids(kube.jobs())


def test_a_second_edit_in_the_middle_of_a_roll_wins_and_the_first_candidate_goes(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    kube.create(NAME, TWO)
    kube.wait_ready(NAME)
    before = uids(kube)
    player.add(strikes(Act.NEVER_READY, role="leader", incarnation="3"))
    kube.edit(NAME, EDIT)
    kube.wait(
        "the first candidate starts",
        lambda: [pod for pod in kube.pods(NAME) if label(pod, "incarnation") == "3"][1:],
        60,
    )
    first = kube.get(NAME)["status"]["engine"]["next"]["revision"]
    with watching(kube.api, kube.namespace) as watcher:
        mark = watcher.mark()
        kube.edit(NAME, OTHER)
        kube.wait_ready(NAME, 90)
        assert watcher.least_ready_since(mark, NAME) >= 1
        assert first not in {pod.revision for pod in watcher.born_since(mark, NAME)}
    wait_gone(kube, before)
    pods = kube.pods(NAME)
    assert len(pods) == 4
    assert {label(pod, "revision") for pod in pods}.isdisjoint({first})
    proofs = [data for data in records(kube, "proof") if data["state"] == "Ready"]
    assert len(proofs) == 2, "of the first edit nothing was proven"


@pytest.mark.parametrize("change", ["another edit", "revert"])
def test_a_build_that_nobody_needs_any_more_is_deleted(
    change: str, running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    kube.create(NAME)
    kube.wait_ready(NAME)
    before = uids(kube)
    hang = Rule(act=Act.HANG, match=Match(step=STEP_ENGINE, namespace=kube.namespace))
    player.add(hang)
    kube.edit(NAME, EDIT)
    running_pods = lambda: [  # noqa: E731 - said twice
        pod for pod in job_pods(kube, STEP_ENGINE) if pod["status"]["phase"] == "Running"
    ]
    [pod] = kube.wait("the build runs", running_pods, 60)
    key = label(pod, "key")
    kube.edit(NAME, OTHER if change == "another edit" else {"engine": {"limits": None}})
    kube.wait_ready(NAME, 60)
    kube.wait("the Job is gone", lambda: job_of(kube, STEP_ENGINE, key) is None)
    kube.wait("and its pod", lambda: not running_pods())
    if change == "revert":
        assert uids(kube) == before
    else:
        wait_gone(kube, before)
        assert len(kube.pods(NAME)) == 2


# Deletion.


def test_a_deployment_deleted_in_the_middle_leaves_nothing_and_disturbs_no_other(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    hang = Rule(act=Act.HANG, match=Match(step=STEP_ENGINE))
    player.add(hang)
    kube.create("first")
    kube.create("second")
    # Both need the same engine: one Job, owned by both.
    both = {kube.get(name)["metadata"]["uid"] for name in ("first", "second")}

    def owners() -> set[str]:
        job = job_of(kube, STEP_ENGINE)
        return {one["uid"] for one in job["metadata"]["ownerReferences"]} if job else set()

    kube.wait("one Job is shared", lambda: owners() == both, 60)
    shared = job_of(kube, STEP_ENGINE)
    assert shared is not None
    gone = kube.get("first")["metadata"]["uid"]
    kube.delete("first")
    kube.wait("only the other one owns it", lambda: owners() == both - {gone}, 60)
    player.remove(hang)
    kube.wait_ready("second")
    kept = job_of(kube, STEP_ENGINE)
    assert kept is not None
    assert kept["metadata"]["uid"] == shared["metadata"]["uid"]
    assert owners() == both - {gone}
    assert publishes(sandbox, kube)[STEP_ENGINE] == 1
    kube.wait("the first one's objects are gone", lambda: not owned_by(kube, gone), 60)


def test_a_deployment_deleted_in_the_middle_of_a_roll_takes_all_of_its_objects_along(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    kube.create(NAME, TWO)
    uid = kube.wait_ready(NAME)["metadata"]["uid"]
    player.add(strikes(Act.NEVER_READY, role="leader", incarnation="3"))
    kube.edit(NAME, EDIT)
    kube.wait("the candidate is there", lambda: len(kube.pods(NAME)) == 6, 60)
    assert {kind for kind, _ in owned_by(kube, uid)} == set(OWNED)
    kube.delete(NAME)
    kube.wait("all is gone", lambda: not owned_by(kube, uid), 60)
    assert not kube.wait_quietly(2, lambda: owned_by(kube, uid)), "and nothing comes back"
    assert len(records(kube, STEP_ENGINE)) == 2, "artifacts are the claim's"


OWNED = {
    "pods": "/api/v1/{}/pods",
    "services": "/api/v1/{}/services",
    "jobs": "/apis/batch/v1/{}/jobs",
    "controllerrevisions": "/apis/apps/v1/{}/controllerrevisions",
    "poddisruptionbudgets": "/apis/policy/v1/{}/poddisruptionbudgets",
}


def owned_by(kube: Kube, uid: str) -> list[tuple[str, str]]:
    """Objects of the namespace that name this owner, as (kind, name)."""
    return [
        (kind, item["metadata"]["name"])
        for kind, path in OWNED.items()
        for item in kube.raw(path.format(f"namespaces/{kube.namespace}"))["items"]
        if uid in {one["uid"] for one in item["metadata"].get("ownerReferences", [])}
    ]


# A loan.


def test_a_loan_is_announced_taken_within_the_limit_and_given_back(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    fleet([{"name": "h100", "count": 4, "gpu": {"product": H100, "count": 8}}])
    kube.create(NAME, {**TWO, "rollout": {"buildOn": "Borrow", "maxUnavailable": 1}})
    kube.wait_ready(NAME)
    before = uids(kube)
    with watching(kube.api, kube.namespace) as watcher:
        mark = watcher.mark()
        kube.edit(NAME, EDIT)
        kube.wait_ready(NAME, 90)
        wait_gone(kube, before)
        assert watcher.least_ready_since(mark, NAME) >= 1
        states = [item["status"] for item in watcher.objects_since(mark, NAME)]
        loans = [status["engine"].get("next", {}).get("borrowed", "") for status in states]
        lent = next(position for position, text in enumerate(loans) if text)
        assert loans[lent].startswith("replica ")
        assert len(states[lent]["groups"]) >= 2, "announced while both are still asked for"
        assert "h100-" in loans[lent]
    status = kube.get(NAME)["status"]
    assert status["readyReplicas"] == 2
    assert not status["engine"].get("next")
    assert {label(pod, "revision") for pod in kube.pods(NAME)} == {
        status["engine"]["serving"]["revision"]
    }
