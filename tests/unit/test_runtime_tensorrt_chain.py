"""Which steps TensorRT-LLM needs, what their keys depend on, and what serves."""

from __future__ import annotations

from typing import Any

import pytest
from tests.golden import specs

from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.observe.gpus import catalogue_memory
from shardwright.resolved import Artifact, Resolved
from shardwright.runner import contract
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.registry import runtime

ENGINE = runtime(Runtime.TENSORRT_LLM)


def steps(asked: LLMDeploymentSpec, model: ModelFacts = specs.LLAMA_8B) -> dict[str, Artifact]:
    return {artifact.step: artifact for artifact in specs.resolved(asked, model).artifacts}


def argv(artifact: Artifact) -> str:
    return " ".join(artifact.commands[0].argv)


def keys(found: Resolved) -> dict[str, str]:
    return {
        **{artifact.step: artifact.key for artifact in found.artifacts},
        "proof": found.proof_key,
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    one, two = keys(specs.resolved(specs.spec(**before))), keys(specs.resolved(specs.spec(**after)))
    assert set(one) == set(two)
    return {step for step in one if one[step] != two[step]}


def test_an_engine_is_made_from_a_checkpoint_that_is_split_for_the_shape() -> None:
    found = steps(specs.spec(parallelism={"tensor": 4, "pipeline": 2}))
    assert list(found) == ["model", "checkpoint", "engine"]
    checkpoint, engine = found["checkpoint"], found["engine"]
    assert "llama/convert_checkpoint.py" in argv(checkpoint)
    assert "--tp_size 4 --pp_size 2" in argv(checkpoint)
    assert checkpoint.expected_files == contract.checkpoint_files(8)
    assert engine.expected_files == contract.engine_files(8)
    folder = contract.artifact_folder("checkpoint", checkpoint.key)
    assert f"--checkpoint_dir {contract.STORE}/{folder} " in argv(engine)
    assert [step.source_key for step in (checkpoint, engine)] == [
        found["model"].key,
        checkpoint.key,
    ]


def test_the_builder_is_never_told_a_shape_since_the_checkpoint_fixes_it() -> None:
    assert "tp_size" not in argv(steps(specs.spec(parallelism={"tensor": 8}))["engine"])


def test_pytorch_with_plain_weights_serves_the_model_as_it_is() -> None:
    found = specs.resolved(specs.spec(engine={"backend": "PyTorch"}))
    assert [artifact.step for artifact in found.artifacts] == ["model"]
    assert (found.serve_step, found.serve_key) == ("model", found.model_key)


def test_pytorch_serves_a_published_checkpoint_as_it_is() -> None:
    asked = specs.spec(engine={"backend": "PyTorch"})
    resolved = specs.resolved(asked, specs.facts(quantization="modelopt"))
    assert [artifact.step for artifact in resolved.artifacts] == ["model"]


def test_pytorch_with_quantized_weights_makes_one_checkpoint_for_all_shapes() -> None:
    fields: dict[str, Any] = {
        "engine": {"backend": "PyTorch"},
        "quantization": {"weights": "FP8", "kvCache": "FP8"},
    }
    found = steps(specs.spec(**fields))
    assert list(found) == ["model", "checkpoint"]
    assert "--export_format hf" in argv(found["checkpoint"])
    assert "tp_size" not in argv(found["checkpoint"])
    assert "kv_cache_dtype" not in argv(found["checkpoint"])
    assert found["checkpoint"].expected_files == ("config.json", "hf_quant_config.json")
    more = specs.spec(**fields, parallelism={"tensor": 4}, gpu={"product": "NVIDIA-H200"})
    assert steps(more)["checkpoint"].key == found["checkpoint"].key


@pytest.mark.parametrize(
    ("quantization", "tool", "part"),
    [
        ({}, "convert_checkpoint", "--load_model_on_cpu"),
        ({"weights": "FP8"}, "quantize", "--qformat fp8"),
        ({"weights": "INT4AWQ"}, "quantize", "--awq_block_size 128"),
        ({"weights": "INT8SmoothQuant"}, "quantize", "--qformat int8_sq"),
        ({"weights": "INT8"}, "quantize", "--qformat int8_wo"),
        ({"weights": "W4A8AWQ"}, "quantize", "--qformat w4a8_awq"),
        ({"weights": "NVFP4"}, "quantize", "--qformat nvfp4"),
        ({"kvCache": "FP8"}, "quantize", "--qformat full_prec"),
        ({"kvCache": "INT8"}, "quantize", "--kv_cache_dtype int8"),
        ({"weights": "FP8", "kvCache": "FP8"}, "quantize", "--kv_cache_dtype fp8"),
        ({"weights": "INT4GPTQ"}, "convert_checkpoint", "--weight_only_precision int4_gptq"),
    ],
)
def test_each_precision_has_its_tool(quantization: dict[str, str], tool: str, part: str) -> None:
    checkpoint = steps(specs.spec(quantization=quantization))["checkpoint"]
    assert checkpoint.commands[0].tool == tool
    assert part in argv(checkpoint)


@pytest.mark.parametrize(("family", "by_flag"), [("llama", True), ("qwen2", False)])
def test_only_llama_s_converter_is_told_where_the_gptq_weights_are(
    family: str, by_flag: bool
) -> None:
    asked = specs.spec(quantization={"weights": "INT4GPTQ"})
    checkpoint = steps(asked, specs.facts(model_type=family))["checkpoint"]
    assert ("--quant_ckpt_path" in argv(checkpoint)) == by_flag


def test_calibration_data_are_named_or_lie_on_the_claim() -> None:
    def dataset(name: str) -> str:
        asked = specs.spec(quantization={"weights": "FP8", "calibration": {"dataset": name}})
        words = steps(asked)["checkpoint"].commands[0].argv
        return words[words.index("--calib_dataset") + 1]

    assert dataset("cnn_dailymail") == "cnn_dailymail"
    assert dataset("data/ours") == f"{contract.STORE}/data/ours"


@pytest.mark.parametrize(
    ("quantization", "used"),
    [
        ({}, None),
        ({"weights": "INT8"}, None),
        ({"weights": "INT4GPTQ"}, None),
        ({"weights": "FP8"}, {"dataset", "samples", "batchSize", "maxSeqLen"}),
        ({"kvCache": "FP8"}, {"dataset", "samples", "batchSize", "maxSeqLen"}),
        ({"weights": "INT4AWQ"}, {"dataset", "samples", "batchSize", "maxSeqLen", "groupSize"}),
    ],
)
def test_calibration_is_an_input_only_where_data_are_used(
    quantization: dict[str, str], used: set[str] | None
) -> None:
    inputs = steps(specs.spec(quantization=quantization))["checkpoint"].inputs
    calibration = inputs.get("calibration")
    assert (set(calibration) if isinstance(calibration, dict) else None) == used


TENSORRT_CHAIN = {"checkpoint", "engine", "proof"}


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ({}, {"parallelism": {"tensor": 2}}, TENSORRT_CHAIN),
        ({}, {"parallelism": {"pipeline": 2}}, TENSORRT_CHAIN),
        ({}, {"gpu": {"product": "NVIDIA-H200"}}, {"engine", "proof"}),
        ({}, {"engine": {"version": "1.2.0"}}, TENSORRT_CHAIN),
        ({}, {"engine": {"image": "registry.example.com/t:1"}}, TENSORRT_CHAIN),
        ({}, {"quantization": {"weights": "FP8"}}, TENSORRT_CHAIN),
        ({}, {"quantization": {"kvCache": "FP8"}}, TENSORRT_CHAIN),
        ({}, {"quantization": {"calibration": {"samples": 64}}}, set()),
        (
            {"quantization": {"weights": "FP8"}},
            {"quantization": {"weights": "FP8", "calibration": {"samples": 64}}},
            TENSORRT_CHAIN,
        ),
        ({}, {"engine": {"limits": {"maxBatchSize": 8}}}, {"engine", "proof"}),
        ({}, {"engine": {"limits": {"maxSeqLen": 4096}}}, {"engine", "proof"}),
        ({}, {"engine": {"limits": {"gpuMemoryFraction": 0.5}}}, set()),
        ({}, {"engine": {"build": {"plugins": {"gemm": "disable"}}}}, {"engine", "proof"}),
        ({}, {"engine": {"build": {"plugins": {"pagedContextFMHA": False}}}}, {"engine", "proof"}),
        ({}, {"engine": {"config": {"enable_chunked_prefill": True}}}, set()),
        ({}, {"model": {"uri": "hf://org/other"}}, {"model", *TENSORRT_CHAIN}),
        ({}, {"replicas": 3, "pod": {"shmSize": "1Gi"}, "rollout": {"maxSurge": 1}}, set()),
        (
            {"engine": {"backend": "PyTorch"}},
            {"engine": {"backend": "PyTorch"}, "parallelism": {"tensor": 2}},
            {"proof"},
        ),
        (
            {"engine": {"backend": "PyTorch"}},
            {"engine": {"backend": "PyTorch"}, "gpu": {"product": "NVIDIA-H200"}},
            {"proof"},
        ),
        (
            {"engine": {"backend": "PyTorch"}},
            {"engine": {"backend": "PyTorch"}, "quantization": {"kvCache": "FP8"}},
            {"proof"},
        ),
        (
            {"engine": {"backend": "PyTorch"}},
            {"engine": {"backend": "PyTorch", "limits": {"maxBatchSize": 8}}},
            {"proof"},
        ),
        (
            {"engine": {"backend": "PyTorch"}},
            {"engine": {"backend": "PyTorch", "limits": {"gpuMemoryFraction": 0.5}}},
            set(),
        ),
    ],
)
def test_an_edit_moves_exactly_the_keys_that_depend_on_it(
    before: dict[str, Any], after: dict[str, Any], moved: set[str]
) -> None:
    assert changed(before, after) == moved


def test_writing_out_the_model_s_own_dtype_changes_no_key() -> None:
    uri = "hf://org/model"
    assert changed({"model": {"uri": uri}}, {"model": {"uri": uri, "dtype": "BF16"}}) == set()
    assert changed({"model": {"uri": uri}}, {"model": {"uri": uri, "dtype": "FP16"}}) == (
        TENSORRT_CHAIN
    )


def test_keys_are_those_of_their_inputs_written_beside_them() -> None:
    for artifact in specs.resolved(specs.spec(quantization={"weights": "INT4AWQ"})).artifacts:
        assert artifact.key == contract.artifact_key(artifact.step, artifact.inputs)
        assert None not in artifact.inputs.values()


@pytest.mark.parametrize(
    ("product", "gigabytes"),
    [
        ("NVIDIA-H100-80GB-HBM3", 80),
        ("NVIDIA-A100-SXM4-40GB", 40),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 80),
        ("NVIDIA-H200", 141),
        ("NVIDIA-L40S", 48),
        ("Some-New-GPU", 80),
    ],
)
def test_the_memory_a_gpu_is_sold_with_is_read_from_its_name(product: str, gigabytes: int) -> None:
    assert catalogue_memory(product) == gigabytes * 10**9


@pytest.mark.parametrize(
    ("model", "product", "gpus"),
    [
        (specs.LLAMA_8B, specs.H100, 1),
        (specs.LLAMA_70B, specs.H100, 3),  # 141 GB × 1.15 on 80 GB
        (specs.LLAMA_70B, "NVIDIA-H200", 2),
        (specs.LLAMA_405B, specs.H100, 8),  # the rest is held in host memory
        (specs.facts(bytes=0), specs.H100, 1),
    ],
)
def test_quantizing_takes_as_many_gpus_of_one_node_as_hold_the_weights(
    model: ModelFacts, product: str, gpus: int
) -> None:
    asked = specs.spec(gpu={"product": product}, quantization={"weights": "FP8"})
    checkpoint = steps(asked, model)["checkpoint"]
    assert (checkpoint.gpus, checkpoint.product, checkpoint.resources.gpus) == (gpus, product, gpus)


def test_converting_takes_no_gpu_and_the_memory_that_holds_the_model() -> None:
    checkpoint = steps(specs.spec(), specs.LLAMA_405B)["checkpoint"]
    assert (checkpoint.gpus, checkpoint.product) == (0, "")
    assert checkpoint.resources.memory_bytes >= specs.LLAMA_405B.bytes * 1.2


def test_small_models_get_the_step_resources_of_the_settings() -> None:
    settings = Settings.model_validate({"stepResources": {"cpu": "2", "memory": "100Gi"}})
    found = specs.resolved(specs.spec(), specs.LLAMA_8B, settings)
    for artifact in found.artifacts[1:]:
        assert artifact.resources.memory_bytes == 100 * 2**30
        assert artifact.resources.cpu_millis == 2000


def test_each_build_worker_has_a_gpu_of_the_product() -> None:
    asked = specs.spec(parallelism={"tensor": 4}, engine={"build": {"workers": 3}})
    engine = steps(asked)["engine"]
    assert (engine.gpus, engine.resources.gpus, engine.product) == (3, 3, specs.H100)
    assert "--workers 3" in argv(engine)


@pytest.mark.parametrize(
    ("quantization", "paged"),
    [
        ({}, True),
        ({"weights": "FP8", "kvCache": "FP8"}, True),
        ({"kvCache": "FP8"}, False),
        ({"weights": "INT4AWQ", "kvCache": "FP8"}, False),
        ({"kvCache": "INT8"}, False),
    ],
)
def test_engine_and_server_agree_on_paged_context_attention(
    quantization: dict[str, str], paged: bool
) -> None:
    found = specs.resolved(specs.spec(quantization=quantization))
    word = "enable" if paged else "disable"
    assert f"--use_paged_context_fmha {word}" in argv(found.artifacts[-1])
    reuse = ENGINE.serve_config(found)["kv_cache_config"].get("enable_block_reuse", True)
    assert reuse == paged


def test_one_stage_is_started_by_the_server_and_several_under_the_launcher() -> None:
    one = ENGINE.serve_command(specs.resolved(specs.spec(parallelism={"tensor": 8})))
    two = ENGINE.serve_command(specs.resolved(specs.spec(parallelism={"tensor": 8, "pipeline": 2})))
    assert one.argv[0] == one.tool == "trtllm-serve"
    assert two.argv[:2] == ("trtllm-llmapi-launch", "trtllm-serve")
    assert two.tool == "trtllm-llmapi-launch"
    assert " ".join(two.argv).count("--tp_size 8 --pp_size 2 --gpus_per_node 8") == 1


def test_the_server_listens_beyond_its_pod_and_serves_under_the_asked_name() -> None:
    asked = specs.spec(model={"uri": "hf://org/model", "servedName": "chat-1.5"})
    words = ENGINE.serve_command(specs.resolved(asked)).argv
    assert words[1] == "{scratch}/served/chat-1.5"
    line = " ".join(words)
    assert "--host 0.0.0.0 --port 8000" in line
    assert "--tokenizer {model}" in line
    assert "--backend tensorrt" in line
    assert "--trust_remote_code" not in line


def test_remote_code_is_trusted_only_where_the_user_says_so() -> None:
    asked = specs.spec(model={"uri": "hf://org/model", "trustRemoteCode": True})
    assert "--trust_remote_code" in ENGINE.serve_command(specs.resolved(asked)).argv


def test_the_configuration_holds_limits_and_the_user_s_keys() -> None:
    asked = specs.EXAMPLES["llama-8b-pytorch"][0]
    assert ENGINE.serve_config(specs.resolved(asked)) == {
        "max_batch_size": 64,
        "max_num_tokens": 8192,
        "max_input_len": 4096,
        "max_seq_len": 8192,
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "free_gpu_memory_fraction": 0.9,
            "dtype": "fp8",
            "enable_block_reuse": False,
        },
    }


def test_an_engine_s_kv_precision_is_not_repeated_when_it_is_served() -> None:
    asked = specs.spec(quantization={"weights": "FP8", "kvCache": "FP8"})
    assert "dtype" not in ENGINE.serve_config(specs.resolved(asked))["kv_cache_config"]


def test_readiness_is_asked_on_the_runner_s_port() -> None:
    probe = ENGINE.readiness(specs.resolved(specs.spec()))
    assert (probe.path, probe.port) == (contract.READY_PATH, 8091)
