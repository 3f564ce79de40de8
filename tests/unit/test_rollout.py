"""The rollout rules as tables, and as a machine that plays a cluster against them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwright.api import names
from shardwright.api.settings import Timeouts
from shardwright.api.spec import Rollout
from shardwright.observe.world import PodView
from shardwright.plan.breakage import Breakage, Fault
from shardwright.plan.groups import Group, State
from shardwright.plan.rollout import (
    CANDIDATE_CRASHES,
    Goal,
    Wish,
    advance,
    mend,
    until_forgiven,
)

TIMEOUTS = Timeouts(restart_budget=2, restart_backoff_seconds=10, restart_backoff_max_seconds=60)


def group(
    index: int,
    revision: str,
    state: State = State.READY,
    *,
    incarnation: int = 1,
    serving: bool = True,
    node: str = "",
    breakage: Breakage | None = None,
    ready_since: float = 0.0,
) -> Group:
    labels = {names.LABEL_PROTECTED: "true"} if serving else {}
    pods = tuple(
        PodView(
            "ns",
            f"p-{index}-{incarnation}-{stage}",
            f"uid-{index}-{incarnation}-{stage}",
            labels=labels,
            node=node or f"node-{index}-{stage}",
            ready=state is State.READY,
            ready_changed=ready_since,
        )
        for stage in range(2)
    )
    if state is State.ABSENT:
        pods = ()
    return Group(index, incarnation, revision, 2, pods, state, breakage)


def goal(
    replicas: int,
    *,
    surge: int = 0,
    unavailable: int = 1,
    target: str = "r1",
    serving: str = "r1",
    proven: bool = True,
    **more: object,
) -> Goal:
    known = {name for name in (serving, target if proven else "") if name}
    return Goal(
        replicas=replicas,
        rollout=Rollout(max_surge=surge, max_unavailable=unavailable),
        target=target,
        serving=serving,
        target_proven=proven,
        candidate_possible=bool(more.pop("candidate_possible", True)),
        proven=frozenset(known),
        edit="1",
        **more,  # type: ignore[arg-type]
    )


def wishes(*revisions: str) -> list[Wish]:
    return [Wish(index, index + 1, revision) for index, revision in enumerate(revisions)]


def standing(*groups: Group) -> dict[int, Group]:
    return {item.index: item for item in groups}


def groups_for(items: list[Wish], **states: State) -> dict[int, Group]:
    return standing(
        *(
            group(
                wish.index,
                wish.revision,
                states.get(f"g{wish.index}", State.READY),
                incarnation=wish.incarnation,
            )
            for wish in items
        )
    )


def after(items: list[Wish], found: dict[int, Group], aim: Goal) -> list[tuple[int, str]]:
    made, _ = advance(items, found, aim, incarnations=10)
    return [(wish.index, wish.revision) for wish in made]


def test_a_new_deployment_gets_one_candidate_and_no_more_until_it_is_proven() -> None:
    aim = goal(3, target="r1", serving="", proven=False)
    assert after([], {}, aim) == [(0, "r1")]
    candidate = [Wish(0, 1, "r1")]
    found = standing(group(0, "r1", State.STARTING, serving=False))
    assert after(candidate, found, aim) == [(0, "r1")]


def test_after_the_proof_the_other_replicas_follow() -> None:
    items = [Wish(0, 1, "r1")]
    assert after(items, groups_for(items), goal(3)) == [(0, "r1"), (1, "r1"), (2, "r1")]


def test_an_unproven_target_gets_a_candidate_beside_the_serving_groups() -> None:
    items = wishes("r1", "r1")
    aim = goal(2, target="r2", serving="r1", proven=False)
    assert after(items, groups_for(items), aim) == [(0, "r1"), (1, "r1"), (2, "r2")]


def test_no_candidate_before_its_artifacts_are_there() -> None:
    items = wishes("r1", "r1")
    aim = goal(2, target="r2", serving="r1", proven=False, candidate_possible=False)
    assert after(items, groups_for(items), aim) == [(0, "r1"), (1, "r1")]


def test_a_second_edit_abandons_the_first_candidate() -> None:
    items = wishes("r1", "r1", "r2")
    found = groups_for(items)
    found[2] = group(2, "r2", State.STARTING, serving=False, incarnation=3)
    aim = goal(2, target="r3", serving="r1", proven=False)
    assert after(items, found, aim) == [(0, "r1"), (1, "r1"), (2, "r3")]


def test_serving_groups_stay_when_their_proof_is_lost() -> None:
    # Somebody deleted the records: the groups serve on, and are no candidates to be thinned out.
    items = wishes("r1", "r1")
    aim = goal(2, target="r1", serving="", proven=False)
    assert after(items, groups_for(items), aim)[:2] == [(0, "r1"), (1, "r1")]


def test_without_surge_a_promoted_candidate_replaces_old_groups_within_the_budget() -> None:
    items = [*wishes("r1", "r1"), Wish(2, 3, "r2")]
    made = after(items, groups_for(items), goal(2, target="r2", serving="r2"))
    assert [revision for _, revision in made].count("r2") >= 1
    assert len(made) <= 2


def test_one_replica_with_surge_never_goes_below_one() -> None:
    items = wishes("r1")
    aim = goal(1, surge=1, target="r2", serving="r2")
    assert after(items, groups_for(items), aim) == [(0, "r1"), (1, "r2")]
    both = [*items, Wish(1, 2, "r2")]
    starting = groups_for(both, g1=State.STARTING)
    assert after(both, starting, aim) == [(0, "r1"), (1, "r2")]
    assert after(both, groups_for(both), aim) == [(1, "r2")]


def test_an_outage_counts_in_the_budget_and_the_broken_group_is_renewed_first() -> None:
    items = wishes("r1", "r1")
    found = groups_for(items, g0=State.STARTING)
    made = after(items, found, goal(2, target="r2", serving="r2"))
    assert (1, "r1") in made
    assert (0, "r1") not in made


def test_unready_old_groups_do_not_all_go_in_one_pass() -> None:
    items = wishes("r1", "r1", "r1", "r1")
    blink = groups_for(items, g0=State.STARTING, g1=State.STARTING, g2=State.STARTING)
    made, _ = advance(items, blink, goal(4, target="r2", serving="r2"), incarnations=4)
    assert sum(wish.revision == "r1" for wish in made) == 3


def test_scaling_down_in_the_middle_of_a_rollout_takes_what_serves_least() -> None:
    items = wishes("r1", "r1", "r2", "r2")
    found = groups_for(items, g2=State.STARTING, g3=State.STARTING)
    made = after(items, found, goal(2, target="r2", serving="r2"))
    assert len(made) <= 2
    assert any(revision == "r1" for _, revision in made)


def test_zero_replicas_keep_nothing() -> None:
    items = wishes("r1", "r1")
    assert after(items, groups_for(items), goal(0)) == []


def test_a_cordoned_node_is_left_before_the_drain_comes_when_there_is_room() -> None:
    items = wishes("r1", "r1")
    found = groups_for(items)
    aim = goal(2, cordoned=frozenset({"node-0-0"}), move_possible=True)
    moved = after(items, found, aim)
    assert moved == [(0, "r1"), (1, "r1"), (2, "r1")]
    three = [*items, Wish(2, 11, "r1")]
    starting = groups_for(three, g2=State.STARTING)
    full = replace(aim, move_possible=False)
    assert after(three, starting, full) == [(0, "r1"), (1, "r1"), (2, "r1")]
    assert after(three, groups_for(three), full) == [(1, "r1"), (2, "r1")]


def test_a_cordoned_node_without_room_elsewhere_is_kept() -> None:
    items = wishes("r1", "r1")
    aim = goal(2, cordoned=frozenset({"node-0-0"}), move_possible=False)
    assert after(items, groups_for(items), aim) == [(0, "r1"), (1, "r1")]


def test_a_loan_takes_one_serving_group_and_no_second() -> None:
    items = wishes("r1", "r1", "r2")
    found = groups_for(items)
    found[2] = group(2, "r2", State.GATED, serving=False, incarnation=3)
    aim = goal(2, target="r2", serving="r1", proven=False, borrowed=True)
    assert after(items, found, aim) == [(0, "r1"), (2, "r2")]


# Mending


def mended(
    wish: Wish, breakage: Breakage, aim: Goal, now: float = 100.0
) -> tuple[list[Wish], object]:
    found = standing(
        group(wish.index, wish.revision, State.BROKEN, breakage=breakage, serving=True)
    )
    verdict = mend([wish], found, aim, incarnations=5, now=now, jitter=0.0, timeouts=TIMEOUTS)
    return list(verdict.wishes), verdict


CRASH = Breakage(Fault.CRASH, "PodFailed", "it died", ("bad-node",))


def test_a_crash_comes_back_whole_later_and_elsewhere() -> None:
    (again,), _ = mended(Wish(0, 1, "r1"), CRASH, goal(1))
    assert (again.incarnation, again.restarts, again.not_before) == (6, 1, 110.0)
    assert again.avoid == ("bad-node",)
    assert again.cause == "it died"


@pytest.mark.parametrize(("restarts", "delay"), [(0, 10), (1, 20), (2, 40)])
def test_the_backoff_doubles(restarts: int, delay: float) -> None:
    (again,), _ = mended(Wish(0, 1, "r1", restarts=restarts), CRASH, goal(1))
    assert again.not_before == 100.0 + delay


def test_an_eviction_costs_no_restart_and_no_wait() -> None:
    (again,), _ = mended(Wish(0, 1, "r1"), Breakage(Fault.EVICTED, "Evicted", "drained"), goal(1))
    assert (again.restarts, again.not_before, again.held) == (0, 0.0, False)


def test_a_spent_budget_holds_the_group_until_the_next_edit() -> None:
    (held,), _ = mended(Wish(0, 1, "r1", restarts=2), CRASH, goal(1))
    assert held.held
    still = mend([held], {}, goal(1), incarnations=6, now=0, jitter=0, timeouts=TIMEOUTS)
    assert still.wishes[0].held
    edited = replace(goal(1), edit="2")
    freed = mend([held], {}, edited, incarnations=6, now=0, jitter=0, timeouts=TIMEOUTS)
    assert (freed.wishes[0].held, freed.wishes[0].restarts) == (False, 0)


def test_while_the_target_is_unproven_a_broken_group_comes_back_as_it_was() -> None:
    aim = goal(1, target="r3", serving="r2", proven=False)
    (again,), _ = mended(Wish(0, 1, "r1"), CRASH, aim)
    assert again.revision == "r1"


def test_after_the_proof_a_broken_group_comes_back_as_what_serves() -> None:
    (again,), _ = mended(Wish(0, 1, "r1"), CRASH, goal(1, target="r2", serving="r2"))
    assert again.revision == "r2"


def test_a_candidate_that_refuses_for_good_is_a_failed_proof_at_once() -> None:
    aim = goal(1, target="r2", serving="r1", proven=False)
    refusal = Breakage(Fault.PERMANENT, "OutOfMemory", "no room for the KV cache")
    left, verdict = mended(Wish(1, 2, "r2"), refusal, aim)
    assert left == []
    assert verdict.failed_proof == refusal  # type: ignore[attr-defined]


def test_a_candidate_that_crashes_is_tried_again_before_it_counts() -> None:
    aim = goal(1, target="r2", serving="r1", proven=False)
    wish = Wish(1, 2, "r2")
    for attempt in range(1, CANDIDATE_CRASHES):
        (wish,), verdict = mended(wish, CRASH, aim)
        assert (wish.restarts, verdict.failed_proof) == (attempt, None)  # type: ignore[attr-defined]
    left, verdict = mended(wish, CRASH, aim)
    assert left == []
    assert verdict.failed_proof is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "fault", [Fault.NODE, Fault.EVICTED, Fault.UNPLACED, Fault.ARTIFACT, Fault.MEMORY]
)
def test_a_candidate_lost_to_its_surroundings_is_no_failed_proof(fault: Fault) -> None:
    aim = goal(1, target="r2", serving="r1", proven=False)
    wish = Wish(1, 2, "r2", restarts=CANDIDATE_CRASHES + 5)
    (again,), verdict = mended(wish, Breakage(fault, "Lost", "gone"), aim)
    assert again.revision == "r2"
    assert verdict.failed_proof is None  # type: ignore[attr-defined]


def test_the_first_new_group_that_spends_its_budget_rolls_the_revision_back() -> None:
    aim = goal(2, target="r2", serving="r2")
    found = standing(group(0, "r1"), group(1, "r2", State.BROKEN, incarnation=2, breakage=CRASH))
    items = [Wish(0, 1, "r1"), Wish(1, 2, "r2", restarts=2)]
    verdict = mend(items, found, aim, incarnations=2, now=0, jitter=0, timeouts=TIMEOUTS)
    assert verdict.rolled_back == CRASH


def test_a_late_crash_of_a_revision_that_serves_elsewhere_rolls_nothing_back() -> None:
    aim = goal(2, target="r2", serving="r2")
    found = standing(group(0, "r2"), group(1, "r2", State.BROKEN, incarnation=2, breakage=CRASH))
    items = [Wish(0, 1, "r2"), Wish(1, 2, "r2", restarts=2)]
    verdict = mend(items, found, aim, incarnations=2, now=0, jitter=0, timeouts=TIMEOUTS)
    assert verdict.rolled_back is None
    assert verdict.wishes[1].held


def test_restarts_are_forgiven_after_a_long_time_of_being_ready() -> None:
    wish = Wish(0, 1, "r1", restarts=2, avoid=("bad",), cause="old", not_before=5.0)
    found = standing(group(0, "r1", ready_since=1.0))
    late = TIMEOUTS.restart_reset_seconds + 2
    verdict = mend([wish], found, goal(1), incarnations=1, now=late, jitter=0, timeouts=TIMEOUTS)
    assert verdict.wishes[0] == Wish(0, 1, "r1")


def test_the_moment_of_forgiving_is_known_while_there_is_something_to_forgive() -> None:
    wish, reset = Wish(0, 1, "r1", restarts=2), TIMEOUTS.restart_reset_seconds
    found = group(0, "r1", ready_since=1.0)
    assert until_forgiven(wish, found, 11.0, TIMEOUTS) == reset - 10
    assert until_forgiven(wish, found, reset + 5, TIMEOUTS) == 0
    assert until_forgiven(replace(wish, restarts=0), found, 11.0, TIMEOUTS) is None
    assert until_forgiven(wish, group(0, "r1", State.STARTING), 11.0, TIMEOUTS) is None
    assert until_forgiven(wish, None, 11.0, TIMEOUTS) is None


# The machine: whatever happens, never below the floor by our own doing, and it always arrives.


class Cluster:
    """Plays pods: what is wished comes up after a while, what is not wished is gone at once."""

    def __init__(self, replicas: int, rollout: Rollout) -> None:
        self.replicas = replicas
        self.rollout = rollout
        self.wishes: tuple[Wish, ...] = ()
        self.incarnations = 0
        self.age: dict[int, int] = {}
        self.proven: set[str] = set()
        self.target = "r1"

    def groups(self) -> dict[int, Group]:
        found = {}
        for wish in self.wishes:
            ready = self.age.get(wish.incarnation, 0) >= 2
            serving = wish.revision in self.proven
            state = State.READY if ready else State.STARTING
            found[wish.index] = group(
                wish.index, wish.revision, state, incarnation=wish.incarnation, serving=serving
            )
        return found

    def serving_ready(self) -> int:
        return sum(item.ready and item.serving for item in self.groups().values())

    def step(self, *, possible: bool) -> None:
        for wish in self.wishes:
            self.age[wish.incarnation] = self.age.get(wish.incarnation, 0) + 1
        found = self.groups()
        if any(item.ready and item.revision == self.target for item in found.values()):
            self.proven.add(self.target)
        order = sorted(self.proven, key=lambda name: int(name[1:]))
        target_proven = self.target in self.proven
        aim = Goal(
            replicas=self.replicas,
            rollout=self.rollout,
            target=self.target,
            serving=self.target if target_proven else (order[-1] if order else ""),
            target_proven=target_proven,
            candidate_possible=possible,
            proven=frozenset(self.proven),
            edit="1",
        )
        self.wishes, self.incarnations = advance(
            self.wishes, self.groups(), aim, incarnations=self.incarnations
        )

    def blink(self, incarnation: int) -> None:
        self.age[incarnation] = 0


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    replicas=st.integers(1, 5),
    surge=st.integers(0, 2),
    unavailable=st.integers(0, 3),
    edits=st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=5),
)
def test_a_rollout_keeps_the_floor_and_always_arrives(
    replicas: int, surge: int, unavailable: int, edits: list[tuple[int, bool]]
) -> None:
    if surge + unavailable == 0:
        unavailable = 1
    cluster = Cluster(replicas, Rollout(max_surge=surge, max_unavailable=unavailable))
    for _ in range(40):
        cluster.step(possible=True)
    assert cluster.serving_ready() == replicas
    floor = replicas - (min(unavailable, replicas - 1) if surge else unavailable)
    number = 1
    for steps, possible in [*edits, (1, True)]:
        number += 1
        cluster.target = f"r{number}"
        for _ in range(steps):
            cluster.step(possible=possible)
            assert cluster.serving_ready() >= min(floor, replicas)
            assert len(cluster.wishes) <= replicas + surge + 1
            incarnations = [wish.incarnation for wish in cluster.wishes]
            assert len(set(incarnations)) == len(incarnations)
    for _ in range(80):
        cluster.step(possible=True)
        assert cluster.serving_ready() >= min(floor, replicas)
    assert cluster.serving_ready() == replicas
    assert {wish.revision for wish in cluster.wishes} == {cluster.target}
    assert len(cluster.wishes) == replicas


@pytest.mark.parametrize("fault", [Fault.NODE, Fault.UNPLACED])
def test_what_the_surroundings_do_is_waited_out_and_never_held(fault: Fault) -> None:
    wish = Wish(0, 1, "r1", restarts=TIMEOUTS.restart_budget + 5)
    (again,), _ = mended(wish, Breakage(fault, "NotBoundInTime", "raced", ("n",)), goal(1))
    assert not again.held
    assert again.not_before == 100.0 + TIMEOUTS.restart_backoff_max_seconds


def test_replicas_of_a_proven_revision_wait_for_lost_files_and_keep_what_is_held_against_them() -> (
    None
):
    items = [Wish(0, 4, "r1", restarts=1, cause="it died"), Wish(1, 2, "r1")]
    found = standing(group(0, "r1", State.ABSENT, incarnation=4), group(1, "r1", incarnation=2))
    aim = replace(goal(2, proven=False, candidate_possible=False), proven=frozenset({"r1"}))
    made, _ = advance(items, found, aim, incarnations=4)
    assert list(made) == items
