"""What status says of each situation, and what Helm, Flux and Argo CD make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.kstatus import CURRENT, FAILED, IN_PROGRESS, verdict

from shardwright.api import names
from shardwright.api.asked import asked_of
from shardwright.api.settings import Settings
from shardwright.api.status import LLMDeploymentStatus
from shardwright.observe.world import (
    DeploymentView,
    JobView,
    NodeView,
    PodView,
    Record,
    RecordState,
)
from shardwright.plan.attempts import Chain, Next, Shop, Tries
from shardwright.plan.chain import judge_artifact
from shardwright.plan.conditions import Outcome
from shardwright.plan.groups import Group, State, observe_group
from shardwright.plan.memory import Memory
from shardwright.plan.placed import Placed
from shardwright.plan.report import MESSAGE_LIMIT, applied, report
from shardwright.plan.revisions import Revision
from shardwright.plan.rollout import Wish
from shardwright.plan.situation import Decision, Findings, Situation
from shardwright.resolved import Artifact
from shardwright.runner.contract import STEP_PROOF, Report
from shardwright.runtimes.base import Refusal

NOW = 1_800_000_000.0
RESOLVED = specs.resolved(specs.spec(parallelism={"tensor": 8, "pipeline": 2}))
TARGET = Revision("llama-new", "uid-new", 2, RESOLVED)
OLD = Revision("llama-old", "uid-old", 1, RESOLVED)
MODEL, ENGINE = RESOLVED.artifacts[0], RESOLVED.artifacts[-1]
QUOTA = 'pods "x" is forbidden: exceeded quota: limits, requested: pods=1, used: pods=1, limited: 1'


def pod(index: int, stage: int, *, serving: bool = True, is_ready: bool = True) -> PodView:
    labels = {
        names.LABEL_REPLICA: str(index),
        names.LABEL_STAGE: str(stage),
        names.LABEL_INCARNATION: "1",
        **({names.LABEL_PROTECTED: "true"} if serving else {}),
    }
    return PodView(
        "llm",
        f"llama-{index}-{stage}",
        f"uid-{index}-{stage}",
        labels=labels,
        node=f"node-{index}-{stage}",
        phase="Running",
        ready=is_ready,
    )


def group(
    index: int = 0,
    state: State = State.READY,
    *,
    revision: Revision = TARGET,
    serving: bool = True,
    waiting: tuple[str, str] = ("", ""),
) -> Group:
    """One replica of two stages."""
    bound = state in (State.READY, State.STARTING)
    pods = [pod(index, stage, serving=serving, is_ready=state is State.READY) for stage in (0, 1)]
    return Group(
        index=index,
        incarnation=1,
        revision=revision.name,
        pipeline=2,
        pods=tuple(pods) if bound else (),
        state=state,
        waiting_reason=waiting[0],
        waiting=waiting[1],
    )


def wish(index: int = 0, revision: Revision = TARGET, **more: Any) -> Wish:
    return Wish(index, 1, revision.name, **more)


@dataclass(frozen=True)
class Row:
    """What a pass found, and what must be said of it."""

    ready: tuple[str, str]
    kstatus: str
    findings: Mapping[str, Any] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)
    memory: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    parts: tuple[str, ...] = ()  # of Ready's message
    others: Mapping[str, tuple[str, str]] = field(default_factory=dict)


PROVEN: Mapping[str, Any] = {
    "target": TARGET,
    "serving": TARGET,
    "target_proven": True,
    "chain": Chain(Next.READY),
}
UNPROVEN: Mapping[str, Any] = {"target": TARGET, "chain": Chain(Next.READY)}
REBUILDING: Mapping[str, Any] = {"target": TARGET, "serving": OLD}
BUILDING = Chain(Next.WAIT, ENGINE, 1, reason="Building", message="building k on n, attempt 1")
NO_ROOM = "needs 16 GPUs: 8 free, largest free block 8 GPUs on one node"
PROOF_FAILED = Record(
    STEP_PROOF,
    "k",
    "claim-uid",
    RecordState.FAILED,
    name="record-k",
    reason="OutOfMemory",
    message="rank 3: CUDA out of memory",
    log_tail="tried to allocate 2 GiB",
)

ROWS: dict[str, Row] = {
    "a spec that cannot be read": Row(
        ("False", "InvalidSpec"),
        FAILED,
        {"refusal": Refusal("InvalidSpec", "spec.replicas: not a number")},
        parts=("spec.replicas",),
        others={"Accepted": ("False", "InvalidSpec"), "ModelReady": ("Unknown", "NotAccepted")},
    ),
    "a refused spec": Row(
        ("False", "TensorParallelExceedsNVLinkDomain"),
        FAILED,
        {"refusal": Refusal("TensorParallelExceedsNVLinkDomain", "use TP=8 × PP=2")},
        parts=("use TP=8 × PP=2",),
        others={"Accepted": ("False", "TensorParallelExceedsNVLinkDomain")},
    ),
    "a refused spec under which an old one serves": Row(
        ("False", "PrecisionNotSupported"),
        FAILED,
        {
            "refusal": Refusal("PrecisionNotSupported", "FP8 needs 8.9"),
            "serving": OLD,
            "groups": (group(revision=OLD),),
            "wishes": (wish(revision=OLD),),
        },
        others={
            "Accepted": ("False", "PrecisionNotSupported"),
            "Available": ("True", "MinimumReplicasReady"),
        },
    ),
    "a model that is fetched": Row(
        ("False", "Fetching"),
        IN_PROGRESS,
        {"fetching": Chain(Next.WAIT, MODEL, 1, reason="Fetching", message="fetching k")},
        parts=("fetching k",),
        others={
            "Accepted": ("Unknown", "FetchingModel"),
            "ModelReady": ("False", "Fetching"),
            "EngineReady": ("Unknown", "NotResolved"),
            "Available": ("False", "TooFewReplicasReady"),
        },
    ),
    "a model whose fetch is tried again": Row(
        ("False", "NoReport"),
        IN_PROGRESS,
        {"fetching": Chain(Next.BACKOFF, MODEL, 2, reason="NoReport", message="failed 1 of 5")},
        parts=("failed 1 of 5",),
    ),
    "a model that cannot be fetched": Row(
        ("False", "ModelNotFound"),
        FAILED,
        {
            "fetching": Chain(
                Next.STALLED, MODEL, reason="ModelNotFound", message="no such repo", log_tail="404"
            )
        },
        parts=("no such repo", "end of its log: 404"),
        others={"ModelReady": ("False", "ModelNotFound")},
    ),
    "an engine that is built": Row(
        ("False", "Building"),
        IN_PROGRESS,
        {"target": TARGET, "chain": BUILDING},
        parts=("building k",),
        others={
            "Accepted": ("True", "Accepted"),
            "ModelReady": ("True", "ModelFetched"),
            "EngineReady": ("False", "Building"),
        },
    ),
    "an engine that is built while an old one serves": Row(
        ("False", "Building"),
        IN_PROGRESS,
        {
            **REBUILDING,
            "chain": BUILDING,
            "groups": (group(revision=OLD),),
            "wishes": (wish(revision=OLD),),
        },
        others={"Available": ("True", "MinimumReplicasReady")},
    ),
    "a build that just failed for good": Row(
        ("False", "UnsupportedOption"),
        FAILED,
        {"target": TARGET, "chain": Chain(Next.FAIL, ENGINE, reason="UnsupportedOption")},
    ),
    "a build that failed for good": Row(
        ("False", "UnsupportedOption"),
        FAILED,
        {
            "target": TARGET,
            "chain": Chain(Next.STALLED, ENGINE, reason="UnsupportedOption", message="--x"),
        },
        others={"EngineReady": ("False", "UnsupportedOption")},
    ),
    "a build whose image is not pulled": Row(
        ("False", "ImagePullFailed"),
        IN_PROGRESS,
        {"target": TARGET, "chain": Chain(Next.WAIT, ENGINE, reason="ImagePullFailed")},
    ),
    "a build that finds no GPU": Row(
        ("False", "NoSpareGPUs"),
        IN_PROGRESS,
        {"target": TARGET, "chain": Chain(Next.PLACE, ENGINE, reason="Building")},
        Outcome(no_room_for_step="step engine: needs 1 GPU"),
        parts=("step engine: needs 1 GPU",),
        others={"Placed": ("False", "NoSpareGPUs"), "EngineReady": ("False", "Building")},
    ),
    "a candidate that starts": Row(
        ("False", "Proving"),
        IN_PROGRESS,
        {
            **UNPROVEN,
            "groups": (group(state=State.STARTING, serving=False, waiting=("GroupStarting", "w")),),
            "wishes": (wish(),),
        },
        others={"EngineReady": ("False", "Proving"), "Placed": ("True", "AllPlaced")},
    ),
    "a candidate whose image is not pulled": Row(
        ("False", "ImagePullFailed"),
        IN_PROGRESS,
        {
            **UNPROVEN,
            "groups": (
                group(
                    state=State.STARTING,
                    serving=False,
                    waiting=("ImagePullFailed", "pod llama-0-1 on n: ErrImagePull"),
                ),
            ),
            "wishes": (wish(),),
        },
        parts=("llama-0-1", "ErrImagePull"),
    ),
    "a candidate that finds no room": Row(
        ("False", "NoSpareGPUs"),
        IN_PROGRESS,
        {**UNPROVEN, "groups": (group(state=State.GATED),), "wishes": (wish(),)},
        Outcome(no_room=NO_ROOM, no_room_candidate=True),
        parts=("8 free", "largest free block 8"),
        others={"Placed": ("False", "NoSpareGPUs")},
    ),
    "a candidate that failed": Row(
        ("False", "ProofFailed"),
        FAILED,
        {**UNPROVEN, "serving": OLD, "proof_failure": PROOF_FAILED},
        parts=(
            "OutOfMemory",
            "rank 3",
            "tried to allocate 2 GiB",
            "llama-old",
            "shardwright.dev/restartedAt",
        ),
        others={"EngineReady": ("False", "ProofFailed")},
    ),
    "all is well": Row(
        ("True", "AllReplicasReady"),
        CURRENT,
        {**PROVEN, "groups": (group(0), group(1)), "wishes": (wish(0), wish(1))},
        replicas=2,
        parts=("2 of 2 replicas are ready",),
        others={
            "Accepted": ("True", "Accepted"),
            "EngineReady": ("True", "Proven"),
            "Placed": ("True", "AllPlaced"),
            "Available": ("True", "MinimumReplicasReady"),
        },
    ),
    "one of two replicas starts": Row(
        ("False", "GroupStarting"),
        IN_PROGRESS,
        {
            **PROVEN,
            "groups": (
                group(0),
                group(1, State.STARTING, waiting=("GroupStarting", "1 of 2 pods")),
            ),
            "wishes": (wish(0), wish(1)),
        },
        replicas=2,
        parts=("1 of 2 pods",),
        others={"Available": ("True", "MinimumReplicasReady")},
    ),
    "one of two replicas finds no room": Row(
        ("False", "InsufficientGPUs"),
        IN_PROGRESS,
        {
            **PROVEN,
            "groups": (group(0), group(1, State.GATED)),
            "wishes": (wish(0), wish(1)),
        },
        Outcome(no_room=NO_ROOM),
        replicas=2,
        parts=("8 free",),
        others={"Placed": ("False", "InsufficientGPUs")},
    ),
    "a replica that waits behind another": Row(
        ("False", "Queued"),
        IN_PROGRESS,
        {**PROVEN, "groups": (group(0, State.GATED),), "wishes": (wish(0),)},
        Outcome(queued_behind="a replica of llm/older comes first"),
        parts=("llm/older",),
        others={"Placed": ("False", "Queued")},
    ),
    "the server refuses a write": Row(
        ("False", "WriteRefused"),
        IN_PROGRESS,
        {**PROVEN, "groups": (group(0, State.ABSENT),), "wishes": (wish(0),)},
        Outcome(refused="no PriorityClass with name gold was found"),
        parts=("no PriorityClass with name gold was found",),
    ),
    "a quota refuses a pod": Row(
        ("False", "QuotaExceeded"),
        IN_PROGRESS,
        {**PROVEN, "groups": (group(0, State.ABSENT),), "wishes": (wish(0),)},
        Outcome(quota=QUOTA),
        parts=("exceeded quota: limits",),
        others={"Placed": ("False", "QuotaExceeded")},
    ),
    "a quota refused a pod and the next try is not due": Row(
        ("False", "QuotaExceeded"),
        IN_PROGRESS,
        {
            **UNPROVEN,
            "groups": (group(0, State.ABSENT),),
            "wishes": (wish(0, reason="QuotaExceeded", cause=QUOTA, not_before=NOW + 5),),
        },
        parts=("exceeded quota: limits",),
        others={"Placed": ("False", "QuotaExceeded")},
    ),
    "a quota that refused once and no longer does": Row(
        ("True", "AllReplicasReady"),
        CURRENT,
        {
            **PROVEN,
            "groups": (group(0),),
            "wishes": (wish(0, reason="QuotaExceeded", cause=QUOTA, not_before=NOW - 50),),
        },
        others={"Placed": ("True", "AllPlaced")},
    ),
    "old replicas are left": Row(
        ("False", "RollingOut"),
        IN_PROGRESS,
        {
            **PROVEN,
            "groups": (group(0, revision=OLD), group(1)),
            "wishes": (wish(0, OLD), wish(1)),
            "rebuild_reason": "parallelism.tensor 4 → 8",
        },
        replicas=2,
        parts=(
            "1 of 2 replicas are on revision llama-new",
            "tensor 4 → 8",
            "1 of an older revision",
        ),
    ),
    "the last old pods are on their way": Row(
        ("False", "RollingOut"),
        IN_PROGRESS,
        {**PROVEN, "groups": (group(0),), "wishes": (wish(0),), "leaving": 2},
        parts=("2 pods",),
    ),
    "a replica that comes back after a fault": Row(
        ("False", "NodeLost"),
        IN_PROGRESS,
        {
            **PROVEN,
            "groups": (group(0, State.ABSENT),),
            "wishes": (wish(0, restarts=1, reason="NodeLost", cause="node n", not_before=NOW + 9),),
        },
        memory={
            "wishes": (wish(0, restarts=1, reason="NodeLost", cause="node n", not_before=NOW + 9),)
        },
        parts=("replica 0 is restarting after 1 restarts: node n",),
        others={"Placed": ("False", "RestartBackoff")},
    ),
    "a replica that is held": Row(
        ("False", "RestartBudgetSpent"),
        FAILED,
        {
            **PROVEN,
            "groups": (group(0, State.ABSENT),),
            "wishes": (wish(0, restarts=4, held=True, cause="rank 1 died"),),
        },
        parts=("held after 4 restarts: rank 1 died", "shardwright.dev/restartedAt"),
    ),
    "a revision that was rolled back": Row(
        ("False", "RolledBack"),
        FAILED,
        {
            **PROVEN,
            "serving": OLD,
            "groups": (group(0, revision=OLD),),
            "wishes": (wish(0, OLD),),
        },
        memory={"failed_revision": TARGET.name, "failed_cause": "rank 1 died"},
        parts=("rank 1 died", "llama-old serves again"),
    ),
    "a first revision that never stood, though another deployment proved the same": Row(
        ("False", "RolledBack"),
        FAILED,
        {
            **PROVEN,
            "groups": (group(0, State.ABSENT),),
            "wishes": (wish(0, restarts=1, cause="rank 1 died"),),
        },
        memory={"failed_revision": TARGET.name, "failed_cause": "rank 1 died"},
        parts=("rank 1 died", "no older one to go back to"),
    ),
    "no replica is asked for": Row(
        ("True", "ScaledToZero"),
        CURRENT,
        PROVEN,
        replicas=0,
        parts=("no GPU is held",),
        others={
            "Placed": ("True", "ScaledToZero"),
            "Available": ("True", "MinimumReplicasReady"),
        },
    ),
    "the last replicas go": Row(
        ("False", "ScalingDown"),
        IN_PROGRESS,
        {**PROVEN, "leaving": 4},
        replicas=0,
        parts=("4 pods",),
    ),
}


def situation(
    status: LLMDeploymentStatus | None = None, *, now: float = NOW, replicas: int = 1
) -> Situation:
    return Situation(
        now=now,
        jitter=0.0,
        settings=Settings(),
        deployment=DeploymentView("llm", "llama", "uid", generation=3, resource_version=7),
        spec=asked_of(specs.spec(parallelism={"tensor": 8, "pipeline": 2}, replicas=replicas)),
        spec_error="",
        spec_digest="",
        status=status or LLMDeploymentStatus(),
        claims={},
        missing_secrets=(),
        revisions=(),
        pods=(),
        jobs=(),
        job_pods={},
        records={},
        nodes={},
    )


def told(
    row: Row, status: LLMDeploymentStatus | None = None, now: float = NOW
) -> LLMDeploymentStatus:
    findings = Findings(**row.findings)
    wishes = row.memory.get("wishes", findings.wishes)
    memory = Memory(**{**row.memory, "wishes": wishes})
    decision = Decision(memory=memory, remembered=False, intents=(), findings=findings)
    return report(situation(status, now=now, replicas=row.replicas), decision, row.outcome)


def by_type(status: LLMDeploymentStatus) -> dict[str, tuple[str, str]]:
    return {item.type: (item.status, item.reason) for item in status.conditions}


@pytest.mark.parametrize("title", ROWS)
def test_ready_reconciling_and_stalled(title: str) -> None:
    row = ROWS[title]
    status = told(row)
    said = by_type(status)
    assert said["Ready"] == row.ready
    stalled = row.kstatus == FAILED
    assert said["Stalled"][0] == ("True" if stalled else "False")
    assert said["Reconciling"][0] == ("True" if row.kstatus == IN_PROGRESS else "False")
    if stalled:
        assert said["Stalled"][1] == row.ready[1]
    for kind, expected in row.others.items():
        assert said[kind] == expected, kind
    message = next(item.message for item in status.conditions if item.type == "Ready")
    for part in row.parts:
        assert part in message


@pytest.mark.parametrize("title", ROWS)
def test_kstatus_reads_it_as_meant_and_shows_our_words(title: str) -> None:
    row = ROWS[title]
    status = told(row)
    judged = verdict(
        {
            "kind": names.KIND,
            "metadata": {"generation": 3},
            "status": applied(status),
        }
    )
    assert judged.status == row.kstatus
    if row.kstatus != CURRENT:
        ready = next(item for item in status.conditions if item.type == "Ready")
        assert judged.message == ready.message


@pytest.mark.parametrize("title", ROWS)
def test_there_is_one_condition_a_type_with_words_and_a_stable_reason(title: str) -> None:
    conditions = told(ROWS[title]).conditions
    kinds = [item.type for item in conditions]
    assert sorted(kinds) == sorted(set(kinds))
    # What groups of several ranks talk over has tests of its own.
    assert set(kinds) - {"TopologyVerified"} == {
        *("Accepted", "ModelReady", "EngineReady", "Placed", "Available"),
        *("Ready", "Reconciling", "Stalled"),
    }
    for item in conditions:
        assert item.message
        assert item.reason.isalnum()
        assert item.observed_generation == 3


@pytest.mark.parametrize("title", ROWS)
def test_stalled_and_reconciling_are_never_both_true(title: str) -> None:
    said = by_type(told(ROWS[title]))
    assert (said["Stalled"][0], said["Reconciling"][0]) != ("True", "True")
    assert (said["Stalled"][0], said["Ready"][0]) != ("True", "True")
    # Whoever waits for Ready must always have a reason to go on waiting or to give up.
    assert said["Ready"][0] == "True" or "True" in (said["Stalled"][0], said["Reconciling"][0])


@pytest.mark.parametrize("title", ROWS)
def test_a_later_pass_over_the_same_world_says_exactly_the_same(title: str) -> None:
    row = ROWS[title]
    first = told(row)
    for later in (0.4, 1.0, 61.0, 86_400.0):
        assert told(row, first, NOW + later) == first


def test_times_turn_only_with_the_status_of_a_condition() -> None:
    building = told(ROWS["an engine that is built"])
    failed = told(ROWS["a build that failed for good"], building, NOW + 60)
    before = {item.type: item.last_transition_time for item in building.conditions}
    after = {item.type: item.last_transition_time for item in failed.conditions}
    turned = {kind for kind, at in after.items() if at != before[kind]}
    assert turned == {"Reconciling", "Stalled"}


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    refusal = Refusal("PrecisionNotSupported", "begin " + "x" * 5000 + " ValueError: the end")
    row = Row(("False", "PrecisionNotSupported"), FAILED, {"refusal": refusal})
    (ready,) = [item for item in told(row).conditions if item.type == "Ready"]
    assert len(ready.message) <= MESSAGE_LIMIT
    assert ready.message.startswith("begin ")
    assert ready.message.endswith("ValueError: the end")


def test_one_replica_must_be_ready_whatever_may_be_missing() -> None:
    status = told(ROWS["an engine that is built"])
    (said,) = (item for item in status.conditions if item.type == "Available")
    assert (said.status, said.message) == (
        "False",
        "0 of 1 replicas are ready, at least 1 must be",
    )


def test_numbers_of_replicas_count_serving_groups_only() -> None:
    row = Row(
        ("False", "RollingOut"),
        IN_PROGRESS,
        {
            **REBUILDING,
            "chain": Chain(Next.READY),
            "groups": (group(0, revision=OLD), group(1, serving=False)),
            "wishes": (wish(0, OLD), wish(1)),
        },
    )
    status = told(row)
    assert (status.replicas, status.ready_replicas) == (1, 1)
    assert [item.role for item in status.groups] == ["Serving", "Candidate"]
    assert [item.nodes for item in status.groups] == [
        ["node-0-0", "node-0-1"],
        ["node-1-0", "node-1-1"],
    ]


@pytest.mark.parametrize("title", ROWS)
def test_no_empty_map_is_applied_and_what_is_read_back_is_the_same(title: str) -> None:
    # An applied map that lost its last key becomes null on the server, and null is refused.
    status = told(ROWS[title])
    assert {} not in list(_maps(applied(status)))
    assert LLMDeploymentStatus.model_validate(applied(status)) == status


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _maps(inner)


# Words that are worked out elsewhere and reach status: they may not count seconds either.


def shop(now: float, **fields: Any) -> Shop:
    values: dict[str, Any] = {
        "records": {},
        "jobs": (),
        "job_pods": {},
        "tries": {},
        "nodes": {},
        "edit": "3",
        "now": now,
        "jitter": 0.0,
        "timeouts": Settings().timeouts,
    }
    return Shop(**{**values, **fields})


def job(**fields: Any) -> JobView:
    return JobView(
        "llm",
        "engine-k-1",
        "job-uid",
        step=ENGINE.step,
        key=ENGINE.key,
        attempt=1,
        claim_uid="claim-uid",
        node="a",
        **fields,
    )


RUNNING = PodView("llm", "engine-k-1-x", "pod-uid", owner_uid="job-uid", node="a", phase="Running")
A = NodeView("a", "uid-a", gpu=None, allocatable=None)  # type: ignore[arg-type]
STEPS: dict[str, dict[str, Any]] = {
    "to be created": {},
    "in backoff": {
        "tries": {
            (ENGINE.step, ENGINE.key): Tries(1, 1, "3", NOW + 500, ("a",), "NoReport", "it ended")
        }
    },
    "spent": {
        "tries": {(ENGINE.step, ENGINE.key): Tries(5, 5, "3", NOW, (), "NoReport", "it ended")}
    },
    "to be placed": {"jobs": (job(suspended=True),)},
    "running": {"jobs": (job(active=1),), "job_pods": {"job-uid": (RUNNING,)}, "nodes": {"a": A}},
    "on a node that has just gone": {
        "jobs": (job(active=1),),
        "job_pods": {"job-uid": (RUNNING,)},
        "nodes": {"a": replace(A, ready=False, not_ready_since=NOW - 5)},
    },
    "failed for good": {
        "jobs": (job(failed=True),),
        "job_pods": {
            "job-uid": (
                replace(
                    RUNNING,
                    phase="Failed",
                    report=Report(
                        outcome="Permanent",
                        reason="ToolFailed",
                        message="bad flag",
                        step=ENGINE.step,
                        key=ENGINE.key,
                    ),
                ),
            )
        },
    },
}


@pytest.mark.parametrize("what", STEPS)
def test_a_steps_words_do_not_change_while_nothing_happens(what: str) -> None:
    artifact: Artifact = ENGINE
    said = {
        (chain.next, chain.reason, chain.message)
        for chain in (
            judge_artifact("claim-uid", artifact, shop(NOW + passed, **STEPS[what]))
            for passed in (0.0, 0.4, 7.0, 30.0)
        )
    }
    assert len(said) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"ready": True, "started": True},
        {"started": False, "bound_at": NOW},
        {"started": False, "bound_at": NOW, "waiting": "ImagePullBackOff", "waiting_message": "x"},
        {"started": True, "bound_at": NOW, "ready_changed": NOW},
        {"node": "", "pin": "a", "unschedulable": "0/4 nodes are available"},
    ],
    ids=["ready", "starting", "pulling", "loading", "unbound"],
)
def test_a_groups_words_do_not_change_while_nothing_happens(change: dict[str, Any]) -> None:
    placed = Placed(("a", "a"), NOW).dump()
    member = replace(pod(0, 0, is_ready=False), placement=placed, **{"node": "a", **change})
    said = {
        (found.state, found.waiting_reason, found.waiting)
        for found in (
            observe_group(
                index=0,
                incarnation=1,
                revision=TARGET.name,
                pipeline=1,
                pods=[member],
                nodes={"a": A},
                now=NOW + passed,
                timeouts=Settings().timeouts,
                fleet_lost=False,
            )
            for passed in (0.0, 0.4, 7.0, 30.0)
        )
    }
    assert len(said) == 1
