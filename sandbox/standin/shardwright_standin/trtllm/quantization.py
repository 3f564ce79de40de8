"""Rounding weights as a quantized checkpoint would.

The whole tensor is rounded before it is cut, so scales and tokens are the same for every split.
Rank files hold the rounded values as they are, not packed with scales beside them; activations and
the KV cache stay unrounded. Names of algorithms: tensorrt_llm/quantization/mode.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Weight = NDArray[np.float32]  # (out, in)

_E4M3_LARGEST, _E4M3_MANTISSA, _E4M3_SMALLEST_NORMAL = 448.0, 3, 2.0**-6
_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_NVFP4_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a `--qformat` does: the algorithm's name in config.json, and the rounding."""

    algorithm: str | None
    grouped: bool
    round: Callable[[Weight, int], Weight]


def _kept(weight: Weight, _group: int) -> Weight:
    return weight


def _fp8(weight: Weight, _group: int) -> Weight:
    """E4M3 with one scale a tensor."""
    scale = float(np.abs(weight).max()) / _E4M3_LARGEST or 1.0
    scaled = weight / np.float32(scale)
    size = np.maximum(np.abs(scaled), np.float32(_E4M3_SMALLEST_NORMAL))
    step = np.exp2(np.floor(np.log2(size)) - _E4M3_MANTISSA)
    rounded = np.round(scaled / step) * step
    result: Weight = (np.clip(rounded, -_E4M3_LARGEST, _E4M3_LARGEST) * scale).astype(np.float32)
    return result


def _whole_numbers(weight: Weight, group: int, largest: int) -> Weight:
    """Signed integers with a scale for each `group` inputs of an output."""
    outputs, inputs = weight.shape
    width = min(group, inputs)
    blocks = weight.reshape(outputs, -1, width) if inputs % width == 0 else weight[:, None, :]
    scale = np.abs(blocks).max(axis=2, keepdims=True) / largest
    scale[scale == 0] = 1.0
    rounded = np.clip(np.round(blocks / scale), -largest - 1, largest) * scale
    result: Weight = rounded.reshape(outputs, inputs).astype(np.float32)
    return result


def _int8(weight: Weight, _group: int) -> Weight:
    return _whole_numbers(weight, weight.shape[1], 127)


def _int4_channel(weight: Weight, _group: int) -> Weight:
    return _whole_numbers(weight, weight.shape[1], 7)


def _int4_group(weight: Weight, group: int) -> Weight:
    return _whole_numbers(weight, group, 7)


def _nvfp4(weight: Weight, _group: int) -> Weight:
    """E2M1 with a scale for each 16 inputs."""
    outputs, inputs = weight.shape
    blocks = weight.reshape(outputs, -1, min(_NVFP4_BLOCK, inputs))
    scale = np.abs(blocks).max(axis=2, keepdims=True) / _E2M1[-1]
    scale[scale == 0] = 1.0
    size = np.abs(blocks / scale)
    nearest = _E2M1[np.abs(size[..., None] - _E2M1).argmin(axis=-1)]
    rounded = np.sign(blocks) * nearest * scale
    result: Weight = rounded.reshape(outputs, inputs).astype(np.float32)
    return result


SCHEMES: Mapping[str, Scheme] = {
    "full_prec": Scheme(None, grouped=False, round=_kept),
    "fp8": Scheme("FP8", grouped=False, round=_fp8),
    "int8_sq": Scheme("W8A8_SQ_PER_CHANNEL", grouped=False, round=_int8),
    "int8_wo": Scheme("W8A16", grouped=False, round=_int8),
    "int4_wo": Scheme("W4A16", grouped=False, round=_int4_channel),
    "int4_awq": Scheme("W4A16_AWQ", grouped=True, round=_int4_group),
    "w4a8_awq": Scheme("W4A8_AWQ", grouped=True, round=_int4_group),
    "nvfp4": Scheme("NVFP4", grouped=False, round=_nvfp4),
}
KV_ALGORITHMS: Mapping[str, str] = {"int8": "INT8", "fp8": "FP8"}


def apply(weights: Mapping[str, Weight], qformat: str, group: int) -> dict[str, Weight]:
    """The linear layers' weights rounded; embeddings, norms and the head are left alone."""
    scheme = SCHEMES[qformat]
    return {
        name: scheme.round(value, group) if name.endswith("_proj.weight") else value
        for name, value in weights.items()
    }
