"""Which step gets a node: one that waits for GPUs keeps no fetch of its deployment waiting."""

from __future__ import annotations

from dataclasses import replace

from tests.golden import specs
from tests.support.fleet import gpu_node
from tests.support.played import World

from shardwright.api.settings import Settings
from shardwright.control.homes import Homes
from shardwright.control.placer import Placer
from shardwright.control.queue import Key
from shardwright.control.store import Store
from shardwright.observe.world import JobView, Resources
from shardwright.plan.situation import PlaceStep
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
