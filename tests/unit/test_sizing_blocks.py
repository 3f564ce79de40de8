"""Blocks of a checkpoint that share a scale: which splits leave them whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sizing import H100, PYTORCH, nodes, plan

from shardwright.api.serving import WeightPrecision
from shardwright.sizing.blocks import block_refusal, torn_side
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.config_json import model_from_config
from shardwright.sizing.model import Model
from shardwright.sizing.question import Limits
from shardwright.sizing.shape import Precision, Shape

OWN = Precision(None)
V3 = "deepseek-ai/DeepSeek-V3"
Q235 = "Qwen/Qwen3-235B-A22B-FP8"
Q30 = "Qwen/Qwen3-30B-A3B-FP8"
Q32 = "Qwen/Qwen3-32B-FP8"


def small(**changes: Any) -> Model:
    """A dense model with heads of 64: less than a block."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], **changes},
    }
    return model_from_config(config, name="small")


@pytest.mark.parametrize(
    ("model", "shape", "torn"),
    [
        (V3, Shape(8), ""),
        (V3, Shape(16), ""),
        # sgl-project/sglang#3345: 18,432 over 32 ranks leaves 576.
        (V3, Shape(32), "mlp.gate_proj"),
        (V3, Shape(32, expert=32, attention_data=4), ""),
        (Q235, Shape(4), ""),
        # vllm-project/vllm#17569: 1,536 over 8 ranks leaves 192.
        (Q235, Shape(8), "mlp.experts.gate_proj"),
        (Q235, Shape(8, 4), "mlp.experts.gate_proj"),
        (Q235, Shape(8, expert=8), ""),
        (Q235, Shape(8, expert=2), ""),
        (Q30, Shape(2), ""),
        (Q30, Shape(4), "mlp.experts.gate_proj"),
        (Q32, Shape(8), ""),
        (Q32, Shape(16), "mlp.gate_proj"),
    ],
)
def test_published_checkpoints(model: str, shape: Shape, torn: str) -> None:
    side = torn_side(catalogue_model(model), shape)
    assert (side.name if side else "") == torn


def test_the_refusal_names_size_block_and_the_next_split_that_does() -> None:
    refusal = block_refusal(catalogue_model(V3), OWN, Shape(32))
    assert refusal is not None
    assert refusal.reason == "QuantizationBlockSplit"
    for words in ("tensor 32", "576 of mlp.gate_proj's 18432", "128×128", "use tensor 16"):
        assert words in refusal.message


def test_heads_are_cut_into_blocks_too() -> None:
    assert torn_side(small(), Shape(4)) is None
    side = torn_side(small(), Shape(8))
    assert side is not None
    assert (side.name, side.part(Shape(8))) == ("self_attn.k_proj", 64)
    # 32 ranks repeat the 8 heads: each still holds half a block.
    assert torn_side(small(), Shape(32)) is not None


def test_what_the_checkpoint_keeps_in_16_bits_has_no_blocks() -> None:
    kept = small(modules_to_not_convert=["self_attn"])
    assert torn_side(kept, Shape(8)) is None
    assert torn_side(kept, Shape(32, attention_data=1)) is None
    assert torn_side(small(modules_to_not_convert=["self_attn", "mlp"]), Shape(128)) is None


def test_blocks_need_not_be_square() -> None:
    tall = small(weight_block_size=[64, 128])
    assert torn_side(tall, Shape(8)) is None
    wide = small(weight_block_size=[1, 512], modules_to_not_convert=["mlp"])
    side = torn_side(wide, Shape(8))
    assert side is not None
    assert (side.name, side.size, side.part(Shape(8))) == ("self_attn.o_proj", 2048, 256)


def test_only_the_checkpoints_own_precision_has_its_blocks() -> None:
    model = catalogue_model(Q235)
    assert block_refusal(model, Precision(WeightPrecision.FP8), Shape(8)) is not None
    assert block_refusal(model, Precision(WeightPrecision.NONE), Shape(8)) is None
    plain = replace(model, checkpoint=replace(model.checkpoint, block=(0, 0)))
    assert block_refusal(plain, OWN, Shape(8)) is None


def test_the_planner_goes_round_it() -> None:
    choice = plan(Q235, nodes(H100, 2), engine=PYTORCH, limits=Limits(expert=1, attention_data=1))
    assert choice.chosen is not None
    assert choice.chosen.shape.tensor == 4
    fixed = plan(Q235, nodes(H100, 2), engine=PYTORCH, limits=Limits(tensor=8, expert=1))
    assert fixed.chosen is None
    split = [one for one in fixed.rejected if one.shape is not None]
    assert {one.code for one in split} == {"QuantizationBlockSplit"}


@given(
    rows=st.sampled_from([32, 64, 128, 256]),
    columns=st.sampled_from([32, 64, 128, 256]),
    power=st.integers(0, 5),
)
def test_a_split_that_keeps_blocks_whole_keeps_them_with_fewer_ranks(
    rows: int, columns: int, power: int
) -> None:
    model = small(weight_block_size=[rows, columns])
    if torn_side(model, Shape(2**power)) is None:
        assert all(torn_side(model, Shape(2**less)) is None for less in range(power))
    assert torn_side(model, Shape(1, 2)) is None
