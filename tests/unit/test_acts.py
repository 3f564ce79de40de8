"""What is done in which order: replicas that serve come before a candidate, and before builds."""

from __future__ import annotations

from dataclasses import replace

from tests.golden import specs

from shardwright.api.spec import Rollout
from shardwright.observe.world import PodView
from shardwright.plan import acts
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.groups import Group, State
from shardwright.plan.memory import Memory
from shardwright.plan.revisions import Revision
from shardwright.plan.rollout import Goal, Wish
from shardwright.plan.situation import Findings, PlaceGroup
from shardwright.plan.steering import settle_loan

OLD = Revision("old", "u-old", 1, specs.resolved(specs.spec()))
NEW = Revision("new", "u-new", 2, specs.resolved(specs.spec(replicas=2)))
ELSEWHERE = Revision("new", "u-new", 2, specs.resolved(specs.spec(gpu={"product": "NVIDIA-H200"})))
READY = Chain(Next.READY)


def group(index: int, revision: str, state: State) -> Group:
    pods = () if state is State.ABSENT else (PodView("ns", f"p{index}", f"u{index}"),)
    return Group(index, index + 1, revision, 1, pods, state)


def placed(
    old: State, candidate: State, target: Revision = NEW, *, held: bool = False
) -> list[tuple[int, bool]]:
    """(index, candidate) of the groups that ask for a place: 0 serves, 1 is to be proven."""
    wishes = [Wish(0, 1, "old", held=held), Wish(1, 2, "new")]
    groups = {0: group(0, "old", old), 1: group(1, "new", candidate)}
    asked = acts._homes(
        Findings(target=target, target_proven=False),
        wishes,
        groups,
        {"old": READY, "new": READY},
        {"old": OLD, "new": target},
    )
    return [(item.wish.index, item.candidate) for item in asked if isinstance(item, PlaceGroup)]


def test_a_replica_that_comes_back_is_placed_before_the_candidate() -> None:
    assert placed(State.GATED, State.GATED) == [(0, False), (1, True)]


def test_a_candidate_leaves_the_gpus_of_a_replica_that_is_on_its_way_back() -> None:
    assert placed(State.ABSENT, State.GATED) == []
    assert placed(State.PARTIAL, State.GATED) == []


def test_a_candidate_on_other_gpus_waits_for_nobody() -> None:
    assert placed(State.ABSENT, State.GATED, ELSEWHERE) == [(1, True)]


def test_a_candidate_does_not_wait_for_a_replica_that_is_held() -> None:
    assert placed(State.ABSENT, State.GATED, held=True) == [(1, True)]


def test_a_candidate_is_placed_beside_what_serves() -> None:
    assert placed(State.READY, State.GATED) == [(1, True)]


GOAL = Goal(
    replicas=1,
    rollout=Rollout(),
    target="new",
    serving="old",
    target_proven=False,
    candidate_possible=True,
)


def test_a_loan_goes_on_while_there_is_hope_and_ends_when_there_is_none() -> None:
    lent = Memory(borrowed="replica 0 on a")
    assert settle_loan(lent, GOAL, hopeless=False).borrowed
    assert not settle_loan(lent, GOAL, hopeless=True).borrowed
    assert not settle_loan(lent, replace(GOAL, target_proven=True), hopeless=False).borrowed
    assert not settle_loan(lent, replace(GOAL, target="old"), hopeless=False).borrowed
    for held, revision in ((True, GOAL.target), (True, GOAL.serving), (False, GOAL.target)):
        waits = replace(lent, wishes=(Wish(1, 2, revision, held=held),))
        kept = settle_loan(waits, GOAL, hopeless=False).borrowed
        assert bool(kept) is not (held and revision == GOAL.target)
