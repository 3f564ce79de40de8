"""Reading specs, and telling a lost fleet from lost nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fleet import gpu_node
from tests.support.specs import MINIMAL_SPEC

from shardwright.control.situate import FleetWatch, fleet_lost, parse_spec


def nodes(*lost_at: float | None) -> dict[str, object]:
    return {
        f"n{index}": replace(gpu_node(f"n{index}"), ready=since is None, not_ready_since=since)
        for index, since in enumerate(lost_at)
    }


@pytest.mark.parametrize(
    ("lost_at", "expected"),
    [
        ((None, None, None), False),
        ((100.0, None, None), False),  # one node is one node
        ((100.0, 110.0, None), True),  # two of three within a minute
        ((100.0, 170.0, None), False),  # one after the other: they are really gone
        ((100.0, 105.0, None, None), False),  # half is no majority
        ((100.0, 105.0, 110.0, None), True),
        ((100.0, 101.0), False),  # of two nodes one cannot tell
        ((-9e5, 100.0, 105.0, 110.0, None), True),  # one that is long dead changes nothing
    ],
)
def test_more_than_half_of_the_fleet_within_a_minute_is_a_lost_fleet(
    lost_at: tuple[float | None, ...], expected: bool
) -> None:
    assert fleet_lost(nodes(*lost_at), now=180.0) is expected  # type: ignore[arg-type]


def test_a_lost_fleet_is_believed_to_be_gone_after_ten_minutes() -> None:
    found = nodes(100.0, 101.0, 102.0)
    assert fleet_lost(found, now=200.0)  # type: ignore[arg-type]
    assert not fleet_lost(found, now=102.0 + 601)  # type: ignore[arg-type]


def test_nodes_of_a_lost_fleet_have_their_time_from_the_look_that_finds_most_of_it_back() -> None:
    watch = FleetWatch(node_dead_seconds=30.0)
    gone, one_left = nodes(100.0, 101.0, 102.0), nodes(None, None, 102.0)
    assert watch.lost(gone, now=140.0)  # type: ignore[arg-type]
    # The next look comes when nodes are back, long after the last one that found them away.
    assert watch.lost(one_left, now=175.0)  # type: ignore[arg-type]
    assert watch.lost(one_left, now=204.0)  # type: ignore[arg-type]
    assert not watch.lost(one_left, now=205.0)  # type: ignore[arg-type]
    assert watch.lost(gone, now=206.0)  # type: ignore[arg-type]


def test_a_fleet_that_was_never_lost_gives_no_node_more_time() -> None:
    assert not FleetWatch(30.0).lost(nodes(100.0, None, None), now=101.0)  # type: ignore[arg-type]


def test_a_valid_spec_is_read() -> None:
    spec, error = parse_spec(MINIMAL_SPEC)
    assert spec is not None
    assert (spec.replicas, error) == (1, "")


def test_an_invalid_spec_names_field_and_value() -> None:
    bad = {**MINIMAL_SPEC, "parallelism": {"tensor": 0}}
    spec, error = parse_spec(bad)
    assert spec is None
    assert error == "spec.parallelism.tensor: 0 is less than 1: write a whole number from 1 to 1024"
