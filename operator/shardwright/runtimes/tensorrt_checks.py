"""What TensorRT-LLM cannot do, told from the spec and the GPU before anything is fetched.

The tuple at the end is the documentation: every check is a small function that answers with a
refusal or None, and the first refusal is the one the user reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.api.settings import Settings
from shardwright.api.spec import (
    Backend,
    Build,
    DType,
    KVPrecision,
    LLMDeploymentSpec,
    WeightPrecision,
)
from shardwright.runtimes import (
    tensorrt_config,
    tensorrt_experts,
    tensorrt_lora,
    tensorrt_precision,
    tensorrt_speculative,
    tensorrt_versions,
)
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.tensorrt_paged import without_paged_context
from shardwright.runtimes.tensorrt_precision import Compute, Span, dotted


@dataclass(frozen=True, slots=True)
class Asked:
    """What the checks of a spec look at; `compute` is None while no such GPU is known."""

    spec: LLMDeploymentSpec
    compute: Compute | None
    settings: Settings | None = None

    @property
    def backend(self) -> Backend:
        """The backend asked for."""
        return self.spec.engine.backend or Backend.TENSORRT

    @property
    def version(self) -> str:
        """The runtime's name and version, for messages."""
        return f"{self.spec.engine.runtime} {self.spec.engine.version}"


def unknown_version(asked: Asked) -> Refusal | None:
    """No image is known for the version, or its command line is not recorded."""
    engine = asked.spec.engine
    line = tensorrt_versions.release_line(engine.version)
    known = ", ".join(tensorrt_versions.KNOWN_VERSIONS)
    if line[0] != tensorrt_versions.RECORDED_MAJOR:
        return Refusal(
            "UnknownVersion",
            f"engine.version {engine.version}: the command line of {engine.runtime} is known for "
            f"versions 1.x only; known are {known}. Use one of them, or leave engine.version out",
        )
    mirrored = asked.settings.images if asked.settings else {}
    if (
        engine.image
        or tensorrt_versions.known_image(engine.version)
        or mirrored.get(f"{engine.runtime}/{engine.version}")
    ):
        return None
    return Refusal(
        "UnknownVersion",
        f"engine.version {engine.version}: no image is known for it; known are {known}. Name one "
        f"in engine.image, or have the administrator add {engine.runtime}/{engine.version} to "
        "the operator's images",
    )


def builder_missing(asked: Asked) -> Refusal | None:
    """An engine of a version that has no builder."""
    version = asked.spec.engine.version
    if asked.backend is not Backend.TENSORRT or tensorrt_versions.has_builder(version):
        return None
    return Refusal(
        "BuilderNotAvailable",
        f"engine.backend TensorRT with engine.version {version}: engines exist up to "
        f"{asked.spec.engine.runtime} 1.2; use backend PyTorch, or version 1.2.1",
    )


def nothing_to_build(asked: Asked) -> Refusal | None:
    """Build options on a backend that builds nothing would be ignored."""
    if asked.backend is Backend.TENSORRT or asked.spec.engine.build == Build():
        return None
    return Refusal(
        "NoBuildStep",
        "engine.build has no effect with engine.backend PyTorch, which starts from the checkpoint; "
        "remove it or use backend TensorRT",
    )


def too_many_workers(asked: Asked) -> Refusal | None:
    """More parallel build workers than there are ranks to build."""
    workers, ranks = asked.spec.engine.build.workers, asked.spec.world_size
    if workers <= ranks:
        return None
    return Refusal(
        "TooManyBuildWorkers",
        f"engine.build.workers {workers} exceeds tensor × pipeline = {ranks}: each worker builds "
        f"one rank at a time on a GPU of its own; use at most {ranks}",
    )


def weights_not_on_backend(asked: Asked) -> Refusal | None:
    """A weight precision that the backend does not have at all."""
    weights = asked.spec.quantization.weights
    if weights is WeightPrecision.NONE or weights in tensorrt_precision.WEIGHTS[asked.backend]:
        return None
    others = tensorrt_precision.alternatives(asked.backend, asked.compute)
    gptq = weights is WeightPrecision.INT4_GPTQ
    origin = " with the 16-bit original in model.uri" if gptq else ""
    return Refusal(
        "PrecisionNotSupported",
        f"quantization.weights {weights} is not available with engine.backend {asked.backend} of "
        f"{asked.version}; choose {others}{origin}{_compiled(asked, weights)}"
        f"{', or engine.runtime VLLM or SGLang' if gptq else ''}",
        "trtllm-pytorch-gptq" if gptq else "trtllm-pytorch-precisions",
    )


def _compiled(asked: Asked, weights: WeightPrecision) -> str:
    """An engine as the way out, where this GPU and some version have it."""
    span = tensorrt_precision.WEIGHTS[Backend.TENSORRT].get(weights)
    if span is None or (asked.compute is not None and asked.compute not in span):
        return ""
    older = tensorrt_versions.has_builder(asked.spec.engine.version)
    return f", or backend TensorRT{'' if older else ' of version 1.2.1'}"


def weights_not_on_gpu(asked: Asked) -> Refusal | None:
    """A weight precision that the GPU cannot compute with."""
    weights = asked.spec.quantization.weights
    span = tensorrt_precision.WEIGHTS[asked.backend].get(weights)
    if span is None or asked.compute is None or asked.compute in span:
        return None
    others = tensorrt_precision.alternatives(asked.backend, asked.compute)
    if weights is WeightPrecision.INT4_GPTQ:
        others = f"{others} with the 16-bit original in model.uri"
    return _not_on_gpu(asked, asked.compute, f"quantization.weights {weights}", span, others)


def kv_not_on_backend(asked: Asked) -> Refusal | None:
    """A KV cache precision that the backend does not have at all."""
    kv_cache = asked.spec.quantization.kv_cache
    if kv_cache is KVPrecision.NONE or kv_cache in tensorrt_precision.KV_CACHE[asked.backend]:
        return None
    return Refusal(
        "PrecisionNotSupported",
        f"quantization.kvCache {kv_cache} is not available with engine.backend {asked.backend} of "
        f"{asked.version}; choose FP8 or None, or backend TensorRT",
        "trtllm-pytorch-precisions",
    )


def kv_not_on_gpu(asked: Asked) -> Refusal | None:
    """A KV cache precision that the GPU cannot compute with."""
    kv_cache = asked.spec.quantization.kv_cache
    table = tensorrt_precision.KV_CACHE[asked.backend]
    span = table.get(kv_cache)
    if span is None or asked.compute is None or asked.compute in span:
        return None
    others = [other.value for other, fit in table.items() if asked.compute in fit]
    choice = " or ".join([*others, KVPrecision.NONE.value])
    return _not_on_gpu(asked, asked.compute, f"quantization.kvCache {kv_cache}", span, choice)


def bfloat16_not_on_gpu(asked: Asked) -> Refusal | None:
    """Bfloat16, asked for or likely the model's own, on a GPU without it."""
    dtype = asked.spec.model.dtype
    if dtype is DType.FP16 or asked.compute is None:
        return None
    if asked.compute in tensorrt_precision.BFLOAT16:
        return None
    meant = "BF16" if dtype is DType.BF16 else "Auto (bfloat16 for most models)"
    return _not_on_gpu(
        asked, asked.compute, f"model.dtype {meant}", tensorrt_precision.BFLOAT16, "FP16"
    )


def kv_without_calibration(asked: Asked) -> Refusal | None:
    """A quantized KV cache beside GPTQ weights in one checkpoint: nothing could make its scales."""
    quantization = asked.spec.quantization
    if (
        asked.backend is not Backend.TENSORRT
        or quantization.weights is not WeightPrecision.INT4_GPTQ
        or quantization.kv_cache is KVPrecision.NONE
    ):
        return None
    return Refusal(
        "PrecisionNotSupported",
        f"quantization.kvCache {quantization.kv_cache} with weights INT4GPTQ: the scales of the KV "
        "cache come from calibration, which quantize.py does not offer for GPTQ checkpoints; use "
        "kvCache None, or weights INT4AWQ",
    )


def attention_by_data_not_on_backend(asked: Asked) -> Refusal | None:
    """Attention by data on a backend that has none."""
    return tensorrt_experts.attention_by_data_not_on_backend(asked.spec)


def experts_not_in_quantizer(asked: Asked) -> Refusal | None:
    """Whole experts dealt out by a tool that cannot."""
    return tensorrt_experts.experts_not_in_quantizer(asked.spec)


def speculation_not_supported(asked: Asked) -> Refusal | None:
    """A method of speculation that backend or precision do not go with."""
    return tensorrt_speculative.refuse_spec(asked.spec)


def reserved_config(asked: Asked) -> Refusal | None:
    """A configuration key that the operator sets from another field."""
    return tensorrt_config.reserved_config(asked.spec)


def owned_by_lora(asked: Asked) -> Refusal | None:
    """A configuration key that follows from spec.lora."""
    return tensorrt_lora.owned_config(asked.spec)


def unknown_config(asked: Asked) -> Refusal | None:
    """A configuration key that the runtime would refuse, or drop, when it starts."""
    return tensorrt_config.unknown_config(asked.spec)


def config_not_for_engine(asked: Asked) -> Refusal | None:
    """A switch that the engine is not built for."""
    if asked.backend is not Backend.TENSORRT:
        return None
    config = asked.spec.engine.config
    cache = config.get(tensorrt_config.KV_CACHE) or {}
    switches = {
        "enable_chunked_prefill": config.get("enable_chunked_prefill"),
        f"{tensorrt_config.KV_CACHE}.enable_block_reuse": cache.get("enable_block_reuse"),
    }
    return without_paged_context(asked.spec, (path for path, on in switches.items() if on is True))


def _not_on_gpu(asked: Asked, compute: Compute, what: str, span: Span, choice: str) -> Refusal:
    return Refusal(
        "PrecisionNotSupported",
        f"{what} with engine.backend {asked.backend} needs compute capability {span}; "
        f"{asked.spec.gpu.product} has {dotted(compute)}. Choose {choice}, or a GPU product with "
        f"compute capability {span}",
        "trtllm-hardware-matrix",
    )


Check = Callable[[Asked], Refusal | None]
SPEC_CHECKS: tuple[Check, ...] = (
    builder_missing,  # first: an image for a version that cannot build would not help
    unknown_version,
    nothing_to_build,
    too_many_workers,
    speculation_not_supported,
    weights_not_on_backend,
    weights_not_on_gpu,
    kv_not_on_backend,
    kv_not_on_gpu,
    bfloat16_not_on_gpu,
    kv_without_calibration,
    attention_by_data_not_on_backend,
    experts_not_in_quantizer,
    reserved_config,
    owned_by_lora,
    unknown_config,
    config_not_for_engine,
)
