"""What TensorRT-LLM cannot do is refused with a stable reason, the numbers, and a way out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import specs

from shardwright.api.settings import Settings
from shardwright.api.spec import Backend, KVPrecision, Runtime, WeightPrecision
from shardwright.runtimes.registry import RUNTIMES, runtime
from shardwright.runtimes.tensorrt_checks import SPEC_CHECKS
from shardwright.runtimes.tensorrt_model_checks import MODEL_CHECKS
from shardwright.runtimes.tensorrt_versions import KNOWN_VERSIONS

ENGINE = runtime(Runtime.TENSORRT_LLM)
AMPERE, ADA, HOPPER, BLACKWELL = (8, 0), (8, 9), (9, 0), (10, 0)


def refused(compute: tuple[int, int] | None = None, **fields: Any) -> tuple[str, str]:
    refusal = ENGINE.refuse_spec(specs.spec(**fields), compute)
    return (refusal.reason, refusal.message) if refusal else ("", "")


def test_every_runtime_of_the_schema_has_an_implementation() -> None:
    assert set(RUNTIMES) == set(Runtime)
    assert {name: engine.name for name, engine in RUNTIMES.items()} == {n: n.value for n in Runtime}


def test_the_default_spec_is_accepted_on_every_generation_from_ampere_on() -> None:
    for compute in (None, (0, 0), AMPERE, ADA, HOPPER, BLACKWELL):
        assert refused(compute) == ("", "")


def test_an_engine_of_a_version_without_a_builder_is_refused() -> None:
    reason, message = refused(engine={"version": "1.3.0rc14", "backend": "TensorRT"})
    assert reason == "BuilderNotAvailable"
    for part in ("1.3.0rc14", "up to TensorRTLLM 1.2", "backend PyTorch", "version 1.2.1"):
        assert part in message


def test_the_same_version_is_accepted_with_the_pytorch_backend() -> None:
    assert refused(engine={"version": "1.3.0rc14", "backend": "PyTorch"}) == ("", "")


@pytest.mark.parametrize("version", KNOWN_VERSIONS)
def test_known_versions_have_an_image_of_their_own_tag(version: str) -> None:
    assert ENGINE.known_image(version) == f"nvcr.io/nvidia/tensorrt-llm/release:{version}"


def test_an_unknown_version_is_refused_unless_an_image_is_named() -> None:
    reason, message = refused(engine={"version": "1.2.9"})
    assert reason == "UnknownVersion"
    assert "1.2.9" in message
    assert "engine.image" in message
    named = {"version": "1.2.9", "image": "registry.example.com/trtllm:1.2.9"}
    assert refused(engine=named) == ("", "")


def test_an_unknown_version_is_accepted_when_the_administrator_lists_its_image() -> None:
    asked = specs.spec(engine={"version": "1.2.9"})
    settings = Settings(images={"TensorRTLLM/1.2.9": "registry.example.com/trtllm:1.2.9"})
    assert ENGINE.refuse_spec(asked, None, settings) is None
    assert ENGINE.refuse_spec(asked, None, Settings()) is not None


def test_a_version_whose_command_line_is_unknown_is_refused_even_with_an_image() -> None:
    reason, message = refused(engine={"version": "0.20.0", "image": "registry.example.com/t:1"})
    assert (reason, "versions 1.x only" in message) == ("UnknownVersion", True)


def test_fp8_on_a100_names_the_need_and_the_alternatives() -> None:
    reason, message = refused(AMPERE, quantization={"weights": "FP8"}, gpu={"product": specs.A100})
    assert reason == "PrecisionNotSupported"
    for part in ("weights FP8", specs.A100, "8.0", "8.9", "INT4AWQ or INT8SmoothQuant"):
        assert part in message


# What works on sm80, sm89, sm90, sm100 for each backend: the vendor's matrix.
MATRIX = [
    ("TensorRT", "FP8", (False, True, True, True)),
    ("TensorRT", "INT4AWQ", (True, True, True, False)),
    ("TensorRT", "INT4GPTQ", (True, True, True, False)),
    ("TensorRT", "W4A8AWQ", (False, True, True, False)),
    ("TensorRT", "INT8SmoothQuant", (True, True, True, False)),
    ("TensorRT", "INT8", (True, True, True, False)),
    ("TensorRT", "NVFP4", (False, False, False, True)),
    ("PyTorch", "FP8", (False, True, True, True)),
    ("PyTorch", "INT4AWQ", (True, True, True, False)),
    ("PyTorch", "INT4GPTQ", (False, False, False, False)),
    ("PyTorch", "W4A8AWQ", (False, True, True, False)),
    ("PyTorch", "INT8SmoothQuant", (False, False, False, False)),
    ("PyTorch", "INT8", (False, False, False, False)),
    ("PyTorch", "NVFP4", (False, False, False, True)),
]


@pytest.mark.parametrize(("backend", "weights", "works"), MATRIX)
def test_weights_follow_the_hardware_matrix(
    backend: str, weights: str, works: tuple[bool, ...]
) -> None:
    for compute, fine in zip((AMPERE, ADA, HOPPER, BLACKWELL), works, strict=True):
        reason, _ = refused(
            compute,
            model={"uri": "hf://org/model-gptq"},
            engine={"backend": backend},
            quantization={"weights": weights},
        )
        assert reason == ("" if fine else "PrecisionNotSupported"), compute


def test_the_matrix_of_this_test_is_complete() -> None:
    pairs = {(backend, weights) for backend, weights, _ in MATRIX}
    assert pairs == {
        (backend.value, weights.value)
        for backend in Backend
        for weights in WeightPrecision
        if weights is not WeightPrecision.NONE
    }


@pytest.mark.parametrize(
    ("backend", "kv_cache", "works"),
    [
        ("TensorRT", "FP8", (False, True, True, True)),
        ("TensorRT", "INT8", (True, True, True, False)),
        # the vendor's matrix prints FP8 KV on sm80 for this backend
        ("PyTorch", "FP8", (True, True, True, True)),
        ("PyTorch", "INT8", (False, False, False, False)),
    ],
)
def test_the_kv_cache_follows_the_hardware_matrix(
    backend: str, kv_cache: str, works: tuple[bool, ...]
) -> None:
    for compute, fine in zip((AMPERE, ADA, HOPPER, BLACKWELL), works, strict=True):
        reason, _ = refused(
            compute, engine={"backend": backend}, quantization={"kvCache": kv_cache}
        )
        assert reason == ("" if fine else "PrecisionNotSupported"), compute


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [("BF16", "PrecisionNotSupported"), ("Auto", "PrecisionNotSupported"), ("FP16", "")],
)
def test_bfloat16_needs_ampere(dtype: str, reason: str) -> None:
    fields = {"model": {"uri": "hf://org/model", "dtype": dtype}}
    assert refused((7, 5), **fields)[0] == reason
    assert refused(AMPERE, **fields)[0] == ""


def test_gptq_weights_with_a_quantized_kv_cache_have_no_calibration() -> None:
    fields: dict[str, Any] = {
        "model": {"uri": "hf://org/model-GPTQ"},
        "quantization": {"weights": "INT4GPTQ", "kvCache": "FP8"},
    }
    assert refused(HOPPER, **fields)[0] == "PrecisionNotSupported"


@pytest.mark.parametrize("uri", ["hf://org/Llama-3.1-70B", "hf://org/Llama-GPTQ", "pvc://m/llama"])
def test_a_name_tells_nothing_of_a_checkpoint(uri: str) -> None:
    fields: dict[str, Any] = {"model": {"uri": uri}, "quantization": {"weights": "INT4GPTQ"}}
    assert refused(HOPPER, **fields)[0] == ""
    asked = specs.spec(**fields)
    assert ENGINE.refuse_model(asked, specs.facts(quantization="gptq")) is None
    found = ENGINE.refuse_model(asked, specs.LLAMA_8B)
    assert found is not None
    assert found.message == (
        f"quantization.weights INT4GPTQ, but model.uri {uri} is in bfloat16, as its config.json "
        "says: checkpoints of gptq 4-bit are made elsewhere; name one, or the 16-bit original with "
        "INT4AWQ, which is quantized here"
    )


def test_gptq_is_not_for_the_pytorch_backend() -> None:
    fields: dict[str, Any] = {"quantization": {"weights": "INT4GPTQ"}}
    reason, message = refused(HOPPER, **fields, engine={"backend": "PyTorch"})
    assert reason == "PrecisionNotSupported"
    assert message == (
        "quantization.weights INT4GPTQ is not available with engine.backend PyTorch of TensorRTLLM "
        "1.2.1; choose FP8 or INT4AWQ or None with the 16-bit original in model.uri, or backend "
        "TensorRT, or engine.runtime VLLM or SGLang"
    )
    later = {"backend": "PyTorch", "version": "1.3.0rc14"}
    assert "or backend TensorRT of version 1.2.1," in refused(HOPPER, **fields, engine=later)[1]
    # No engine on Blackwell either: it is no way out there.
    assert "TensorRT," not in refused(BLACKWELL, **fields, engine=later)[1]


@pytest.mark.parametrize("shape", [{"tensor": 2}, {"tensor": 1, "pipeline": 2}])
def test_more_build_workers_than_ranks_are_refused(shape: dict[str, int]) -> None:
    assert refused(engine={"build": {"workers": 2}}, parallelism=shape)[0] == ""
    reason, message = refused(engine={"build": {"workers": 3}}, parallelism=shape)
    assert (reason, "workers 3" in message, "at most 2" in message) == (
        "TooManyBuildWorkers",
        True,
        True,
    )


def test_build_options_without_a_build_step_are_refused() -> None:
    engine = {"backend": "PyTorch", "build": {"plugins": {"pagedContextFMHA": False}}}
    assert refused(engine=engine)[0] == "NoBuildStep"


@pytest.mark.parametrize(
    ("backend", "config", "reason", "part"),
    [
        ("PyTorch", {"cuda_graph_config": {"enable_padding": True}}, "", ""),
        ("PyTorch", {"cuda_graph_config": None}, "", ""),
        ("TensorRT", {"enable_chunked_prefill": True}, "", ""),
        ("TensorRT", {"kv_cache_config": {"enable_block_reuse": True}}, "", ""),
        (
            "PyTorch",
            {"enable_chunked_prefil": True},
            "UnknownEngineConfig",
            "did you mean enable_chunked_prefill?",
        ),
        (
            "TensorRT",
            {"zzz": 1},
            "UnknownEngineConfig",
            (
                "engine.config.zzz is not a key that TensorRTLLM 1.2.1 knows; leave it out, or "
                "write one of cache_transceiver_config, enable_chunked_prefill, env_overrides, "
                "guided_decoding_backend, kv_cache_config, load_format, otlp_traces_endpoint, "
                "peft_cache_config, perf_metrics_max_requests, return_perf_metrics, "
                "scheduler_config"
            ),
        ),
        # the other spelling of a key, of a field of the spec, and of one that the operator sets
        (
            "PyTorch",
            {"enableChunkedPrefill": True},
            "UnknownEngineConfig",
            "knows; did you mean enable_chunked_prefill?",
        ),
        (
            "PyTorch",
            {"maxBatchSize": 4},
            "UnknownEngineConfig",
            (
                "knows; did you mean max_batch_size? It is set by the operator; use "
                "engine.limits.maxBatchSize instead"
            ),
        ),
        ("PyTorch", {"max_rank": 8}, "UnknownEngineConfig", "knows; use spec.lora.maxRank instead"),
        (
            "PyTorch",
            {"max_input_length": 8},
            "UnknownEngineConfig",
            "knows; did you mean max_input_len? It is set by the operator; use engine.limits.",
        ),
        # in the wrong place
        (
            "PyTorch",
            {"enable_block_reuse": True},
            "UnknownEngineConfig",
            "did you mean kv_cache_config.enable_block_reuse?",
        ),
        (
            "TensorRT",
            {"kv_cache_dtype": "fp8"},
            "UnknownEngineConfig",
            (
                "did you mean kv_cache_config.dtype? It is set by the operator; use "
                "quantization.kvCache instead"
            ),
        ),
        (
            "TensorRT",
            {"kv_cache_config": {"max_batch_size": 4}},
            "UnknownEngineConfig",
            (
                "engine.config.kv_cache_config.max_batch_size is not a key that TensorRTLLM 1.2.1 "
                "knows; use spec.engine.limits.maxBatchSize instead"
            ),
        ),
        (
            "TensorRT",
            {"moe_config": {"backend": "x"}},
            "UnknownEngineConfig",
            "no effect with engine.backend TensorRT",
        ),
        (
            "PyTorch",
            {"moe_config": {"7": "x"}},
            "UnknownEngineConfig",
            (
                "engine.config.moe_config.7 is not a key that TensorRTLLM 1.2.1 knows; leave it "
                "out, or write one of moe_config.backend, moe_config.load_balancer, "
                "moe_config.max_num_tokens"
            ),
        ),
        # what this backend would not take is not offered
        (
            "TensorRT",
            {"cuda_graph_confg": {}},
            "UnknownEngineConfig",
            "knows; leave it out, or write one of cache_transceiver_config, ",
        ),
        (
            "PyTorch",
            {"cuda_graph_confg": {}},
            "UnknownEngineConfig",
            "knows; did you mean cuda_graph_config?",
        ),
        (
            "PyTorch",
            {"kv_cache_config": {"enable_block_reus": True}},
            "UnknownEngineConfig",
            "did you mean kv_cache_config.enable_block_reuse?",
        ),
        ("PyTorch", {"moe_config": "TRTLLM"}, "UnknownEngineConfig", "must be an object"),
        (
            "TensorRT",
            {"cuda_graph_config": {}},
            "UnknownEngineConfig",
            "no effect with engine.backend TensorRT",
        ),
        (
            "PyTorch",
            {"max_batch_size": 8},
            "ReservedEngineConfig",
            "engine.limits.maxBatchSize",
        ),
        (
            "PyTorch",
            {"tensor_parallel_size": 8},
            "ReservedEngineConfig",
            "parallelism.tensor",
        ),
        (
            "TensorRT",
            {"kv_cache_config": {"dtype": "fp8"}},
            "ReservedEngineConfig",
            "quantization.kvCache",
        ),
        (
            "PyTorch",
            {"kv_cache_config": {"free_gpu_memory_fraction": 0.5}},
            "ReservedEngineConfig",
            "engine.limits.gpuMemoryFraction",
        ),
    ],
)
def test_engine_config_takes_only_keys_that_the_runtime_knows_and_the_operator_does_not_set(
    backend: str, config: dict[str, Any], reason: str, part: str
) -> None:
    found, message = refused(engine={"backend": backend, "config": config})
    assert (found, part in message) == (reason, True)


CHUNKS = {"enable_chunked_prefill": True}
REUSE = {"kv_cache_config": {"enable_block_reuse": True}}
NO_PAGES = {"plugins": {"pagedContextFMHA": False}}


@pytest.mark.parametrize(
    ("path", "config"),
    [("enable_chunked_prefill", CHUNKS), ("kv_cache_config.enable_block_reuse", REUSE)],
)
def test_an_engine_without_paged_context_takes_no_chunks_and_reuses_nothing(
    path: str, config: dict[str, Any]
) -> None:
    assert refused(engine={"config": config}) == ("", "")
    assert refused(engine={"config": config, "backend": "PyTorch"}) == ("", "")
    off = dict.fromkeys(config, {"enable_block_reuse": False} if config is REUSE else False)
    assert refused(engine={"config": off, "build": NO_PAGES}) == ("", "")
    reason, message = refused(engine={"config": config, "build": NO_PAGES})
    assert reason == "UnknownEngineConfig"
    assert message == (
        f"engine.config.{path} needs an engine with paged context attention, which this one has "
        "not: engine.build.plugins.pagedContextFMHA is false; set it to true, or leave "
        f"{path} out"
    )
    cached = refused(engine={"config": config}, quantization={"weights": "None", "kvCache": "INT8"})
    assert cached[1].endswith(
        "quantization.kvCache INT8 with weights None excludes it; use kvCache None, or leave "
        f"{path} out"
    )


@pytest.mark.parametrize(
    ("shape", "model", "reason", "parts"),
    [
        ({"tensor": 8}, {}, "", ()),
        ({"tensor": 16}, {}, "", ()),  # 8 KV heads, each kept by two ranks
        (
            {"tensor": 3},
            {},
            "HeadsNotDivisible",
            ("tensor 3", "32 attention heads", "; use parallelism.tensor 2"),
        ),
        (
            {"tensor": 6},
            {"heads": 24, "kv_heads": 4},
            "HeadsNotDivisible",
            ("tensor 6", "4 KV heads", "use parallelism.tensor 4"),
        ),
        ({"tensor": 8}, {"heads": 64, "kv_heads": 1}, "", ()),
        ({"tensor": 8}, {"heads": 0, "kv_heads": 0}, "", ()),
        ({"pipeline": 32}, {}, "", ()),
        (
            {"pipeline": 33},
            {},
            "MoreStagesThanLayers",
            ("pipeline 33", "32 layers", "use parallelism.pipeline 32"),
        ),
        (
            {},
            {"max_positions": 4096},
            "SequenceTooLong",
            ("maxSeqLen 8192", "4096 positions"),
        ),
        ({}, {"max_positions": 0}, "", ()),
        ({}, {"model_type": "gemma2"}, "ModelNotSupported", ("'gemma2'", "PyTorch")),
    ],
)
def test_shapes_and_limits_that_the_model_cannot_take_are_refused(
    shape: dict[str, int], model: dict[str, Any], reason: str, parts: tuple[str, ...]
) -> None:
    refusal = ENGINE.refuse_model(specs.spec(parallelism=shape), specs.facts(**model))
    assert (refusal.reason if refusal else "") == reason
    assert all(part in refusal.message for part in parts if refusal)


@pytest.mark.parametrize(
    ("weights", "backend", "comes", "reason"),
    [
        ("INT4GPTQ", "TensorRT", "gptq", ""),
        ("INT4GPTQ", "PyTorch", "gptq", "CheckpointNotSupported"),
        ("INT4GPTQ", "TensorRT", "", "GPTQCheckpointRequired"),
        ("INT4GPTQ", "TensorRT", "awq", "GPTQCheckpointRequired"),
        ("FP8", "TensorRT", "fp8", "ModelAlreadyQuantized"),
        ("FP8", "PyTorch", "fp8", "ModelAlreadyQuantized"),
        ("INT4AWQ", "PyTorch", "gptq", "ModelAlreadyQuantized"),
        ("None", "TensorRT", "gptq", "ModelAlreadyQuantized"),
        ("None", "PyTorch", "fp8", ""),
        ("None", "PyTorch", "gptq", "CheckpointNotSupported"),
        ("None", "PyTorch", "awq", "CheckpointNotSupported"),
        ("None", "PyTorch", "nvfp4", ""),
    ],
)
def test_a_model_is_never_quantized_twice(
    weights: str, backend: str, comes: str, reason: str
) -> None:
    asked = specs.spec(quantization={"weights": weights}, engine={"backend": backend})
    refusal = ENGINE.refuse_model(asked, specs.facts(quantization=comes))
    assert (refusal.reason if refusal else "") == reason


@pytest.mark.parametrize(
    ("trusted", "backend", "weights", "reason"),
    [
        (False, "TensorRT", "None", "RemoteCodeNotTrusted"),
        (False, "TensorRT", "FP8", "RemoteCodeNotTrusted"),
        (False, "PyTorch", "FP8", "RemoteCodeNotTrusted"),
        (False, "PyTorch", "None", ""),
        (True, "TensorRT", "None", ""),
        (True, "PyTorch", "FP8", ""),
    ],
)
def test_code_in_the_model_s_folder_is_executed_only_when_it_is_trusted(
    trusted: bool, backend: str, weights: str, reason: str
) -> None:
    asked = specs.spec(
        model={"uri": "hf://org/model", "trustRemoteCode": trusted},
        engine={"backend": backend},
        quantization={"weights": weights},
    )
    refusal = ENGINE.refuse_model(asked, specs.facts(remote_code=True))
    assert (refusal.reason if refusal else "") == reason
    assert ENGINE.refuse_model(asked, specs.facts()) is None


@given(
    tensor=st.integers(1, 1024),
    pipeline=st.integers(1, 256),
    heads=st.integers(1, 256),
    kv_heads=st.integers(1, 256),
    layers=st.integers(1, 256),
)
def test_what_is_accepted_splits_evenly_and_what_is_refused_says_what_would(
    tensor: int, pipeline: int, heads: int, kv_heads: int, layers: int
) -> None:
    asked = specs.spec(parallelism={"tensor": tensor, "pipeline": pipeline})
    model = specs.facts(heads=heads, kv_heads=kv_heads, layers=layers)
    refusal = ENGINE.refuse_model(asked, model)
    fits = (
        heads % tensor == 0
        and (kv_heads % tensor == 0 or tensor % kv_heads == 0)
        and pipeline <= layers
    )
    assert (refusal is None) == fits
    if refusal:
        changed = {path.removeprefix("parallelism."): value for path, value in refusal.fix}
        again = specs.spec(parallelism={"tensor": tensor, "pipeline": pipeline, **changed})
        assert ENGINE.refuse_model(again, model) is None


@given(
    backend=st.sampled_from(Backend),
    weights=st.sampled_from(WeightPrecision),
    kv_cache=st.sampled_from(KVPrecision),
    compute=st.sampled_from([None, (7, 5), AMPERE, (8, 6), ADA, HOPPER, BLACKWELL, (12, 0)]),
)
def test_every_refusal_has_a_stable_reason_and_names_a_field(
    backend: Backend,
    weights: WeightPrecision,
    kv_cache: KVPrecision,
    compute: tuple[int, int] | None,
) -> None:
    reason, message = refused(
        compute,
        engine={"backend": backend.value},
        quantization={"weights": weights.value, "kvCache": kv_cache.value},
    )
    assert reason == "" or reason.isalnum()
    assert reason == "" or any(field in message for field in ("quantization.", "engine.", "model."))


def test_every_check_documents_itself() -> None:
    for check in (*SPEC_CHECKS, *MODEL_CHECKS):
        assert check.__doc__
