"""Which step gets a node, and which nodes a replica's next try."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.golden import specs
from tests.support.fleet import gpu_node
from tests.support.played import World

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.control.homes import STUCK_SECONDS, Homes
from shardwright.control.placer import Placer
from shardwright.control.queue import Key
from shardwright.control.store import Store
from shardwright.observe.world import JobView, PodView, Resources
from shardwright.plan.groups import Group, State
from shardwright.plan.rollout import Wish
from shardwright.plan.situation import PlaceGroup, PlaceStep
from shardwright.resolved import Artifact
from shardwright.runner.contract import STEP_ADAPTER, STEP_ENGINE, STEP_MODEL

KEY = Key("deployment", "llm", "llama")
SPEC = specs.spec()


def step(name: str, key: str, gpus: int = 0) -> PlaceStep:
    small = Resources(cpu_millis=1000, memory_bytes=2**30, pods=1, gpus=gpus)
    artifact = Artifact(
        step=name,
        key=key,
        inputs={},
        source_key="",
        image="image",
        commands=(),
        expected_files=(),
        gpus=gpus,
        product=specs.H100 if gpus else "",
        resources=small,
    )
    job = JobView(
        "llm",
        f"job-{key}",
        f"uid-{key}",
        step=name,
        key=key,
        attempt=1,
        claim_uid=specs.CLAIM.uid,
        owners=("uid",),
        requests=small,
    )
    return PlaceStep(job, artifact, (), SPEC)


BUILD = step(STEP_ENGINE, "build", gpus=16)
SMALL = step(STEP_ENGINE, "small", gpus=1)
FETCH = step(STEP_MODEL, "fetch")
ADAPTER = step(STEP_ADAPTER, "adapter")


def homes(*steps: PlaceStep) -> tuple[Homes, Placer]:
    """What is found on one node of eight GPUs."""
    world = World()
    world.edit()
    store = Store(Settings())
    store.nodes["a"] = gpu_node("a")
    placer = Placer(store)
    found = Homes(KEY, placer, store, world.situation())
    found.find(replace(world.decision, intents=steps))
    return found, placer


def test_a_fetch_goes_on_while_a_build_waits_for_gpus() -> None:
    found, placer = homes(BUILD, ADAPTER)
    assert set(placer.promises) == {ADAPTER.job.uid}
    told = found.outcome("").no_room_for_step
    assert told.startswith("step engine"), "what waits is told all the same"
    assert found.waiting
    [ticket] = placer.waiting.values()
    assert "step engine" in ticket.label, "the build is the one that queues"


def test_no_later_step_takes_gpus_before_the_one_that_waits() -> None:
    _, placer = homes(BUILD, SMALL)
    assert placer.promises == {}
    _, placer = homes(SMALL, BUILD)
    assert set(placer.promises) == {SMALL.job.uid}


def test_one_step_a_pass_the_first_that_fits() -> None:
    found, placer = homes(FETCH, ADAPTER)
    assert set(placer.promises) == {FETCH.job.uid}
    assert found.outcome("").no_room_for_step == ""
    assert not found.waiting


def pod(node: str, incarnation: int, *, pinned: bool) -> PodView:
    """A pod of replica 0 that takes a node's eight GPUs, pinned to it or still without a place."""
    labels = {names.LABEL_REPLICA: "0", names.LABEL_INCARNATION: str(incarnation)}
    return PodView(
        "llm",
        f"{node or 'gated'}-{incarnation}",
        f"uid-{node}-{incarnation}",
        labels=labels,
        pin=node if pinned else "",
        gated=not pinned,
        requests=Resources(gpus=8, pods=1),
    )


def again(*earlier: PodView) -> tuple[Homes, Placer]:
    """Another try over two of three nodes, `a` avoided, beside pods of earlier ones."""
    world = World()
    world.edit(parallelism={"tensor": 8, "pipeline": 2})
    resolved = world.revisions[0].resolved
    pods = tuple(replace(pod("", 2, pinned=False), uid=f"new-{stage}") for stage in range(2))
    group = Group(0, 2, world.revisions[0].name, 2, pods, State.GATED)
    wish = Wish(0, 2, world.revisions[0].name, restarts=1, avoid=("a",))
    store = Store(Settings())
    for name in "abc":
        store.nodes[name] = gpu_node(name)
    for one in earlier:
        store.usage.put_pod(one)
    placer = Placer(store)
    situation = replace(world.situation(), pods=(*earlier, *pods), nodes=dict(store.nodes))
    found = Homes(KEY, placer, store, situation)
    wanted = PlaceGroup(group, wish, resolved, candidate=False)
    found.find(replace(world.decision, intents=(wanted,)))
    return found, placer


def test_an_avoided_node_is_not_taken_while_the_earlier_try_leaves_room_elsewhere() -> None:
    found, placer = again(pod("b", 1, pinned=True))
    assert placer.promises == {}
    assert found.waiting, "it is looked at again when the pod has gone"
    _, placer = again()
    assert sorted(node for node, _ in placer.promises.values()) == ["b", "c"]


def test_an_avoided_node_is_taken_when_nothing_else_will_have_room() -> None:
    stranger = replace(pod("b", 1, pinned=True), labels={})
    _, placer = again(stranger)
    assert sorted(node for node, _ in placer.promises.values()) == ["a", "c"]


@pytest.mark.parametrize("late", [-600.0, 0.0, STUCK_SECONDS])
def test_a_pod_that_does_not_end_keeps_no_replica_waiting_for_its_room(late: float) -> None:
    """Its kubelet cannot end it: a process hangs in the kernel, or somebody holds a finalizer."""
    world = World()
    world.edit()
    now = world.situation().now
    going = replace(pod("b", 1, pinned=True), node="b", deleting=True, gone_by=now - late)
    found, placer = again(going)
    if late < STUCK_SECONDS:
        assert placer.promises == {}
        assert found.waiting
    else:
        assert sorted(node for node, _ in placer.promises.values()) == ["a", "c"]
