"""One pass over one deployment, where several parts have to agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.passes import NOW, WISH, acting, pod, situation

from shardwright.api import names
from shardwright.api.status import Condition
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.report import _word, report
from shardwright.plan.situation import CreatePods, DeletePod, LetServe
from shardwright.plan.times import stamp

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


@pytest.mark.parametrize(("ahead", "waits"), [(60, True), (86400, False)])
def test_a_pause_from_a_clock_that_was_a_day_ahead_holds_nobody_for_a_day(
    ahead: int, *, waits: bool
) -> None:
    wish = WISH.model_copy(update={"restarts": 1, "not_before": stamp(NOW + ahead)})
    decision = acting(situation(wishes=[wish]))
    made = [intent for intent in decision.intents if isinstance(intent, CreatePods)]
    assert bool(made) is not waits


def test_a_pass_comes_in_time_to_forgive_restarts() -> None:
    found = situation(pod(0, 3, ready_changed=NOW - 100), pod(1, 3, ready_changed=NOW - 40))
    assert acting(found).requeue is None
    (wish,) = found.status.groups
    status = found.status.model_copy(update={"groups": [wish.model_copy(update={"restarts": 1})]})
    decision = acting(replace(found, status=status))
    reset = found.settings.timeouts.restart_reset_seconds
    assert decision.requeue == pytest.approx(reset - 40, abs=0.1)


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
