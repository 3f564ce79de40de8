"""A checkpoint's precision as the section of config.json that says it: the parser's other way.

Runtimes tell a checkpoint by that section; a planner that has read it asks them with the same
words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from shardwright.sizing.model import CheckpointPrecision

# By bits of a weight, whether it is a whole number, and bits of an activation.
_ALGORITHMS: Mapping[tuple[int, bool, int], str] = {
    (8, False, 8): "FP8",
    (8, True, 8): "W8A8_SQ_PER_CHANNEL",
    (8, True, 16): "W8A16",
    (4, False, 4): "NVFP4",
    (4, False, 16): "W4A16_NVFP4",
    (4, True, 16): "W4A16_AWQ",
    (4, True, 8): "W4A8_AWQ",
}
_SIXTEEN = 16


def config_of(found: CheckpointPrecision) -> str:
    """A config.json with nothing but the section; empty for a 16-bit model."""
    section = _section(found)
    return json.dumps({"quantization_config": section}, sort_keys=True) if section else ""


def _section(found: CheckpointPrecision) -> dict[str, object]:
    bits = int(found.weight_bits)
    if not found.method:
        return {}
    section: dict[str, object] = {"quant_method": found.method}
    if found.method in ("awq", "gptq"):
        return {**section, "bits": bits}
    if found.method.startswith("modelopt"):
        algorithm = _ALGORITHMS.get((bits, found.integer, found.activation_bits))
        if found.block[0]:
            algorithm = "FP8_PB_WO"
        return {**section, "quant_algo": algorithm} if algorithm else section
    if found.method == "compressed-tensors":
        inputs = {"num_bits": found.activation_bits}
        weights = {
            "num_bits": bits,
            "type": "int" if found.integer else "float",
            "group_size": found.group_size or None,
        }
        group = {
            "weights": weights,
            "input_activations": inputs if found.activation_bits < _SIXTEEN else None,
        }
        return {**section, "config_groups": {"group_0": group}}
    if found.block[0]:
        return {**section, "weight_block_size": list(found.block)}
    return section
