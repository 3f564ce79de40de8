"""Which published checkpoints TensorRT-LLM loads.

The PyTorch backend reads Model Optimizer's `hf_quant_config.json`, and of a `quantization_config`
in config.json FP8 in blocks and MXFP4 alone; anything else ends the start with "Unsupported
quantization_config". Later versions read FP8 of compressed-tensors too. Compute capabilities are
those of the documents' hardware matrix. For an engine only GPTQ has a converter.
"""

from __future__ import annotations

from shardwright.api.spec import Backend, LLMDeploymentSpec
from shardwright.runtimes import tensorrt_versions
from shardwright.runtimes.loads import Loads, Table
from shardwright.runtimes.tensorrt_precision import ADA, AMPERE, BLACKWELL, HOPPER, Span

SOURCE = "trtllm-pytorch-checkpoints"
_MATRIX = "trtllm-hardware-matrix"
# Blocks of scales are for Hopper and for Blackwell's data centre chips (10.0, 10.3).
_BLOCKS = Span(HOPPER, (10, 9))

LOADS: Table = {
    "modelopt FP8": Loads(Span(ADA), _MATRIX),
    "modelopt FP8_PER_CHANNEL_PER_TOKEN": Loads(Span(HOPPER, HOPPER), _MATRIX),
    "modelopt FP8_PB_WO": Loads(_BLOCKS, _MATRIX),
    "modelopt NVFP4": Loads(Span(BLACKWELL), _MATRIX),
    "modelopt W4A16_AWQ": Loads(Span(AMPERE, HOPPER), _MATRIX),
    "modelopt W4A8_AWQ": Loads(Span(ADA, HOPPER), _MATRIX),
    "modelopt MIXED_PRECISION": Loads(Span(ADA), _MATRIX),
    "fp8 by block": Loads(_BLOCKS, _MATRIX),
    # On Hopper the weights are unpacked (W4A16_MXFP4).
    "mxfp4": Loads(Span(HOPPER), SOURCE),
}
SINCE_1_3: Table = {"compressed-tensors W8A8 FP8": Loads(_BLOCKS, SOURCE)}
# For the converter of an engine.
GPTQ = "gptq 4-bit"
CONVERTED: Table = {GPTQ: Loads(Span(AMPERE, HOPPER), _MATRIX)}


def table(spec: LLMDeploymentSpec) -> Table:
    """What this backend of this version loads."""
    if spec.engine.backend is not Backend.PYTORCH:
        return CONVERTED
    if tensorrt_versions.has_builder(spec.engine.version):
        return LOADS
    return {**LOADS, **SINCE_1_3}
