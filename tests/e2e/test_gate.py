"""The accuracy gate on the whole operator: an engine made worse on purpose never serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.kube import Json, Kube
from tests.support.operator import Operator
from tests.support.watcher import Watcher, watching

from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule

pytestmark = pytest.mark.e2e

PATIENCE = 90.0
NAME = "llama"
GATE = {"task": "mmlu", "samples": 570, "maxDrop": 1.0}
SPLIT = {"tensor": 2, "pipeline": 1}


@pytest.fixture
def watcher(kube: Kube) -> Iterator[Watcher]:
    with watching(kube.api, kube.namespace) as found:
        yield found


def worse(weights: str, score: float, **more: Any) -> Rule:
    """Engines of this precision answer badly."""
    return Rule(act=Act.SCORE, match=Match(measured=weights), score=score, times=None, **more)


def scores(kube: Kube) -> list[Json]:
    """Jobs that measured."""
    label = "shardwright.dev/step"
    return [job for job in kube.jobs() if job["metadata"]["labels"].get(label) == "score"]


def uids(kube: Kube) -> set[str]:
    return {pod["metadata"]["uid"] for pod in kube.pods(NAME)}


def test_an_engine_made_worse_never_serves_and_the_old_one_goes_on(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl, watcher: Watcher
) -> None:
    player.add(worse("INT4AWQ", 65.5))
    kube.create(
        NAME,
        {
            "parallelism": SPLIT,
            "replicas": 2,
            "quantization": {"weights": "FP8", "accuracy": GATE},
        },
    )
    served = kube.wait_ready(NAME, PATIENCE)["status"]["engine"]["serving"]
    accuracy = served["accuracy"]
    assert (accuracy["score"], accuracy["baseline"], accuracy["passed"]) == (68.0, 68.0, True)
    assert (accuracy["task"], accuracy["samples"], accuracy["limit"]) == ("mmlu", 570, "maxDrop 1")
    assert accuracy["measured"]
    assert len(scores(kube)) == 2
    old = uids(kube)
    mark = watcher.mark()

    kube.edit(NAME, {"quantization": {"weights": "INT4AWQ"}})
    stalled = kube.wait_reason(NAME, "Stalled", "AccuracyTooLow", PATIENCE)
    for words in (
        "mmlu 65.50 over 570 samples",
        "baseline 68.00",
        "maxDrop 1",
        "fails by 1.50",
        "try quantization.weights FP8",
    ):
        assert words in stalled["message"]
    engine = kube.get(NAME)["status"]["engine"]
    assert engine["serving"]["key"] == served["key"]
    assert (engine["next"]["accuracy"]["score"], engine["next"]["accuracy"]["passed"]) == (
        65.5,
        False,
    )
    assert kube.condition(NAME, "Available")["status"] == "True"
    # Nothing of it is tried again, and no pod of it ever was: trtllm-eval loads a copy of its own.
    assert not kube.wait_quietly(3.0, lambda: uids(kube) != old)
    assert watcher.least_ready_since(mark, NAME) == 2
    # The baseline is kept: only the new engine was measured.
    assert len(scores(kube)) == 3

    kube.edit(NAME, {"quantization": {"accuracy": {"maxDrop": 3.0}}})
    kube.wait_ready(NAME, PATIENCE)
    assert not uids(kube) & old
    assert len(scores(kube)) == 3


def test_a_candidate_that_answers_badly_gives_its_gpus_back(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    """Of several stages the candidate itself is asked, and a server of the 16-bit model beside."""
    player.add(worse("INT4AWQ", 20.0))
    gate = {"task": "gsm8k", "maxDrop": 1.0}
    split = {"tensor": 8, "pipeline": 2}
    kube.create(NAME, {"parallelism": split, "quantization": {"weights": "FP8", "accuracy": gate}})
    kube.wait_ready(NAME, PATIENCE)
    old = uids(kube)
    kube.edit(NAME, {"quantization": {"weights": "INT4AWQ"}})
    kube.wait_reason(NAME, "Stalled", "AccuracyTooLow", PATIENCE)
    kube.wait("the candidate's pods gone", lambda: uids(kube) == old, PATIENCE)
    pods = [job["spec"]["template"]["spec"] for job in scores(kube)]
    asked = {container["image"] for pod in pods for container in pod["containers"]}
    assert asked == {"registry.example.com/lm-eval:0.4.9.2"}
    # The 16-bit model once; both candidates where they ran.
    (server,) = [container for pod in pods for container in pod.get("initContainers", ())]
    assert len(pods) == 3
    assert server["restartPolicy"] == "Always"
    assert server["image"] == kube.pods(NAME)[0]["spec"]["containers"][0]["image"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_another_gate_over_what_serves_replaces_no_pod(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    kube.create(NAME, {"parallelism": SPLIT, "quantization": {"weights": "FP8"}})
    kube.wait_ready(NAME, PATIENCE)
    old = uids(kube)
    kube.edit(NAME, {"quantization": {"accuracy": GATE}})
    found = kube.wait_ready(NAME, PATIENCE)
    assert found["status"]["engine"]["serving"]["accuracy"]["passed"] is True
    assert uids(kube) == old
    kube.edit(NAME, {"quantization": {"accuracy": None}})
    kube.wait_ready(NAME, PATIENCE)
    assert uids(kube) == old


def test_a_limit_edited_while_the_candidate_is_asked_keeps_it_and_zero_replicas_end_it(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    """The candidate goes on being asked; scaled to zero nobody is, and nothing is waited for."""
    player.delays(score=600.0)
    gate = {"task": "gsm8k", "minScore": 60.0}
    split = {"tensor": 2, "pipeline": 2}
    kube.create(NAME, {"parallelism": split, "quantization": {"weights": "FP8", "accuracy": gate}})
    kube.wait("its score is measured", lambda: len(scores(kube)) == 1, PATIENCE)
    candidate, job = uids(kube), scores(kube)[0]["metadata"]["uid"]
    assert len(candidate) == 2

    kube.edit(NAME, {"quantization": {"accuracy": {"minScore": 61.0}}})
    changed = kube.wait_quietly(
        3.0,
        lambda: (
            uids(kube) != candidate or [one["metadata"]["uid"] for one in scores(kube)] != [job]
        ),
    )
    assert not changed

    kube.edit(NAME, {"replicas": 0})
    kube.wait_reason(NAME, "Ready", "ScaledToZero", PATIENCE)
    kube.wait("nothing left", lambda: not uids(kube) and not scores(kube), PATIENCE)
    player.delays(score=0.0)
    kube.edit(NAME, {"replicas": 1})
    found = kube.wait_ready(NAME, PATIENCE)["status"]["engine"]["serving"]["accuracy"]
    assert (found["limit"], found["passed"]) == ("minScore 61", True)


def test_a_baseline_that_fits_no_node_is_refused_with_the_ways_out(
    running: Operator, kube: Kube, h100s: list[str], player: PlayerControl
) -> None:
    change = {
        "model": {"uri": "hf://meta-llama/Llama-3.1-405B-Instruct@main"},
        "parallelism": {"tensor": 8, "pipeline": 1},
        "quantization": {"weights": "FP8", "accuracy": GATE},
    }
    kube.create(NAME, change)
    refused = kube.wait_reason(NAME, "Accepted", "BaselineUnavailable", PATIENCE)
    assert "GiB" in refused["message"]
    assert "minScore" in refused["message"]
    assert {job["metadata"]["labels"]["shardwright.dev/step"] for job in kube.jobs()} == {"model"}
    kube.edit(NAME, {"quantization": {"accuracy": {"baseline": "86"}}})
    kube.wait_reason(NAME, "Accepted", "Accepted", PATIENCE)
