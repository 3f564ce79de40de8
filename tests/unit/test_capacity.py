"""What is taken on nodes: by pods, and by promises that no pod has redeemed yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet import gpus, pod

from shardwright.observe.world import JobView, PodView, Resources
from shardwright.plan.capacity import UsageTracker, usage


def job(uid: str = "job", **fields: Any) -> JobView:
    fields.setdefault("requests", gpus(1))
    return JobView(namespace="default", name=f"job-{uid}", uid=uid, **fields)


@pytest.mark.parametrize(
    ("fields", "node"),
    [
        ({"node": "a", "phase": "Running"}, "a"),
        ({"node": "a", "pin": "a"}, "a"),
        ({"pin": "a"}, "a"),
        ({"pin": "a", "gated": True}, None),
        ({}, None),  # pending anywhere: it holds nothing yet
        ({"node": "a", "phase": "Succeeded"}, None),
        ({"node": "a", "phase": "Failed"}, None),
        ({"node": "a", "phase": "Running", "deleting": True}, "a"),
        ({"node": "a", "phase": "Unknown", "deleting": True}, "a"),
        # An unbound pod that is being deleted can no longer be bound: a replacement may have its
        # place.
        ({"pin": "a", "deleting": True}, None),
    ],
)
def test_a_pod_counts_where_it_is_or_will_be(fields: dict[str, Any], node: str | None) -> None:
    assert usage([pod("1", **fields)], []) == ({node: gpus(1)} if node else {})


def test_a_pinned_pod_that_is_bound_counts_once() -> None:
    assert usage([pod("1", pin="a", node="a", requests=gpus(8))], []) == {"a": gpus(8)}


def test_pods_of_one_node_add_up_with_all_resources() -> None:
    one = Resources(1000, 5, 7, 1, 2, {"rdma/ib": 1})
    two = Resources(500, 1, 0, 1, 1, {"example.com/x": 3})
    assert usage([pod("1", node="a", requests=one), pod("2", pin="a", requests=two)], []) == {
        "a": Resources(1500, 6, 7, 2, 3, {"rdma/ib": 1, "example.com/x": 3})
    }


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, True),
        ({"active": 1}, True),
        ({"suspended": True}, False),
        ({"complete": True}, False),
        ({"failed": True}, False),
        ({"deleting": True}, False),
        ({"node": ""}, False),
    ],
)
def test_a_resumed_job_without_a_pod_holds_its_place(fields: dict[str, Any], counts: bool) -> None:
    found = usage([], [job(**{"node": "a", **fields})])
    assert found == ({"a": gpus(1)} if counts else {})


def test_a_jobs_template_counts_as_a_pod_too() -> None:
    assert usage([], [job(node="a", requests=Resources(gpus=1))]) == {"a": gpus(1, pods=1)}


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"node": "a", "phase": "Running"}, {"a": gpus(1)}),
        ({"pin": "a"}, {"a": gpus(1)}),
        # Failed, and the Job's status has not caught up: with backoffLimit 0 there is no other.
        ({"node": "a", "phase": "Failed"}, {}),
    ],
)
def test_a_job_with_a_pod_of_its_own_is_not_counted_twice(
    fields: dict[str, Any], taken: dict[str, Resources]
) -> None:
    own = pod("1", owner_uid="job", **fields)
    assert usage([own], [job(node="a")]) == taken


def test_a_pod_of_another_job_redeems_no_promise() -> None:
    other = pod("1", owner_uid="other", node="a")
    assert usage([other], [job(node="a")]) == {"a": gpus(2, pods=2)}


def test_the_tracker_forgets_a_pod_that_it_never_saw() -> None:
    tracker = UsageTracker()
    tracker.remove_pod("1")
    tracker.remove_job("job")
    assert tracker.by_node() == {}


def test_the_trackers_answer_is_the_callers_own() -> None:
    tracker = UsageTracker()
    tracker.put_pod(pod("1", node="a"))
    tracker.by_node().clear()
    assert tracker.by_node() == {"a": gpus(1)}


AMOUNTS = st.builds(
    Resources,
    cpu_millis=st.integers(0, 3),
    memory_bytes=st.integers(0, 3),
    pods=st.integers(0, 1),
    gpus=st.integers(0, 3),
    other=st.dictionaries(st.sampled_from(["rdma/ib", "example.com/x"]), st.integers(0, 2)),
)
NAMES = st.sampled_from(["", "a", "b"])
PODS = st.builds(
    PodView,
    namespace=st.just("default"),
    name=st.just("pod"),
    uid=st.sampled_from(["p1", "p2", "p3"]),
    owner_uid=st.sampled_from(["", "j1", "j2"]),
    node=NAMES,
    pin=NAMES,
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    gated=st.booleans(),
    deleting=st.booleans(),
    requests=AMOUNTS,
)
JOBS = st.builds(
    JobView,
    namespace=st.just("default"),
    name=st.just("job"),
    uid=st.sampled_from(["j1", "j2"]),
    node=NAMES,
    suspended=st.booleans(),
    complete=st.booleans(),
    failed=st.booleans(),
    deleting=st.booleans(),
    requests=AMOUNTS,
)
CHANGES = st.one_of(PODS, JOBS, st.sampled_from(["p1", "p2", "p3", "j1", "j2"]))


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.lists(CHANGES, max_size=12))
def test_the_tracker_says_what_counting_afresh_says_after_every_change(
    changes: list[PodView | JobView | str],
) -> None:
    tracker = UsageTracker()
    pods: dict[str, PodView] = {}
    jobs: dict[str, JobView] = {}
    for change in changes:
        if isinstance(change, PodView):
            pods[change.uid] = change
            tracker.put_pod(change)
        elif isinstance(change, JobView):
            jobs[change.uid] = change
            tracker.put_job(change)
        elif change.startswith("p"):
            pods.pop(change, None)
            tracker.remove_pod(change)
        else:
            jobs.pop(change, None)
            tracker.remove_job(change)
        assert tracker.by_node() == usage(pods.values(), jobs.values())


def test_a_jobs_place_passes_to_its_pod_and_is_never_free_in_between() -> None:
    tracker = UsageTracker()
    tracker.put_job(job(node="a", suspended=True))
    assert tracker.by_node() == {}
    tracker.put_job(job(node="a"))
    assert tracker.by_node() == {"a": gpus(1)}
    own = pod("1", owner_uid="job", pin="a")
    tracker.put_pod(own)
    assert tracker.by_node() == {"a": gpus(1)}
    tracker.put_pod(replace(own, node="a", phase="Running"))
    assert tracker.by_node() == {"a": gpus(1)}
    tracker.put_pod(replace(own, node="a", phase="Succeeded"))
    assert tracker.by_node() == {}
