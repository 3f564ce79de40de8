"""The accuracy gate's rules: limits, verdicts, keys, tools, baselines, and what to try next."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from shardwright_standin import commandline
from tests.golden import specs
from tests.support.matrix import SOURCES

from shardwright.api.accuracy import Accuracy, Task
from shardwright.api.serving import WeightPrecision
from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.gpus import driver_memory
from shardwright.observe.projections import job_view
from shardwright.observe.world import Record, RecordState
from shardwright.plan.baseline import gate_plan
from shardwright.plan.gate import (
    Answer,
    gate_keys,
    judge,
    loaded,
    next_precision,
    same_pods,
    told,
    unscored,
    verdict,
)
from shardwright.plan.resolve import Planned, gated, model_folder, model_key, resolve
from shardwright.plan.revisions import dump, load
from shardwright.render.jobs import step_job
from shardwright.resolved import Resolved, Score
from shardwright.runner.contract import (
    ENV_REQUEST,
    STEP_MODEL,
    STEP_PROOF,
    STEP_SCORE,
    Command,
    StepRequest,
    decode,
)
from shardwright.runtimes.base import ModelSource, Refusal
from shardwright.runtimes.evaluation import Baseline
from shardwright.runtimes.evaluation_ways import Way, refuse, way_of
from shardwright.runtimes.registry import runtime

PERPLEXITY: dict[str, Any] = {
    "task": "perplexity",
    "dataset": "a.txt",
    "maxDrop": None,
    "maxRise": 0.5,
}
MMLU: dict[str, Any] = {"task": "mmlu", "samples": 570, "dataset": "data/mmlu"}
IMAGE = "registry.example.com/lm-eval:0.4.9.2"
SETTINGS = specs.SETTINGS.model_copy(update={"evaluation_image": IMAGE})


def gate(**changes: Any) -> Accuracy:
    return Accuracy.model_validate({"task": "mmlu", "maxDrop": 1.0, **changes})


def spec(accuracy: dict[str, Any] | None, **changes: Any) -> LLMDeploymentSpec:
    quantization = {"weights": "FP8", **changes.pop("quantization", {})}
    if accuracy is not None:
        quantization["accuracy"] = accuracy
    return specs.spec(quantization=quantization, **changes)


def resolved(
    accuracy: dict[str, Any] | None,
    *,
    settings: Settings = SETTINGS,
    previous: Resolved | None = None,
    tensor: int = 1,
    **changes: Any,
) -> Resolved:
    asked = spec(accuracy, **changes)
    block = asked.quantization.accuracy
    measures = block is not None and block.measures_baseline
    return resolve(
        asked,
        runtime=runtime(asked.engine.runtime),
        settings=settings,
        claim=specs.CLAIM,
        record=Record(
            STEP_MODEL,
            model_key(asked),
            specs.CLAIM.uid,
            RecordState.READY,
            commit=specs.COMMIT,
            facts=specs.LLAMA_8B,
        ),
        facts=specs.LLAMA_8B,
        restarted_at="",
        previous=previous,
        planned=Planned(baseline=Baseline(tensor) if measures else None),
    )


def score(found: Resolved, one: Score, value: float, samples: int = 570) -> Record:
    return Record(
        STEP_SCORE,
        one.key,
        found.claim_uid,
        RecordState.READY,
        score=value,
        samples=samples,
        created=1000.0,
    )


def by_key(*records: Record) -> dict[tuple[str, str, str], Record]:
    return {(one.claim_uid, one.step, one.key): one for one in records}


# What a user may write


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"maxDrop": None}, "exactly one limit"),
        ({"minScore": 60.0}, "exactly one limit"),
        ({"maxDrop": None, "maxRise": 0.1}, "less is better"),
        ({"task": "perplexity", "dataset": "t.txt"}, "less is better"),
        ({"task": "perplexity", "maxDrop": None, "maxRise": 0.1}, "needs dataset"),
        ({"dataset": "data/../../secret"}, "must not contain"),
        ({"baseline": "about 70"}, "neither Measure nor a score"),
        ({"baseline": 68.2}, "in quotes"),
        ({"baseline": True}, "neither Measure nor a score"),
        ({"maxDrop": -1.0}, "greater than or equal"),
        ({"task": "hellaswag"}, "mmlu"),
        (
            {"baseline": 1000},
            "baseline 1000 is no score of task mmlu, which is per cent: give 0 to 100",
        ),
        (
            {"task": "cnn_dailymail", "baseline": "100.01"},
            "baseline 100.01 is no score of task cnn_dailymail, which is per cent: give 0 to 100",
        ),
        (
            {"baseline": "0.682"},
            "maxDrop 1 is not less than baseline 0.682, so that a score of 0 would pass: lower",
        ),
        (
            {"task": "gsm8k", "baseline": 40, "maxDrop": 40},
            "baseline 40, so that .* lower maxDrop, or give the baseline in per cent, not as a",
        ),
        (
            {**PERPLEXITY, "baseline": "0.9"},
            "baseline 0.9 is no perplexity, which is 1 or more",
        ),
        ({**PERPLEXITY, "baseline": 0}, "baseline 0 is no perplexity, which is 1 or more"),
    ],
)
def test_a_gate_that_says_nothing_clear_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        gate(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"baseline": 100},
        {"baseline": "100.0"},
        {"baseline": "1.5"},
        {"baseline": "Measure", "maxDrop": 100},
        {"maxDrop": None, "minScore": 100},
        {"maxDrop": None, "minScore": 0},
        {**PERPLEXITY, "baseline": 1},
        {**PERPLEXITY, "baseline": "999999.999999"},
        {**PERPLEXITY, "baseline": "Measure"},
    ],
)
def test_what_the_unit_of_a_task_can_have_is_taken(changes: dict[str, Any]) -> None:
    read = gate(**changes).model_dump(mode="json", by_alias=True, exclude_none=True)
    asked = {"task": "mmlu", "maxDrop": 1.0, "baseline": "Measure", **changes}
    assert read == {name: value for name, value in asked.items() if value is not None}


@pytest.mark.parametrize(("given_", "is_"), [("Measure", None), ("68.2", 68.2), (68, 68.0)])
def test_a_baseline_is_measured_or_given(given_: object, is_: float | None) -> None:
    asked = gate(baseline=given_)
    assert (asked.measures_baseline, asked.given_baseline) == (is_ is None, is_)


def test_an_absolute_limit_needs_no_baseline() -> None:
    assert not gate(maxDrop=None, minScore=60.0).measures_baseline


# Verdicts


@pytest.mark.parametrize(
    ("limit", "score_", "baseline", "answer"),
    [
        ({"maxDrop": 1.0}, 67.2, 68.2, Answer.PASSED),
        ({"maxDrop": 1.0}, 67.19, 68.2, Answer.FAILED),
        ({"maxDrop": 0.0}, 68.2, 68.2, Answer.PASSED),
        ({"maxDrop": 0.0}, 70.0, 68.2, Answer.PASSED),
        ({"maxDrop": 1.0}, 67.2, None, Answer.UNDECIDED),
        ({"maxDrop": 1.0}, None, 68.2, Answer.UNDECIDED),
        ({"maxDrop": None, "minScore": 65.0}, 65.0, None, Answer.PASSED),
        ({"maxDrop": None, "minScore": 65.0}, 64.99, None, Answer.FAILED),
    ],
)
def test_points_below_a_baseline_or_an_absolute_score(
    limit: dict[str, Any], score_: float | None, baseline: float | None, answer: Answer
) -> None:
    assert judge(gate(**limit), score_, baseline).answer is answer


@pytest.mark.parametrize(
    ("limit", "score_", "baseline", "answer"),
    [
        ({"maxRise": 0.2}, 5.7, 5.5, Answer.PASSED),
        ({"maxRise": 0.2}, 5.71, 5.5, Answer.FAILED),
        ({"maxRise": 0.2}, 4.0, 5.5, Answer.PASSED),
        ({"maxPerplexity": 6.0}, 6.0, None, Answer.PASSED),
        ({"maxPerplexity": 6.0}, 6.1, None, Answer.FAILED),
    ],
)
def test_of_a_perplexity_less_is_better(
    limit: dict[str, Any], score_: float, baseline: float | None, answer: Answer
) -> None:
    asked = gate(task="perplexity", dataset="text.txt", maxDrop=None, **limit)
    assert judge(asked, score_, baseline).answer is answer


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_a_better_score_never_fails_where_a_worse_one_passes(
    one: float, other: float, drop: float
) -> None:
    asked = gate(maxDrop=drop)
    low, high = sorted((one, other))
    if judge(asked, low, 50.0).passed:
        assert judge(asked, high, 50.0).passed


def test_the_words_have_both_scores_the_limit_and_by_how_much_it_failed() -> None:
    said = told(judge(gate(maxDrop=1.0), 65.8, 68.2, samples=570))
    assert said == (
        "mmlu 65.80 over 570 samples, baseline 68.20, maxDrop 1, fails by 1.40 (67.20 would pass)"
    )


# Keys: what is measured, and what is demanded


def test_a_spec_without_a_gate_has_the_keys_it_always_had() -> None:
    plain = resolved(None)
    assert plain.gate is None
    assert "gate" not in dump(plain)
    assert load(dump(plain)) == replace(plain, facts=replace(plain.facts, config=""))


def test_a_gate_changes_the_proof_and_nothing_else() -> None:
    plain, found = resolved(None), resolved({**MMLU, "minScore": 60.0})
    assert found.artifacts == plain.artifacts
    assert found.proof_key != plain.proof_key
    assert found.gate is not None
    assert (found.gate.loads_key, found.gate.loads_inputs) == (
        plain.proof_key,
        plain.proof_inputs,
    )
    assert same_pods(plain, found)


@pytest.mark.parametrize(
    "limit", [{"minScore": 60.0}, {"maxDrop": 2.0}, {"maxDrop": 1, "baseline": 70}]
)
def test_another_limit_asks_for_another_proof_and_no_other_score(limit: dict[str, Any]) -> None:
    found, other = resolved({**MMLU, "maxDrop": 1.0}), resolved({**MMLU, **limit})
    assert found.gate is not None
    assert other.gate is not None
    assert found.gate.score.key == other.gate.score.key
    assert found.proof_key != other.proof_key


@pytest.mark.parametrize(
    "change",
    [
        {"task": "gsm8k"},
        {"samples": 100},
        {"dataset": "data/other"},
        {"dataset": None},
    ],
)
def test_another_measurement_is_another_score(change: dict[str, Any]) -> None:
    found = resolved({**MMLU, "minScore": 60.0}).gate
    other = resolved({**MMLU, "minScore": 60.0, **change}).gate
    assert found is not None
    assert other is not None
    assert found.score.key != other.score.key


@pytest.mark.parametrize(
    "change",
    [
        {"quantization": {"weights": "INT4AWQ"}},
        {"engine": {"limits": {"maxBatchSize": 32}}},
        {"parallelism": {"tensor": 2}},
    ],
)
def test_another_engine_has_another_score_and_the_same_baseline(change: dict[str, Any]) -> None:
    found = resolved({**MMLU, "maxDrop": 1.0}).gate
    other = resolved({**MMLU, "maxDrop": 1.0}, tensor=2, **change).gate
    assert found is not None
    assert other is not None
    assert found.baseline is not None
    assert other.baseline is not None
    assert found.score.key != other.score.key
    assert found.baseline.key == other.baseline.key


def test_a_revision_s_data_hold_the_gate() -> None:
    found = resolved({**MMLU, "maxDrop": 1.0})
    again = load(dump(found))
    assert again.gate == found.gate
    assert isinstance(again.gate and again.gate.baseline, Score)


def test_lm_eval_s_image_is_kept_while_settings_change_and_is_part_of_its_scores() -> None:
    asked = {"task": "gsm8k", "minScore": 60.0}
    split = {"parallelism": {"tensor": 8, "pipeline": 2}}
    found = resolved(asked, **split)
    newer = SETTINGS.model_copy(update={"evaluation_image": "registry.example.com/lm-eval:1"})
    kept = resolved(asked, settings=newer, previous=found, **split)
    fresh = resolved(asked, settings=newer, **split)
    assert found.gate is not None
    assert kept.gate is not None
    assert fresh.gate is not None
    assert kept.gate.score.key == found.gate.score.key
    assert fresh.gate.score.key != found.gate.score.key


# What was measured already


def test_a_gate_waits_for_both_scores_and_judges_them() -> None:
    found = resolved({**MMLU, "maxDrop": 1.0})
    assert found.gate is not None
    own, base = found.gate.score, found.gate.baseline
    assert base is not None
    assert unscored(found, {}, asks_leader=False) == (own, base)
    assert unscored(found, {}, asks_leader=True) == ()
    half = by_key(score(found, own, 65.8))
    assert unscored(found, half, asks_leader=False) == (base,)
    waits = verdict(found, half)
    assert waits is not None
    assert waits.answer is Answer.UNDECIDED
    both = verdict(found, by_key(score(found, own, 65.8), score(found, base, 68.2)))
    assert both is not None
    assert (both.answer, both.score, both.baseline, both.samples) == (
        Answer.FAILED,
        65.8,
        68.2,
        570,
    )


def test_that_it_loads_is_known_from_whoever_found_it() -> None:
    found, plain = resolved({**MMLU, "minScore": 60.0}), resolved(None)
    assert not loaded(found, {})
    proof = Record(STEP_PROOF, plain.proof_key, plain.claim_uid, RecordState.READY)
    assert loaded(found, by_key(proof))
    assert plain.proof_key in gate_keys(found)
    assert not loaded(found, by_key(replace(proof, state=RecordState.FAILED)))


def test_pods_are_the_same_only_if_nothing_but_the_gate_differs() -> None:
    found = resolved({**MMLU, "minScore": 60.0})
    assert same_pods(found, resolved({**MMLU, "minScore": 61.0}))
    assert not same_pods(found, resolved({**MMLU, "minScore": 60.0}, pod={"shmSize": "1Gi"}))
    assert not same_pods(found, replace(found, restarted_at="2026-01-01T00:00:00Z"))


# Tools


@pytest.mark.parametrize("task", ["mmlu", "gsm8k", "cnn_dailymail"])
@pytest.mark.parametrize("backend", ["TensorRT", "PyTorch"])
def test_trtllm_eval_loads_what_is_served_on_as_many_gpus(task: str, backend: str) -> None:
    found = resolved(
        {"task": task, "minScore": 1.0, "dataset": "data/x", "samples": 7},
        engine={"backend": backend},
        parallelism={"tensor": 4},
        quantization={"kvCache": "FP8"},
    )
    assert found.gate is not None
    one = found.gate.score
    assert (one.gpus, one.product, one.asks_leader) == (4, specs.H100, False)
    (command,) = one.commands
    parsed = commandline.parse("trtllm-eval", command.argv[1:])
    assert parsed.command == task
    assert parsed.values["tp_size"] == 4
    assert parsed.values["backend"] == backend.lower()
    assert parsed.values["model"].endswith(f"{found.serve_step}/{found.serve_key}")
    assert parsed.inner["num_samples"] == 7
    assert parsed.inner["dataset_path"] == "/shardwright/store/data/x"
    assert one.config["max_seq_len"] == found.spec.engine.limits.max_seq_len
    flags = {word.removeprefix("--") for word in command.argv if word.startswith("--")}
    assert not flags & set(one.config)


def test_a_baseline_is_the_model_s_own_files_on_the_pytorch_backend() -> None:
    found = resolved({**MMLU, "maxDrop": 1.0}, tensor=2)
    assert found.gate is not None
    base = found.gate.baseline
    assert base is not None
    assert (base.gpus, base.loads) == (2, model_folder(found.spec))
    parsed = commandline.parse("trtllm-eval", base.commands[0].argv[1:])
    assert (parsed.values["model"], parsed.values["backend"]) == (base.loads, "pytorch")
    assert base.config == {"dtype": "bfloat16"}
    assert "weights" not in base.inputs["of"]  # type: ignore[operator]


@pytest.mark.parametrize("task", ["mmlu", "gsm8k"])
def test_an_engine_of_several_stages_is_asked_by_lm_eval(task: str) -> None:
    found = resolved(
        {"task": task, "minScore": 1.0, "samples": 570, "dataset": "data/hf"},
        parallelism={"tensor": 8, "pipeline": 2},
    )
    assert found.gate is not None
    one = found.gate.score
    assert (one.gpus, one.asks_leader, one.image) == (0, True, IMAGE)
    (command,) = one.commands
    parsed = commandline.parse("lm_eval", command.argv[1:])
    arguments = dict(pair.split("=", 1) for pair in parsed.values["model_args"].split(","))
    assert arguments["base_url"] == "http://{leader}:8000/v1/completions"
    assert arguments["tokenized_requests"] == "False"
    # A server that tells no log probabilities of prompts; 57 subjects of 10 each.
    asked, limit = {"mmlu": ("mmlu_generative", 10), "gsm8k": ("gsm8k", 570)}[task]
    assert (parsed.values["tasks"], parsed.values["limit"]) == (asked, limit)
    assert command.env["HF_HOME"] == "/shardwright/store/data/hf"


def test_every_argument_of_lm_eval_s_model_is_recorded() -> None:
    from shardwright_standin import contracts  # noqa: PLC0415

    found = resolved(
        {"task": "gsm8k", "minScore": 1.0},
        parallelism={"tensor": 8, "pipeline": 2},
        model={"uri": "hf://org/model", "trustRemoteCode": True},
    )
    assert found.gate is not None
    argv = found.gate.score.commands[0].argv
    words = argv[argv.index("--model_args") + 1].split(",")
    recorded = contracts.load("lm_eval")["model_args"]
    assert {word.split("=")[0] for word in words} <= set(recorded)


def job_of(found: Resolved, one: Score | None = None, **more: Any) -> dict[str, Any]:
    """The Job of a score, by default of what is served."""
    assert found.gate is not None
    return step_job(
        one or found.gate.score,
        attempt=1,
        owners=[specs.owner()],
        spec=found.spec,
        claim=specs.CLAIM,
        settings=SETTINGS,
        runner_config_map="runner",
        **more,
    )


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_score_s_job_mounts_what_it_reads_and_knows_whom_to_ask(pipeline: int) -> None:
    found = resolved(
        {"task": "gsm8k", "minScore": 1.0},
        model={"uri": "pvc://weights/llama"},
        parallelism={"tensor": 2, "pipeline": pipeline},
    )
    assert found.gate is not None
    one = found.gate.score
    job = job_of(found, leader="llama-0.ranks.llm.svc" if one.asks_leader else "")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # The tokenizer lies beside the user's own model.
    assert "source" in {volume["name"] for volume in pod["volumes"]}
    asked = decode(
        StepRequest,
        next(one["value"] for one in container["env"] if one["name"] == ENV_REQUEST),
    )
    assert (asked.step, asked.key, asked.config) == (STEP_SCORE, one.key, one.config)
    gpus = container["resources"]["limits"].get("nvidia.com/gpu")
    if pipeline == 1:
        assert (gpus, asked.leader) == ("2", "")
        assert asked.source.endswith(f"engine/{found.serve_key}")
        assert container["image"] == found.image
    else:
        assert (gpus, asked.leader, asked.source) == (None, "llama-0.ranks.llm.svc", "")
        assert container["image"] == IMAGE


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({}, ("model",)),  # the tokenizer beside an engine
        ({"engine": {"backend": "PyTorch"}, "quantization": {"weights": "None"}}, ()),
        ({"parallelism": {"tensor": 8, "pipeline": 2}}, ("model",)),  # lm_eval's tokenizer
        ({"model": {"uri": "pvc://weights/llama"}}, ()),  # has no manifest
    ],
)
def test_a_score_s_job_looks_at_all_that_it_reads(
    changes: dict[str, Any], reads: tuple[str, ...]
) -> None:
    found = resolved({"task": "gsm8k", "minScore": 1.0}, **changes)
    assert found.gate is not None
    one = found.gate.score
    assert one.also == tuple({"model": found.model_key}[name] for name in reads)
    job = job_of(found, also_attempts=(3,) * len(reads))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    asked = decode(
        StepRequest,
        next(env["value"] for env in container["env"] if env["name"] == ENV_REQUEST),
    )
    assert [(beside.step, beside.key) for beside in asked.also] == [
        (STEP_MODEL, found.model_key) for _ in reads
    ]
    job["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    assert job_view(job).also_attempts == (3,) * len(reads)
    assert load(dump(found)).gate == found.gate


def as_runtime(name: str, asked: LLMDeploymentSpec) -> LLMDeploymentSpec:
    """The same for a runtime that need not be in this version's table."""
    engine = asked.engine.model_copy(update={"runtime": _Named(name)})
    return asked.model_copy(update={"engine": engine})


class _Named(str):
    """A runtime by its name."""

    __slots__ = ()

    @property
    def value(self) -> str:
        return str(self)


@pytest.mark.parametrize(
    ("name", "pipeline", "task", "way"),
    [
        ("TensorRTLLM", 1, "mmlu", Way.TRTLLM_EVAL),
        ("TensorRTLLM", 1, "cnn_dailymail", Way.TRTLLM_EVAL),
        ("TensorRTLLM", 2, "gsm8k", Way.LM_EVAL),
        ("TensorRTLLM", 2, "cnn_dailymail", Way.LM_EVAL),
        ("TensorRTLLM", 1, "perplexity", "no log probabilities"),
        ("VLLM", 1, "mmlu", Way.LM_EVAL),
        ("SGLang", 2, "gsm8k", Way.LM_EVAL),
        ("VLLM", 2, "perplexity", Way.PERPLEXITY),
        ("SGLang", 1, "perplexity", Way.PERPLEXITY),
        ("VLLM", 1, "cnn_dailymail", Way.LM_EVAL),
        ("NIM", 1, "mmlu", Way.LM_EVAL),
        ("NIM", 1, "perplexity", Way.PERPLEXITY),
        ("Triton", 1, "mmlu", Way.TRTLLM_EVAL),
        ("Triton", 1, "cnn_dailymail", Way.TRTLLM_EVAL),
        ("Triton", 2, "mmlu", "pipeline 2: trtllm-eval loads an engine of one stage"),
        ("Triton", 1, "perplexity", "no OpenAI-style endpoint"),
    ],
)
def test_the_table_of_tools(name: str, pipeline: int, task: str, way: Way | str) -> None:
    limit = {"maxPerplexity": 9.0} if task == "perplexity" else {"minScore": 1.0}
    asked = spec(
        {"task": task, "dataset": "data/x", **limit},
        parallelism={"tensor": 1, "pipeline": pipeline},
    )
    block = asked.quantization.accuracy
    assert block is not None
    found = way_of(as_runtime(name, asked), block)
    if isinstance(way, Way):
        assert found is way
    else:
        assert isinstance(found, Refusal)
        assert found.reason == "AccuracyTaskNotSupported"
        assert way in found.message
        assert found.source in SOURCES


def test_perplexity_is_asked_with_passages_that_fit_the_engine() -> None:
    asked = as_runtime(
        "VLLM",
        spec(
            {"task": "perplexity", "maxPerplexity": 9.0, "dataset": "t.txt", "samples": 5},
            engine={"limits": {"maxInputLen": 1000, "maxSeqLen": 2000}},
        ),
    )
    plain = replace(resolved(None), spec=asked)
    model = ModelSource(model_key(asked), specs.COMMIT, model_folder(asked), specs.LLAMA_8B)
    found = gated(plain, model, SETTINGS, None, None)
    assert found.gate is not None
    one = found.gate.score
    assert one.commands == (
        Command(
            tool="perplexity",
            argv=(
                "perplexity",
                *("--url", "http://{leader}:8000"),
                *("--model", "model"),
                *("--text", "/shardwright/store/t.txt"),
                *("--passage_bytes", "999"),  # and the token that a server puts before them
                *("--passages", "5"),
            ),
        ),
    )
    assert (one.image, one.gpus, one.asks_leader) == (SETTINGS.operator_image, 0, True)
    assert "toolImage" not in one.inputs  # the runner is part of no key


# Refused before anything is built


def plan(accuracy: dict[str, Any], domain: int = 8, **changes: Any) -> Any:
    facts = changes.pop("facts", specs.LLAMA_8B)
    asked = spec(accuracy, **changes)
    return gate_plan(asked, facts, driver_memory(asked.gpu.product), domain)


def test_a_baseline_takes_the_fewest_gpus_that_hold_it() -> None:
    assert plan({**MMLU, "maxDrop": 1.0}) == Baseline(1)
    assert plan({**MMLU, "maxDrop": 1.0}, facts=specs.LLAMA_70B) == Baseline(4)
    assert plan({**MMLU, "minScore": 60.0}) is None
    assert plan({**MMLU, "maxDrop": 1.0, "baseline": "68.2"}) is None


@pytest.mark.parametrize(
    ("facts", "domain", "said"),
    [
        (specs.LLAMA_405B, 8, "756.0 GiB of weights, and 8 GPUs of NVIDIA-H100-80GB-HBM3"),
        (specs.LLAMA_70B, 1, "1 GPU of"),
        (specs.facts(quantization="gptq"), 8, "comes quantized by gptq"),
    ],
)
def test_a_baseline_that_cannot_run_here_is_refused_with_numbers(
    facts: Any, domain: int, said: str
) -> None:
    found = plan({**MMLU, "maxDrop": 1.0}, domain=domain, facts=facts)
    assert found.reason == "BaselineUnavailable"
    assert said in found.message
    assert 'baseline: "68.2"' in found.message
    assert "minScore" in found.message


def test_lm_eval_without_an_image_is_refused() -> None:
    split = {"parallelism": {"tensor": 8, "pipeline": 2}}
    asked = spec({"task": "gsm8k", "minScore": 1.0}, **split)
    found = refuse(asked, specs.SETTINGS)
    assert found is not None
    assert found.reason == "EvaluationImageUnknown"
    assert refuse(spec(None), specs.SETTINGS) is None
    before = resolved({"task": "gsm8k", "minScore": 1.0}, **split)
    assert refuse(asked, specs.SETTINGS, before) is None, "it keeps the image that it had"


# What Triton serves


@pytest.mark.parametrize("backend", ["TensorRT", "PyTorch"])
def test_what_triton_serves_is_measured_without_triton(backend: str) -> None:
    options: dict[str, Any] = {
        "TensorRT": {"decoupled_mode": False},
        "PyTorch": {"enable_chunked_prefill": True},
    }
    found = resolved(
        {"task": "mmlu", "minScore": 1.0, "dataset": "data/mmlu"},
        engine={"runtime": "Triton", "backend": backend, "config": options[backend]},
        parallelism={"tensor": 2},
    )
    plain = resolved(
        {"task": "mmlu", "minScore": 1.0, "dataset": "data/mmlu"},
        engine={"runtime": "Triton", "backend": backend},
        parallelism={"tensor": 2},
    )
    assert found.gate is not None
    assert plain.gate is not None
    one = found.gate.score
    assert (one.gpus, one.asks_leader, one.image) == (2, False, found.image)
    parsed = commandline.parse("trtllm-eval", one.commands[0].argv[1:])
    assert parsed.values["backend"] == backend.lower()
    assert parsed.values["model"].endswith(f"{found.serve_step}/{found.serve_key}")
    # Options of Triton's own models are none of the engine's, those of the LLM API are.
    engine = backend == "TensorRT"
    assert (found.gate.score.key == plain.gate.score.key) is engine
    assert not set(options["TensorRT"]) & set(one.config)
    assert set(options["PyTorch"]) <= set(one.config) or engine


def test_summaries_are_asked_for_in_lm_eval_s_words() -> None:
    found = resolved(
        {"task": "cnn_dailymail", "minScore": 30.0, "samples": 100},
        parallelism={"tensor": 8, "pipeline": 2},
    )
    assert found.gate is not None
    parsed = commandline.parse("lm_eval", found.gate.score.commands[0].argv[1:])
    assert (parsed.values["tasks"], parsed.values["num_fewshot"], parsed.values["limit"]) == (
        "cnn_dailymail_abisee",
        0,
        100,
    )


def test_options_that_are_measured_with_are_in_the_score_s_key_and_memory_is_not() -> None:
    asked = {"task": "mmlu", "minScore": 1.0}
    plain = resolved(asked)
    option = resolved(asked, engine={"config": {"enable_chunked_prefill": True}})
    memory = resolved(asked, engine={"limits": {"gpuMemoryFraction": 0.5}})
    assert option.proof_key != plain.proof_key
    assert memory.proof_key == plain.proof_key


# What to try next


@pytest.mark.parametrize(
    ("weights", "kv_cache", "compute", "advice"),
    [
        ("FP8", "None", (9, 0), "quantization.weights INT8SmoothQuant"),
        ("INT8SmoothQuant", "None", (9, 0), "quantization.weights None"),
        ("INT4AWQ", "None", (9, 0), "quantization.weights FP8"),
        ("INT4AWQ", "None", (8, 0), "quantization.weights INT8SmoothQuant"),
        ("INT8", "None", (8, 0), "quantization.weights None"),
        ("NVFP4", "None", (10, 0), "quantization.weights FP8"),
        ("FP8", "None", (10, 0), "quantization.weights None"),
        ("None", "FP8", (9, 0), "quantization.kvCache None"),
        ("None", "None", (9, 0), "another model, or another limit"),
    ],
)
def test_the_next_precision_is_one_that_runtime_and_gpu_have(
    weights: str, kv_cache: str, compute: tuple[int, int], advice: str
) -> None:
    asked = spec({**MMLU, "minScore": 60.0}, quantization={"weights": weights, "kvCache": kv_cache})
    assert next_precision(asked, specs.LLAMA_8B, compute).startswith(advice)


def test_every_precision_has_a_next_one() -> None:
    for weights in WeightPrecision:
        asked = spec({**MMLU, "minScore": 60.0}, quantization={"weights": weights.value})
        assert next_precision(asked, specs.LLAMA_8B, None)


def test_every_task_is_measured_by_some_runtime() -> None:
    assert set(Task) == {Task.MMLU, Task.GSM8K, Task.CNN_DAILYMAIL, Task.PERPLEXITY}


# Calibration


@pytest.mark.parametrize(
    ("quantization", "warned"),
    [
        ({"weights": "FP8"}, True),
        ({"weights": "INT4AWQ"}, True),
        ({"weights": "INT8"}, False),
        ({"weights": "None"}, False),
        ({"weights": "FP8", "calibration": {"dataset": "calibration/requests"}}, False),
        ({"weights": "INT8", "kvCache": "INT8"}, True),
    ],
)
def test_scales_that_come_from_a_public_data_set_are_warned_of(
    quantization: dict[str, Any], warned: bool
) -> None:
    found = resolved(None, quantization=quantization)
    said = [reason for reason in found.reasons if "calibrated with cnn_dailymail" in reason]
    assert bool(said) is warned


def test_a_score_that_is_no_number_never_passes() -> None:
    for limit in ({"minScore": 60.0}, {"maxDrop": 1.0, "baseline": 70}):
        accuracy = Accuracy.read({"task": "mmlu", **limit})
        assert judge(accuracy, math.nan, 70.0).answer is Answer.FAILED
    rise = Accuracy.read({"task": "perplexity", "dataset": "text", "maxPerplexity": 6.0})
    assert judge(rise, math.nan, None).answer is Answer.FAILED
    assert judge(rise, math.inf, None).answer is Answer.FAILED
