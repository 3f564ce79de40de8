"""Edits in any order, in the middle of each other, with failing steps, dying pods and bad scores.

Each pass sees nothing but the world, so every one of them is also the first of an operator that was
started again. Now and then one really is: the operator dies in the middle of what it does, before
it has written its status, and the next one has heard nothing of leaders yet.
"""

from __future__ import annotations

import pytest
from tests.support.walk import Walk

SEEDS = 12


def walked(seed: int) -> Walk:
    walk = Walk(seed)
    walk.read()
    for _ in range(walk.chance.randrange(3, 12)):
        walk.step()
    walk.quiet()
    return walk


def answered(walk: Walk) -> None:
    """Ready, or a condition that says why not and what to do."""
    found = {one.type: one for one in walk.status.conditions}
    assert all(one.reason for one in found.values())
    speaks_of_adapters(walk)
    if walk.status.ready_replicas == walk.spec.replicas and found["Ready"].status == "True":
        return
    ready = found["Ready"]
    assert ready.status in ("False", "Unknown") or walk.spec.replicas == 0, walk.trace[-8:]
    assert ready.message, walk.trace[-8:]
    assert ready.reason not in ("", "Unknown", "Pending"), ready


def speaks_of_adapters(walk: Walk) -> None:
    """Each that is asked for is loaded wherever something serves, or told by name with a word."""
    asked = walk.spec.lora.adapters if walk.spec.lora is not None else []
    told = {one.name: one for one in walk.status.adapters}
    accepted = next(one for one in walk.status.conditions if one.type == "Accepted")
    # Of a spec that was refused: what leaders have.
    if accepted.status == "True" and told:
        assert list(told) == [one.name for one in asked], walk.trace[-8:]
    for one in told.values():
        assert one.state in ("Ready", "Invalid", "Failed"), (one, walk.trace[-8:])
        if one.state != "Ready":
            assert one.reason, (one, walk.trace[-8:])
            assert one.message, (one, walk.trace[-8:])


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_walk_of_edits_comes_to_rest_with_a_word_and_makes_nothing_twice(seed: int) -> None:
    answered(walked(seed))


@pytest.mark.soak
def test_many_walks_of_edits_come_to_rest_with_a_word_and_make_nothing_twice() -> None:
    for seed in range(SEEDS, 1500):
        answered(walked(seed))
