"""NIM: what it refuses and why, what it runs, and that all of it stands in the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from shardwright_standin import commandline
from tests.golden import specs

from shardwright.api.settings import Settings
from shardwright.api.spec import KVPrecision, Runtime, WeightPrecision
from shardwright.render.pods import serve_request
from shardwright.runner.config_keys import pack_config
from shardwright.runner.contract import STEP_MODEL
from shardwright.runtimes import nim
from shardwright.runtimes.registry import runtime

TESTS = Path(__file__).parents[1]
SOURCES = yaml.safe_load((TESTS / "data/support_sources.yaml").read_text(encoding="utf-8"))
RECORD = yaml.safe_load((TESTS / "contracts/nim-serve-2.1.5.yaml").read_text(encoding="utf-8"))
IMAGE = "registry.example.com/nim:2.1.5"
LIMITS = {"maxBatchSize": 32, "maxNumTokens": 4096, "maxInputLen": 2048, "maxSeqLen": 4096}
TURING, AMPERE, ADA, HOPPER, BLACKWELL = (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)
NIM = runtime(Runtime.NIM)


def spec(**fields: Any) -> Any:
    engine = {"runtime": "NIM", "image": IMAGE, "limits": LIMITS, **fields.pop("engine", {})}
    return specs.spec(engine=engine, **fields)


def refused(compute: tuple[int, int] | None = None, **fields: Any) -> tuple[str, str, str]:
    found = NIM.refuse_spec(spec(**fields), compute)
    return (found.reason, found.message, found.source) if found else ("", "", "")


def test_a_plain_spec_is_accepted_from_ampere_on() -> None:
    for compute in (None, (0, 0), AMPERE, ADA, HOPPER, BLACKWELL):
        assert refused(compute) == ("", "", "")


def test_an_image_must_be_named_by_the_user_or_the_administrator() -> None:
    assert NIM.known_image("2.1.5") is None
    reason, message, _ = refused(engine={"image": None})
    assert reason == "UnknownVersion"
    for part in ("2.1.5", "engine.image", "NIM/2.1.5", "the operator's images"):
        assert part in message
    assert "known is" not in message, "it would name the version that was asked for"
    listed = Settings(images={"NIM/2.1.5": IMAGE})
    assert NIM.refuse_spec(spec(engine={"image": None}), HOPPER, listed) is None


@pytest.mark.parametrize(
    ("version", "taken"), [("2.1.6", True), ("2.0.13", False), ("1.8.6", False)]
)
def test_versions_of_the_line_whose_documents_were_read_are_taken(
    version: str, *, taken: bool
) -> None:
    assert refused(engine={"version": version})[0] == ("" if taken else "UnknownVersion")


# What is asked, the reason, and words that name field, value and way out.
REFUSED: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    (
        {"parallelism": {"tensor": 2, "pipeline": 2}},
        "PipelineNotSupported",
        ("parallelism.pipeline 2", "nim-serve-ray", "runtime VLLM"),
    ),
    ({"lora": {}}, "LoRANotSupported", ("lora", "runtime VLLM or SGLang")),
    (
        {"parallelism": {"tensor": 2, "expert": 2}},
        "ExpertsNotSupported",
        ("parallelism.expert 2", "leave it out"),
    ),
    (
        {"parallelism": {"tensor": 2, "attentionData": 2}},
        "AttentionDataNotSupported",
        ("parallelism.attentionData 2", "leave it out"),
    ),
    (
        {"speculative": {"method": "DraftModel", "model": {"uri": "hf://org/draft"}}},
        "SpeculationNotSupported",
        ("DraftModel", "Eagle3, MTP, NGram"),
    ),
    (
        {"engine": {"config": {"max-logprobs": 5}}},
        "UnknownEngineConfig",
        ("engine.config.max-logprobs", "enable-prefix-caching", "runtime VLLM"),
    ),
    *(
        (
            {"quantization": {"weights": weights}},
            "PrecisionNotSupported",
            (f"quantization.weights {weights}", "choose FP8 or NVFP4 or None"),
        )
        for weights in ("INT4AWQ", "INT4GPTQ", "INT8", "INT8SmoothQuant", "W4A8AWQ")
    ),
    (
        {"quantization": {"kvCache": "INT8"}},
        "PrecisionNotSupported",
        ("quantization.kvCache INT8", "choose FP8 or None"),
    ),
]


@pytest.mark.parametrize(("fields", "reason", "words"), REFUSED)
def test_what_it_cannot_do_is_refused_by_a_source(
    fields: dict[str, Any], reason: str, words: tuple[str, ...]
) -> None:
    found, message, source = refused(HOPPER, **fields)
    assert found == reason
    assert source in SOURCES
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("port", "plain HTTP"),
        ("tensor-parallel-size", "parallelism.tensor"),
        ("config", "operator"),
    ],
)
def test_a_flag_that_the_operator_decides_is_refused_by_name(name: str, instead: str) -> None:
    reason, message, _ = refused(engine={"config": {name: 2}})
    assert (reason, instead in message) == ("ReservedEngineConfig", True)


def test_a_switch_must_be_a_truth_value() -> None:
    assert refused(engine={"config": {"enable-prefix-caching": "no"}})[0] == "UnknownEngineConfig"


def test_every_precision_is_offered_or_known_to_be_absent_by_a_source() -> None:
    engine = nim.ENGINE
    for weights in set(WeightPrecision) - {WeightPrecision.NONE}:
        assert (weights in engine.weights) is not (weights in engine.no_weights)
    for cache in set(KVPrecision) - {KVPrecision.NONE}:
        assert (cache in engine.kv_cache) is not (cache in engine.no_kv_cache)
    offers = [*engine.weights.values(), *engine.kv_cache.values()]
    absent = [*engine.no_weights.values(), *engine.no_kv_cache.values()]
    named = {one.source for one in (*offers, *absent)} | {engine.loads_source}
    assert named <= set(SOURCES)


def test_precisions_begin_with_the_gpus_that_are_verified() -> None:
    half = {"uri": "hf://org/model", "dtype": "FP16"}
    for asked in ({"weights": "FP8"}, {"weights": "NVFP4"}, {"kvCache": "FP8"}):
        found = [
            refused(compute, model=half, quantization=asked)[0]
            for compute in (TURING, AMPERE, HOPPER)
        ]
        assert found == ["PrecisionNotSupported", "", ""]


@pytest.mark.parametrize(
    ("weights", "quantization", "reason"),
    [
        ("None", "", ""),
        ("None", "fp8", ""),
        ("None", "modelopt", ""),
        ("None", "mxfp4", ""),
        ("None", "compressed-tensors", ""),
        ("None", "awq", "CheckpointNotSupported"),
        ("None", "gptq", "CheckpointNotSupported"),
        ("FP8", "", ""),
        ("FP8", "fp8", ""),
        ("NVFP4", "", "QuantizedCheckpointRequired"),
        ("NVFP4", "modelopt", ""),
        ("NVFP4", "fp8", "ModelAlreadyQuantized"),
    ],
)
def test_checkpoints(weights: str, quantization: str, reason: str) -> None:
    asked = spec(quantization={"weights": weights})
    found = NIM.refuse_model(asked, specs.facts(quantization=quantization))
    assert (found.reason if found else "") == reason
    assert found is None or found.source in SOURCES


def test_integers_in_compressed_tensors_have_no_profile() -> None:
    group = {
        "weights": {"type": "int", "num_bits": 8},
        "input_activations": {"type": "int", "num_bits": 8},
    }
    config = {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": group},
        }
    }
    facts = specs.facts(quantization="compressed-tensors", config=pack_config(config))
    found = NIM.refuse_model(spec(), facts)
    assert found is not None
    assert found.reason == "CheckpointNotSupported"
    assert "quantized as compressed-tensors W8A8 INT8, which NIM 2.1.5" in found.message
    assert "engine.runtime VLLM or SGLang" in found.message


def test_several_stages_are_refused_of_a_planned_shape_too() -> None:
    found = NIM.refuse_model(spec(parallelism={"tensor": 2, "pipeline": 2}), specs.LLAMA_8B)
    assert found is not None
    assert (found.reason, found.source) == ("PipelineNotSupported", "nim-one-stage")


def command(facts: Any = specs.LLAMA_8B, draft: Any = None, **fields: Any) -> Any:
    return NIM.serve_command(specs.resolved(spec(**fields), facts, draft=draft))


def values(found: Any) -> dict[str, Any]:
    """What the strict parser of the record reads, without what was not given."""
    parsed = commandline.parse("nim-serve", found.argv[1:])
    given = {commandline.key(word.replace("--no-", "--")) for word in found.argv[1:]}
    return {name: value for name, value in parsed.values.items() if name in given}


def test_two_ranks_of_one_node() -> None:
    found = command(parallelism={"tensor": 2})
    assert (found.tool, found.argv[0]) == ("nim-serve", "nim-serve")
    assert values(found) == {
        "served_model_name": "model",
        "tensor_parallel_size": 2,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 4096,
        "max_model_len": 4096,
        "gpu_memory_utilization": 0.9,
    }
    assert found.env == {
        "NIM_MODEL_PATH": "{scratch}/served/model",
        "NIM_SERVER_PORT": "8000",
        "NIM_CACHE_PATH": "{scratch}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    assert set(found.env) <= set(RECORD["environment"])
    assert not any("NGC" in name or "KEY" in name for name in found.env)


def test_options_of_the_spec_reach_the_command() -> None:
    found = values(
        command(
            model={"uri": "hf://org/model", "dtype": "FP16", "trustRemoteCode": True},
            quantization={"weights": "FP8", "kvCache": "FP8"},
            engine={"config": {"enable-prefix-caching": False}},
        )
    )
    assert (found["dtype"], found["quantization"], found["kv_cache_dtype"]) == (
        "float16",
        "fp8",
        "fp8",
    )
    assert (found["trust_remote_code"], found["enable_prefix_caching"]) == (True, False)
    on = values(command(engine={"config": {"enable-prefix-caching": True}}))
    assert on["enable_prefix_caching"] is True


def test_a_checkpoint_that_comes_quantized_is_not_quantized_again() -> None:
    facts = specs.facts(quantization="fp8")
    assert "--quantization" not in command(facts, quantization={"weights": "FP8"}).argv


@pytest.mark.parametrize(("method", "word"), [("Eagle3", "eagle3"), ("NGram", "ngram")])
def test_drafts_are_given_in_vllms_words(method: str, word: str) -> None:
    own = {"model": {"uri": "hf://org/draft"}} if method == "Eagle3" else {}
    asked = {"method": method, "maxDraftLen": 3, **own}
    assert refused(HOPPER, speculative=asked) == ("", "", "")
    draft = specs.facts(layers=1) if own else None
    config = values(command(draft=draft, speculative=asked))["speculative_config"]
    assert (config["method"], config["num_speculative_tokens"]) == (word, 3)
    assert ("model" in config) == bool(own)


def test_pods_are_asked_through_the_proxy_and_take_no_adapters() -> None:
    resolved = specs.resolved(spec(quantization={"weights": "FP8"}))
    request = serve_request(resolved, specs.identity(), 0)
    assert request.health_path == "/v1/health/ready"
    assert [page.path for page in request.metrics] == ["/v1/metrics"]
    assert request.adapters is None
    assert request.config == {}
    assert [one.step for one in resolved.artifacts] == [STEP_MODEL]
    assert NIM.readiness(resolved).path == "/readyz"


def test_the_proof_is_none_of_vllms_and_limits_ask_for_a_new_one() -> None:
    before = specs.resolved(spec()).proof_key
    other = specs.spec(engine={"runtime": "VLLM", "image": IMAGE, "limits": LIMITS})
    assert specs.resolved(other).proof_key != before
    less = spec(engine={"limits": {**LIMITS, "maxBatchSize": 16}})
    assert specs.resolved(less).proof_key != before
    rolled = spec(engine={"config": {"enable-prefix-caching": False}})
    assert specs.resolved(rolled).proof_key == before
