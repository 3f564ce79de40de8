"""Published checkpoints: which a runtime loads on which GPU, whatever the spec asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.golden import specs
from tests.support.matrix import SOURCES

from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes import sglang_loads, tensorrt_loads, vllm_loads
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.nim import ENGINE as NIM
from shardwright.runtimes.published import kinds
from shardwright.runtimes.registry import runtime

TURING, AMPERE, ADA, HOPPER, BLACKWELL = (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)
GENERATIONS = (TURING, AMPERE, ADA, HOPPER, BLACKWELL)


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


MICRO = {"num_bits": 4, "type": "float", "group_size": 32}
FP8 = compressed({"num_bits": 8, "type": "float"}, {"num_bits": 8, "type": "float"})
SECTIONS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4},
    "awq of 8 bits": {"quant_method": "awq", "bits": 8},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "gptq of 8 bits": {"quant_method": "gptq", "bits": 8},
    "gptq of 3 bits": {"quant_method": "gptq", "bits": 3},
    "fp8": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8 in blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "ModelOpt FP8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "ModelOpt NVFP4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "ModelOpt W4A8": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
    "ModelOpt W4A16": {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"},
    "compressed FP8": FP8,
    "compressed INT8": compressed({"num_bits": 8, "type": "int"}, {"num_bits": 8}),
    "compressed INT4": compressed({"num_bits": 4, "type": "int", "group_size": 128}, None),
    "compressed NVFP4": compressed(
        {"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 4}
    ),
    "compressed INT4, FP8 activations": compressed(
        {"num_bits": 4, "type": "int"}, {"num_bits": 8, "type": "float"}
    ),
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "mxfp4": {"quant_method": "mxfp4"},
    "hqq": {"quant_method": "hqq"},
}
# On Turing, Ampere, Ada, Hopper and Blackwell; None where it is loaded nowhere.
NOWHERE = None
ALL = (True,) * 5
FROM_AMPERE = (False, True, True, True, True)
FROM_ADA = (False, False, True, True, True)
WORKS: dict[str, dict[str, tuple[bool, ...] | None]] = {
    "VLLM": {
        "awq": ALL,
        "awq of 8 bits": NOWHERE,
        "gptq": ALL,
        "gptq of 8 bits": ALL,
        "gptq of 3 bits": NOWHERE,
        "fp8": ALL,
        "fp8 in blocks": ALL,
        "ModelOpt FP8": FROM_AMPERE,
        "ModelOpt NVFP4": ALL,
        "ModelOpt W4A8": NOWHERE,
        "ModelOpt W4A16": NOWHERE,
        "compressed FP8": ALL,
        "compressed INT8": (True, True, True, True, False),
        "compressed INT4": ALL,
        "compressed NVFP4": ALL,
        "compressed INT4, FP8 activations": (False, False, False, True, False),
        "bitsandbytes": NOWHERE,
        "mxfp4": FROM_AMPERE,
        "hqq": NOWHERE,
    },
    "SGLang": {
        "awq": ALL,
        "awq of 8 bits": NOWHERE,
        "gptq": FROM_AMPERE,
        "gptq of 8 bits": FROM_AMPERE,
        "gptq of 3 bits": NOWHERE,
        "fp8": FROM_AMPERE,
        "fp8 in blocks": FROM_AMPERE,
        "ModelOpt FP8": FROM_ADA,
        "ModelOpt NVFP4": FROM_AMPERE,
        "ModelOpt W4A8": NOWHERE,
        "ModelOpt W4A16": NOWHERE,
        "compressed FP8": FROM_AMPERE,
        "compressed INT8": (False, True, True, True, False),
        "compressed INT4": FROM_AMPERE,
        "compressed NVFP4": FROM_AMPERE,
        "compressed INT4, FP8 activations": NOWHERE,
        "bitsandbytes": ALL,
        "mxfp4": FROM_AMPERE,
        "hqq": NOWHERE,
    },
    "NIM": {
        "awq": NOWHERE,
        "fp8": FROM_AMPERE,
        "ModelOpt NVFP4": FROM_AMPERE,
        "compressed INT8": NOWHERE,
        "mxfp4": FROM_AMPERE,
    },
    "TensorRTLLM": {
        "awq": NOWHERE,
        "awq of 8 bits": NOWHERE,
        "gptq": NOWHERE,
        "gptq of 8 bits": NOWHERE,
        "gptq of 3 bits": NOWHERE,
        "fp8": NOWHERE,
        "fp8 in blocks": (False, False, False, True, True),
        "ModelOpt FP8": FROM_ADA,
        "ModelOpt NVFP4": (False, False, False, False, True),
        "ModelOpt W4A8": (False, False, True, True, False),
        "ModelOpt W4A16": (False, True, True, True, False),
        "compressed FP8": NOWHERE,
        "compressed INT8": NOWHERE,
        "compressed INT4": NOWHERE,
        "compressed NVFP4": NOWHERE,
        "compressed INT4, FP8 activations": NOWHERE,
        "bitsandbytes": NOWHERE,
        "mxfp4": (False, False, False, True, True),
        "hqq": NOWHERE,
    },
}
# The single llmapi model is TensorRT-LLM's PyTorch backend too.
WORKS["Triton"] = WORKS["TensorRTLLM"]


def facts(title: str) -> ModelFacts:
    section = SECTIONS[title]
    config = json.dumps({"quantization_config": section})
    return specs.facts(quantization=section["quant_method"], config=config)


def asked(name: str, **engine: Any) -> LLMDeploymentSpec:
    backend = {"backend": "PyTorch"} if name in ("TensorRTLLM", "Triton") else {}
    return specs.spec(
        model={"uri": "hf://org/checkpoint", "dtype": "FP16"},
        engine={"runtime": name, **backend, **engine},
        gpu={"product": "NVIDIA-T4"},
    )


def refused(name: str, title: str, compute: tuple[int, int], **engine: Any) -> Refusal | None:
    return runtime(Runtime(name)).refuse_model(asked(name, **engine), facts(title), compute)


@pytest.mark.parametrize(("name", "title"), [(n, t) for n, rows in WORKS.items() for t in rows])
def test_a_checkpoint_as_it_comes_runs_where_its_precision_does(name: str, title: str) -> None:
    wanted, found = WORKS[name][title], []
    for compute in GENERATIONS:
        refusal = refused(name, title, compute)
        if refusal is not None:
            assert refusal.source in SOURCES
            assert "model.uri hf://org/checkpoint" in refusal.message
            assert f"quantized as {kinds(facts(title))[0]}" in refusal.message
            assert refusal.reason == (
                "CheckpointNotSupported" if wanted is NOWHERE else "PrecisionNotSupported"
            )
        found.append(refusal is None)
    assert tuple(found) == (wanted or (False,) * 5)


def test_the_way_out_is_one() -> None:
    found = refused("SGLang", "ModelOpt FP8", AMPERE)
    assert found is not None
    assert found.message == (
        "model.uri hf://org/checkpoint: the checkpoint is quantized as modelopt FP8, which SGLang "
        "0.5.23 runs with compute capability 8.9 or higher; NVIDIA-T4 has 8.0. Name the 16-bit "
        "original, choose a GPU product with compute capability 8.9 or higher, or use "
        "engine.runtime VLLM, with which it is served as it is"
    )
    nowhere = refused("VLLM", "compressed INT4, FP8 activations", AMPERE)
    assert nowhere is not None
    assert nowhere.message.endswith(
        "NVIDIA-T4 has 8.0. Name the 16-bit original or choose a GPU product with compute "
        "capability 9.0"
    )


def test_gptq_for_the_pytorch_backend_names_an_engine_and_other_runtimes() -> None:
    found = refused("TensorRTLLM", "gptq", HOPPER)
    assert found is not None
    assert found.source == "trtllm-pytorch-checkpoints"
    assert found.message.endswith(
        "Name such a checkpoint, or the 16-bit original, or use weights INT4GPTQ with "
        "engine.backend TensorRT, or use engine.runtime VLLM or SGLang, with which it is served "
        "as it is"
    )
    later = refused("TensorRTLLM", "gptq", HOPPER, version="1.3.0rc14")
    assert later is not None
    assert "engine.backend TensorRT," not in later.message


def test_fp8_of_compressed_tensors_came_after_1_2() -> None:
    assert refused("TensorRTLLM", "compressed FP8", HOPPER, version="1.3.0rc14") is None
    found = refused("TensorRTLLM", "compressed FP8", HOPPER)
    assert (found.reason if found else "") == "CheckpointNotSupported"


@pytest.mark.parametrize("name", ["VLLM", "SGLang", "TensorRTLLM"])
def test_of_a_quantizer_alone_the_widest_counts(name: str) -> None:
    bare = specs.facts(quantization="modelopt")
    assert runtime(Runtime(name)).refuse_model(asked(name), bare, BLACKWELL) is None
    lowest = {"VLLM": "7.5", "SGLang": "8.0", "TensorRTLLM": "8.0"}[name]
    found = runtime(Runtime(name)).refuse_model(asked(name), bare, (7, 0))
    assert found is not None
    assert f"compute capability {lowest}" in found.message


def test_a_gpu_that_nobody_knows_refuses_nothing() -> None:
    engine = runtime(Runtime.SGLANG)
    for compute in (None, (0, 0)):
        assert engine.refuse_model(asked("SGLang"), facts("ModelOpt FP8"), compute) is None


def test_every_row_rests_on_a_source() -> None:
    tables = (vllm_loads.LOADS, sglang_loads.LOADS, tensorrt_loads.LOADS, NIM.loads)
    for table in (*tables, tensorrt_loads.CONVERTED):
        assert {row.source for row in table.values()} <= set(SOURCES)


@pytest.mark.parametrize(
    ("word", "section", "wanted"),
    [
        ("", {}, ()),
        ("fp8", {"quant_algo": "FP8"}, ("modelopt FP8",)),
        ("fp8_pb_wo", {}, ("modelopt FP8_PB_WO",)),
        ("modelopt_fp4", {}, ("modelopt NVFP4",)),
        ("modelopt", {"quant_algo": "MIXED_PRECISION"}, ("modelopt MIXED_PRECISION",)),
        ("w4a16_awq", {"quant_algo": "W4A16_AWQ"}, ("modelopt W4A16_AWQ",)),
        ("awq", {"w_bit": 4}, ("awq 4-bit",)),
        ("compressed-tensors", {}, ("compressed-tensors",)),
        (
            "compressed-tensors",
            {"config_groups": {"a": {"weights": MICRO}}},
            ("compressed-tensors W4A16 MXFP4",),
        ),
        ("quark", {"global_quant_config": {}}, ("quark",)),
    ],
)
def test_kinds(word: str, section: dict[str, Any], wanted: tuple[str, ...]) -> None:
    config = json.dumps({"quantization_config": section}) if section else ""
    assert kinds(specs.facts(quantization=word, config=config)) == wanted


def test_groups_that_differ_are_told_apart() -> None:
    groups = {
        "a": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}},
        "b": {"weights": {"num_bits": 4, "type": "int"}, "input_activations": None},
    }
    config = json.dumps({"quantization_config": {"config_groups": groups}})
    found = specs.facts(quantization="compressed-tensors", config=config)
    assert kinds(found) == ("compressed-tensors W4A16 INT4", "compressed-tensors W8A8 FP8")
    assert runtime(Runtime.VLLM).refuse_model(asked("VLLM"), found, HOPPER) is None
