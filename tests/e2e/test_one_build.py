"""What several deployments need is made once, however many of them ask for it at a time."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.claims import Claim
from tests.support.kube import Kube
from tests.support.operator import Operator
from tests.support.watcher import watching

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule
from shardwright_sandbox.rest import Json

pytestmark = pytest.mark.e2e

TWINS = ("llama", "twin")
SMALL: Json = {"parallelism": {"tensor": 2, "pipeline": 2}}
ONCE = {"model": 1, "checkpoint": 1, "engine": 1}


def owners(job: Json) -> set[str]:
    return {str(owner["name"]) for owner in job["metadata"].get("ownerReferences", [])}


def builds(kube: Kube) -> list[Json]:
    """Jobs of the engine step."""
    return [
        job
        for job in kube.jobs()
        if job["metadata"]["labels"].get("shardwright.dev/step") == "engine"
    ]


def published(claim: Claim) -> dict[str, int]:
    return {step: len(claim.published(step)) for step in ONCE}


def test_two_deployments_that_need_the_same_engine_at_the_same_time_build_it_once(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    claim = Claim(sandbox, kube)
    player.delays(engine=1.0)
    with watching(kube.api, kube.namespace) as watcher:
        mark = watcher.mark()
        for name in TWINS:
            kube.create(name, SMALL)
        keys = {kube.wait_ready(name)["status"]["engine"]["serving"]["key"] for name in TWINS}
        assert len(keys) == 1
        assert watcher.jobs_since(mark) == dict(sorted(ONCE.items()))
    assert published(claim) == ONCE
    assert Counter(claim.published()).most_common(1)[0][1] == 1


def test_a_shared_build_goes_on_for_the_other_when_one_gives_it_up(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    claim = Claim(sandbox, kube)
    hang = Rule(act=Act.HANG, match=Match(step="engine", namespace=kube.namespace))
    player.add(hang)
    for name in TWINS:
        kube.create(name, SMALL)
    kube.wait("both own the one build", lambda: [owners(job) for job in builds(kube)] == [{*TWINS}])
    [uid] = [job["metadata"]["uid"] for job in builds(kube)]
    kube.delete(TWINS[0])
    kube.wait("one owner left", lambda: [owners(job) for job in builds(kube)] == [{TWINS[1]}])
    assert [job["metadata"]["uid"] for job in builds(kube)] == [uid]
    player.remove(hang)
    kube.wait_ready(TWINS[1])
    assert published(claim) == ONCE


def test_a_shared_builder_that_is_killed_is_replaced_once_for_both(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, sandbox: Sandbox
) -> None:
    claim = Claim(sandbox, kube)
    player.fail_step("engine", times=2, report=False, exit_code=255)
    with watching(kube.api, kube.namespace) as watcher:
        for name in TWINS:
            kube.create(name, SMALL)
        for name in TWINS:
            kube.wait_ready(name)
        attempts = [job.attempt for job in watcher.jobs() if job.step == "engine"]
    assert len(attempts) == len(set(attempts))
    assert published(claim) == ONCE
