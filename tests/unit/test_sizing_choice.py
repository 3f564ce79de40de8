"""The textbook's answers: what a plan must look like for well-known models and fleets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from pydantic import ValidationError
from tests.support.sizing import (
    A100,
    B200,
    H100,
    H200,
    L40S,
    M8B,
    M70B,
    M405B,
    MIXTRAL,
    PYTORCH,
    R1,
    TENSORRT,
    chosen,
    fleet,
    nodes,
    plan,
)

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.precisions import words
from shardwright.sizing.question import Limits, Objective
from shardwright.sizing.result import Candidate, Choice, Rejection, from_data, to_data
from shardwright.sizing.shape import Shape


def _refused(choice: Choice, code: str, **shape: int) -> Rejection:
    wanted = [
        one
        for one in choice.rejected
        if one.code == code
        and one.shape is not None
        and all(getattr(one.shape, name) == value for name, value in shape.items())
    ]
    assert wanted, {(one.code, one.shape) for one in choice.rejected}
    return wanted[0]


def _split(one: Candidate) -> tuple[int, int, int]:
    return one.replicas, one.shape.tensor, one.shape.pipeline


def test_405b_in_bf16_on_sixteen_h100_is_eight_ranks_in_two_stages() -> None:
    choice = plan(M405B, nodes(H100, 2), limits=Limits(weights=WeightPrecision.NONE))
    best = chosen(choice)
    assert _split(best) == (1, 8, 2)
    assert best.stage_nodes == (0, 1)
    assert any("BF16" in reason and "trained" in reason for reason in best.reasons)


@pytest.mark.parametrize(("count", "stages"), [(8, 7), (7, 7), (9, 7)])
def test_stages_are_as_many_as_there_must_be(count: int, stages: int) -> None:
    """405B in BF16 on nodes of two H100: 756 GiB need seven nodes of 142 GiB, with headroom."""
    choice = plan(M405B, nodes(H100, count, 2), limits=Limits(weights=WeightPrecision.NONE))
    assert _split(chosen(choice)) == (1, 2, stages)


def test_405b_in_fp8_takes_one_node() -> None:
    best = chosen(plan(M405B, nodes(H100, 2), limits=Limits(weights=WeightPrecision.FP8)))
    assert _split(best) == (2, 8, 1)
    assert best.nodes_per_replica == 1


def test_405b_with_open_precision_shrinks_before_it_splits() -> None:
    choice = plan(M405B, nodes(H100, 2))
    best = chosen(choice)
    assert best.precision.weights is WeightPrecision.FP8
    assert best.nodes_per_replica == 1
    _refused(choice, "ShrinkBeforeSplit", tensor=8, pipeline=2)


def test_70b_for_latency_on_two_h100_nodes_fills_the_domain_and_repeats() -> None:
    choice = plan(M70B, nodes(H100, 2), Objective.LATENCY)
    assert _split(chosen(choice)) == (2, 8, 1)
    refusal = _refused(choice, "TensorOutsideDomain", tensor=16)
    assert "16" in refusal.message
    assert "NVLink domain" in refusal.message
    assert "tensor 8 with pipeline 2" in refusal.message


def test_tensor_sixteen_that_is_asked_for_is_refused_too() -> None:
    choice = plan(M70B, nodes(H100, 2), Objective.LATENCY, limits=Limits(tensor=16))
    assert choice.chosen is None
    assert {one.code for one in choice.rejected} >= {"TensorOutsideDomain"}


def test_70b_that_fits_one_h200_in_fp8_is_replicas_of_one_gpu() -> None:
    best = chosen(plan(M70B, nodes(H200)))
    assert _split(best) == (8, 1, 1)
    assert best.precision.weights is WeightPrecision.FP8


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.BALANCED, Objective.OFFLINE])
def test_without_nvlink_stages_or_replicas_go_before_ranks(objective: Objective) -> None:
    large = plan(M70B, nodes(L40S, 2), objective)
    assert chosen(large).shape.tensor == 1
    assert chosen(large).shape.pipeline > 1
    _refused(large, "TensorWithoutNVLink", tensor=4)
    small = chosen(plan(M8B, nodes(L40S, 2), objective))
    assert _split(small) == (16, 1, 1)


def test_without_nvlink_latency_alone_may_take_ranks() -> None:
    best = chosen(plan(M70B, nodes(L40S), Objective.LATENCY, 1))
    assert best.shape.tensor > 1
    assert any("over PCIe" in reason for reason in best.reasons)


@pytest.mark.parametrize("objective", [Objective.LATENCY, Objective.BALANCED])
def test_small_batches_of_chat_on_a100_take_four_bits(objective: Objective) -> None:
    choice = plan(M70B, nodes(A100), objective, 2)
    assert chosen(choice).precision.weights is WeightPrecision.INT4_AWQ
    assert chosen(choice).accuracy_loss == pytest.approx(1.01)


def test_70b_in_four_bits_fits_one_a100() -> None:
    best = chosen(
        plan(
            M70B,
            nodes(A100, gpus=1),
            Objective.LATENCY,
            4,
            limits=Limits(weights=WeightPrecision.INT4_AWQ),
        )
    )
    assert _split(best) == (1, 1, 1)


def test_large_batches_on_h100_take_fp8() -> None:
    best = chosen(plan(M70B, nodes(H100), concurrency=256))
    assert best.precision.weights is WeightPrecision.FP8


def test_few_requests_on_h100_take_four_bits_where_bits_must_shrink() -> None:
    best = chosen(plan(M70B, nodes(H100), Objective.LATENCY, 2))
    assert best.precision.weights is WeightPrecision.INT4_AWQ


def test_eight_bits_without_fp8_hardware_are_smoothquant() -> None:
    limits = Limits(weight_bits=8)
    best = chosen(plan(M70B, nodes(A100), limits=limits, engine=TENSORRT))
    assert best.precision.weights is WeightPrecision.INT8_SMOOTHQUANT
    best = chosen(plan(M70B, nodes(H100), limits=limits, engine=TENSORRT))
    assert best.precision.weights is WeightPrecision.FP8


def test_weight_only_int8_that_is_asked_for_is_kept_and_smoothquant_named() -> None:
    choice = plan(M70B, nodes(A100), limits=Limits(weights=WeightPrecision.INT8), engine=TENSORRT)
    assert chosen(choice).precision.weights is WeightPrecision.INT8
    assert any("SmoothQuant" in text for text in choice.would_change)


def test_bf16_is_kept_where_the_gpu_has_it_and_fp16_taken_where_not() -> None:
    best = chosen(plan(M8B, nodes(A100)))
    assert any(reason.startswith("BF16") and "65,504" in reason for reason in best.reasons), (
        best.reasons
    )
    old = chosen(plan(M8B, nodes("Tesla-T4", gpus=4), concurrency=1))
    assert any(reason.startswith("FP16") and "no BF16" in reason for reason in old.reasons)


def test_sixteen_bits_stay_where_fewer_would_save_no_gpu() -> None:
    choice = plan(M8B, nodes(H100))
    best = chosen(choice)
    assert best.precision.weights is WeightPrecision.NONE
    assert _split(best) == (8, 1, 1)
    assert any("quantization.weights" in text for text in choice.would_change)
    _refused(choice, "PrecisionNeedNotShrink", tensor=1)


A100_SMALL = "NVIDIA-A100-SXM4-40GB"


@pytest.mark.parametrize("objective", Objective)
def test_a_small_gpu_that_must_shrink_gives_way_to_one_that_need_not(objective: Objective) -> None:
    """14B fits one H100 in 16 bits; four bits on A100-40GB would answer faster, and lose by it."""
    where = fleet(f"product: {H100}, count: 1", f"product: {A100_SMALL}, count: 2, gpus: 4")
    alone = chosen(plan("Qwen/Qwen2.5-14B", nodes(A100_SMALL, 2, 4), objective, concurrency=512))
    assert alone.precision.weights is not WeightPrecision.NONE
    choice = plan("Qwen/Qwen2.5-14B", where, objective, concurrency=512)
    best = chosen(choice)
    assert (best.product, best.precision.weights) == (H100, WeightPrecision.NONE)
    assert any(
        one.code == "PrecisionNeedNotShrink" and f"as few GPUs of {H100}" in one.message
        for one in choice.rejected
    )


def test_ranks_over_pcie_go_before_a_pipeline_that_they_beat_in_every_respect() -> None:
    """Sixteen stages with two requests each read all weights for two tokens."""
    cards = nodes("Tesla-T4", 4, 4, "free: 4")
    best = chosen(plan(M70B, cards, Objective.BALANCED, engine=TENSORRT))
    assert best.shape == Shape(4, 4)
    # With few stages and many requests stages stay ahead.
    best = chosen(plan(M70B, nodes(L40S, 2), Objective.BALANCED, 64))
    assert best.shape.tensor == 1


def test_replicas_that_are_too_few_are_not_said_to_do() -> None:
    cards = nodes("Tesla-T4", 4, 4, "free: 4")
    best = chosen(plan(M70B, cards, Objective.BALANCED, engine=TENSORRT))
    assert best.concurrency < 64
    assert not any("would do" in reason for reason in best.reasons)


def test_why_a_kv_cache_is_not_kept_in_16_bits_is_told() -> None:
    phi = chosen(plan("microsoft/phi-4", nodes(H100), Objective.BALANCED, engine=TENSORRT))
    assert any(
        reason.startswith("FP8 KV cache: engine.backend TensorRT has no converter")
        for reason in phi.reasons
    )
    full = chosen(plan(M70B, nodes(H100), Objective.OFFLINE))
    assert full.precision.kv_cache is KVPrecision.FP8
    assert any(reason.startswith("FP8 KV cache: ") for reason in full.reasons)


def test_a_product_that_saves_gpus_by_shrinking_stays() -> None:
    """70B takes one B200 or H200 in FP8, and no single L40S in 16 bits."""
    where = fleet(f"product: {H200}, count: 1", f"product: {L40S}, count: 4")
    best = chosen(plan(M70B, where, Objective.THROUGHPUT))
    assert (best.product, best.precision.weights) == (H200, WeightPrecision.FP8)


def test_why_16_bits_do_not_do_is_told_in_the_words_of_what_refused_them() -> None:
    """The TensorRT backend has no converter for this family; quantizing goes another way."""
    best = chosen(plan("microsoft/phi-4", nodes(A100), Objective.LATENCY, engine=TENSORRT))
    assert best.precision.weights is not WeightPrecision.NONE
    assert "16 bits do not do: engine.backend TensorRT has no converter" in best.reasons[0]


def test_a_mixture_of_experts_takes_ranks_for_latency() -> None:
    best = chosen(plan(R1, nodes(H200), Objective.LATENCY, 1))
    assert best.shape.tensor == 8
    assert best.shape.attention_data == 1


@pytest.mark.parametrize("objective", [Objective.THROUGHPUT, Objective.OFFLINE])
def test_a_mixture_of_experts_takes_whole_experts_and_data_for_throughput(
    objective: Objective,
) -> None:
    best = chosen(plan(R1, nodes(H200), objective, 1024))
    assert best.shape == Shape(8, 1, 8, 8)


def test_attention_by_data_needs_experts() -> None:
    choice = plan(M70B, nodes(H100), limits=Limits(tensor=8, expert=1, attention_data=8))
    assert choice.chosen is None
    assert "AttentionDataWithoutExperts" in {one.code for one in choice.rejected}


def test_stages_inside_a_domain_are_for_offline_alone() -> None:
    limits = Limits(weights=WeightPrecision.FP8, kv_cache=KVPrecision.FP8)
    engine = PYTORCH
    offline = chosen(
        plan(
            M405B, nodes(H200), Objective.OFFLINE, 512, limits=limits, engine=engine, output_len=128
        )
    )
    assert offline.shape.pipeline > 1
    for objective in set(Objective) - {Objective.OFFLINE}:
        other = plan(
            M405B, nodes(H200), objective, 512, limits=limits, engine=engine, output_len=128
        )
        assert chosen(other).shape.pipeline == 1


def test_three_ranks_for_64_heads_are_refused_and_four_offered() -> None:
    choice = plan(M70B, nodes(H100), limits=Limits(tensor=3))
    assert choice.chosen is None
    refusal = _refused(choice, "HeadsNotDivisible", tensor=3)
    assert "64 attention heads" in refusal.message
    assert "use 4 or 2" in refusal.message


@pytest.mark.parametrize(("product", "tensor"), [(H100, 8), (H200, 4)])
def test_70b_for_256_long_requests_needs_more_than_the_hidden_sizes_formula_says(
    product: str, tensor: int
) -> None:
    """256 × 8,192 tokens of 160 KiB (FP8, eight KV heads) are 320 GiB beside 66 GiB of weights."""
    limits = Limits(weights=WeightPrecision.FP8, kv_cache=KVPrecision.FP8, replicas=1)
    best = chosen(
        plan(
            M70B, nodes(product, 2), concurrency=256, limits=limits, input_len=7168, output_len=1024
        )
    )
    assert best.shape == Shape(tensor)
    assert best.estimate.capacity >= 256
    smaller = plan(
        M70B,
        nodes(product, 2),
        concurrency=256,
        limits=replace(limits, tensor=tensor // 2, pipeline=1),
        input_len=7168,
        output_len=1024,
    )
    assert chosen(smaller).estimate.capacity < 256


def test_gptq_of_a_model_that_is_none_is_refused_by_the_runtime() -> None:
    limits = Limits(weights=WeightPrecision.INT4_GPTQ)
    choice = plan(M8B, nodes(A100), limits=limits, engine=TENSORRT)
    assert choice.chosen is None
    assert any("GPTQ" in one.code for one in choice.rejected)


def test_what_the_runtime_refuses_is_refused_here() -> None:
    choice = plan(M8B, nodes(H100), limits=Limits(weights=WeightPrecision.INT8), engine=PYTORCH)
    assert choice.chosen is None
    assert {one.code for one in choice.rejected} == {"PrecisionNotSupported"}
    assert any("engine.backend PyTorch" in one.message for one in choice.rejected)


def test_barely_fitting_is_refused() -> None:
    choice = plan(
        M70B, nodes("NVIDIA-H100-PCIe", gpus=1), limits=Limits(weights=WeightPrecision.FP8)
    )
    assert choice.chosen is None
    assert "TooLittleHeadroom" in {one.code for one in choice.rejected}
    assert any("at least 10%" in one.message for one in choice.rejected)


def test_fp8_cache_is_taken_where_room_for_requests_is_short() -> None:
    few = chosen(plan(M70B, nodes(H100), concurrency=16))
    many = chosen(plan(M70B, nodes(H100), concurrency=256))
    assert few.precision.kv_cache is KVPrecision.NONE
    assert many.precision.kv_cache is KVPrecision.FP8


def test_fp4_is_taken_when_the_checkpoint_or_the_user_says_so_alone() -> None:
    assert chosen(plan(M70B, nodes(B200))).precision.weights in (
        WeightPrecision.NONE,
        WeightPrecision.FP8,
    )
    best = chosen(plan(M70B, nodes(B200), limits=Limits(weights=WeightPrecision.NVFP4)))
    assert best.precision.weights is WeightPrecision.NVFP4
    refused = plan(M70B, nodes(H100), limits=Limits(weights=WeightPrecision.NVFP4))
    assert refused.chosen is None
    assert {one.code for one in refused.rejected} == {"PrecisionNotSupported"}


def test_targets_move_the_choice() -> None:
    free = chosen(plan(M70B, nodes(H100)))
    tight = chosen(plan(M70B, nodes(H100), tpot=0.02))
    assert tight.estimate.tpot_seconds <= 0.02 < free.estimate.tpot_seconds
    assert tight.shape.tensor > free.shape.tensor


def test_a_target_that_nothing_keeps_is_said() -> None:
    best = chosen(plan(M405B, nodes(H100, 2), tpot=1e-6))
    assert any("no candidate keeps the wanted latencies" in reason for reason in best.reasons)


def test_more_load_than_fits_is_said_and_not_refused() -> None:
    best = chosen(plan(M70B, nodes(H100), concurrency=100_000))
    assert any("others wait" in reason for reason in best.reasons)
    assert best.replicas_needed > best.replicas


def test_the_better_product_is_chosen_and_the_other_is_second() -> None:
    choice = plan(
        M70B,
        fleet(f"product: {H100}, count: 1", f"product: {H200}, count: 1"),
        limits=Limits(weights=WeightPrecision.FP8),
    )
    assert chosen(choice).product == H200
    assert choice.runner_up is not None
    assert any(one.product == H100 and one.code == "Slower" for one in choice.rejected)


def test_mxfp4_experts_are_padded_and_may_be_cut() -> None:
    best = chosen(plan("openai/gpt-oss-120b", nodes(H100), limits=Limits(tensor=8, expert=1)))
    assert best.shape == Shape(8)


def test_a_mixture_keeps_quantization_blocks_whole() -> None:
    """1,536 over eight ranks leaves 192, no multiple of the 128 weights of a block."""
    choice = plan("Qwen/Qwen3-235B-A22B-FP8", nodes(H100))
    refusal = _refused(choice, "QuantizationBlockSplit", tensor=8, expert=1)
    assert "leaves 192 of mlp.experts.gate_proj's 1536" in refusal.message
    assert "use tensor 4" in refusal.message
    assert not [one for one in choice.rejected if one.shape == Shape(8, 1, 8) and not one.score]


def test_mixtral_for_throughput_takes_few_gpus_and_replicas() -> None:
    best = chosen(plan(MIXTRAL, nodes(H100)))
    assert best.shape.world_size <= 2
    assert best.replicas >= 4


def test_an_answer_says_what_would_change_it() -> None:
    choice = plan(M70B, nodes(H100, 2), Objective.LATENCY)
    assert any(text.startswith("objective Throughput:") for text in choice.would_change)
    assert any("requests in flight" in text for text in choice.would_change)
    assert choice.runner_up is not None
    assert choice.runner_up.reasons


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("model", [M8B, M70B, MIXTRAL])
def test_another_precision_is_told_as_it_would_be_chosen(model: str, objective: Objective) -> None:
    """Who then asks for it gets just that."""
    where = fleet(f"product: {H100}, count: 2, fabric: RDMA", f"product: {A100}, count: 2")
    told = plan(model, where, objective).would_change
    precisions = {
        text.partition(":")[0].removeprefix("quantization.weights "): text
        for text in told
        if text.startswith("quantization.weights")
    }
    for weights, text in precisions.items():
        limits = Limits(weights=WeightPrecision(weights))
        best = chosen(plan(model, where, objective, limits=limits))
        groups = "" if best.shape.expert == 1 else f" expert {best.shape.expert}"
        if best.shape.attention_data > 1:
            groups += f" attentionData {best.shape.attention_data}"
        wanted = f"{best.replicas} × tensor {best.shape.tensor}{groups}, {words(best.precision)}, "
        assert text.endswith(f"; {wanted}on {best.product}")


def test_some_precision_is_told_for_each_of_these_objectives() -> None:
    """So that the test above has something to look at."""
    for objective in Objective:
        told = plan(M70B, nodes(H100, 2), objective).would_change
        assert any(text.startswith("quantization.weights") for text in told), objective


def test_reasons_are_those_of_the_product_that_was_chosen() -> None:
    """On A100 four bits save GPUs; that says nothing of why H100 got FP8."""
    where = fleet(f"product: {H100}, count: 2, fabric: RDMA", f"product: {A100}, count: 4")
    best = chosen(plan("Qwen/Qwen2.5-72B", where, Objective.BALANCED))
    assert (best.product, best.precision.weights) == (H100, WeightPrecision.FP8)
    assert "INT4AWQ" not in best.reasons[0]
    assert "FP8 weights" in best.reasons[0]


@pytest.mark.parametrize("model", [MIXTRAL, "Qwen/Qwen3-235B-A22B", "openai/gpt-oss-120b"])
@pytest.mark.parametrize("objective", Objective)
def test_the_runner_up_is_another_choice_and_not_the_same_with_whole_experts(
    model: str, objective: Objective
) -> None:
    choice = plan(model, nodes(H100, 2), objective, engine=PYTORCH)
    best, second = chosen(choice), choice.runner_up
    assert second is not None
    assert (second.precision.weights, second.shape.tensor, second.shape.attention_data) != (
        best.precision.weights,
        best.shape.tensor,
        best.shape.attention_data,
    )


def test_an_answer_is_written_in_camel_case_and_read_back_from_yaml() -> None:
    choice = plan(M405B, nodes(H100, 2), Objective.LATENCY, tpot=0.5)
    data = to_data(choice)
    assert data["chosen"]["stageNodes"] == [0]
    assert data["workload"]["tpotSeconds"] == 0.5
    assert data["chosen"]["memory"]["stages"][0]["kvPool"] > 0
    assert from_data(yaml.safe_load(yaml.safe_dump(data))) == choice
    with pytest.raises(ValidationError, match=r"chosen\.shape\.depth"):
        from_data({**data, "chosen": {**data["chosen"], "shape": {"depth": 1}}})


def test_a_request_longer_than_the_limit_is_refused() -> None:
    choice = plan(M8B, nodes(H100), input_len=9000)
    assert choice.chosen is None
    assert choice.rejected[0].code == "RequestTooLong"
    assert "maxSeqLen 8192" in choice.rejected[0].message


def test_more_replicas_than_fit_are_refused() -> None:
    choice = plan(M70B, nodes(H100), limits=Limits(tensor=8, replicas=2))
    assert choice.chosen is None
    assert "NotEnoughGPUsForReplicas" in {one.code for one in choice.rejected}


def test_a_product_that_is_not_there_is_named() -> None:
    choice = plan(M8B, nodes(H100), limits=Limits(product=H200))
    assert choice.chosen is None
    assert choice.rejected[0].code == "ProductNotFound"
    assert H100 in choice.rejected[0].message


def test_busy_gpus_are_not_planned_with() -> None:
    best = chosen(plan(M70B, fleet(f"product: {H100}, count: 2, free: 4")))
    assert best.gpus <= 8
    assert best.shape.tensor <= 4


def test_bridged_pairs_take_no_wider_group() -> None:
    choice = plan(M70B, nodes("NVIDIA-H100-NVL", gpus=4), Objective.LATENCY)
    assert chosen(choice).shape.tensor <= 2
    _refused(choice, "TensorOutsideDomain", tensor=4)
