"""What a published checkpoint is in, told from the facts of its `config.json`.

Read after the documents of Hugging Face transformers, compressed-tensors and TensorRT Model
Optimizer. A kind is a quantizer and what it made, such as `compressed-tensors W8A8 INT8`. Facts
that name the quantizer alone leave the rest open: then each precision that it makes is possible,
and the runtime has the last word when it loads the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shardwright.api.spec import WeightPrecision
from shardwright.runner.config_keys import QUANTIZATION_SECTIONS, unpack_config
from shardwright.runner.contract import ModelFacts

Precisions = frozenset[WeightPrecision]

COMPRESSED = "compressed-tensors"
MODELOPT = "modelopt"
# Quantizers whose kinds differ; of the others the name is the kind.
_DETAILED = frozenset({"awq", "gptq", "fp8", COMPRESSED, MODELOPT})
# What config.json calls Model Optimizer's checkpoints, and its algorithms where that is their name.
_MODELOPT_NAMES: Mapping[str, str] = {
    "modelopt-fp8": "FP8",
    "modelopt-fp4": "NVFP4",
    "modelopt-mxfp8": "MXFP8",
    "modelopt-mixed": "MIXED_PRECISION",
}
# Those of hf_quant_config.json, which stand in for a quantizer's name. FP8 is told by its section:
# others call themselves so too.
_ALGORITHMS = frozenset(
    {
        "FP8_PER_CHANNEL_PER_TOKEN",
        "FP8_PB_WO",
        "NVFP4",
        "NVFP4_AWQ",
        "W4A16_NVFP4",
        "W4A16_AWQ",
        "W4A8_AWQ",
        "W8A16",
        "W8A8_SQ_PER_CHANNEL",
        "MXFP8",
        "MIXED_PRECISION",
    }
)

_FOUR_BIT = frozenset({WeightPrecision.INT4_AWQ, WeightPrecision.INT4_GPTQ})
_CALLED: Mapping[str, Precisions] = {
    "awq 4-bit": frozenset({WeightPrecision.INT4_AWQ}),
    "gptq 4-bit": frozenset({WeightPrecision.INT4_GPTQ}),
    "fp8 by tensor": frozenset({WeightPrecision.FP8}),
    "fp8 by block": frozenset({WeightPrecision.FP8}),
    "fbgemm-fp8": frozenset({WeightPrecision.FP8}),
    "modelopt FP8": frozenset({WeightPrecision.FP8}),
    "modelopt FP8_PER_CHANNEL_PER_TOKEN": frozenset({WeightPrecision.FP8}),
    "modelopt FP8_PB_WO": frozenset({WeightPrecision.FP8}),
    "modelopt NVFP4": frozenset({WeightPrecision.NVFP4}),
    "modelopt NVFP4_AWQ": frozenset({WeightPrecision.NVFP4}),
    "modelopt W4A16_AWQ": frozenset({WeightPrecision.INT4_AWQ}),
    "modelopt W4A8_AWQ": frozenset({WeightPrecision.W4A8_AWQ}),
    "modelopt W8A16": frozenset({WeightPrecision.INT8}),
    "modelopt W8A8_SQ_PER_CHANNEL": frozenset({WeightPrecision.INT8_SMOOTHQUANT}),
    "compressed-tensors W8A8 FP8": frozenset({WeightPrecision.FP8}),
    "compressed-tensors W4A4 NVFP4": frozenset({WeightPrecision.NVFP4}),
    "compressed-tensors W8A8 INT8": frozenset({WeightPrecision.INT8_SMOOTHQUANT}),
    "compressed-tensors W8A16 INT8": frozenset({WeightPrecision.INT8}),
    "compressed-tensors W4A16 INT4": _FOUR_BIT,
}
# A quantizer alone, nothing told of what it made.
_CALLED_OPEN: Mapping[str, Precisions] = {
    "awq": frozenset({WeightPrecision.INT4_AWQ}),
    "gptq": frozenset({WeightPrecision.INT4_GPTQ}),
    "fp8": frozenset({WeightPrecision.FP8}),
    MODELOPT: frozenset({WeightPrecision.FP8, WeightPrecision.NVFP4}),
    COMPRESSED: frozenset(
        {
            WeightPrecision.FP8,
            WeightPrecision.NVFP4,
            WeightPrecision.INT8,
            WeightPrecision.INT8_SMOOTHQUANT,
            *_FOUR_BIT,
        }
    ),
}
_FOUR = 4
_MICRO = 32
_SIXTEEN = 16


def method(facts: ModelFacts) -> str:
    """The quantizer's name with dashes: tools disagree on them; empty for a 16-bit model."""
    return _dashed(facts.quantization)


def published(facts: ModelFacts) -> Precisions:
    """The precisions of the API that this checkpoint may be called; none for a 16-bit model."""
    found = [published_as(kind) for kind in kinds(facts)]
    return frozenset.intersection(*found) if found else frozenset()


def published_as(kind: str) -> Precisions:
    """The precisions of the API that a kind of checkpoint may be called."""
    return _CALLED.get(kind, _CALLED_OPEN.get(kind, frozenset()))


def kinds(facts: ModelFacts) -> tuple[str, ...]:
    """What the checkpoint is in, a kind for each group of layers; none for a 16-bit model.

    Returns:
        A quantizer's bare name where it makes several kinds and the facts do not tell which.
    """
    name, section = method(facts), _section(facts)
    if not name:
        return ()
    if name == COMPRESSED:
        return _of_groups(section.get("config_groups"))
    if algorithm := _algorithm(name, section.get("quant_algo")):
        return (f"{MODELOPT} {algorithm}",)
    if name == "fp8":
        if not section:
            return (name,)
        return ("fp8 by block" if section.get("weight_block_size") else "fp8 by tensor",)
    if name in ("awq", "gptq"):
        bits = section.get("bits", section.get("w_bit", _FOUR))
        return (f"{name} {bits}-bit",) if section else (name,)
    return (name,)


def _algorithm(name: str, said: object) -> str:
    """Model Optimizer's algorithm; empty where it did not make the checkpoint, or none is told."""
    if isinstance(said, str) and (name.startswith(MODELOPT) or name == _dashed(said)):
        return said.upper()
    told = name.upper().replace("-", "_")
    return _MODELOPT_NAMES.get(name, told if told in _ALGORITHMS else "")


def is_open(kind: str) -> bool:
    """Whether a kind names a quantizer alone that makes several."""
    return kind in _DETAILED


def _dashed(word: str) -> str:
    return word.lower().replace("_", "-")


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


def _of_groups(groups: object) -> tuple[str, ...]:
    """The kinds of compressed-tensors' groups; its name alone where they are not told."""
    if not isinstance(groups, Mapping) or not groups:
        return (COMPRESSED,)
    return tuple(sorted({f"{COMPRESSED} {_of_group(group)}" for group in groups.values()}))


def _of_group(group: object) -> str:
    """Bits of weights and activations, and what the weights are: `W4A16 INT4`."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(weights, Mapping):
        return "without weights"
    bits, inputs = weights.get("num_bits"), group.get("input_activations")
    whole = weights.get("type", "int") == "int"
    activation = inputs.get("num_bits") if isinstance(inputs, Mapping) else _SIXTEEN
    if whole:
        floats = isinstance(inputs, Mapping) and inputs.get("type", "int") == "float"
        return f"W{bits}A{activation} INT{bits}{' with FP inputs' if floats else ''}"
    micro = weights.get("group_size") == _MICRO
    plain = "NVFP4" if bits == _FOUR else f"FP{bits}"
    return f"W{bits}A{activation} {f'MXFP{bits}' if micro else plain}"
