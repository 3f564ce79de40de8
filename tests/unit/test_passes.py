"""One pass over one deployment, where several parts have to agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.fleet import gpu_node

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.api.status import Condition, GroupStatus, LLMDeploymentStatus
from shardwright.observe.world import DeploymentView, PodView, Record, RecordState
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.report import _word, report
from shardwright.plan.revisions import Revision
from shardwright.plan.situation import Decision, DeletePod, LetServe, Situation
from shardwright.runner.contract import STEP_PROOF

NOW = 1_800_000_000.0
RESOLVED = specs.resolved(specs.spec(parallelism={"tensor": 8, "pipeline": 2}))
SERVING = Revision("llama-abc", "uid-abc", 1, RESOLVED)
NODES = {name: gpu_node(name) for name in ("node-0", "node-1")}


def pod(stage: int, incarnation: int, **changes: Any) -> PodView:
    """A member of replica 0, ready on a living node."""
    labels = {
        names.LABEL_REPLICA: "0",
        names.LABEL_STAGE: str(stage),
        names.LABEL_INCARNATION: str(incarnation),
        names.LABEL_PROTECTED: "true",
    }
    base = PodView(
        "llm",
        f"llama-0-{incarnation}-{stage}",
        f"uid-{incarnation}-{stage}",
        labels=labels,
        node=f"node-{stage}",
        phase="Running",
        ready=True,
        started=True,
        created=NOW - 100,
        bound_at=NOW - 99,
    )
    return replace(base, **changes)


def situation(*pods: PodView) -> Situation:
    """The one replica is wished for as incarnation 3 of replica 0, and proven.

    The spec cannot be read, so that what serves is the aim and nothing else is going on.
    """
    wish = GroupStatus(index=0, incarnation=3, revision=SERVING.name)
    made = [(STEP_PROOF, RESOLVED.proof_key), *((a.step, a.key) for a in RESOLVED.artifacts)]
    claim = RESOLVED.claim_uid
    return Situation(
        now=NOW,
        jitter=0.0,
        settings=Settings(),
        deployment=DeploymentView("llm", "llama", "uid", generation=1, resource_version=7),
        spec=None,
        spec_error="unreadable",
        spec_digest="",
        status=LLMDeploymentStatus(observed_generation=1, groups=[wish], incarnations=3),
        claims={},
        missing_secrets=(),
        revisions=(SERVING,),
        pods=pods,
        jobs=(),
        job_pods={},
        records={(claim, *what): Record(*what, claim, RecordState.READY) for what in made},
        nodes=NODES,
    )


def acting(found: Situation) -> Decision:
    """Passes over an unchanged world until one acts: what is to be remembered is written first."""
    for _ in range(3):
        decision = decide(found)
        if not decision.remembered:
            return decision
        found = replace(found, status=report(found, decision, Outcome()))
    raise AssertionError(decision)


LATE = {
    "failed": {"phase": "Failed", "ready": False, "finished_at": NOW - 1, "exit_code": 137},
    "being deleted": {"deleting": True, "ready": False},
    "being evicted": {"disrupted": "EvictionByEvictionAPI"},
    "on a node that is gone": {"node": "node-9"},
}


@pytest.mark.parametrize("what", LATE)
def test_late_news_of_an_older_incarnation_breaks_nothing(what: str) -> None:
    decision = acting(situation(pod(0, 3), pod(1, 3), pod(1, 2, **LATE[what])))
    (wish,) = decision.memory.wishes
    assert (wish.incarnation, wish.restarts, wish.cause) == (3, 0, "")
    gone = [intent.pod.name for intent in decision.intents if isinstance(intent, DeletePod)]
    assert set(gone) <= {"llama-0-2-1"}


@pytest.mark.parametrize("what", LATE)
def test_the_same_news_of_the_current_incarnation_breaks_the_group(what: str) -> None:
    decision = decide(situation(pod(0, 3), pod(1, 3, **LATE[what])))
    (wish,) = decision.memory.wishes
    assert wish.incarnation == 4
    assert wish.cause


def test_requests_reach_the_new_replica_before_the_old_one_is_taken_out() -> None:
    old = [pod(stage, 2) for stage in (0, 1)]
    replica = {name: label for name, label in pod(0, 3).labels.items() if "protected" not in name}
    new = [pod(stage, 3, labels={**replica, names.LABEL_STAGE: str(stage)}) for stage in (0, 1)]
    kinds = [type(intent) for intent in acting(situation(*old, *new)).intents]
    assert kinds.index(LetServe) < kinds.index(DeletePod)


def test_a_revision_that_cannot_be_read_freezes_everything_and_says_so() -> None:
    found = replace(
        situation(pod(0, 3), pod(1, 3)), revisions=(), unreadable=("llama-abc: version 9",)
    )
    decision = decide(found)
    assert decision.intents == ()
    assert not decision.remembered
    status = report(found, decision, Outcome())
    stalled = next(item for item in status.conditions if item.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "RevisionUnreadable")
    assert "llama-abc: version 9" in stalled.message
    assert [group.incarnation for group in status.groups] == [3]


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("OutOfnvidia.com/gpu", "OutOfnvidiacomgpu"),
        ("OutOfephemeral-storage", "OutOfephemeralstorage"),
        ("137", "Reason137"),
        ("", "Reason"),
        ("ImagePullFailed", "ImagePullFailed"),
    ],
)
def test_a_reason_of_the_kubelets_making_never_keeps_status_from_being_written(
    told: str, word: str
) -> None:
    assert _word(told) == word
    Condition.model_validate(
        {
            "type": "Ready",
            "status": "False",
            "reason": _word(told),
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    )
