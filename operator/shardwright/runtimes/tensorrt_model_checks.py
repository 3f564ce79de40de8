"""What TensorRT-LLM cannot do with this model, told from its config.json before anything is built.

The tuple at the end is the documentation, as in `tensorrt_checks`.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.api.spec import Backend, LLMDeploymentSpec, WeightPrecision
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes import tensorrt_loads, tensorrt_speculative, tensorrt_versions
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.elsewhere import elsewhere
from shardwright.runtimes.experts import MODEL_CHECKS as EXPERT_CHECKS
from shardwright.runtimes.loads import loads, refuse_checkpoint
from shardwright.runtimes.published import kinds
from shardwright.runtimes.split_advice import refuse_split
from shardwright.runtimes.tensorrt_experts import attention_not_in_all_ranks
from shardwright.runtimes.tensorrt_precision import Compute
from shardwright.runtimes.tensorrt_steps import CONVERTERS, needs_checkpoint, needs_quantizer


def heads_not_divisible(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Attention heads, or KV heads, that tensor ranks cannot share evenly."""
    tensor = spec.parallelism.attention_ranks
    if facts.heads and facts.heads % tensor:
        return Refusal(
            "HeadsNotDivisible",
            f"{_ranks(spec)} does not divide the model's {facts.heads} attention heads",
        )
    # With fewer KV heads than ranks each head is kept by several of them.
    kv_heads = facts.kv_heads
    if kv_heads and kv_heads % tensor and tensor % kv_heads:
        return Refusal(
            "HeadsNotDivisible",
            f"{_ranks(spec)} and the model's {kv_heads} KV heads: one must divide the other",
        )
    return None


def _ranks(spec: LLMDeploymentSpec) -> str:
    """The ranks that share a group's heads, as the spec gives them."""
    split = spec.parallelism
    if split.attention_groups == 1:
        return f"parallelism.tensor {split.tensor}"
    return (
        f"parallelism.tensor {split.tensor} / attentionData {split.attention_groups} = "
        f"{split.attention_ranks}"
    )


def more_stages_than_layers(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Pipeline stages without a layer."""
    pipeline = spec.parallelism.pipeline
    if not facts.layers or pipeline <= facts.layers:
        return None
    return Refusal(
        "MoreStagesThanLayers",
        f"parallelism.pipeline {pipeline} exceeds the model's {facts.layers} layers",
    )


def sequence_too_long(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Sequences longer than the model's positions."""
    asked = spec.engine.limits.max_seq_len
    if not facts.max_positions or asked <= facts.max_positions:
        return None
    return Refusal(
        "SequenceTooLong",
        f"engine.limits.maxSeqLen {asked} exceeds the model's {facts.max_positions} positions; use "
        f"at most {facts.max_positions}",
    )


def gptq_checkpoint_required(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """INT4GPTQ of a model that is no GPTQ checkpoint of four bits."""
    if spec.quantization.weights is not WeightPrecision.INT4_GPTQ or _converted(facts):
        return None
    own = " and ".join(kinds(facts))
    found = f"quantized as {own}" if own else f"in {facts.dtype}"
    return Refusal(
        "GPTQCheckpointRequired",
        f"quantization.weights INT4GPTQ, but model.uri {spec.model.uri} is {found}, as its "
        f"config.json says: checkpoints of {tensorrt_loads.GPTQ} are made elsewhere; name one, or "
        "the 16-bit original with INT4AWQ, which is quantized here",
        "gptq-is-made-elsewhere",
    )


def model_already_quantized(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Quantizing a model that comes quantized, or compiling one whose form is not read."""
    weights, backend = spec.quantization.weights, spec.engine.backend
    if not facts.quantization or weights is WeightPrecision.INT4_GPTQ:
        return None
    if weights is WeightPrecision.NONE and backend is Backend.PYTORCH:
        return None  # served as it comes, or not loaded
    return Refusal(
        "ModelAlreadyQuantized",
        f"quantization.weights {weights} with engine.backend {backend}, but model.uri "
        f"{spec.model.uri} comes quantized as {' and '.join(kinds(facts))}; name its 16-bit "
        f"original{_as_it_comes(spec, facts)}",
        "trtllm-engine-checkpoints",
    )


def checkpoint_not_loaded(
    spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None
) -> Refusal | None:
    """A published checkpoint that the backend does not read, or that the GPU cannot compute with.

    The checkpoint's own precision counts, whether it was asked for or not.
    """
    named = f"{spec.engine.runtime} {spec.engine.version} with engine.backend {spec.engine.backend}"
    others = _converter(spec, facts, compute) + elsewhere(spec, facts, compute)
    return refuse_checkpoint(
        tensorrt_loads.table(spec),
        tensorrt_loads.SOURCE,
        spec,
        facts,
        compute,
        named=named,
        others=others,
    )


def _converted(facts: ModelFacts) -> bool:
    """Whether a converter makes an engine's checkpoint of it."""
    return bool(facts.quantization) and loads(tensorrt_loads.CONVERTED, facts, None)


def _as_it_comes(spec: LLMDeploymentSpec, facts: ModelFacts) -> str:
    """Where a quantized checkpoint is served as it is; the end of a sentence."""
    ways = []
    plain = spec.engine.model_copy(update={"backend": Backend.PYTORCH})
    if loads(tensorrt_loads.table(spec.model_copy(update={"engine": plain})), facts, None):
        ways.append(", or use weights None with engine.backend PyTorch, which serves it as it is")
    return "".join([*ways, _converter(spec, facts, None), elsewhere(spec, facts, None)])


def _converter(spec: LLMDeploymentSpec, facts: ModelFacts, compute: Compute | None) -> str:
    """An engine as the way out for a GPTQ checkpoint; the end of a sentence."""
    fits = _converted(facts) and loads(tensorrt_loads.CONVERTED, facts, compute)
    known = facts.model_type in CONVERTERS
    if not fits or not known or not tensorrt_versions.has_builder(spec.engine.version):
        return ""
    return ", or use weights INT4GPTQ with engine.backend TensorRT"


def converter_missing(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """A model family whose converter is not known to take this shape."""
    if spec.engine.backend is not Backend.TENSORRT:
        return None
    if not needs_checkpoint(spec) or needs_quantizer(spec) or facts.model_type in CONVERTERS:
        return None
    return Refusal(
        "ModelNotSupported",
        f"engine.backend TensorRT has no converter for model type {facts.model_type!r} that is "
        f"known to split by tensor and pipeline; known are {', '.join(sorted(CONVERTERS))}. Use "
        "backend PyTorch, or quantized weights",
    )


def heads_converter_missing(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Heads of a family that no converter puts together with its model."""
    return tensorrt_speculative.refuse_model(spec, facts)


def remote_code_not_trusted(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """A model with code of its own, in a step whose tool executes it without being asked.

    quantize.py and the converters load every model with trust_remote_code on; they have no flag.
    """
    if not facts.remote_code or spec.model.trust_remote_code or not needs_checkpoint(spec):
        return None
    return Refusal(
        "RemoteCodeNotTrusted",
        "the model's folder brings Python code (auto_map in its config.json or "
        "tokenizer_config.json), which the quantizer and the converters execute; set "
        "model.trustRemoteCode to true once you have read it, or use backend PyTorch with weights "
        "None",
    )


ModelCheck = Callable[[LLMDeploymentSpec, ModelFacts], Refusal | None]
SPLIT_CHECKS: tuple[ModelCheck, ...] = (
    *EXPERT_CHECKS,
    attention_not_in_all_ranks,
    heads_not_divisible,
    more_stages_than_layers,
)


def split_not_possible(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Ranks, stages or groups that the model cannot be split into."""
    return refuse_split(spec, facts, SPLIT_CHECKS)


MODEL_CHECKS: tuple[ModelCheck, ...] = (
    split_not_possible,
    sequence_too_long,
    gptq_checkpoint_required,
    model_already_quantized,
    heads_converter_missing,
    converter_missing,
    remote_code_not_trusted,
)
