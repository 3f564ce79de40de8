"""What a planner may use is counted when it can matter, and not once more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.fleet import gpu_node

from shardwright.api.asked import AskedSpec
from shardwright.api.settings import Settings
from shardwright.control import fleets as counting
from shardwright.control.fleets import FleetCounter
from shardwright.control.queue import Key
from shardwright.observe.world import (
    ClaimView,
    DeploymentView,
    PodView,
    Record,
    RecordState,
    Resources,
)
from shardwright.plan.capacity import UsageTracker
from shardwright.plan.fleets import Fleets
from shardwright.plan.resolve import model_key
from shardwright.plan.revisions import Revision, asked_digest, wish_of
from shardwright.runner.contract import STEP_MODEL

KEY = Key("deployment", "llm", "llama")
VIEW = DeploymentView("llm", "llama", "uid", generation=1, resource_version=1)
CLAIM = ClaimView("llm", "models", "claim-uid", bound=True, access_modes=("ReadWriteMany",))


def asked(**fields: Any) -> AskedSpec:
    base = {"model": {"uri": "hf://org/model"}, "storage": {"claimName": "models"}}
    return AskedSpec.read({**base, **fields})


class Cluster:
    """The part of the store that is asked."""

    def __init__(self) -> None:
        self.inventory_version = 1
        self.nodes = {name: gpu_node(name, 8) for name in ("a", "b", "c")}
        self.hosts: dict[str, str] = {}
        self.usage = UsageTracker()
        self.pods: list[PodView] = []
        self.records: list[Record] = []

    def hold(self, name: str, node: str, owner: str) -> None:
        pod = PodView(
            "llm", name, name, owner_uid=owner, node=node, requests=Resources(gpus=8, pods=1)
        )
        self.pods.append(pod)
        self.usage.put_pod(pod)

    def fetch(self, spec: AskedSpec) -> None:
        key = model_key(spec)
        self.records.append(Record(STEP_MODEL, key, CLAIM.uid, RecordState.READY))

    def pods_of(self, uid: str) -> tuple[PodView, ...]:
        return tuple(pod for pod in self.pods if pod.owner_uid == uid)

    def claim(self, namespace: str, name: str) -> ClaimView | None:
        return CLAIM if (namespace, name) == ("llm", "models") else None

    def records_on(self, uid: str) -> tuple[Record, ...]:
        return tuple(self.records) if uid == CLAIM.uid else ()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was counted, in order: `all` or `free`."""
    found: list[str] = []

    def spy(name: str, what: str) -> None:
        real = getattr(counting, name)

        def counted(*args: Any) -> Any:
            found.append(what)
            return real(*args)

        monkeypatch.setattr(counting, name, counted)

    spy("fleets_of", "all")
    spy("free_fleet", "free")
    return found


def counter(cluster: Cluster) -> FleetCounter:
    return FleetCounter(cluster, Settings())  # type: ignore[arg-type]


def ask(
    found: FleetCounter,
    spec: AskedSpec | None,
    revisions: tuple[Revision, ...] = (),
    view: DeploymentView = VIEW,
) -> Fleets | None:
    return found.of(KEY, view, spec, asked_digest(spec) if spec else "", revisions)


def test_nothing_is_counted_where_nothing_is_open(cluster: Cluster, calls: list[str]) -> None:
    given = asked(gpu={"product": specs.H100}, parallelism={"tensor": 1, "pipeline": 1})
    found = counter(cluster)
    assert ask(found, given) is None
    assert ask(found, None) is None
    assert calls == []


def test_all_gpus_are_counted_once_a_change_of_the_nodes(
    cluster: Cluster, calls: list[str]
) -> None:
    found = counter(cluster)
    for _ in range(5):
        fleets = ask(found, asked())
        assert fleets is not None
        assert (fleets.owned.gpus, fleets.free) == (24, None)
    assert calls == ["all"]
    ask(found, asked(placement={"nodeSelector": {"pool": "x"}}))
    assert calls == ["all", "all"], "another way to select nodes is another count"
    del cluster.nodes["c"]
    cluster.inventory_version += 1
    fleets = ask(found, asked())
    assert fleets is not None
    assert fleets.owned.gpus == 16


def test_what_is_free_is_counted_while_a_plan_is_to_be_made(
    cluster: Cluster, calls: list[str]
) -> None:
    spec = asked()
    cluster.hold("own", "a", VIEW.uid)
    cluster.hold("other", "b", "someone")
    found = counter(cluster)
    ask(found, spec)
    assert calls == ["all"], "the model is not known yet"
    cluster.fetch(spec)
    fleets = ask(found, spec)
    assert fleets is not None
    assert fleets.free is not None
    assert fleets.free.free_gpus == 16, "its own GPUs will be free for what follows it"
    wish = wish_of(asked_digest(spec), "", CLAIM.uid)
    resolved = specs.resolved(specs.spec())
    planned = Revision(f"llama-{wish}", "uid", 1, resolved, wish=wish)
    calls.clear()
    fleets = ask(found, spec, (planned,))
    assert fleets is not None
    assert fleets.free is None
    assert calls == []


def test_pods_that_are_not_bound_count_on_the_node_of_their_hostname(cluster: Cluster) -> None:
    spec = asked()
    cluster.fetch(spec)
    cluster.hosts = {"host-b": "b"}
    pod = PodView(
        "llm", "pinned", "pinned", owner_uid="x", pin="host-b", requests=Resources(gpus=8)
    )
    cluster.usage.put_pod(pod)
    fleets = ask(counter(cluster), spec)
    assert fleets is not None
    assert fleets.free is not None
    assert fleets.free.free_gpus == 16


def test_while_nothing_is_possible_free_gpus_are_counted_once_a_change_of_the_nodes(
    cluster: Cluster, calls: list[str]
) -> None:
    spec = asked()
    cluster.fetch(spec)
    found = counter(cluster)
    condition = {"type": "Accepted", "status": "False", "reason": "NoPlanPossible"}
    refused = replace(VIEW, status={"conditions": [condition]})
    for _ in range(4):
        ask(found, spec, view=refused)
    assert calls.count("free") == 1
    cluster.inventory_version += 1
    for _ in range(4):
        ask(found, spec, view=refused)
    assert calls.count("free") == 2
    found.forget(KEY)
    ask(found, spec, view=refused)
    assert calls.count("free") == 3
