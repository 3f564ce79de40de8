"""Which checkpoints SGLang loads, and from which compute capability on.

Read in the wheel of 0.5.23: quantizers in `srt/layers/quantization/__init__.py`, the capability of
each in its class (`get_min_capability`), of compressed-tensors in its schemes.
"""

from __future__ import annotations

from shardwright.runtimes.loads import Loads, Table
from shardwright.runtimes.tensorrt_precision import (
    ADA,
    AMPERE,
    BLACKWELL,
    HOPPER,
    TURING,
    Span,
)

_MODELOPT = "sglang-modelopt-algos"
_COMPRESSED = "sglang-compressed-schemes"
_METHODS = "sglang-quantization-methods"
_NVFP4 = "sglang-nvfp4-checkpoint"

LOADS: Table = {
    "awq 4-bit": Loads(Span(TURING), "sglang-awq-checkpoint"),
    "gptq 4-bit": Loads(Span(AMPERE), "sglang-gptq-checkpoint"),
    "gptq 8-bit": Loads(Span(AMPERE), "sglang-gptq-checkpoint"),
    "fp8 by tensor": Loads(Span(AMPERE), "sglang-fp8-online"),
    "fp8 by block": Loads(Span(AMPERE), "sglang-fp8-online"),
    # Not unpacked as other FP8 is: its class asks for tensor cores that have it.
    "modelopt FP8": Loads(Span(ADA), _MODELOPT),
    "modelopt NVFP4": Loads(Span(AMPERE), _NVFP4),
    "modelopt NVFP4_AWQ": Loads(Span(AMPERE), _NVFP4),
    "modelopt W4A16_NVFP4": Loads(Span(AMPERE), _NVFP4),
    "modelopt MXFP8": Loads(Span(BLACKWELL), _MODELOPT),
    "modelopt MIXED_PRECISION": Loads(Span(AMPERE), _MODELOPT),
    "compressed-tensors W8A8 FP8": Loads(Span(AMPERE), _COMPRESSED),
    "compressed-tensors W8A16 FP8": Loads(Span(AMPERE), _COMPRESSED),
    "compressed-tensors W8A8 INT8": Loads(Span(AMPERE, HOPPER), "sglang-int8-w8a8"),
    "compressed-tensors W8A16 INT8": Loads(Span(AMPERE), "sglang-int8-w8a16"),
    "compressed-tensors W4A16 INT4": Loads(Span(AMPERE), _COMPRESSED),
    "compressed-tensors W4A4 NVFP4": Loads(Span(AMPERE), _NVFP4),
    "compressed-tensors W4A16 NVFP4": Loads(Span(AMPERE), _NVFP4),
    "w8a8-int8": Loads(Span(AMPERE, HOPPER), "sglang-int8-w8a8"),
    "w8a8-fp8": Loads(Span(ADA), _METHODS),
    "blockwise-int8": Loads(Span(AMPERE), _METHODS),
    "bitsandbytes": Loads(Span(TURING), _METHODS),
    "moe-wna16": Loads(Span(TURING), _METHODS),
    "w4afp8": Loads(Span(HOPPER), _METHODS),
    "quark": Loads(Span(TURING), _METHODS),
    "auto-round": Loads(Span(TURING), _METHODS),
    "mxfp4": Loads(Span(AMPERE), _METHODS),
    "mxfp8": Loads(Span(BLACKWELL), _METHODS),
}
