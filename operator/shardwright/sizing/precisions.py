"""What a precision means: tensor-core type, unpacking, published accuracy loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.runtimes.registry import DIRECT
from shardwright.sizing.hardware import Hardware, NumberType
from shardwright.sizing.model import Model
from shardwright.sizing.shape import EngineSettings, Precision

# Weights that are unpacked to the activations' type before they are multiplied.
_UNPACKED = frozenset(
    {
        WeightPrecision.INT8,
        WeightPrecision.INT4_AWQ,
        WeightPrecision.INT4_GPTQ,
        WeightPrecision.W4A8_AWQ,
    }
)
_TYPES: Mapping[WeightPrecision, NumberType] = {
    WeightPrecision.FP8: NumberType.FP8,
    WeightPrecision.W4A8_AWQ: NumberType.FP8,
    WeightPrecision.INT8_SMOOTHQUANT: NumberType.INT8,
    WeightPrecision.NVFP4: NumberType.FP4,
}


def multiplied(weights: WeightPrecision) -> NumberType:
    """What tensor cores multiply with these weights, where a GPU can; 16 bits unless they say."""
    return _TYPES.get(weights, NumberType.BF16)


BITS: Mapping[WeightPrecision, int] = {
    WeightPrecision.NONE: 16,
    WeightPrecision.FP8: 8,
    WeightPrecision.INT8: 8,
    WeightPrecision.INT8_SMOOTHQUANT: 8,
    WeightPrecision.INT4_AWQ: 4,
    WeightPrecision.INT4_GPTQ: 4,
    WeightPrecision.W4A8_AWQ: 4,
    WeightPrecision.NVFP4: 4,
}

# Percent of MMLU lost by Llama 2 70B: NVIDIA/TensorRT-LLM,
# docs/source/blogs/quantization-in-TRT-LLM.md. Other models lose more or less; the order is what is
# used. Precisions that are not in it have no figure here.
ACCURACY_SOURCE = (
    "MMLU of Llama 2 70B, NVIDIA/TensorRT-LLM docs/source/blogs/quantization-in-TRT-LLM.md"
)
_ACCURACY_LOSS: Mapping[WeightPrecision, float] = {
    WeightPrecision.NONE: 0.0,
    WeightPrecision.FP8: 0.87,
    WeightPrecision.INT4_AWQ: 1.01,
    WeightPrecision.INT8_SMOOTHQUANT: 2.75,
}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a precision computes on a GPU.

    Attributes:
        kind: Type of the multiplications; None where this GPU has no tensor cores for it.
        wanted: The type that would be needed.
        unpacks: Whether weights are unpacked first.
    """

    kind: NumberType | None
    wanted: NumberType
    unpacks: bool


def sixteen_bit(model: Model, hardware: Hardware) -> NumberType:
    """The 16-bit type: the model's own where the GPU has it, FP16 where it has no BF16.

    A model that was trained in BF16 has values beyond FP16's range (65,504), which turn into
    infinities there; so FP16 is taken only where nothing else is possible.
    """
    if model.dtype == "float16" or NumberType.BF16 not in hardware.tflops:
        return NumberType.FP16
    return NumberType.BF16


def accuracy_loss(precision: Precision) -> float | None:
    """Published loss in percent; None for a checkpoint's own precision and where none is known."""
    return None if precision.weights is None else _ACCURACY_LOSS.get(precision.weights)


def checkpoint_weights(model: Model) -> WeightPrecision | None:
    """The weight precision that equals the checkpoint's own; None where the API has no word for it.

    For a 16-bit checkpoint that is `None`'s own word, `WeightPrecision.NONE`.
    """
    own = model.checkpoint
    if not own.method:
        return WeightPrecision.NONE
    if own.method == "gptq":
        four = own.weight_bits == BITS[WeightPrecision.INT4_GPTQ]
        return WeightPrecision.INT4_GPTQ if four else None
    if own.method in ("fp8", "fbgemm_fp8"):
        return WeightPrecision.FP8
    if own.method in ("awq", "modelopt", "modelopt-fp4", "compressed-tensors"):
        return _SAME_AS.get((own.integer, round(own.weight_bits), own.activation_bits))
    return None


# (whole numbers, bits of a weight, bits of an activation)
_SAME_AS: Mapping[tuple[bool, int, int], WeightPrecision] = {
    (False, 8, 8): WeightPrecision.FP8,
    (False, 4, 4): WeightPrecision.NVFP4,
    (True, 8, 8): WeightPrecision.INT8_SMOOTHQUANT,
    (True, 8, 16): WeightPrecision.INT8,
    (True, 4, 8): WeightPrecision.W4A8_AWQ,
    (True, 4, 16): WeightPrecision.INT4_AWQ,
}


def arithmetic(
    model: Model,
    weights: WeightPrecision | None,
    hardware: Hardware,
    engine: EngineSettings | None = None,
) -> Arithmetic:
    """How this precision of this model computes on this GPU, with this runtime."""
    plain = sixteen_bit(model, hardware)
    if weights is None:
        if model.checkpoint.method == "mxfp4":
            # Served as FP4 where there are tensor cores for it, unpacked elsewhere.
            if NumberType.FP4 in hardware.tflops:
                return Arithmetic(NumberType.FP4, NumberType.FP4, unpacks=False)
            return Arithmetic(plain, plain, unpacks=True)
        weights = checkpoint_weights(model) or WeightPrecision.INT8
    wanted = _TYPES.get(weights, plain)
    kind = wanted if wanted in hardware.tflops else None
    if kind is None and engine is not None and _unpacked_by(engine, weights, hardware):
        return Arithmetic(plain, plain, unpacks=True)
    return Arithmetic(kind, wanted, unpacks=weights in _UNPACKED)


def _unpacked_by(engine: EngineSettings, weights: WeightPrecision, hardware: Hardware) -> bool:
    """Whether this version is known to unpack these weights where there are no cores for them."""
    found = next((one for name, one in DIRECT.items() if name == engine.runtime), None)
    if found is None or not engine.version.startswith(found.line):
        return False
    offer = found.weights.get(weights)
    return offer is not None and offer.unpacked is not None and hardware.compute in offer.unpacked


def words(precision: Precision) -> str:
    """For people: `FP8 weights, FP8 KV cache`."""
    weights = {
        None: "the checkpoint's own weights",
        WeightPrecision.NONE: "16-bit weights",
        WeightPrecision.INT4_AWQ: "INT4 AWQ weights",
        WeightPrecision.INT4_GPTQ: "INT4 GPTQ weights",
        WeightPrecision.INT8_SMOOTHQUANT: "INT8 SmoothQuant weights",
        WeightPrecision.W4A8_AWQ: "W4A8 AWQ weights",
    }.get(precision.weights, f"{precision.weights} weights")
    cache = "16-bit" if precision.kv_cache is KVPrecision.NONE else precision.kv_cache.value
    return f"{weights}, {cache} KV cache"
