"""vLLM and SGLang: what they refuse and why, what they run, and what asks for a new proof."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.golden import specs

from shardwright.api.settings import Settings
from shardwright.api.spec import KVPrecision, Runtime, WeightPrecision
from shardwright.render.pods import serve_request
from shardwright.runner.contract import STEP_MODEL
from shardwright.runtimes import sglang, vllm
from shardwright.runtimes.direct import Direct
from shardwright.runtimes.registry import runtime

SOURCES = yaml.safe_load((Path(__file__).parents[1] / "data/support_sources.yaml").read_text())
ENGINES: dict[str, Direct] = {"VLLM": vllm.ENGINE, "SGLang": sglang.ENGINE}
TURING, AMPERE, ADA, HOPPER, BLACKWELL = (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)
each = pytest.mark.parametrize("name", ENGINES)
LIMITS = {"maxBatchSize": 32, "maxNumTokens": 4096, "maxInputLen": 2048, "maxSeqLen": 4096}


def spec(name: str, **fields: Any) -> Any:
    engine = {"runtime": name, "limits": LIMITS, **fields.pop("engine", {})}
    return specs.spec(engine=engine, **fields)


def refused(name: str, compute: tuple[int, int] | None = None, **fields: Any) -> tuple[str, str]:
    found = runtime(Runtime(name)).refuse_spec(spec(name, **fields), compute)
    assert found is None or not found.source or found.source in SOURCES
    return (found.reason, found.message) if found else ("", "")


def model_refused(name: str, weights: str, quantization: str = "", **fields: Any) -> Any:
    asked = spec(name, quantization={"weights": weights}, **fields)
    return runtime(Runtime(name)).refuse_model(asked, specs.facts(quantization=quantization))


@each
def test_a_plain_spec_is_accepted_on_every_generation_from_ampere_on(name: str) -> None:
    for compute in (None, (0, 0), AMPERE, ADA, HOPPER, BLACKWELL):
        assert refused(name, compute) == ("", "")


@each
def test_the_recorded_version_has_the_projects_image(name: str) -> None:
    wanted = {
        "VLLM": "docker.io/vllm/vllm-openai:v0.33.0",
        "SGLang": "docker.io/lmsysorg/sglang:v0.5.23",
    }[name]
    (version,) = ENGINES[name].versions
    assert runtime(Runtime(name)).known_image(version) == wanted
    assert runtime(Runtime(name)).known_image("0.1.0") is None


@each
def test_a_version_whose_command_line_is_not_recorded_is_refused_even_with_an_image(
    name: str,
) -> None:
    engine = {"version": "0.4.0", "image": "registry.example.com/e:1"}
    reason, message = refused(name, engine=engine)
    assert reason == "UnknownVersion"
    assert ENGINES[name].versions[0] in message


def test_another_release_of_the_recorded_line_needs_an_image() -> None:
    reason, message = refused("VLLM", engine={"version": "0.33.1"})
    assert (reason, "engine.image" in message) == ("UnknownVersion", True)
    assert refused("VLLM", engine={"version": "0.33.1", "image": "example.com/v:1"}) == ("", "")
    listed = Settings(images={"VLLM/0.33.1": "example.com/v:1"})
    asked = spec("VLLM", engine={"version": "0.33.1"})
    assert runtime(Runtime.VLLM).refuse_spec(asked, None, listed) is None
    assert refused("SGLang", engine={"version": "0.5.24"})[0] == "UnknownVersion"


@each
def test_build_options_would_be_ignored(name: str) -> None:
    reason, message = refused(name, engine={"build": {"workers": 2}})
    assert (reason, name in message) == ("NoBuildStep", True)


# On sm75, sm80, sm89, sm90 and sm100, by the sources of the support matrix.
WEIGHTS = {
    ("VLLM", "FP8"): (True, True, True, True, True),
    ("VLLM", "INT4AWQ"): (True, True, True, True, True),
    ("VLLM", "INT4GPTQ"): (True, True, True, True, True),
    ("VLLM", "INT8SmoothQuant"): (True, True, True, True, False),
    ("VLLM", "INT8"): (True, True, True, True, True),
    ("VLLM", "NVFP4"): (True, True, True, True, True),
    ("VLLM", "W4A8AWQ"): (False, False, False, False, False),
    ("SGLang", "FP8"): (False, True, True, True, True),
    ("SGLang", "INT4AWQ"): (True, True, True, True, True),
    ("SGLang", "INT4GPTQ"): (False, True, True, True, True),
    ("SGLang", "INT8SmoothQuant"): (False, True, True, True, False),
    ("SGLang", "INT8"): (False, True, True, True, True),
    ("SGLang", "NVFP4"): (False, True, True, True, True),
    ("SGLang", "W4A8AWQ"): (False, False, False, False, False),
}
GENERATIONS = (TURING, AMPERE, ADA, HOPPER, BLACKWELL)


@pytest.mark.parametrize(("name", "weights"), WEIGHTS)
def test_weights_by_generation(name: str, weights: str) -> None:
    found = []
    for compute in GENERATIONS:
        asked = spec(name, quantization={"weights": weights}, model=_half())
        refusal = runtime(Runtime(name)).refuse_spec(asked, compute)
        if refusal is not None:
            assert refusal.reason == "PrecisionNotSupported"
            assert refusal.source in SOURCES, "a refusal of the matrix rests on a source"
            assert f"quantization.weights {weights}" in refusal.message
        found.append(refusal is None)
    assert tuple(found) == WEIGHTS[name, weights]


def _half() -> dict[str, Any]:
    return {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main", "dtype": "FP16"}


def test_every_precision_of_the_schema_is_offered_or_known_to_be_absent() -> None:
    for engine in ENGINES.values():
        for weights in set(WeightPrecision) - {WeightPrecision.NONE}:
            assert (weights in engine.weights) is not (weights in engine.no_weights)
        for cache in set(KVPrecision) - {KVPrecision.NONE}:
            assert (cache in engine.kv_cache) is not (cache in engine.no_kv_cache)


def test_every_source_that_is_named_is_described() -> None:
    for engine in ENGINES.values():
        offers = [*engine.weights.values(), *engine.kv_cache.values()]
        absent = [*engine.no_weights.values(), *engine.no_kv_cache.values()]
        named = {one.source for one in (*offers, *absent)} | {engine.loads_source}
        assert named <= set(SOURCES)
    for entry in SOURCES.values():
        assert set(entry) == {"says", "where"}


@each
def test_kv_caches(name: str) -> None:
    for compute, fits in ((TURING, False), (AMPERE, True), (HOPPER, True)):
        found = refused(name, compute, quantization={"kvCache": "FP8"}, model=_half())
        assert (found == ("", "")) is fits
    reason, message = refused(name, HOPPER, quantization={"kvCache": "INT8"})
    assert (reason, "kvCache INT8" in message) == ("PrecisionNotSupported", True)
    assert "choose FP8 or None" in message


@each
def test_bfloat16_on_turing_asks_for_fp16(name: str) -> None:
    reason, message = refused(name, TURING)
    assert (reason, "Choose FP16" in message) == ("PrecisionNotSupported", True)


# Weights, what config.json says, and whether it is served.
CHECKPOINTS = [
    ("None", "", ""),
    ("None", "awq", ""),
    ("None", "modelopt", ""),
    ("None", "compressed-tensors", ""),
    ("None", "hqq", "CheckpointNotSupported"),
    ("FP8", "", ""),
    ("FP8", "fp8", ""),
    ("FP8", "awq", "ModelAlreadyQuantized"),
    ("INT4AWQ", "", "QuantizedCheckpointRequired"),
    ("INT4AWQ", "awq", ""),
    ("INT4AWQ", "gptq", "ModelAlreadyQuantized"),
    ("INT4GPTQ", "", "QuantizedCheckpointRequired"),
    ("INT4GPTQ", "gptq", ""),
    ("INT8SmoothQuant", "", "QuantizedCheckpointRequired"),
    ("INT8SmoothQuant", "compressed-tensors", ""),
    ("INT8", "", "QuantizedCheckpointRequired"),
    ("NVFP4", "", "QuantizedCheckpointRequired"),
    ("NVFP4", "modelopt", ""),
    ("NVFP4", "fp8", "ModelAlreadyQuantized"),
]


@each
@pytest.mark.parametrize(("weights", "quantization", "reason"), CHECKPOINTS)
def test_checkpoints(name: str, weights: str, quantization: str, reason: str) -> None:
    found = model_refused(name, weights, quantization)
    assert (found.reason if found else "") == reason
    if found is not None:
        assert found.source in SOURCES
        assert weights in found.message or quantization in found.message


@each
def test_awq_of_a_16_bit_model_names_the_ways_out(name: str) -> None:
    found = model_refused(name, "INT4AWQ")
    for part in ("INT4AWQ", "bfloat16", "model.uri", "FP8", "TensorRTLLM"):
        assert part in found.message


def test_a_deprecated_quantizer_is_refused_until_vllm_is_told_to_take_it() -> None:
    found = model_refused("VLLM", "None", "fbgemm_fp8")
    assert (found.reason, "allow-deprecated-quantization" in found.message) == (
        "CheckpointNotSupported",
        True,
    )
    allowed = {"config": {"allow-deprecated-quantization": True}}
    assert model_refused("VLLM", "None", "fbgemm_fp8", engine=allowed) is None


@each
def test_a_model_that_cannot_be_split_so_is_refused(name: str) -> None:
    engine = runtime(Runtime(name))
    for split, reason in (
        ({"tensor": 3}, "HeadsNotDivisible"),
        ({"pipeline": 64}, "MoreStagesThanLayers"),
    ):
        found = engine.refuse_model(spec(name, parallelism=split), specs.LLAMA_8B)
        assert found is not None
        assert found.reason == reason
    short = specs.facts(max_positions=2048)
    found = engine.refuse_model(spec(name), short)
    assert found is not None
    assert found.reason == "SequenceTooLong"


def test_prompts_that_must_fit_one_pass() -> None:
    whole = {"config": {"enable-chunked-prefill": False}}
    assert refused("VLLM", engine=whole) == ("", "")
    less = {**whole, "limits": {**LIMITS, "maxNumTokens": 1024}}
    reason, message = refused("VLLM", engine=less)
    assert reason == "PromptDoesNotFitPass"
    for part in ("maxNumTokens 1024", "maxSeqLen 4096", "enable-chunked-prefill"):
        assert part in message


def test_pages_of_sglang_must_divide_a_pass() -> None:
    assert refused("SGLang", engine={"config": {"page-size": 64}}) == ("", "")
    limits = {**LIMITS, "maxNumTokens": 1000}
    reason, message = refused("SGLang", engine={"config": {"page-size": 64}, "limits": limits})
    assert (reason, "use 960" in message) == ("PagesDoNotDivide", True)


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flags with their values; a switch has an empty one."""
    found = {}
    for word, following in itertools.pairwise((*argv, "--")):
        if word.startswith("--"):
            found[word] = "" if following.startswith("--") else following
    return found


def command(name: str, stage: int = 0, facts: Any = specs.LLAMA_8B, **fields: Any) -> Any:
    resolved = specs.resolved(spec(name, **fields), facts)
    return runtime(Runtime(name)).serve_command(resolved, stage)


def test_vllm_on_one_node() -> None:
    found = command("VLLM", parallelism={"tensor": 4})
    assert found.tool == "vllm-serve"
    assert found.argv[:3] == ("vllm", "serve", "{scratch}/served/model")
    assert flags(found.argv) == {
        "--served-model-name": "model",
        "--host": "0.0.0.0",  # noqa: S104 - as rendered
        "--port": "8000",
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "1",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "4096",
        "--max-model-len": "4096",
        "--gpu-memory-utilization": "0.9",
    }
    assert found.env == {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def test_vllm_over_nodes_is_headless_on_all_but_the_first() -> None:
    split = {"tensor": 2, "pipeline": 2}
    first, second = (command("VLLM", stage, parallelism=split) for stage in (0, 1))
    assert second.argv == (*first.argv, "--headless")
    given = flags(first.argv)
    assert (given["--nnodes"], given["--node-rank"]) == ("{stages}", "{stage}")
    assert given["--master-addr"] == "{leader}"
    assert given["--distributed-executor-backend"] == "mp"


def test_each_stages_request_has_its_own_command() -> None:
    resolved = specs.resolved(spec("VLLM", parallelism={"tensor": 2, "pipeline": 2}))
    requests = [serve_request(resolved, specs.identity(), stage) for stage in (0, 1)]
    assert ["--headless" in one.command.argv for one in requests] == [False, True]
    assert [one.by_mpi for one in requests] == [False, False]
    assert {one.step for one in requests} == {STEP_MODEL}


def test_sglang_starts_every_stage_alike() -> None:
    split = {"tensor": 2, "pipeline": 2}
    first, second = (command("SGLang", stage, parallelism=split) for stage in (0, 1))
    assert first == second
    assert first.argv[:3] == ("python3", "-m", "sglang.launch_server")
    assert flags(first.argv) == {
        "--model-path": "{scratch}/served/model",
        "--served-model-name": "model",
        "--host": "0.0.0.0",  # noqa: S104 - as rendered
        "--port": "8000",
        "--tp-size": "2",
        "--pp-size": "2",
        "--max-running-requests": "32",
        "--chunked-prefill-size": "4096",
        "--max-prefill-tokens": "4096",
        "--context-length": "4096",
        "--mem-fraction-static": "0.9",
        "--enable-metrics": "",
        "--nnodes": "{stages}",
        "--node-rank": "{stage}",
        "--dist-init-addr": "{leader}:20000",
    }
    assert first.env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "false"


@each
def test_options_of_the_spec_reach_the_command(name: str) -> None:
    model = {**_half(), "trustRemoteCode": True}
    found = flags(
        command(name, model=model, quantization={"weights": "FP8", "kvCache": "FP8"}).argv
    )
    cache = {"VLLM": "fp8", "SGLang": "fp8_e4m3"}[name]
    assert found["--dtype"] == "float16"
    assert (found["--quantization"], found["--kv-cache-dtype"]) == ("fp8", cache)
    assert found["--trust-remote-code"] == ""


@each
@pytest.mark.parametrize("weights", ["None", "FP8"])
def test_a_checkpoint_that_comes_quantized_is_not_quantized_again(name: str, weights: str) -> None:
    facts = specs.facts(quantization="fp8")
    found = command(name, facts=facts, quantization={"weights": weights})
    assert "--quantization" not in found.argv


@each
def test_the_users_own_flags_go_into_the_file_and_nothing_else_does(name: str) -> None:
    engine = runtime(Runtime(name))
    plain = specs.resolved(spec(name))
    assert "--config" not in engine.serve_command(plain).argv
    assert engine.serve_config(plain) == {}
    own = {"VLLM": {"enable-prefix-caching": False}, "SGLang": {"disable-radix-cache": True}}[name]
    resolved = specs.resolved(spec(name, engine={"config": own}))
    assert flags(engine.serve_command(resolved).argv)["--config"] == "{scratch}/config.yaml"
    assert engine.serve_config(resolved) == own


@each
def test_nothing_is_made_below_the_model(name: str) -> None:
    resolved = specs.resolved(spec(name, quantization={"weights": "FP8"}))
    assert [artifact.step for artifact in resolved.artifacts] == [STEP_MODEL]
    assert resolved.serve_step == STEP_MODEL
    assert runtime(Runtime(name)).readiness(resolved).path == "/readyz"


PROVEN = {
    "tensor": {"parallelism": {"tensor": 2}},
    "pipeline": {"parallelism": {"pipeline": 2}},
    "weights": {"quantization": {"weights": "FP8"}},
    "kvCache": {"quantization": {"kvCache": "FP8"}},
    "product": {"gpu": {"product": specs.A100}},
    "batch": {"engine": {"limits": {**LIMITS, "maxBatchSize": 16}}},
    "dtype": {"model": _half()},
}
ROLLED = {
    "fraction": {"engine": {"limits": {**LIMITS, "gpuMemoryFraction": 0.5}}},
    "config": {"engine": {"config": {"watchdog-timeout": 100}}},
    "name": {"model": {"uri": _half()["uri"], "servedName": "other"}},
}


@each
def test_what_asks_for_a_new_proof(name: str) -> None:
    before = specs.resolved(spec(name))
    keys = {before.proof_key}
    for change in PROVEN.values():
        keys.add(specs.resolved(spec(name, **change)).proof_key)
    assert len(keys) == 1 + len(PROVEN)
    for change in ROLLED.values():
        assert specs.resolved(spec(name, **change)).proof_key == before.proof_key


def test_the_proof_of_one_runtime_is_none_of_another() -> None:
    found = {specs.resolved(spec(name)).proof_key for name in ENGINES}
    found.add(specs.resolved(specs.spec(engine={"backend": "PyTorch"})).proof_key)
    assert len(found) == 3
