"""What has to be done before serving, and on what."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.support.fleet import gpu_node

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.observe.gpus import catalogue_memory
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.choose import choose
from shardwright.sizing.fleet import fleet_of_nodes, fleet_of_yaml
from shardwright.sizing.gpus import gpu_memory
from shardwright.sizing.question import Limits, Objective, Workload
from shardwright.sizing.result import from_data, to_data
from shardwright.sizing.shape import EngineSettings, Precision, Shape
from shardwright.sizing.steps import NodeRoom, Step, StepNeed, room_of, step_needs
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
    assert need.gpus == math.ceil(source * 1.15 / catalogue_memory(H100.product)) == 3
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
        (NodeRoom(8), ""),
        (NodeRoom(1), "takes 3 GPUs of one node, the largest has 1"),
        # What takes GPUs must find its memory beside them, however much other nodes have.
        (
            NodeRoom(8, 100 * GIB, any_host_bytes=4000 * GIB),
            "takes 158 GiB of host memory, the largest node has 100",
        ),
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


def test_what_takes_no_gpu_may_run_on_a_node_without_them() -> None:
    apart = NodeRoom(8, 10 * GIB, any_host_bytes=4000 * GIB)
    convert, build = needs("Llama-3.1-70B", Precision(), TENSORRT, apart)
    assert (convert.step, convert.obstacle) == (Step.CONVERT, "")
    assert "131 GiB of host memory" in build.obstacle


def test_a_build_takes_a_gpu_for_each_rank_that_is_worked_on_at_the_same_time() -> None:
    several = replace(TENSORRT, build_workers=4)
    assert [need.gpus for need in needs("Llama-3.1-70B", Precision(), several)] == [0, 4]
    *_, build = needs("Llama-3.1-70B", Precision(), several, NodeRoom(2))
    assert build.obstacle == "takes 4 GPUs of one node, the largest has 2"


def test_what_nodes_give_comes_from_the_fleet() -> None:
    small, large = (
        gpu_node(name, gpus, memory=memory)
        for name, gpus, memory in (("small", 4, 200), ("large", 8, 1000))
    )
    plain = gpu_node("plain", 0, memory=3000)
    found = room_of(fleet_of_nodes([small, large, plain]), H100.product)
    assert found == NodeRoom(8, 1000 * GIB, None, 3000 * GIB)
    told = fleet_of_yaml("nodes: [{product: H100, gpus: 2, hostMemoryGiB: 64}]")
    assert room_of(told, "H100") == NodeRoom(2, 64 * GIB, None, 64 * GIB)
    assert room_of(fleet_of_yaml("nodes: [{product: H100, gpus: 2}]"), "H100") == NodeRoom(2)


def test_a_plan_carries_its_steps_and_what_the_nodes_lack_for_them() -> None:
    short = fleet_of_yaml("nodes: [{product: NVIDIA-L40S, count: 8, gpus: 2, hostMemoryGiB: 64}]")
    load = Workload(Objective.THROUGHPUT)
    choice = choose(
        catalogue_model("Llama-3.1-70B"), short, load, PYTORCH, Limits(weights=WeightPrecision.FP8)
    )
    assert choice.chosen is not None
    (step,) = choice.chosen.steps
    assert step.step is Step.CALIBRATE
    assert step.obstacle == "takes 4 GPUs of one node, the largest has 2"
    assert "published in FP8" in step.alternative
    assert from_data(to_data(choice)) == choice
    assert to_data(choice)["chosen"]["steps"][0]["hostBytes"] == step.host_bytes
