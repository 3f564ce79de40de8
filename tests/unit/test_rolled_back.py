"""A revision that was rolled back stays barred until another one that is asked for can serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.played import World

from shardwright.api.status import BarredRevision
from shardwright.plan import revisions
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.memory import recall
from shardwright.plan.report import report
from shardwright.plan.situation import CreatePods, Situation
from shardwright.runner.contract import ENVIRONMENT, REASON_RANK_FAILED, Report

DIED = Report(ENVIRONMENT, reason=REASON_RANK_FAILED, message="rank 0 exited", step="serve")


class Crashing(World):
    """Time goes on between passes; pods of revisions that `crashes` names die at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.crashes: Callable[[str], bool] = lambda _: False

    def situation(self) -> Situation:
        return replace(super().situation(), now=self.now)

    def start(self, intent: CreatePods) -> None:
        before = len(self.pods)
        super().start(intent)
        if self.crashes(intent.wish.revision):
            self.pods[before:] = [
                replace(pod, phase="Failed", ready=False, exit_code=1, report=DIED)
                for pod in self.pods[before:]
            ]

    def settle(self) -> None:
        """Hours of passes, of which some find nothing to do."""
        for _ in range(25):
            self.now += 60
            for _ in range(8):
                found = self.situation()
                self.decision = decide(found)
                for intent in self.decision.intents:
                    self.carry_out(intent)
                self.status = report(found, self.decision, Outcome())

    @property
    def running(self) -> set[str]:
        return {group.revision for group in self.status.groups if group.state == "Ready"}


def rolled_back() -> tuple[Crashing, str, str]:
    """A first revision serves on two replicas; the second one, of the same engine, was given up."""
    world = Crashing()
    world.edit(replicas=2)
    good = world.revisions[-1].name
    world.crashes = lambda revision: revision != good
    world.edit(replicas=2, pod={"env": [{"name": "X", "value": "1"}]})
    bad = world.revisions[-1].name
    assert world.condition("Stalled")[:2] == ("True", "RolledBack")
    assert (world.status.failed_revision, world.running) == (bad, {good})
    return world, good, bad


def test_an_edit_that_is_refused_does_not_roll_it_out_again() -> None:
    world, good, bad = rolled_back()
    born = world.born
    world.edit(replicas=2, gpu={"product": "NVIDIA-B200"})
    assert world.condition("Accepted")[:2] == ("False", "GPUProductNotFound")
    assert (world.status.failed_revision, world.running) == (bad, {good})
    assert world.born == born, "what runs was touched"


def test_a_next_edit_moves_on_from_what_serves_and_lifts_the_bar() -> None:
    world, good, bad = rolled_back()
    world.crashes = lambda revision: revision == bad
    world.edit(replicas=2, pod={"env": [{"name": "X", "value": "2"}]})
    newest = world.revisions[-1].name
    assert newest not in (good, bad)
    assert world.running == {newest}
    assert world.status.failed_revision == ""
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Ready")[0] == "True"


def test_the_same_wish_again_stays_barred() -> None:
    world, good, bad = rolled_back()
    world.edit(replicas=2)
    assert (world.condition("Ready")[0], world.running) == ("True", {good})
    world.edit(replicas=2, pod={"env": [{"name": "X", "value": "1"}]})
    assert world.running <= {good, bad}


def with_env(value: int) -> dict[str, Any]:
    """Pod settings: another revision of the same engine, which is proven already."""
    return {"replicas": 2, "pod": {"env": [{"name": "X", "value": str(value)}]}}


def barred(world: Crashing) -> list[str]:
    return list(recall(world.status, ()).rolled_back)


def test_a_second_one_that_is_rolled_back_does_not_free_the_first() -> None:
    world, good, bad = rolled_back()
    known = [bad]
    started: list[str] = []

    def crashes(revision: str) -> bool:
        started.append(revision)
        return revision != good

    world.crashes = crashes
    for value in (2, 3):
        world.edit(**with_env(value))
        known.append(world.revisions[-1].name)
        assert world.condition("Stalled")[:2] == ("True", "RolledBack")
        assert barred(world) == known
        assert world.running == {good}
        assert {group.revision for group in world.status.groups} == {good}
        assert set(started) <= {good, known[-1]}, "an older one was tried again"
        started.clear()
    assert world.status.failed_revision == known[-1]


def test_an_older_one_that_is_asked_for_again_is_told_with_its_own_cause() -> None:
    world, good, bad = rolled_back()
    world.edit(**with_env(2))
    second = world.revisions[-1].name
    first = BarredRevision(revision=bad, cause="the first's")
    world.status = world.status.model_copy(
        update={"failed_cause": "the second's", "barred_revisions": [first]}
    )
    born = world.born
    world.edit(**with_env(1))
    assert "budget: the first's; revision " in world.condition("Stalled")[2]
    assert (barred(world), world.running, world.born) == ([bad, second], {good}, born)


def test_one_that_serves_lifts_all_bars() -> None:
    world, _, bad = rolled_back()
    world.edit(**with_env(2))
    second = world.revisions[-1].name
    world.crashes = lambda revision: revision in (bad, second)
    world.edit(**with_env(3))
    newest = world.revisions[-1].name
    assert (barred(world), world.running) == ([], {newest})
    assert world.condition("Ready")[0] == "True"


def test_going_back_to_what_served_lifts_all_bars_and_stays_there() -> None:
    world, good, _ = rolled_back()
    world.edit(**with_env(2))
    born = world.born
    world.edit(replicas=2)
    assert (barred(world), world.running, world.born) == ([], {good}, born)
    # The newest is what serves: nothing that was rolled back comes before it.
    world.edit(replicas=2, gpu={"product": "NVIDIA-B200"})
    assert (world.running, world.born) == ({good}, born)


def test_at_zero_replicas_nothing_has_served_and_no_bar_is_lifted() -> None:
    world, _, bad = rolled_back()
    world.edit(**{**with_env(2), "replicas": 0})
    assert barred(world) == [bad]
    world.edit(**with_env(2))
    assert barred(world) == [bad, world.revisions[-1].name]


def test_as_many_are_remembered_as_revisions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "KEPT_REVISIONS", 2)
    world, good, _ = rolled_back()
    for value in (2, 3, 4):
        world.edit(**with_env(value))
    kept = [revision.name for revision in world.revisions]
    assert len(kept) == 3, "what serves and the last two"
    assert barred(world) == [name for name in kept if name != good]
    assert world.running == {good}
