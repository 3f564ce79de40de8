"""Passes over a deployment with an accuracy gate: what is measured when, and what serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.played import IMAGE, MMLU, World

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.observe.world import (
    JobView,
)
from shardwright.plan.resolve import model_key
from shardwright.plan.situation import (
    CreatePods,
    CreateStep,
    DropStep,
    Intent,
    Situation,
)
from shardwright.runner.contract import STEP_SCORE, Report


def failed_after_serving() -> World:
    """FP8 serves, and INT4 AWQ fails its gate."""
    world = World(TensorRT=65.8, PyTorch=68.2)
    world.edit()
    world.edit({**MMLU, "maxDrop": 1.0}, quantization={"weights": "INT4AWQ"})
    return world


def test_an_engine_whose_scores_pass_serves_and_status_shows_them() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit({**MMLU, "maxDrop": 1.0})
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert world.measured == ["TensorRT", "PyTorch"]
    assert world.asked == ["", ""]  # trtllm-eval loads a copy of its own
    engine = world.status.engine
    assert engine is not None
    shown = engine.serving.accuracy
    assert shown is not None
    assert (shown.task, shown.score, shown.baseline, shown.samples) == ("mmlu", 67.9, 68.2, 570)
    assert (shown.passed, shown.limit, shown.measured) == (
        True,
        "maxDrop 1",
        "1970-01-01T00:16:40Z",
    )
    assert "67.90" in world.condition("EngineReady")[2]


def test_an_engine_made_worse_never_has_a_pod_and_the_old_one_goes_on() -> None:
    world = World(TensorRT=65.8, PyTorch=68.2)
    world.edit()
    pods, serving = list(world.pods), world.serving
    world.edit({**MMLU, "maxDrop": 1.0}, quantization={"weights": "INT4AWQ"})
    assert world.pods == pods
    assert world.serving == serving
    status, reason, message = world.condition("Stalled")
    assert (status, reason) == ("True", "AccuracyTooLow")
    assert world.condition("Available")[0] == "True"
    for words in (
        "mmlu 65.80 over 570 samples",
        "baseline 68.20",
        "maxDrop 1",
        "fails by 1.40",
        "try quantization.weights FP8",
        "goes on serving",
    ):
        assert words in message
    assert world.status.engine is not None
    assert world.status.engine.next is not None
    shown = world.status.engine.next.accuracy
    assert shown is not None
    assert (shown.score, shown.baseline, shown.passed) == (65.8, 68.2, False)


def test_what_was_found_is_remembered_when_the_spec_comes_back() -> None:
    world = failed_after_serving()
    measured = list(world.measured)
    world.edit()
    assert world.condition("Ready")[0] == "True"
    world.edit({**MMLU, "maxDrop": 1.0}, quantization={"weights": "INT4AWQ"})
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.measured == measured


def test_a_looser_limit_is_judged_by_the_kept_scores() -> None:
    world = failed_after_serving()
    measured = list(world.measured)
    world.edit({**MMLU, "maxDrop": 3.0}, quantization={"weights": "INT4AWQ"})
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert world.measured == measured


def test_a_tighter_limit_over_what_serves_takes_nothing_down() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit({**MMLU, "maxDrop": 1.0})
    pods, measured = list(world.pods), list(world.measured)
    world.edit({**MMLU, "maxDrop": 0.1})
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.pods == pods
    assert world.measured == measured
    world.edit({**MMLU, "maxDrop": 0.5})
    assert world.condition("Ready")[0] == "True"
    assert world.pods == pods
    assert world.measured == measured


def test_a_gate_over_what_serves_asks_for_scores_and_replaces_no_pod() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit(replicas=3)
    pods = list(world.pods)
    world.edit({**MMLU, "maxDrop": 1.0}, replicas=3)
    assert world.condition("Ready")[0] == "True"
    assert world.pods == pods
    assert {group.revision for group in world.status.groups} == {world.revisions[-1].name}
    world.edit(replicas=3)
    assert world.condition("Ready")[0] == "True"
    assert world.pods == pods


def test_a_revision_whose_name_pods_still_carry_is_kept() -> None:
    world = World(TensorRT=67.9, PyTorch=68.2)
    world.edit()
    first = world.revisions[0].name
    for drop in range(1, 15):
        world.edit({**MMLU, "maxDrop": float(drop)})
    assert world.pods[0].labels[names.LABEL_REVISION] == first
    assert first in {revision.name for revision in world.revisions}
    assert world.condition("Ready")[0] == "True"


def test_a_given_baseline_is_not_measured() -> None:
    world = World(TensorRT=67.9)
    world.edit({**MMLU, "maxDrop": 1.0, "baseline": "70"})
    assert world.measured == ["TensorRT"]
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.pods == []


def test_an_engine_of_several_stages_is_asked_where_it_runs() -> None:
    world = World(TensorRT=40.0)
    world.edit({"task": "gsm8k", "minScore": 50.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert world.asked == ["llama-0-1-0"]
    assert world.condition("Stalled")[1] == "AccuracyTooLow"
    assert world.pods == []  # the candidate gives its GPUs back
    world.edit({"task": "gsm8k", "minScore": 30.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert world.condition("Ready")[0] == "True"
    assert len(world.asked) == 1


@pytest.mark.parametrize(
    ("runtime", "shape"),
    [("TensorRTLLM", {"tensor": 2, "pipeline": 2}), ("VLLM", {"tensor": 4, "pipeline": 1})],
)
def test_the_16_bit_model_is_measured_in_a_pod_of_its_own_before_the_candidate_is_asked(
    runtime: str, shape: dict[str, int]
) -> None:
    gate = {"task": "gsm8k", "maxDrop": 1.0}
    world = World(TensorRT=79.0, FP8=79.0, PyTorch=80.5, plain=80.5)
    engine = {"runtime": runtime, **({"backend": "TensorRT"} if runtime != "VLLM" else {})}
    world.edit(gate, engine=engine, parallelism=shape)
    assert world.asked == ["", "llama-0-1-0"]
    status, reason, message = world.condition("Stalled")
    assert (status, reason) == ("True", "AccuracyTooLow")
    assert "gsm8k 79.00" in message
    assert "baseline 80.50, maxDrop 1, fails by 0.50 (79.50 would pass)" in message
    world.edit({**gate, "maxDrop": 2.0}, engine=engine, parallelism=shape)
    assert world.condition("Ready")[0] == "True"
    assert len(world.asked) == 2, "both scores were kept"
    world.edit(gate, engine=engine, parallelism=shape, quantization={"weights": "None"})
    assert len(world.asked) == 3, "another precision finds the baseline there"


def test_a_candidate_gets_no_requests_before_its_scores_are_in() -> None:
    world = World(TensorRT=60.0)
    serve: list[bool] = []
    whole = world.run

    def run(intent: CreateStep) -> None:
        if intent.artifact.step == STEP_SCORE:
            serve.append(any(names.LABEL_PROTECTED in pod.labels for pod in world.pods))
        whole(intent)

    world.run = run  # type: ignore[method-assign]
    world.edit({"task": "gsm8k", "minScore": 50.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert serve == [False]
    assert world.condition("Ready")[0] == "True"
    assert all(names.LABEL_PROTECTED in pod.labels for pod in world.pods)


def test_scores_that_fail_for_good_stall_and_free_the_candidate() -> None:
    world = World(TensorRT=60.0)

    def run(intent: CreateStep) -> None:
        World.run(world, intent)
        job = world.jobs[-1]
        if job.step == STEP_SCORE:
            world.jobs[-1] = replace(job, complete=False, failed=True)
            world.reports[job.uid] = Report(
                "Permanent", reason="NoScore", message="told no score", step=job.step, key=job.key
            )

    world.run = run  # type: ignore[method-assign]
    world.edit({"task": "gsm8k", "minScore": 50.0}, parallelism={"tensor": 2, "pipeline": 2})
    assert world.condition("Stalled")[:2] == ("True", "NoScore")
    assert world.pods == []


@pytest.mark.parametrize(
    ("accuracy", "changes", "reason"),
    [
        (
            {"task": "perplexity", "maxPerplexity": 9.0, "dataset": "t"},
            {},
            "AccuracyTaskNotSupported",
        ),
        (
            {**MMLU, "maxDrop": 1.0},
            {"engine": {"runtime": "NIM", "image": "nim:2.1.5"}},
            "Baseline",
        ),
        (
            {**MMLU, "minScore": 1.0},
            {
                "engine": {"runtime": "Triton", "backend": "TensorRT"},
                "parallelism": {"tensor": 2, "pipeline": 2},
            },
            "AccuracyTaskNotSupported",
        ),
        ({"task": "gsm8k", "minScore": 1.0}, {"engine": {"runtime": "VLLM"}}, "EvaluationImage"),
        # An open shape, where neither one stage nor several could be measured.
        (
            {"task": "perplexity", "maxPerplexity": 9.0, "dataset": "t"},
            {"parallelism": None, "gpu": None},
            "AccuracyTaskNotSupported",
        ),
    ],
)
def test_a_gate_without_a_tool_is_refused_before_anything_is_fetched(
    accuracy: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    world = World()
    world.settings = Settings(evaluation_image=None if reason == "EvaluationImage" else IMAGE)
    world.fetched = False
    world.edit(accuracy, **changes)
    status, found, _ = world.condition("Accepted")
    assert (status, found.startswith(reason)) == ("False", True)
    assert world.condition("Stalled")[:2] == ("True", found)
    assert (world.made, world.pods) == ([], [])


def test_an_open_shape_that_one_stage_could_measure_is_fetched() -> None:
    world = World()
    world.fetched = False
    world.edit({**MMLU, "maxDrop": 1.0}, parallelism=None)
    assert world.made == ["model"]
    assert world.condition("ModelReady")[0] != "False"


def test_a_gate_keeps_its_tool_when_the_settings_lose_it() -> None:
    world = World(TensorRT=60.0)
    gsm8k = {"task": "gsm8k", "minScore": 50.0}
    split = {"tensor": 2, "pipeline": 2}
    world.edit(gsm8k, parallelism=split)
    world.edit(parallelism=split)
    world.settings = Settings(evaluation_image=None)
    world.edit(gsm8k, parallelism=split)
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")


# What becomes of a candidate that is asked

SPLIT = {"tensor": 2, "pipeline": 2}
GSM8K = {"task": "gsm8k", "minScore": 50.0}


class Slow(World):
    """Scores take until somebody says how they end; replicas break as they are told to."""

    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__(TensorRT=60.0)
        self.breaks = breaks

    def run(self, intent: CreateStep) -> None:
        super().run(intent)
        if intent.artifact.step == STEP_SCORE:
            job = self.jobs[-1]
            self.jobs[-1] = replace(job, complete=False)
            self.reports[f"done-{job.uid}"] = self.reports.pop(job.uid)

    def start(self, intent: CreatePods) -> None:
        super().start(intent)
        if self.breaks:
            refused = Report("Permanent", reason="OutOfMemory", message="does not fit")
            self.pods[-1] = replace(self.pods[-1], phase="Failed", ready=False, report=refused)

    def situation(self) -> Situation:
        found = super().situation()
        return replace(found, now=self.now)

    now = 1000.0

    def carry_out(self, intent: Intent) -> bool:
        if isinstance(intent, DropStep):
            self.jobs = [job for job in self.jobs if job.uid != intent.job.uid]
            return True
        return super().carry_out(intent)

    def end(self, *, done: bool) -> None:
        """The last score's Job ends, well or in its surroundings."""
        job = self.jobs[-1]
        self.jobs[-1] = replace(job, complete=done, failed=not done)
        lost = Report("Environment", reason="ToolFailed", message="the leader does not answer")
        self.reports[job.uid] = self.reports[f"done-{job.uid}"] if done else lost
        self.settle()

    @property
    def scoring(self) -> list[JobView]:
        return [job for job in self.jobs if job.step == STEP_SCORE]


def gated_world(*, breaks: bool = False) -> Slow:
    """A candidate of several stages is there, and its score is being measured."""
    world = Slow(breaks=breaks)
    world.edit(GSM8K, parallelism=SPLIT)
    return world


def test_another_limit_keeps_the_candidate_that_is_asked() -> None:
    world = gated_world()
    pods, jobs = list(world.pods), list(world.jobs)
    assert len(world.scoring) == 1
    world.edit({**GSM8K, "minScore": 59.0}, parallelism=SPLIT)
    assert (world.pods, world.jobs) == (pods, jobs)
    world.end(done=True)
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert [pod.uid for pod in world.pods] == [pod.uid for pod in pods]
    assert {group.revision for group in world.status.groups} == {world.revisions[-1].name}


def test_a_gate_that_is_taken_away_lets_its_candidate_serve() -> None:
    world = gated_world()
    pods = [pod.uid for pod in world.pods]
    world.edit(parallelism=SPLIT)
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert [pod.uid for pod in world.pods] == pods
    assert world.scoring == [], "nobody waits for the score"


def test_another_task_asks_the_same_candidate() -> None:
    world = gated_world()
    pods, [old] = list(world.pods), world.scoring
    world.edit({**GSM8K, "task": "mmlu"}, parallelism=SPLIT)
    [new] = world.scoring
    assert new.key != old.key
    assert world.pods == pods


def test_what_serves_under_the_old_gate_is_no_candidate_of_the_new_one() -> None:
    world = gated_world()
    world.end(done=True)
    pods, first = list(world.pods), world.revisions[-1].name
    world.edit({**GSM8K, "task": "mmlu"}, parallelism=SPLIT)
    assert world.pods[: len(pods)] == pods
    assert [group.revision for group in world.status.groups] == [first, world.revisions[-1].name]


@pytest.mark.parametrize("failed", [False, True])
def test_scaled_to_zero_nobody_is_asked_and_nothing_is_waited_for(failed: bool) -> None:
    world = gated_world()
    if failed:
        world.end(done=False)
        assert world.condition("EngineReady")[1] == "ToolFailed"
    world.edit(GSM8K, parallelism=SPLIT, replicas=0)
    assert world.condition("Ready") == (
        "True",
        "ScaledToZero",
        "scaled to zero: no GPU is held, models and engines are kept",
    )
    assert world.pods == []
    assert all(job.failed for job in world.scoring), "a Job that asks nobody is given up"
    assert sum(step.failures for step in world.status.steps) == int(failed)
    for _ in range(3):  # later passes count nothing twice
        world.now += 3600.0
        world.settle()
        assert world.condition("Ready")[1] == "ScaledToZero"
        assert sum(step.failures for step in world.status.steps) == int(failed)
    world.edit(GSM8K, parallelism=SPLIT, replicas=1)
    world.end(done=True)
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")


def test_failures_of_a_score_are_counted_once_while_its_candidate_is_away() -> None:
    world = gated_world()
    world.end(done=False)
    [tries] = world.status.steps
    assert (tries.step, tries.failures, tries.attempts) == (STEP_SCORE, 1, 1)
    world.now += 3600.0
    world.pods = [replace(pod, ready=False, ready_changed=world.now) for pod in world.pods]
    for _ in range(3):
        world.settle()
        assert [(step.failures, step.attempts) for step in world.status.steps] == [(1, 1)]
    world.pods = [replace(pod, ready=True) for pod in world.pods]
    world.settle()
    assert [job.attempt for job in world.scoring] == [1, 2]


def test_what_does_not_load_is_not_tried_again_under_another_gate() -> None:
    world = gated_world(breaks=True)
    assert world.condition("Stalled")[:2] == ("True", "ProofFailed")
    born = world.born
    for accuracy in ({**GSM8K, "minScore": 40.0}, {**GSM8K, "task": "mmlu"}, None):
        world.edit(accuracy, parallelism=SPLIT)
        status, reason, message = world.condition("Stalled")
        assert (status, reason) == ("True", "ProofFailed")
        assert "does not fit" in message
        assert world.born == born
    world.breaks = False
    world.edit(GSM8K, parallelism=SPLIT, pod={"shmSize": "1Gi"})
    assert world.born > born, "what no key holds may be the cure"
    world.end(done=True)
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")


def test_a_candidate_that_breaks_speaks_against_no_one_who_loads_the_same() -> None:
    world = gated_world()
    world.end(done=True)
    world.breaks = True
    world.edit({**GSM8K, "task": "mmlu"}, parallelism=SPLIT)
    assert world.condition("Stalled")[:2] == ("True", "ProofFailed")
    world.edit(parallelism=SPLIT)
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady"), "it is known to load"


@pytest.mark.parametrize("damaged", ["engine", "model"])
def test_what_a_score_finds_damaged_is_made_anew_and_measured_again(damaged: str) -> None:
    """The engine that it loads, or the model whose tokenizer it reads."""

    class Found(World):
        def run(self, intent: CreateStep) -> None:
            super().run(intent)
            job = self.jobs[-1]
            if job.step != STEP_SCORE or job.attempt > 1:
                return
            self.jobs[-1] = replace(job, complete=False, failed=True)
            bad = {"engine": job.key, "model": model_key(self.spec)}[damaged]
            self.reports[job.uid] = Report(
                "Environment", reason="ManifestMismatch", message="truncated", key=bad
            )

    world = Found(TensorRT=60.0)
    world.edit({**MMLU, "minScore": 50.0})
    assert world.condition("Ready")[:2] == ("True", "AllReplicasReady")
    assert world.made == ["checkpoint", "engine", "score", damaged, "score"]
    remade = [one for one in world.records.values() if one.step == damaged]
    assert [(one.attempt, one.rebuilds) for one in remade] == [(2, 1)]
