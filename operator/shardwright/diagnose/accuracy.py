"""Causes of answering badly: what quantization or a narrow type does to a model's numbers."""

from __future__ import annotations

from shardwright.api.serving import Backend, DType, KVPrecision, WeightPrecision
from shardwright.diagnose.finding import Finding, Fit
from shardwright.diagnose.observed import Observed, Symptom
from shardwright.sizing.precisions import ACCURACY_SOURCE, accuracy_loss
from shardwright.sizing.shape import Precision

_ADA = (8, 9)
_INT8 = (WeightPrecision.INT8, WeightPrecision.INT8_SMOOTHQUANT)


def int8_outliers(observed: Observed) -> Finding | None:
    """A few huge activations stretch an INT8 scale until the others round to nothing."""
    facts = observed.facts
    if not observed.shows(Symptom.ACCURACY_COLLAPSE):
        return None
    if facts.weights is not None and facts.weights not in _INT8:
        return None
    cause = (
        "Outliers: a few channels of the activations are far larger than the rest, and one INT8 "
        "scale for all leaves the rest a handful of values."
    )
    fit, evidence = _int8_evidence(observed)
    fp8 = (
        "quantization.weights FP8: a floating-point scale takes outliers; "
        f"{_lost(WeightPrecision.FP8)}."
    )
    smooth = (
        "quantization.weights INT8SmoothQuant: moves the outliers into the weights; "
        f"{_lost(WeightPrecision.INT8_SMOOTHQUANT)}, against far more without."
    )
    awq = (
        "quantization.weights INT4AWQ, which leaves activations in 16 bits; "
        f"{_lost(WeightPrecision.INT4_AWQ)}."
    )
    remedies: tuple[str, ...]
    if facts.capability is None:
        remedies = (f"On compute capability 8.9 or higher: {fp8}", smooth, awq)
    elif facts.capability < _ADA:
        remedies = (smooth, awq)
    else:
        remedies = (fp8, smooth, awq)
    if facts.weights is WeightPrecision.INT8_SMOOTHQUANT:
        remedies = (
            *(remedy for remedy in remedies if remedy != smooth),
            "Calibrate on text like your requests: quantization.calibration.dataset.",
        )
    return Finding(
        "INT8Outliers",
        fit,
        cause,
        (evidence,),
        remedies,
        ACCURACY_SOURCE,
    )


def _int8_evidence(observed: Observed) -> tuple[Fit, str]:
    """A weight-only INT8 has no scale that activations could stretch."""
    facts = observed.facts
    if facts.weights is None:
        return Fit.POSSIBLE, "facts.weights is not known"
    if facts.weights is WeightPrecision.INT8 and facts.backend is Backend.TENSORRT:
        return Fit.POSSIBLE, (
            "quantization.weights INT8, which on this backend keeps activations in 16 bits: look "
            "at what else changed"
        )
    return Fit.SHOWN, f"quantization.weights {facts.weights}"


def _lost(weights: WeightPrecision) -> str:
    """The published loss in words."""
    loss = accuracy_loss(Precision(weights))
    return "loss not published" if loss is None else f"{loss:g} % of MMLU lost"


def range_of_fp16(observed: Observed) -> Finding | None:
    """A BF16 model's values may exceed the 65,504 that FP16 ends at."""
    facts = observed.facts
    if not observed.shows(Symptom.ACCURACY_COLLAPSE) or facts.dtype is not DType.FP16:
        return None
    if facts.model_dtype is DType.FP16:
        return None
    known = facts.model_dtype is DType.BF16
    return Finding(
        "RangeOfFP16",
        Fit.SHOWN if known else Fit.POSSIBLE,
        "A model trained in BF16 runs in FP16: what exceeds 65,504 becomes infinite, and answers "
        "turn to noise.",
        ("model.dtype FP16, trained in BF16" if known else "facts.modelDtype is not known",),
        ("model.dtype BF16 (or Auto, which takes the model's own); GPUs from A100 on have it.",),
    )


def kv_cache_too_coarse(observed: Observed) -> Finding | None:
    """Keys and values in 8 bits lose most on long contexts."""
    facts = observed.facts
    if not observed.shows(Symptom.ACCURACY_COLLAPSE):
        return None
    if facts.kv_cache in (None, KVPrecision.NONE):
        return None
    return Finding(
        "KVCacheTooCoarse",
        Fit.POSSIBLE,
        "The KV cache is kept in 8 bits; some models, long contexts above all, lose by it.",
        (f"quantization.kvCache {facts.kv_cache}",),
        (
            "Try quantization.kvCache None; when that mends it, keep it and buy memory elsewhere.",
            *(
                ("kvCache FP8 loses less than INT8 where the GPU has it.",)
                if facts.kv_cache is KVPrecision.INT8
                else ()
            ),
        ),
    )


def four_bit_calibration(observed: Observed) -> Finding | None:
    """Four bits need scales that fit the text they will see."""
    facts = observed.facts
    four = (
        WeightPrecision.INT4_AWQ,
        WeightPrecision.INT4_GPTQ,
        WeightPrecision.W4A8_AWQ,
        WeightPrecision.NVFP4,
    )
    if not observed.shows(Symptom.ACCURACY_COLLAPSE) or facts.weights not in four:
        return None
    remedies = [
        "Calibrate on text like your requests: quantization.calibration.dataset and samples.",
        "A smaller quantization.calibration.groupSize, such as 64.",
    ]
    if facts.capability is None or facts.capability >= _ADA:
        remedies.append(
            "quantization.weights FP8, where memory allows and compute capability is 8.9 or "
            f"higher: {_lost(WeightPrecision.FP8)}, INT4AWQ: {_lost(WeightPrecision.INT4_AWQ)}."
        )
    return Finding(
        "FourBitCalibration",
        Fit.POSSIBLE,
        "Four-bit weights depend on their calibration: other text, or too coarse groups, cost "
        "accuracy.",
        (f"quantization.weights {facts.weights}",),
        tuple(remedies),
        ACCURACY_SOURCE,
    )
