"""Which precisions TensorRT-LLM offers on which backend and GPU, and what its tools call them.

Source of the compute capabilities: the hardware matrix of TensorRT-LLM's quantization page. A
combination that the matrix leaves empty is refused. INT8 is absent from it (it belongs to the
TensorRT path alone): it is offered on the generations between the first with INT8 kernels of that
path and the last before Blackwell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.api.spec import Backend, DType, KVPrecision, WeightPrecision

Compute = tuple[int, int]

TURING: Compute = (7, 5)
AMPERE: Compute = (8, 0)
ADA: Compute = (8, 9)
HOPPER: Compute = (9, 0)
BLACKWELL: Compute = (10, 0)
NEWEST: Compute = (99, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """Compute capabilities from `lowest` to `highest`, both included."""

    lowest: Compute
    highest: Compute = NEWEST

    def __contains__(self, compute: Compute) -> bool:
        return self.lowest <= compute <= self.highest

    def __str__(self) -> str:
        if self.highest == NEWEST:
            return f"{dotted(self.lowest)} or higher"
        if self.highest == self.lowest:
            return dotted(self.lowest)
        return f"{dotted(self.lowest)} to {dotted(self.highest)}"


def dotted(compute: Compute) -> str:
    """`(8, 9)` as people write it: `8.9`."""
    return f"{compute[0]}.{compute[1]}"


_ON_BOTH = {
    WeightPrecision.FP8: Span(ADA),
    WeightPrecision.NVFP4: Span(BLACKWELL),
    WeightPrecision.W4A8_AWQ: Span(ADA, HOPPER),
    WeightPrecision.INT4_AWQ: Span(AMPERE, HOPPER),
}
# In the order in which they are offered as alternatives.
WEIGHTS: Mapping[Backend, Mapping[WeightPrecision, Span]] = {
    Backend.TENSORRT: {
        **_ON_BOTH,
        WeightPrecision.INT4_GPTQ: Span(AMPERE, HOPPER),
        WeightPrecision.INT8_SMOOTHQUANT: Span(AMPERE, HOPPER),
        WeightPrecision.INT8: Span(AMPERE, HOPPER),
    },
    Backend.PYTORCH: _ON_BOTH,
}
KV_CACHE: Mapping[Backend, Mapping[KVPrecision, Span]] = {
    Backend.TENSORRT: {KVPrecision.FP8: Span(ADA), KVPrecision.INT8: Span(AMPERE, HOPPER)},
    # The matrix prints FP8 KV on sm80 for this backend; the candidate's proof is the test of it.
    Backend.PYTORCH: {KVPrecision.FP8: Span(AMPERE)},
}
BFLOAT16 = Span(AMPERE)

# Names that quantize.py gives them (--qformat); GPTQ is missing: its checkpoints come made.
QFORMATS: Mapping[WeightPrecision, str] = {
    WeightPrecision.NONE: "full_prec",
    WeightPrecision.FP8: "fp8",
    WeightPrecision.INT4_AWQ: "int4_awq",
    WeightPrecision.INT8_SMOOTHQUANT: "int8_sq",
    WeightPrecision.INT8: "int8_wo",
    WeightPrecision.W4A8_AWQ: "w4a8_awq",
    WeightPrecision.NVFP4: "nvfp4",
}
KV_DTYPES: Mapping[KVPrecision, str] = {KVPrecision.FP8: "fp8", KVPrecision.INT8: "int8"}
DTYPES: Mapping[DType, str] = {
    DType.AUTO: "auto",
    DType.BF16: "bfloat16",
    DType.FP16: "float16",
}
# Scales of these come from data; weight-only INT8 takes them from the weights themselves.
CALIBRATED = frozenset(QFORMATS) - {WeightPrecision.NONE, WeightPrecision.INT8}
GROUPED = frozenset({WeightPrecision.INT4_AWQ, WeightPrecision.W4A8_AWQ})

# What is offered instead: not GPTQ, which needs another model, and not INT8, which is slower.
_OFFERED = (
    WeightPrecision.FP8,
    WeightPrecision.NVFP4,
    WeightPrecision.INT4_AWQ,
    WeightPrecision.INT8_SMOOTHQUANT,
)


def alternatives(backend: Backend, compute: Compute | None) -> str:
    """Weight precisions that do work, for the end of a message."""
    table = WEIGHTS[backend]
    fit = [
        precision.value
        for precision in _OFFERED
        if precision in table and (compute is None or compute in table[precision])
    ]
    return " or ".join([*fit, WeightPrecision.NONE.value])


def model_dtype(asked: DType, own: str) -> str:
    """The 16-bit type as the tools name it; Auto takes the model's own where that is one.

    A float32 model is left to the tools, which make float16 of it.
    """
    if asked is DType.AUTO and own in ("bfloat16", "float16"):
        return own
    return DTYPES[asked]
