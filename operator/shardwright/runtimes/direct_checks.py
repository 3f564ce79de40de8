"""What runtimes that load checkpoints themselves cannot do, told before anything is fetched or run.

The two tuples at the end are the documentation: every check is a small function that answers with
a refusal or None, and the first refusal is the one the user reads.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.api.spec import Build, DType, LLMDeploymentSpec, WeightPrecision
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes import direct_speculative
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.direct import (
    Asked,
    Direct,
    Offer,
    known_image,
    made_online,
    served_as_it_comes,
)
from shardwright.runtimes.direct_experts import groups_not_possible
from shardwright.runtimes.elsewhere import elsewhere
from shardwright.runtimes.experts import MODEL_CHECKS as EXPERT_CHECKS
from shardwright.runtimes.flag_files import refuse_config
from shardwright.runtimes.loads import refuse_checkpoint
from shardwright.runtimes.published import published
from shardwright.runtimes.split_advice import refuse_split
from shardwright.runtimes.tensorrt_model_checks import (
    heads_not_divisible,
    more_stages_than_layers,
    sequence_too_long,
)
from shardwright.runtimes.tensorrt_precision import BFLOAT16, Compute, Span, dotted

NOT_SUPPORTED = "PrecisionNotSupported"


def unknown_version(asked: Asked) -> Refusal | None:
    """A version whose command line is not recorded, or that has no image."""
    engine, known = asked.spec.engine, ", ".join(asked.engine.versions)
    if not engine.version.startswith(asked.engine.line):
        return Refusal(
            "UnknownVersion",
            f"engine.version {engine.version}: the command line of {engine.runtime} is recorded "
            f"for {known} only; use that, or leave engine.version out",
        )
    mirrored = asked.settings.images if asked.settings else {}
    if (
        engine.image
        or known_image(asked.engine, engine.version)
        or mirrored.get(f"{engine.runtime}/{engine.version}")
    ):
        return None
    others = f"; known is {known}" if asked.engine.repository else ""
    return Refusal(
        "UnknownVersion",
        f"engine.version {engine.version}: no image is known for it{others}. Name one "
        f"in engine.image, or have the administrator add {engine.runtime}/{engine.version} to "
        "the operator's images",
    )


def nothing_to_build(asked: Asked) -> Refusal | None:
    """Build options of a runtime that builds nothing would be ignored."""
    if asked.spec.engine.build == Build():
        return None
    return Refusal(
        "NoBuildStep",
        f"engine.build has no effect with engine.runtime {asked.spec.engine.runtime}, which loads "
        "the checkpoint as it is; remove it or use runtime TensorRTLLM",
    )


def weights_absent(asked: Asked) -> Refusal | None:
    """A weight precision that the runtime does not have."""
    weights = asked.spec.quantization.weights
    absent = asked.engine.no_weights.get(weights)
    if absent is None:
        return None
    return Refusal(
        NOT_SUPPORTED,
        f"quantization.weights {weights} is not available with {asked.named}: {absent.why}; "
        f"choose {_others(asked)}",
        absent.source,
    )


def weights_not_on_gpu(asked: Asked) -> Refusal | None:
    """A weight precision that the GPU cannot compute with."""
    weights, uri = asked.spec.quantization.weights, asked.spec.model.uri
    offer = asked.engine.weights.get(weights)
    # Weights None serves a checkpoint as it comes: alone it would not help one that brings them.
    instead = (
        f"Use weights None with a 16-bit checkpoint in model.uri ({uri})"
        if offer is not None and offer.online
        else f"Name the 16-bit original of model.uri {uri} with weights None"
    )
    return _off_gpu(asked, offer, f"quantization.weights {weights}", instead)


def kv_absent(asked: Asked) -> Refusal | None:
    """A KV cache precision that the runtime does not have."""
    kv_cache = asked.spec.quantization.kv_cache
    absent = asked.engine.no_kv_cache.get(kv_cache)
    if absent is None:
        return None
    return Refusal(
        NOT_SUPPORTED,
        f"quantization.kvCache {kv_cache} is not available with {asked.named}: {absent.why}; "
        "choose FP8 or None",
        absent.source,
    )


def kv_not_on_gpu(asked: Asked) -> Refusal | None:
    """A KV cache precision that the GPU cannot compute with."""
    kv_cache = asked.spec.quantization.kv_cache
    offer = asked.engine.kv_cache.get(kv_cache)
    return _off_gpu(asked, offer, f"quantization.kvCache {kv_cache}", "Choose None")


def bfloat16_not_on_gpu(asked: Asked) -> Refusal | None:
    """Bfloat16, asked for or likely the model's own, on a GPU without it."""
    dtype = asked.spec.model.dtype
    if dtype is DType.FP16 or asked.compute is None or asked.compute in BFLOAT16:
        return None
    meant = "BF16" if dtype is DType.BF16 else "Auto (bfloat16 for most models)"
    return Refusal(
        NOT_SUPPORTED,
        f"model.dtype {meant} with {asked.named} needs compute capability {BFLOAT16}; "
        f"{asked.spec.gpu.product} has {dotted(asked.compute)}. Choose FP16",
        "bfloat16-since-ampere",
    )


def speculation_not_supported(asked: Asked) -> Refusal | None:
    """A method of speculation that the runtime does not have, or not beside what is asked."""
    return direct_speculative.refuse(asked.spec)


def config_not_taken(asked: Asked) -> Refusal | None:
    """A key that the runtime would refuse when it starts, or that another field decides."""
    return refuse_config(
        asked.spec.engine.config,
        asked.engine.record,
        asked.engine.owned,
        tool=asked.named,
        switches_off=asked.engine.switches_off,
    )


def _off_gpu(asked: Asked, offer: Offer | None, what: str, instead: str) -> Refusal | None:
    if offer is None or asked.compute is None or asked.compute in offer.span:
        return None
    return Refusal(
        NOT_SUPPORTED,
        f"{what} with {asked.named} needs compute capability {offer.span}; "
        f"{asked.spec.gpu.product} has {dotted(asked.compute)}. {instead}, or choose a GPU product "
        f"with compute capability {offer.span}",
        offer.source,
    )


def _others(asked: Asked) -> str:
    fit = [
        precision.value
        for precision, offer in asked.engine.weights.items()
        if _fits(offer.span, asked.compute)
    ]
    return " or ".join([*fit, WeightPrecision.NONE.value])


def _fits(span: Span, compute: Compute | None) -> bool:
    return compute is None or compute in span


def checkpoint_not_loaded(
    engine: Direct, spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None
) -> Refusal | None:
    """A checkpoint of a kind that the runtime does not read, or that the GPU cannot compute with.

    The checkpoint's own precision counts, whether it was asked for or not.
    """
    named = f"{spec.engine.runtime} {spec.engine.version}"
    others = elsewhere(spec, facts, compute)
    return refuse_checkpoint(
        engine.loads, engine.loads_source, spec, facts, compute, named=named, others=others
    )


def checkpoint_required(
    engine: Direct, spec: LLMDeploymentSpec, facts: ModelFacts
) -> Refusal | None:
    """A precision that only a checkpoint can bring, of a 16-bit model."""
    weights = spec.quantization.weights
    offer = engine.weights.get(weights)
    if offer is None or facts.quantization or made_online(engine, spec, facts):
        return None
    online = [kind.value for kind, other in engine.weights.items() if other.online]
    return Refusal(
        "QuantizedCheckpointRequired",
        f"quantization.weights {weights}, but the model's config.json says it is in "
        f"{facts.dtype}: {spec.engine.runtime} loads {weights} from a checkpoint that was made "
        f"elsewhere. Name one in model.uri, use {' or '.join(online)}, which it makes while "
        "loading, or quantize here with engine.runtime TensorRTLLM",
        offer.source,
    )


def model_already_quantized(
    engine: Direct, spec: LLMDeploymentSpec, facts: ModelFacts
) -> Refusal | None:
    """Another precision than the checkpoint comes in: nothing is quantized twice."""
    weights = spec.quantization.weights
    if not facts.quantization or served_as_it_comes(spec, facts):
        return None
    offer = engine.weights.get(weights)
    own = " or ".join(sorted(kind.value for kind in published(facts)))
    as_it_is = f"None or {own}" if own else "None"
    return Refusal(
        "ModelAlreadyQuantized",
        f"quantization.weights {weights}, but the model comes quantized by {facts.quantization}; "
        f"use weights {as_it_is}, which serves it as it is, or name its 16-bit original",
        offer.source if offer else "",
    )


SpecCheck = Callable[[Asked], Refusal | None]
SPEC_CHECKS: tuple[SpecCheck, ...] = (
    unknown_version,
    nothing_to_build,
    weights_absent,
    weights_not_on_gpu,
    kv_absent,
    kv_not_on_gpu,
    bfloat16_not_on_gpu,
    speculation_not_supported,
    config_not_taken,
)

ModelCheck = Callable[[LLMDeploymentSpec, ModelFacts], Refusal | None]
# What any engine needs of a model's split.
SPLIT_CHECKS: tuple[ModelCheck, ...] = (
    *EXPERT_CHECKS,
    groups_not_possible,
    heads_not_divisible,
    more_stages_than_layers,
)


def split_not_possible(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Ranks, stages or groups that the model cannot be split into."""
    return refuse_split(spec, facts, SPLIT_CHECKS, (_not_drafting,))


def _not_drafting(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:  # noqa: ARG001
    return direct_speculative.refuse(spec)


SHAPE_CHECKS: tuple[ModelCheck, ...] = (
    split_not_possible,
    sequence_too_long,
    direct_speculative.drafts_over_stages,
)
CheckpointCheck = Callable[[Direct, LLMDeploymentSpec, ModelFacts], Refusal | None]
CHECKPOINT_CHECKS: tuple[CheckpointCheck, ...] = (
    checkpoint_required,
    model_already_quantized,
)


def refuse_spec(asked: Asked, *more: SpecCheck) -> Refusal | None:
    """The first check that objects; `more` are the runtime's own."""
    return next((found for check in (*SPEC_CHECKS, *more) if (found := check(asked))), None)


def refuse_model(
    engine: Direct, spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None
) -> Refusal | None:
    """The first check that objects.

    A checkpoint that is not loaded at all comes before what is asked of it: nothing that could be
    asked for instead would help.
    """
    for check in SHAPE_CHECKS:
        if found := check(spec, facts):
            return found
    if found := checkpoint_not_loaded(engine, spec, facts, compute):
        return found
    for judge in CHECKPOINT_CHECKS:
        if found := judge(engine, spec, facts):
            return found
    return None
