"""What Triton cannot do, told from the spec and the GPU before anything is fetched.

What TensorRT-LLM's backends cannot do holds here too; the tuple at the end has all of it in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.api.spec import Backend, SpeculationMethod
from shardwright.runtimes import tensorrt_checks as engine_checks
from shardwright.runtimes import (
    tensorrt_config,
    tensorrt_speculative,
    tensorrt_versions,
    triton_versions,
)
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.tensorrt_checks import Asked, Check
from shardwright.runtimes.triton_options import refused_option
from shardwright.runtimes.triton_repository import PARTS


@dataclass(frozen=True, slots=True)
class TritonAsked(Asked):
    """As for TensorRT-LLM; `engine.version` is the version that Triton's image holds."""

    @property
    def version(self) -> str:
        """The runtime's name and version, for messages."""
        return f"{self.spec.engine.runtime} with TensorRT-LLM {self.spec.engine.version}"


def builder_missing(asked: Asked) -> Refusal | None:
    """An engine of a version that has neither a builder nor the backend that loads engines."""
    version = asked.spec.engine.version
    if asked.backend is not Backend.TENSORRT or tensorrt_versions.has_builder(version):
        return None
    if tensorrt_versions.release_line(version)[0] != tensorrt_versions.RECORDED_MAJOR:
        return None  # a release of Triton, perhaps: told as an unknown version
    return Refusal(
        "BuilderNotAvailable",
        f"engine.backend TensorRT with engine.version {version}: engines exist up to TensorRT-LLM "
        "1.2, and Triton's backend for them too; use backend PyTorch, or version 1.2.1",
        source="tensorrt-backend-removed",
    )


def unknown_version(asked: Asked) -> Refusal | None:
    """No image is known that holds the version, or its models are not recorded."""
    engine = asked.spec.engine
    pairs = [f"{version} ({release})" for version, release in triton_versions.RELEASES.items()]
    known = ", ".join(pairs)
    if tensorrt_versions.release_line(engine.version)[0] != tensorrt_versions.RECORDED_MAJOR:
        return Refusal(
            "UnknownVersion",
            f"engine.version {engine.version}: for Triton it is the version of TensorRT-LLM that "
            f"its image holds, of which 1.x is known; known are {known}. Use one of them, or leave "
            "engine.version out",
        )
    mirrored = asked.settings.images if asked.settings else {}
    if (
        engine.image
        or triton_versions.known_image(engine.version)
        or mirrored.get(f"{engine.runtime}/{engine.version}")
    ):
        return None
    return Refusal(
        "UnknownVersion",
        f"engine.version {engine.version}: no image of Triton is known to hold this version of "
        f"TensorRT-LLM; known are, with their releases of Triton, {known}. Name one in "
        f"engine.image, or have the administrator add {engine.runtime}/{engine.version} to the "
        "operator's images",
        source="triton-image-pairs",
    )


def served_name_taken(asked: Asked) -> Refusal | None:
    """The served model would bear the name of one of its own parts."""
    name = asked.spec.model.served_name
    if asked.backend is not Backend.TENSORRT or name not in PARTS:
        return None
    return Refusal(
        "ServedNameTaken",
        f"model.servedName {name}: Triton's repository has a model of this name already, beside "
        f"the served one ({', '.join(PARTS)}); choose another",
        source="triton-model-names",
    )


def no_adapters(asked: Asked) -> Refusal | None:
    """Adapters, which Triton's models take in no form that an operator could provide."""
    if asked.spec.lora is None:
        return None
    version = asked.spec.engine.version
    if asked.backend is Backend.TENSORRT:
        why = "its model takes an adapter's weights as tensors of a request, and none is loaded"
        source = "triton-lora-tensors"
    elif tensorrt_versions.has_builder(version):
        why = "its model of the LLM API has no input that names one, and none is loaded"
        source = "triton-llmapi-no-lora"
    else:
        last = triton_versions.KNOWN_VERSIONS[-1]
        why = (
            "inputs that name one came to its model of the LLM API after 1.2, and no release of "
            f"Triton is known to hold a later TensorRT-LLM than {last}: none is served"
        )
        source = "triton-llmapi-lora-since"
    return Refusal(
        "LoRANotSupported",
        f"lora with {asked.version} and engine.backend {asked.backend}: {why} "
        "from the claim; use engine.runtime TensorRTLLM or VLLM, or leave lora out",
        source=source,
    )


def speculation_not_supported(asked: Asked) -> Refusal | None:
    """What drafts, where engine, backend or precision do not go with it."""
    wish = asked.spec.speculative
    if wish is None:
        return None
    compiled = tensorrt_speculative.COMPILED
    if asked.backend is not Backend.TENSORRT or wish.method in compiled:
        return tensorrt_speculative.refuse_spec(asked.spec)
    heads = " or ".join(compiled)
    if wish.method is SpeculationMethod.DRAFT_MODEL:
        return Refusal(
            "SpeculationNotSupported",
            f"speculative.method {wish.method} with {asked.version} and engine.backend TensorRT: "
            "tensorrt_llm_bls asks the draft's engine only for requests that say num_draft_tokens, "
            "and two engines in one server are spread over one node at most; use backend PyTorch, "
            f"or {heads} heads",
            source="triton-bls-drafts",
        )
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method {wish.method} with {asked.version} and engine.backend TensorRT: its "
        f"model for engines decodes with {heads} heads; use those, or backend PyTorch",
        source="triton-decoding-modes",
    )


def refused_config(asked: Asked) -> Refusal | None:
    """An option that the operator sets, that is not known, or that has another type."""
    if asked.backend is Backend.TENSORRT:
        return refused_option(asked.spec)
    return tensorrt_config.reserved_config(asked.spec) or tensorrt_config.unknown_config(asked.spec)


SPEC_CHECKS: tuple[Check, ...] = (
    builder_missing,  # first: an image for a version that cannot build would not help
    unknown_version,
    engine_checks.nothing_to_build,
    engine_checks.too_many_workers,
    engine_checks.weights_not_on_backend,
    engine_checks.weights_not_on_gpu,
    engine_checks.kv_not_on_backend,
    engine_checks.kv_not_on_gpu,
    engine_checks.bfloat16_not_on_gpu,
    engine_checks.kv_without_calibration,
    no_adapters,
    engine_checks.attention_by_data_not_on_backend,
    engine_checks.experts_not_in_quantizer,
    speculation_not_supported,
    served_name_taken,
    refused_config,
)
