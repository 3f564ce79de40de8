"""Which checkpoints vLLM loads, and from which compute capability on.

Read in the wheel of 0.33.0: quantizers in `model_executor/layers/quantization/__init__.py`, the
capability of each in its class (`get_min_capability`), of compressed-tensors in its schemes. What
a GPU has no tensor cores for is unpacked by the Marlin kernels, from Turing on.
"""

from __future__ import annotations

from shardwright.runtimes.loads import Loads, Table
from shardwright.runtimes.tensorrt_precision import AMPERE, BLACKWELL, HOPPER, TURING, Span

_MODELOPT = "vllm-modelopt-algos"
_COMPRESSED = "vllm-compressed-schemes"
_METHODS = "vllm-quantization-methods"

LOADS: Table = {
    "awq 4-bit": Loads(Span(TURING), "vllm-awq-checkpoint"),
    "gptq 4-bit": Loads(Span(TURING), "vllm-gptq-checkpoint"),
    "gptq 8-bit": Loads(Span(TURING), "vllm-gptq-checkpoint"),
    "fp8 by tensor": Loads(Span(TURING), "vllm-fp8-online"),
    "fp8 by block": Loads(Span(TURING), "vllm-fp8-online"),
    "fbgemm-fp8": Loads(Span(AMPERE), "vllm-deprecated-methods"),
    "fp-quant": Loads(Span(BLACKWELL), "vllm-deprecated-methods"),
    "modelopt FP8": Loads(Span(AMPERE), _MODELOPT),
    "modelopt FP8_PER_CHANNEL_PER_TOKEN": Loads(Span(AMPERE), _MODELOPT),
    "modelopt FP8_PB_WO": Loads(Span(AMPERE), _MODELOPT),
    "modelopt NVFP4": Loads(Span(TURING), _MODELOPT),
    "modelopt W4A16_NVFP4": Loads(Span(TURING), _MODELOPT),
    "modelopt MXFP8": Loads(Span(AMPERE), _MODELOPT),
    "modelopt MIXED_PRECISION": Loads(Span(TURING), _MODELOPT),
    "compressed-tensors W8A8 FP8": Loads(Span(TURING), _COMPRESSED),
    "compressed-tensors W8A16 FP8": Loads(Span(TURING), _COMPRESSED),
    "compressed-tensors W8A8 INT8": Loads(Span(TURING, HOPPER), "vllm-int8-w8a8"),
    "compressed-tensors W8A16 INT8": Loads(Span(TURING), "vllm-int8-w8a16"),
    "compressed-tensors W4A16 INT4": Loads(Span(TURING), _COMPRESSED),
    "compressed-tensors W4A8 INT4": Loads(Span(TURING), _COMPRESSED),
    "compressed-tensors W4A8 INT4 with FP inputs": Loads(Span(HOPPER, HOPPER), _COMPRESSED),
    "compressed-tensors W4A4 NVFP4": Loads(Span(TURING), "vllm-nvfp4-checkpoint"),
    "compressed-tensors W4A16 NVFP4": Loads(Span(TURING), "vllm-nvfp4-checkpoint"),
    "compressed-tensors W4A4 MXFP4": Loads(Span(AMPERE), _COMPRESSED),
    "compressed-tensors W4A16 MXFP4": Loads(Span(AMPERE), _COMPRESSED),
    "compressed-tensors W8A8 MXFP8": Loads(Span(TURING), _COMPRESSED),
    "experts-int8": Loads(Span(AMPERE), _METHODS),
    "moe-wna16": Loads(Span(TURING), _METHODS),
    "quark": Loads(Span(TURING), _METHODS),
    "torchao": Loads(Span(TURING), _METHODS),
    "inc": Loads(Span(TURING), _METHODS),
    "auto-round": Loads(Span(TURING), _METHODS),
    "mxfp4": Loads(Span(AMPERE), _METHODS),
    "gpt-oss-mxfp4": Loads(Span(AMPERE), _METHODS),
    "mxfp8": Loads(Span(AMPERE), _METHODS),
}
