"""Plans for vLLM and SGLang: what they can make of a model themselves, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.sizing import A100, B200, H100, M8B, M70B, chosen, nodes, plan

from shardwright.api.asked import AskedSpec
from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.plan.question import engine_settings
from shardwright.sizing.question import Limits
from shardwright.sizing.result import Choice
from shardwright.sizing.shape import EngineSettings

VLLM = EngineSettings("VLLM", "0.33.0", max_seq_len=8192, max_batch_size=256)
SGLANG = EngineSettings("SGLang", "0.5.23", max_seq_len=8192, max_batch_size=256)
both = pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda one: one.runtime)


def codes(choice: Choice, weights: WeightPrecision) -> set[str]:
    return {
        one.code
        for one in choice.rejected
        if one.precision is not None and one.precision.weights is weights
    }


@both
def test_70b_on_h100_is_made_fp8_while_it_loads_and_needs_no_step(engine: EngineSettings) -> None:
    choice = plan(M70B, nodes(H100), engine=engine)
    best = chosen(choice)
    assert best.precision.weights is WeightPrecision.FP8
    assert best.steps == ()
    # What only a checkpoint can bring is never chosen for a 16-bit model.
    for weights in (WeightPrecision.INT4_AWQ, WeightPrecision.INT8_SMOOTHQUANT):
        assert codes(choice, weights) == {"QuantizedCheckpointRequired"}


@both
@pytest.mark.parametrize("concurrency", [1, 4, 64])
def test_few_requests_get_no_four_bits_that_nobody_made(
    engine: EngineSettings, concurrency: int
) -> None:
    best = chosen(plan(M70B, nodes(H100), concurrency=concurrency, engine=engine))
    assert best.precision.weights in (WeightPrecision.NONE, WeightPrecision.FP8)


@both
def test_on_a100_fp8_saves_gpus_though_no_arithmetic(engine: EngineSettings) -> None:
    choice = plan(M70B, nodes(A100), engine=engine)
    best = chosen(choice)
    assert best.precision.weights is WeightPrecision.FP8
    plain = chosen(
        plan(
            M70B,
            nodes(A100),
            engine=engine,
            limits=Limits(weights=WeightPrecision.NONE),
        )
    )
    assert best.shape.world_size < plain.shape.world_size


def test_versions_that_are_not_recorded_are_planned_by_their_constants_alone() -> None:
    older = replace(VLLM, version="0.19.0")
    fp8 = Limits(weights=WeightPrecision.FP8)
    refused = plan(M70B, nodes(A100), engine=older, limits=fp8)
    assert refused.chosen is None
    assert codes(refused, WeightPrecision.FP8) == {"PrecisionNotSupported"}


@both
def test_a_model_that_fits_in_16_bits_keeps_them(engine: EngineSettings) -> None:
    best = chosen(plan(M8B, nodes(H100), engine=engine))
    assert best.precision.weights is WeightPrecision.NONE


@both
def test_a_whole_number_kv_cache_is_refused(engine: EngineSettings) -> None:
    limits = Limits(kv_cache=KVPrecision.INT8)
    choice = plan(M8B, nodes(H100), engine=engine, limits=limits)
    assert choice.chosen is None
    assert any("kvCache INT8 is not available" in one.message for one in choice.rejected)


@both
def test_on_blackwell_too(engine: EngineSettings) -> None:
    assert chosen(plan(M70B, nodes(B200), engine=engine)).shape.world_size == 1


def test_the_memory_fraction_means_what_the_runtime_means_by_it() -> None:
    """The same number leaves different room: of the GPU, of weights and cache, of what is free."""
    one = Limits(tensor=4, pipeline=1, weights=WeightPrecision.NONE, kv_cache=KVPrecision.NONE)
    pools = {}
    for engine in (VLLM, SGLANG, EngineSettings("TensorRTLLM", "1.2.1", "PyTorch")):
        settings = replace(engine, memory_fraction=0.8, max_batch_size=64)
        best = chosen(plan(M70B, nodes(H100), engine=settings, limits=one))
        stage = best.memory.stages[0]
        pools[engine.runtime] = stage.kv_pool
        if engine is SGLANG:
            assert stage.kv_pool + stage.weights <= 0.8 * stage.total
        if engine is VLLM:
            assert stage.kv_pool + stage.weights + stage.activation <= 0.8 * stage.total
    assert pools["VLLM"] < pools["SGLang"]
    assert len(set(pools.values())) == 3


@pytest.mark.parametrize("name", ["VLLM", "SGLang"])
def test_no_backend_reaches_the_planner(name: str) -> None:
    found: Any = specs.spec(engine={"runtime": name})
    assert engine_settings(found.engine, None).backend == ""
    asked = AskedSpec.read(
        {
            "model": {"uri": "hf://org/model"},
            "engine": {"runtime": name},
            "storage": {"claimName": "models"},
        }
    )
    assert "quantization.weights" in asked.open
