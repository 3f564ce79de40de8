"""What the store believes when messages come late, twice or never, and whom a change wakes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import bodies

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.apply.client import Listing
from shardwright.apply.errors import NotFound
from shardwright.apply.executor import Version
from shardwright.apply.kinds import (
    BUDGET,
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    SERVICE,
    SLICE,
    VOLUME,
)
from shardwright.control.metrics import Metrics
from shardwright.control.queue import Key
from shardwright.control.store import Store
from shardwright.control.tables import Table

A, B = Key("deployment", "llm", "a"), Key("deployment", "llm", "b")
CLAIM_KEY, NAMESPACE_KEY = Key("claim", "llm", "models"), Key("namespace", "llm")


class Woken:
    """Collects the keys that the store wakes."""

    def __init__(self, store: Store) -> None:
        self.keys: set[Key] = set()
        store.listen(self.keys.update)

    def take(self) -> set[Key]:
        taken = set(self.keys)
        self.keys.clear()
        return taken


@pytest.fixture
def store() -> Store:
    return Store(Settings(), metrics=Metrics())


@pytest.fixture
def woken(store: Store) -> Woken:
    """A store with two deployments on one claim, at rest."""
    watcher = Woken(store)
    store.event(CLAIM, None, bodies.claim(volume="v"))
    store.event(DEPLOYMENT, None, bodies.deployment("a", "uid-a"))
    store.event(DEPLOYMENT, None, bodies.deployment("b", "uid-b"))
    for key in (A, B):
        store.needs(key, ())
    watcher.take()
    return watcher


# Late, double and lost messages.


def test_an_older_event_does_not_overwrite_the_answer_to_our_write(store: Store) -> None:
    store.observed(POD, bodies.pod("p", "u", 9, node="n1"))
    store.event(POD, "MODIFIED", bodies.pod("p", "u", 5))
    found = store.pods.get("llm", "p")
    assert found is not None
    assert found.node == "n1"


def test_a_deleted_object_is_not_raised_by_a_late_event(store: Store) -> None:
    store.event(POD, "ADDED", bodies.pod("p", "u", 5))
    store.event(POD, "DELETED", bodies.pod("p", "u", 8))
    store.event(POD, "MODIFIED", bodies.pod("p", "u", 7))
    assert store.pods.get("llm", "p") is None
    store.event(POD, "ADDED", bodies.pod("p", "u2", 9))
    assert store.pods.get("llm", "p") is not None


def test_a_late_deletion_does_not_remove_the_successor_of_the_same_name(store: Store) -> None:
    store.event(POD, "ADDED", bodies.pod("p", "new", 9))
    store.event(POD, "DELETED", bodies.pod("p", "old", 8))
    found = store.pods.get("llm", "p")
    assert found is not None
    assert found.uid == "new"


def test_an_object_that_lost_its_label_and_regained_it_comes_back(store: Store) -> None:
    store.event(JOB, "ADDED", bodies.job("j", "u", 1, owners=["uid-a"]))
    store.event(JOB, "DELETED", bodies.job("j", "u", 2, owners=["uid-a"]))
    store.event(JOB, "ADDED", bodies.job("j", "u", 3, owners=["uid-a"]))
    assert store.jobs.get("llm", "j") is not None


MESSAGES = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(["n1", "n2", ""]), st.booleans()),
    min_size=1,
    max_size=12,
    unique_by=lambda message: message[0],
)


@given(MESSAGES, st.randoms(use_true_random=False))
def test_the_end_is_the_same_in_whatever_order_messages_arrive(
    messages: list[tuple[int, str, bool]], random: Any
) -> None:
    """One uid: its versions arrive shuffled and doubled; a deletion is its last version."""
    history = sorted(messages)
    history = [(version, node, False) for version, node, _ in history[:-1]] + history[-1:]
    shuffled = history * 2
    random.shuffle(shuffled)
    store = Store(Settings())
    for version, node, gone in shuffled:
        store.event(
            POD, "DELETED" if gone else "MODIFIED", bodies.pod("p", "u", version, node=node)
        )
    _, node, gone = history[-1]
    found = store.pods.get("llm", "p")
    if gone:
        assert found is None
        assert store.usage.by_node() == {}
    else:
        assert found is not None
        assert found.node == node
        assert set(store.usage.by_node()) == ({node} if node else set())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.booleans()), max_size=40))
def test_indexes_hold_exactly_what_the_table_holds(
    steps: list[tuple[str, int, bool]],
) -> None:
    table: Table[int] = Table({"parity": lambda value: (value % 2,), "all": lambda _: ("x",)})
    for version, (name, value, put) in enumerate(steps, start=1):
        if put:
            table.put(("", name), Version(f"{name}{version}", 0, version), value)
        elif (entry := table.entry("", name)) is not None:
            table.remove(("", name), entry.version.uid, version)
        held = sorted(table)
        assert sorted(table.by("all", "x")) == held
        assert sorted([*table.by("parity", 0), *table.by("parity", 1)]) == held


# Lists.


class Lists:
    """Answers lists: what a kind holds, and at which version."""

    def __init__(self, version: int, **items: list[dict[str, Any]]) -> None:
        self.version = version
        self.items = items
        self.asked: list[tuple[str, str, str]] = []

    async def list(self, kind: str, namespace: str = "", *, labels: str = "") -> Listing:
        self.asked.append((kind, namespace, labels))
        if kind == SLICE:
            raise NotFound("list", 404, "NotFound", "the server could not find the resource")
        return Listing(self.items.get(kind, []), self.version)


async def test_a_list_removes_what_was_deleted_while_nobody_watched(store: Store) -> None:
    store.event(POD, "ADDED", bodies.pod("old", "u1", 5, node="n1"))
    store.event(POD, "ADDED", bodies.pod("kept", "u2", 6))
    store.event(POD, "ADDED", bodies.pod("newer", "u3", 30))
    lists = Lists(20, **{POD: [bodies.pod("kept", "u2", 6), bodies.pod("missed", "u4", 18)]})
    await store.fill(lists)  # type: ignore[arg-type]
    assert sorted(pod.name for pod in store.pods) == ["kept", "missed", "newer"]
    assert store.usage.by_node() == {}
    store.event(POD, "MODIFIED", bodies.pod("old", "u1", 19))
    assert store.pods.get("llm", "old") is None, "gone by the list, whatever comes late"


async def test_a_list_that_is_older_than_a_deletion_raises_nothing(store: Store) -> None:
    store.event(POD, "DELETED", bodies.pod("p", "u", 21))
    await store.fill(Lists(20, **{POD: [bodies.pod("p", "u", 15)]}))  # type: ignore[arg-type]
    assert len(store.pods) == 0


async def test_pods_and_nodes_are_listed_everywhere_the_rest_where_we_serve() -> None:
    store = Store(Settings(watch_namespaces=["x", "y"]))
    lists = Lists(1)
    await store.fill(lists)  # type: ignore[arg-type]
    scopes: dict[str, list[str]] = {}
    for kind, namespace, _ in lists.asked:
        scopes.setdefault(kind, []).append(namespace)
    assert scopes[POD] == scopes[NODE] == scopes[VOLUME] == [""]
    assert scopes[DEPLOYMENT] == scopes[JOB] == scopes[CONFIG_MAP] == ["x", "y"]


async def test_a_list_of_one_namespace_removes_nothing_of_another() -> None:
    store = Store(Settings(watch_namespaces=["other"]))
    store.event(DEPLOYMENT, "ADDED", bodies.deployment())
    await store.fill(Lists(50))  # type: ignore[arg-type]
    assert len(store.deployments) == 1


async def test_only_our_own_jobs_and_config_maps_are_asked_for(store: Store) -> None:
    lists = Lists(1)
    await store.fill(lists)  # type: ignore[arg-type]
    ours = {kind for kind, _, labels in lists.asked if labels}
    assert JOB in ours
    assert CONFIG_MAP in ours
    assert not ours & {POD, NODE, CLAIM, DEPLOYMENT}


def test_an_object_that_cannot_be_read_is_counted_and_blinds_nobody(store: Store) -> None:
    odd = bodies.pod("odd", "u1", 1)
    odd["spec"]["containers"][0]["resources"]["limits"][names.GPU_RESOURCE] = "many"
    store.event(POD, "ADDED", odd)
    store.event(POD, "ADDED", bodies.pod("p", "u2", 2))
    assert [pod.name for pod in store.pods] == ["p"]
    assert store._metrics is not None
    assert (
        store._metrics.registry.get_sample_value(
            "shardwright_unreadable_objects_total", {"kind": POD}
        )
        == 1
    )


@pytest.mark.parametrize("field", [{"facts": "[" * 100_000}, {"adapter": "[1]"}])
def test_a_record_that_anybody_may_have_written_blinds_nobody(
    store: Store, field: dict[str, str]
) -> None:
    """Whoever may write ConfigMaps in one namespace must not stop the operator for all."""
    odd = bodies.record("odd", "u1", 1)
    odd["data"] |= field
    store.event(CONFIG_MAP, "ADDED", odd)
    store.event(CONFIG_MAP, "ADDED", bodies.record("r", "r1", 13))
    assert [record.name for record in store.records_on("claim-uid")] == ["r"]


# Questions.


def test_views_are_found_by_owner_claim_and_artifact(store: Store, woken: Woken) -> None:
    store.event(POD, "ADDED", bodies.pod("a-1", "p1", 10, owners=[bodies.owner("uid-a")]))
    store.event(POD, "ADDED", bodies.pod("a-0", "p2", 11, owners=[bodies.owner("uid-a")]))
    store.event(JOB, "ADDED", bodies.job("j", "j1", 12, owners=["uid-a", "uid-b"]))
    store.event(CONFIG_MAP, "ADDED", bodies.record("r", "r1", 13))
    assert [pod.name for pod in store.pods_of("uid-a")] == ["a-0", "a-1"]
    assert [job.name for job in store.jobs_for("claim-uid", "k1")] == ["j"]
    assert store.jobs_of("uid-b") == store.jobs_of("uid-a") == store.jobs_on("claim-uid")
    assert [record.key for record in store.records_on("claim-uid")] == ["k1"]
    assert [view.name for view in store.deployments_on("llm", "models")] == ["a", "b"]
    assert store.all_keys() == {A, B, CLAIM_KEY, NAMESPACE_KEY}


def test_a_claim_learns_its_volumes_places_in_whatever_order_they_come(store: Store) -> None:
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "z", "operator": "In", "values": ["1"]}]}
        ]
    }
    store.event(CLAIM, "ADDED", bodies.claim(volume="v"))
    before = store.claim("llm", "models")
    store.event(VOLUME, "ADDED", bodies.volume("v", nodeAffinity={"required": required}))
    after = store.claim_by_uid("claim-uid")
    assert before is not None
    assert after is not None
    assert (before.node_terms, after.node_terms) == ((), ({"z": ("1",)},))


# Whom a change wakes.


def test_our_own_status_write_wakes_nobody(store: Store, woken: Woken) -> None:
    store.event(
        DEPLOYMENT, "MODIFIED", bodies.deployment("a", "uid-a", 50, status={"readyReplicas": 1})
    )
    assert woken.take() == set()
    found = store.deployment("llm", "a")
    assert found is not None
    assert found.status == {"readyReplicas": 1}, "but it is known"


def test_a_new_generation_wakes_the_deployment_and_its_claim(store: Store, woken: Woken) -> None:
    store.event(DEPLOYMENT, "MODIFIED", bodies.deployment("a", "uid-a", 50, generation=2))
    assert woken.take() == {A, CLAIM_KEY}


def test_a_deployment_that_goes_wakes_its_claim_and_namespace(store: Store, woken: Woken) -> None:
    store.wait_for_capacity(A, True)
    store.event(DEPLOYMENT, "DELETED", bodies.deployment("a", "uid-a", 50))
    assert woken.take() == {A, CLAIM_KEY, NAMESPACE_KEY}
    assert A not in store.waiters
    assert A not in store.interests


def test_a_pod_of_ours_wakes_its_deployment_once_for_each_change(
    store: Store, woken: Woken
) -> None:
    body = bodies.pod("a-0", "p", 10, owners=[bodies.owner("uid-a")])
    store.event(POD, "ADDED", body)
    assert woken.take() == {A}
    body = bodies.pod("a-0", "p", 11, owners=[bodies.owner("uid-a")])
    body["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    store.event(POD, "MODIFIED", body)
    assert woken.take() == set(), "nothing that is kept has changed"


def test_a_pass_is_not_woken_by_its_own_writes_but_others_are(store: Store, woken: Woken) -> None:
    for key in (A, B):
        store.needs(key, [("claim-uid", "k1")])
    store.observed(CONFIG_MAP, bodies.record("r", "r1", 10), by=A)
    assert woken.take() == {B, CLAIM_KEY}


def test_a_foreign_pod_that_ends_wakes_who_waits_for_room(store: Store, woken: Woken) -> None:
    store.event(POD, "ADDED", bodies.pod("x", "p", 10, node="n1", phase="Running"))
    store.wait_for_capacity(B, True)
    woken.take()
    store.event(POD, "MODIFIED", bodies.pod("x", "p", 11, node="n1", phase="Succeeded"))
    assert woken.take() == {B}
    store.event(POD, "DELETED", bodies.pod("x", "p", 12, node="n1", phase="Succeeded"))
    assert woken.take() == set(), "it had held nothing any more"


def test_a_foreign_pod_that_is_bound_wakes_nobody(store: Store, woken: Woken) -> None:
    store.wait_for_capacity(B, True)
    store.event(POD, "ADDED", bodies.pod("x", "p", 10))
    store.event(POD, "MODIFIED", bodies.pod("x", "p", 11, node="n1"))
    assert woken.take() == set()


def test_a_node_that_changes_wakes_who_sits_on_it_and_who_waits(store: Store, woken: Woken) -> None:
    store.event(NODE, "ADDED", bodies.node("n1"))
    store.event(POD, "ADDED", bodies.pod("a-0", "p", 10, owners=[bodies.owner("uid-a")], node="n1"))
    woken.take()
    store.event(NODE, "MODIFIED", bodies.node("n1", 20))
    assert woken.take() == set(), "a heartbeat is no news"
    store.wait_for_capacity(B, True)
    store.event(NODE, "MODIFIED", bodies.node("n1", 21, ready=False))
    assert woken.take() == {A, B}
    store.event(NODE, "DELETED", bodies.node("n1", 22))
    assert woken.take() == {A, B}
    assert store.nodes == {}


def test_a_slice_gives_its_node_gpus(store: Store, woken: Woken) -> None:
    store.event(NODE, "ADDED", bodies.node("n1", gpus=0))
    store.wait_for_capacity(A, True)
    body = {
        "metadata": {"name": "s", "uid": "s1", "resourceVersion": "5"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "gpu-0",
                    "attributes": {
                        "type": {"string": "gpu"},
                        "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    },
                }
            ],
        },
    }
    store.event(SLICE, "ADDED", body)
    assert woken.take() == {A}
    assert store.nodes["n1"].gpu.count == 1


def test_a_job_wakes_its_owners_who_needs_its_artifact_and_the_claim(
    store: Store, woken: Woken
) -> None:
    store.event(JOB, "ADDED", bodies.job("j", "j1", 10, owners=["uid-a"]))
    assert woken.take() == {A, CLAIM_KEY}
    store.needs(B, [("claim-uid", "k1")])
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    store.event(JOB, "MODIFIED", bodies.job("j", "j1", 11, owners=["uid-a"], status=done))
    assert woken.take() == {A, B, CLAIM_KEY}


def test_a_pod_of_a_job_wakes_whoever_needs_the_job(store: Store, woken: Woken) -> None:
    store.event(JOB, "ADDED", bodies.job("j", "j1", 10, owners=["uid-b"]))
    woken.take()
    store.event(POD, "ADDED", bodies.pod("j-x", "p", 11, owners=[bodies.owner("j1", "Job")]))
    assert woken.take() == {B, CLAIM_KEY}


def test_who_has_not_said_yet_what_it_needs_is_woken_by_every_record(
    store: Store, woken: Woken
) -> None:
    store.interests.clear()
    store.needs(A, [("claim-uid", "other")])
    store.event(CONFIG_MAP, "ADDED", bodies.record("r", "r1", 10))
    assert woken.take() == {B, CLAIM_KEY}


def test_a_note_of_a_records_last_use_wakes_nobody(store: Store, woken: Woken) -> None:
    store.event(CONFIG_MAP, "ADDED", bodies.record("r", "r1", 10))
    woken.take()
    store.event(
        CONFIG_MAP, "MODIFIED", bodies.record("r", "r1", 11, usedAt="2026-02-01T00:00:00+00:00")
    )
    assert woken.take() == set()
    store.event(CONFIG_MAP, "MODIFIED", bodies.record("r", "r1", 12, state="Trashed"))
    assert CLAIM_KEY in woken.take()


def test_a_claim_that_appears_or_binds_wakes_who_names_it(store: Store) -> None:
    woken = Woken(store)
    store.event(DEPLOYMENT, "ADDED", bodies.deployment("a", "uid-a"))
    woken.take()
    store.event(CLAIM, "ADDED", bodies.claim())
    assert woken.take() == {A, CLAIM_KEY}
    store.event(CLAIM, "ADDED", bodies.claim("foreign", "c2"))
    assert woken.take() == set()


def test_a_disruption_budgets_status_wakes_nobody_its_content_does(
    store: Store, woken: Woken
) -> None:
    store.event(BUDGET, "ADDED", bodies.child("a", "b1", 10, "uid-a", generation=1))
    woken.take()
    store.event(BUDGET, "MODIFIED", bodies.child("a", "b1", 11, "uid-a", generation=1))
    assert woken.take() == set()
    store.event(BUDGET, "MODIFIED", bodies.child("a", "b1", 12, "uid-a", generation=2))
    assert woken.take() == {A}


def test_a_service_that_somebody_changed_or_deleted_wakes_its_deployment(
    store: Store, woken: Woken
) -> None:
    store.event(SERVICE, "ADDED", bodies.child("a", "s1", 10, "uid-a"))
    woken.take()
    store.event(SERVICE, "MODIFIED", bodies.child("a", "s1", 11, "uid-a"))
    assert woken.take() == {A}
    store.event(SERVICE, "DELETED", bodies.child("a", "s1", 12, "uid-a"))
    assert woken.take() == {A}


def test_a_runner_that_went_wakes_its_namespace(store: Store, woken: Woken) -> None:
    body = {"metadata": bodies.meta("run", "c1", 5, labels={names.LABEL_RUNNER: "true"})}
    store.event(CONFIG_MAP, "ADDED", body)
    assert woken.take() == {NAMESPACE_KEY, A, B}
    store.event(CONFIG_MAP, "DELETED", {"metadata": {**body["metadata"], "resourceVersion": "6"}})
    assert woken.take() == {NAMESPACE_KEY}
    assert store.runners_in("llm") == ()


def test_somebody_elses_config_map_is_not_kept(store: Store, woken: Woken) -> None:
    store.event(CONFIG_MAP, "ADDED", {"metadata": bodies.meta("x", "c1", 5)})
    assert woken.take() == set()
    assert store.version(CONFIG_MAP, "llm", "x") is None
