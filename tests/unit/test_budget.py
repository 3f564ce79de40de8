"""The disruption budget: one eviction for each replica that may go, at every moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.api import names
from shardwright.observe.world import PodView
from shardwright.plan.budget import minimum_available
from shardwright.plan.groups import Group, State

STAGES = 2


def group(index: int, *ready: bool, incarnation: int = 1, protected: bool = True) -> Group:
    """A group whose pods, by stage, are ready or not; one that lacks a pod is broken."""
    labels = {names.LABEL_PROTECTED: "true"} if protected else {}
    pods = tuple(
        PodView(
            "ns",
            f"p-{index}-{incarnation}-{stage}",
            f"uid-{index}-{incarnation}-{stage}",
            labels=labels,
            ready=turned,
        )
        for stage, turned in enumerate(ready)
    )
    whole = State.READY if all(ready) else State.STARTING
    state = whole if len(ready) == STAGES else State.BROKEN
    return Group(index, incarnation, "r1", STAGES, pods, state)


def pods_of(groups: Sequence[Group]) -> list[PodView]:
    return [pod for one in groups for pod in one.pods]


def allowed(pods: Sequence[PodView], minimum: int) -> int:
    """What the budget's controller makes of it."""
    healthy = [
        pod
        for pod in pods
        if names.LABEL_PROTECTED in pod.labels and pod.ready and not pod.deleting
    ]
    return max(0, len(healthy) - minimum)


@pytest.mark.parametrize(
    ("ready", "replicas", "unavailable", "expected"),
    [
        (2, 2, 1, 3),  # four pods, one eviction is admitted
        (2, 2, 0, 4),  # none
        (3, 3, 2, 4),  # six pods, two groups may go: two evictions, one a group
        (1, 2, 1, 2),  # one is down already: no eviction
        (0, 2, 1, 0),
        (1, 1, 1, 1),
    ],
)
def test_one_eviction_is_admitted_for_each_group_that_may_go(
    ready: int, replicas: int, unavailable: int, expected: int
) -> None:
    found = [group(index, True, True) for index in range(ready)]
    assert minimum_available(pods_of(found), found, replicas, unavailable) == expected


def test_what_an_evicted_group_leaves_lets_no_other_go() -> None:
    whole, broken = group(1, True, True), group(0, True)
    pods = pods_of([whole, broken])
    minimum = minimum_available(pods, [whole, broken], 2, 1)
    assert (minimum, allowed(pods, minimum)) == (3, 0)
    # Nor where a new incarnation has taken the wish, and nothing names what was left.
    born = group(0, False, False, incarnation=2)
    pods += born.pods
    minimum = minimum_available(pods, [whole, born], 2, 1)
    assert (minimum, allowed(pods, minimum)) == (5, 0)


def test_the_moment_in_which_a_new_group_turns_ready_lets_no_other_go() -> None:
    whole, born = group(1, True, True), group(0, False, False, incarnation=2)
    minimum = minimum_available(pods_of([whole, born]), [whole, born], 2, 1)
    turned = [*whole.pods, *(replace(pod, ready=True) for pod in born.pods)]
    assert allowed(turned, minimum) == 0


def test_a_replica_that_starts_holds_up_no_drain_that_the_others_can_bear() -> None:
    found = [group(0, True, True), group(1, True, True), group(2, False, False)]
    pods = pods_of(found)
    assert allowed(pods, minimum_available(pods, found, 3, 2)) == 1


def test_what_is_let_in_counts_before_it_carries_the_label() -> None:
    served, admitted = group(0, True, True), group(1, True, True, protected=False)
    pods = pods_of([served, admitted])
    minimum = minimum_available(pods, [served, admitted], 1, 0)
    assert minimum == 3
    labelled = [replace(pod, labels={names.LABEL_PROTECTED: "true"}) for pod in pods]
    assert allowed(labelled, minimum) == 1


def test_a_candidate_and_what_goes_count_nothing() -> None:
    served, candidate = group(0, True, True), group(1, True, True, protected=False)
    going = replace(group(2, True).pods[0], deleting=True)
    finished = replace(group(3, True).pods[0], phase="Failed")
    pods = [*pods_of([served, candidate]), going, finished]
    assert minimum_available(pods, [served], 1, 0) == 2


@given(
    st.lists(st.lists(st.booleans(), max_size=STAGES), max_size=5),
    st.integers(1, 5),
    st.integers(0, 5),
    st.data(),
)
def test_never_more_evictions_than_replicas_that_may_go(
    shapes: list[list[bool]], replicas: int, unavailable: int, data: st.DataObject
) -> None:
    found = [group(index, *ready) for index, ready in enumerate(shapes)]
    pods = pods_of(found)
    minimum = minimum_available(pods, found, replicas, unavailable)
    spare = max(0, sum(one.ready for one in found) - (replicas - unavailable))
    assert allowed(pods, minimum) <= spare
    if not spare:
        later = [replace(pod, ready=pod.ready or data.draw(st.booleans())) for pod in pods]
        assert allowed(later, minimum) == 0
