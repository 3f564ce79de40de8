"""What has to be done before serving, and on what."""

from __future__ import annotations

import math

import pytest

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.runtimes.gpu_memory import gpu_memory_bytes
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.gpus import gpu_memory
from shardwright.sizing.shape import EngineSettings, Precision, Shape
from shardwright.sizing.steps import NodeRoom, Step, StepNeed, step_needs
from shardwright.sizing.weights import checkpoint_bytes

TENSORRT = EngineSettings("TensorRTLLM", "1.2.1", "TensorRT")
PYTORCH = EngineSettings("TensorRTLLM", "1.2.1", "PyTorch")
VLLM = EngineSettings("VLLM", "0.19.0")
H100, _ = gpu_memory("NVIDIA-H100-80GB-HBM3")
GIB = 2**30


def needs(
    name: str,
    precision: Precision,
    engine: EngineSettings,
    room: NodeRoom | None = None,
) -> tuple[StepNeed, ...]:
    return step_needs(catalogue_model(name), Shape(8), precision, engine, H100, room=room)


@pytest.mark.parametrize(
    ("weights", "engine", "expected"),
    [
        (WeightPrecision.NONE, VLLM, []),
        (WeightPrecision.FP8, VLLM, []),
        (WeightPrecision.INT4_AWQ, VLLM, [Step.CALIBRATE]),
        (WeightPrecision.INT4_GPTQ, VLLM, []),
        (WeightPrecision.NONE, PYTORCH, []),
        (WeightPrecision.FP8, PYTORCH, [Step.CALIBRATE]),
        (WeightPrecision.NONE, TENSORRT, [Step.CONVERT, Step.BUILD]),
        (WeightPrecision.FP8, TENSORRT, [Step.CALIBRATE, Step.BUILD]),
        (WeightPrecision.INT4_GPTQ, TENSORRT, [Step.CONVERT, Step.BUILD]),
    ],
)
def test_steps_by_precision_and_runtime(
    weights: WeightPrecision, engine: EngineSettings, expected: list[Step]
) -> None:
    found = needs("Llama-3.1-70B", Precision(weights), engine)
    assert [need.step for need in found] == expected


def test_a_checkpoint_in_the_asked_precision_needs_no_calibration() -> None:
    assert needs("deepseek-ai/DeepSeek-V3", Precision(WeightPrecision.FP8), PYTORCH) == ()
    assert needs("openai/gpt-oss-120b", Precision(None), PYTORCH) == ()


def test_an_engines_quantized_cache_is_calibrated() -> None:
    both = Precision(WeightPrecision.NONE, KVPrecision.FP8)
    assert [need.step for need in needs("Llama-3.1-8B", both, TENSORRT)] == [
        Step.CALIBRATE,
        Step.BUILD,
    ]
    assert needs("Llama-3.1-8B", both, VLLM) == ()


def test_calibration_holds_the_16_bit_weights_on_gpus_of_one_node() -> None:
    (need,) = needs("Llama-3.1-70B", Precision(WeightPrecision.INT4_AWQ), VLLM)
    source = checkpoint_bytes(catalogue_model("Llama-3.1-70B"), None)
    assert need.gpus == math.ceil(source * 1.15 / gpu_memory_bytes(H100.product)) == 3
    assert need.host_bytes == math.ceil(source * 1.2)
    assert need.scratch_bytes == pytest.approx(39.5e9, rel=0.01)


def test_beyond_one_node_the_rest_of_the_weights_stays_in_host_memory() -> None:
    (need,) = needs("Llama-3.1-405B", Precision(WeightPrecision.INT4_AWQ), VLLM)
    assert need.gpus == 8
    assert need.host_bytes > 900e9


@pytest.mark.parametrize(
    ("room", "obstacle"),
    [
        (NodeRoom(8, 2000 * GIB, 2000 * GIB), ""),
        (NodeRoom(2, 2000 * GIB, 2000 * GIB), "takes 3 GPUs of one node, the largest has 2"),
        (
            NodeRoom(8, 100 * GIB, 2000 * GIB),
            "takes 158 GiB of host memory, the largest node has 100",
        ),
        (NodeRoom(8, 2000 * GIB, 10 * GIB), "writes 37 GiB, the volume has 10"),
    ],
)
def test_what_the_cluster_cannot_do_has_an_alternative(room: NodeRoom, obstacle: str) -> None:
    (need,) = needs("Llama-3.1-70B", Precision(WeightPrecision.INT4_AWQ), VLLM, room)
    assert need.obstacle == obstacle
    assert ("published in INT4AWQ" in need.alternative) == bool(obstacle)


def test_an_engine_that_cannot_be_built_is_served_by_the_other_backend() -> None:
    small = NodeRoom(8, 10 * GIB, 2000 * GIB)
    for need in needs("Llama-3.1-70B", Precision(), TENSORRT, small):
        assert need.obstacle
        assert "PyTorch backend" in need.alternative
