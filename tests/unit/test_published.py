"""What a published checkpoint may be called, from what its config.json says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.golden import specs

from shardwright.api.spec import WeightPrecision
from shardwright.runner.config_keys import pack_config
from shardwright.runtimes.published import method, published

FP8, NVFP4, AWQ = WeightPrecision.FP8, WeightPrecision.NVFP4, WeightPrecision.INT4_AWQ
GPTQ, W8A8, W8A16 = (
    WeightPrecision.INT4_GPTQ,
    WeightPrecision.INT8_SMOOTHQUANT,
    WeightPrecision.INT8,
)


def called(word: str, section: dict[str, Any] | None = None, **holder: Any) -> set[WeightPrecision]:
    config = {"quantization_config": section, **holder} if section is not None else holder
    packed = pack_config(config) if config else ""
    return set(published(specs.facts(quantization=word, config=packed)))


def groups(weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": weights, "input_activations": inputs}}}


@pytest.mark.parametrize(
    ("word", "section", "wanted"),
    [
        ("", None, set()),
        ("awq", None, {AWQ}),
        ("awq", {"bits": 4}, {AWQ}),
        ("awq", {"bits": 8}, set()),
        ("gptq", {"bits": 4}, {GPTQ}),
        ("gptq", {"bits": 3}, set()),
        ("fp8", None, {FP8}),
        ("fbgemm_fp8", None, {FP8}),
        ("modelopt", None, {FP8, NVFP4}),
        ("modelopt", {"quant_algo": "FP8"}, {FP8}),
        ("modelopt", {"quant_algo": "FP8_PB_WO"}, {FP8}),
        ("modelopt", {"quant_algo": "NVFP4"}, {NVFP4}),
        ("modelopt", {"quantization": {"quant_algo": "NVFP4_AWQ"}}, {NVFP4}),
        ("modelopt", {"quant_algo": "W4A8_AWQ"}, {WeightPrecision.W4A8_AWQ}),
        ("modelopt", {"quant_algo": "MIXED_PRECISION"}, set()),
        ("nvfp4", None, {NVFP4}),
        ("compressed-tensors", groups({"num_bits": 8, "type": "float"}, {"num_bits": 8}), {FP8}),
        ("compressed-tensors", groups({"num_bits": 4, "type": "float"}, {"num_bits": 4}), {NVFP4}),
        ("compressed-tensors", groups({"num_bits": 8, "type": "int"}, {"num_bits": 8}), {W8A8}),
        ("compressed-tensors", groups({"num_bits": 8, "type": "int"}, None), {W8A16}),
        ("compressed-tensors", groups({"num_bits": 4}, None), {AWQ, GPTQ}),
        ("compressed-tensors", groups({"num_bits": 2}, None), set()),
        ("compressed-tensors", {"config_groups": {"a": "b"}}, set()),
        ("bitsandbytes", {"load_in_4bit": True}, set()),
    ],
)
def test_a_checkpoint_is_called_by_what_it_says(
    word: str, section: dict[str, Any] | None, wanted: set[WeightPrecision]
) -> None:
    assert called(word, section) == wanted


def test_groups_of_several_precisions_are_none() -> None:
    section = {
        "config_groups": {
            "a": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": None},
            "b": {"weights": {"num_bits": 4, "type": "int"}, "input_activations": None},
        }
    }
    assert called("compressed-tensors", section) == set()


def test_a_multimodal_models_section_is_found() -> None:
    assert called("awq", text_config={"quantization_config": {"bits": 8}}) == set()


@pytest.mark.parametrize("text", ["zlib:nonsense", "[1]", "{", json.dumps({"quantization": 5})])
def test_facts_that_cannot_be_read_leave_the_method(text: str) -> None:
    assert published(specs.facts(quantization="awq", config=text)) == {AWQ}


def test_tools_disagree_on_dashes() -> None:
    assert method(specs.facts(quantization="Compressed_Tensors")) == "compressed-tensors"
