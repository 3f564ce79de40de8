"""What a published checkpoint is quantized to, told from the facts of its `config.json`.

Read after the documents of Hugging Face transformers, compressed-tensors and TensorRT Model
Optimizer. Older facts name the method alone; then each precision that the method is used for is
possible, and the runtime has the last word when it loads the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardwright.api.spec import WeightPrecision
from shardwright.runner.config_keys import QUANTIZATION_SECTIONS, unpack_config
from shardwright.runner.contract import ModelFacts

Precisions = frozenset[WeightPrecision]

_FOUR_BIT = frozenset({WeightPrecision.INT4_AWQ, WeightPrecision.INT4_GPTQ})
# By the word of the facts: a quantizer's name, or Model Optimizer's algorithm.
_BY_METHOD: Mapping[str, Precisions] = {
    "awq": frozenset({WeightPrecision.INT4_AWQ}),
    "gptq": frozenset({WeightPrecision.INT4_GPTQ}),
    "fp8": frozenset({WeightPrecision.FP8}),
    "fbgemm-fp8": frozenset({WeightPrecision.FP8}),
    "modelopt": frozenset({WeightPrecision.FP8, WeightPrecision.NVFP4}),
    "modelopt-fp4": frozenset({WeightPrecision.NVFP4}),
    "compressed-tensors": frozenset(
        {
            WeightPrecision.FP8,
            WeightPrecision.NVFP4,
            WeightPrecision.INT8,
            WeightPrecision.INT8_SMOOTHQUANT,
            *_FOUR_BIT,
        }
    ),
    "fp8-per-channel-per-token": frozenset({WeightPrecision.FP8}),
    "fp8-pb-wo": frozenset({WeightPrecision.FP8}),
    "nvfp4": frozenset({WeightPrecision.NVFP4}),
    "nvfp4-awq": frozenset({WeightPrecision.NVFP4}),
    "w4a16-awq": frozenset({WeightPrecision.INT4_AWQ}),
    "w4a8-awq": frozenset({WeightPrecision.W4A8_AWQ}),
    "w8a16": frozenset({WeightPrecision.INT8}),
    "w8a8-sq-per-channel": frozenset({WeightPrecision.INT8_SMOOTHQUANT}),
}
# compressed-tensors: whole numbers or floats, bits of a weight, bits of an activation.
_BY_BITS: Mapping[tuple[str, int, int], Precisions] = {
    ("float", 8, 8): frozenset({WeightPrecision.FP8}),
    ("float", 4, 4): frozenset({WeightPrecision.NVFP4}),
    ("int", 8, 8): frozenset({WeightPrecision.INT8_SMOOTHQUANT}),
    ("int", 8, 16): frozenset({WeightPrecision.INT8}),
    ("int", 4, 16): _FOUR_BIT,
}
_SIXTEEN = 16
_FOUR = 4


def method(facts: ModelFacts) -> str:
    """The quantizer's name with dashes: tools disagree on them; empty for a 16-bit model."""
    return facts.quantization.lower().replace("_", "-")


def published(facts: ModelFacts) -> Precisions:
    """The precisions of the API that this checkpoint may be called; none for a 16-bit model."""
    name = method(facts)
    section = _section(facts)
    if name == "compressed-tensors":
        found = _of_groups(section.get("config_groups"))
        return _BY_METHOD[name] if found is None else found
    if name == "modelopt":
        algorithm = section.get("quant_algo")
        if isinstance(algorithm, str):
            return _BY_METHOD.get(algorithm.lower().replace("_", "-"), frozenset())
    bits = section.get("bits", section.get("w_bit", _FOUR))
    if name in ("awq", "gptq") and bits != _FOUR:
        return frozenset()
    return _BY_METHOD.get(name, frozenset())


def _section(facts: ModelFacts) -> Mapping[str, Any]:
    """The part of config.json on quantization; empty where the facts do not keep it."""
    if not facts.config:
        return {}
    try:
        config = json.loads(unpack_config(facts.config))
    except ValueError:
        return {}  # the planner, which reads the same text, says what is wrong with it
    if not isinstance(config, Mapping):
        return {}
    holders = (config, *(part for part in config.values() if isinstance(part, Mapping)))
    for holder in holders:
        for name in QUANTIZATION_SECTIONS:
            found = holder.get(name)
            if isinstance(found, Mapping):
                inner = found.get("quantization")
                return inner if isinstance(inner, Mapping) else found
    return {}


def _of_groups(groups: object) -> Precisions | None:
    """What compressed-tensors' groups have in common; None where they are not told."""
    if not isinstance(groups, Mapping) or not groups:
        return None
    found = [_of_group(group) for group in groups.values()]
    return frozenset.intersection(*found)


def _of_group(group: object) -> Precisions:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(weights, Mapping):
        return frozenset()
    inputs = group.get("input_activations")
    activation = inputs.get("num_bits") if isinstance(inputs, Mapping) else _SIXTEEN
    key = (weights.get("type", "int"), weights.get("num_bits"), activation)
    return next((kind for known, kind in _BY_BITS.items() if known == key), frozenset())
