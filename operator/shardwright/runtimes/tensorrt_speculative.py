"""Speculation in TensorRT-LLM: what each backend has, what it is built and started with.

PyTorch backend: start options, the draft is read in Hugging Face form. TensorRT backend: Medusa and
Eagle heads are converted and compiled together with the model, so that they are in the keys of
checkpoint and engine. Drafts are chains of `maxDraftLen` tokens: trees are marked as unfinished by
the vendor (`DecodingBaseConfig` of llm_args.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.api.spec import (
    Backend,
    DType,
    KVPrecision,
    LLMDeploymentSpec,
    SpeculationMethod,
    WeightPrecision,
)
from shardwright.resolved import Draft
from shardwright.runner.contract import Command, ModelFacts
from shardwright.runtimes.base import ModelSource, Refusal
from shardwright.runtimes.tensorrt_precision import DTYPES, model_dtype
from shardwright.runtimes.tensorrt_versions import release_line
from shardwright.runtimes.triton_versions import examples_of

# The discriminator of speculative_config; each is taken by the PyTorch backend alone. Eagle is what
# every 1.x reads as Eagle3 there; its own word came late in 1.2.
DECODING_TYPES: Mapping[SpeculationMethod, str] = {
    SpeculationMethod.DRAFT_MODEL: "Draft_Target",
    SpeculationMethod.EAGLE3: "Eagle",
    SpeculationMethod.NGRAM: "NGram",
    SpeculationMethod.MTP: "MTP",
}
# Compiled in: --speculative_decoding_mode of trtllm-build, and decoding_type at the start.
COMPILED: Mapping[SpeculationMethod, tuple[str, str]] = {
    SpeculationMethod.MEDUSA: ("medusa", "Medusa"),
    SpeculationMethod.EAGLE: ("eagle", "Eagle"),
}
CONVERTED = ("llama", "mixtral")
# Before, draft models had another discriminator.
_DRAFT_TARGET_SINCE = (1, 2)


def refuse_spec(spec: LLMDeploymentSpec) -> Refusal | None:
    """The first of what method, backend and precision cannot be together."""
    if spec.speculative is None:
        return None
    return next((found for check in _CHECKS if (found := check(spec))), None)


def refuse_model(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Heads of a family that no converter puts together with its model."""
    method = _method(spec)
    if method not in COMPILED or spec.engine.backend is not Backend.TENSORRT:
        return None
    if facts.model_type in CONVERTED:
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method {method} on engine.backend TensorRT: its converter reads "
        f"{' and '.join(CONVERTED)} models, this one is {facts.model_type!r}; use backend PyTorch "
        "with Eagle3, NGram or a draft model",
        source="trtllm-heads-converters",
    )


def _method(spec: LLMDeploymentSpec) -> SpeculationMethod | None:
    return spec.speculative.method if spec.speculative is not None else None


def _not_on_tensorrt(spec: LLMDeploymentSpec) -> Refusal | None:
    method = _method(spec)
    if spec.engine.backend is not Backend.TENSORRT or method in COMPILED:
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method {method} with engine.backend TensorRT: trtllm-serve takes it with the "
        "PyTorch backend alone; use that, or Medusa or Eagle heads",
        source="trtllm-speculation-pytorch",
    )


def _not_on_pytorch(spec: LLMDeploymentSpec) -> Refusal | None:
    method = _method(spec)
    if spec.engine.backend is Backend.TENSORRT or method not in COMPILED:
        return None
    if method is SpeculationMethod.EAGLE:
        return Refusal(
            "SpeculationNotSupported",
            "speculative.method Eagle with engine.backend PyTorch: the runtime reads what it is "
            "given as Eagle3 there; use method Eagle3 with weights trained for it",
            source="trtllm-eagle-is-eagle3",
        )
    return Refusal(
        "SpeculationNotSupported",
        "speculative.method Medusa with engine.backend PyTorch: only engines take Medusa heads; "
        "use backend TensorRT, or Eagle3",
        source="trtllm-speculation-tensorrt",
    )


def _not_quantized(spec: LLMDeploymentSpec) -> Refusal | None:
    method, precision = _method(spec), spec.quantization
    if spec.engine.backend is not Backend.TENSORRT or method is not SpeculationMethod.EAGLE:
        return None
    if (precision.weights, precision.kv_cache) == (WeightPrecision.NONE, KVPrecision.NONE):
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method Eagle with quantization.weights {precision.weights}, kvCache "
        f"{precision.kv_cache} on engine.backend TensorRT: quantize.py takes no Eagle weights; "
        "leave quantization out, use Medusa, or backend PyTorch with Eagle3",
        source="trtllm-quantize-eagle",
    )


def _not_gptq(spec: LLMDeploymentSpec) -> Refusal | None:
    if _method(spec) not in COMPILED or spec.engine.backend is not Backend.TENSORRT:
        return None
    if spec.quantization.weights is not WeightPrecision.INT4_GPTQ:
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method {_method(spec)} with quantization.weights INT4GPTQ: the converters of "
        "heads read the model by transformers, 16 bits wide; use a 16-bit model",
        source="trtllm-heads-converters",
    )


def _not_with_experts(spec: LLMDeploymentSpec) -> Refusal | None:
    groups = spec.parallelism.expert_groups
    if _method(spec) not in COMPILED or groups == 1:
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method {_method(spec)} with parallelism.expert {groups}: the converters of "
        "heads know no groups of experts; leave one of the two out",
        source="trtllm-heads-converters",
    )


def _not_over_stages(spec: LLMDeploymentSpec) -> Refusal | None:
    stages = spec.parallelism.pipeline
    if spec.engine.backend is Backend.TENSORRT or stages == 1:
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method {_method(spec)} with pipeline {stages} on engine.backend PyTorch: its "
        "executor does not draft over pipeline stages; use pipeline 1 with more tensor ranks, or "
        "leave speculative out",
        source="trtllm-speculation-stages",
    )


def _draft_model_in_older(spec: LLMDeploymentSpec) -> Refusal | None:
    version = spec.engine.version
    if _method(spec) is not SpeculationMethod.DRAFT_MODEL:
        return None
    if release_line(version) >= _DRAFT_TARGET_SINCE:
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method DraftModel with engine.version {version}: the name that its "
        "configuration has for draft models is recorded from 1.2 on; use 1.2.1, or another method",
        source="trtllm-draft-target-name",
    )


_CHECKS = (
    _not_on_tensorrt,
    _not_on_pytorch,
    _not_over_stages,
    _draft_model_in_older,
    _not_quantized,
    _not_gptq,
    _not_with_experts,
)


def checkpoint_inputs(spec: LLMDeploymentSpec, model: ModelSource) -> dict[str, object]:
    """What a checkpoint's key says of heads; nothing without them, so that old keys stand."""
    wish, draft = spec.speculative, model.draft
    compiled = spec.engine.backend is Backend.TENSORRT
    if wish is None or draft is None or not compiled or wish.method not in COMPILED:
        return {}
    heads = {"method": wish.method.value, "model": draft.key, "maxDraftLen": wish.max_draft_len}
    return {"speculative": {**heads, **({"commit": draft.commit} if draft.commit else {})}}


def compiled_heads(spec: LLMDeploymentSpec) -> bool:
    """Whether heads are put together with the model by a converter of theirs."""
    return _method(spec) in COMPILED and spec.engine.backend is Backend.TENSORRT


def convert(spec: LLMDeploymentSpec, model: ModelSource) -> Command:
    """The heads' converter; its type has no `auto`."""
    method = _method(spec)
    if method is None or method not in COMPILED:
        raise ValueError(f"speculative.method {method} is not compiled into an engine")
    dtype = model_dtype(spec.model.dtype, model.facts.dtype)
    argv = [
        *("python3", f"{examples_of(spec)}/{COMPILED[method][0]}/convert_checkpoint.py"),
        *("--model_dir", model.folder),
        *heads_flags(spec, model.draft),
        *("--output_dir", "{out}"),
        *("--dtype", dtype if dtype != DTYPES[DType.AUTO] else DTYPES[DType.FP16]),
        *("--tp_size", str(spec.parallelism.tensor)),
        *("--pp_size", str(spec.parallelism.pipeline)),
        # The step asks for no GPU and must not look for one.
        "--load-model-on-cpu",
    ]
    return Command(tool="convert_checkpoint", argv=tuple(argv))


def heads_flags(spec: LLMDeploymentSpec, draft: Draft | None) -> tuple[str, ...]:
    """Flags of a heads' converter beside those that all converters share."""
    wish = spec.speculative
    if wish is None or draft is None:
        return ()
    length = str(wish.max_draft_len)
    if wish.method is SpeculationMethod.EAGLE:
        return (
            *("--eagle_model_dir", draft.folder),
            *("--num_eagle_layers", length),
            *("--max_draft_len", length),
        )
    return (
        *("--medusa_model_dir", draft.folder),
        *("--num_medusa_heads", length),
        *("--max_medusa_token_len", length),
    )


def quantize_flags(spec: LLMDeploymentSpec, draft: Draft | None) -> tuple[str, ...]:
    """Flags of quantize.py, which takes Medusa heads."""
    wish = spec.speculative
    if wish is None or draft is None or wish.method is not SpeculationMethod.MEDUSA:
        return ()
    length = str(wish.max_draft_len)
    return (
        *("--medusa_model_dir", draft.folder),
        *("--num_medusa_heads", length),
        *("--max_draft_len", length),
    )


def engine_inputs(spec: LLMDeploymentSpec) -> dict[str, object]:
    """What an engine's key says of speculation; the heads themselves are in the checkpoint's."""
    wish = spec.speculative
    if wish is None or wish.method not in COMPILED:
        return {}
    return {"speculative": {"method": wish.method.value, "maxDraftLen": wish.max_draft_len}}


def build_flags(spec: LLMDeploymentSpec) -> tuple[str, ...]:
    """Flags of trtllm-build."""
    wish = spec.speculative
    if wish is None or wish.method not in COMPILED:
        return ()
    return (
        *("--speculative_decoding_mode", COMPILED[wish.method][0]),
        *("--max_draft_len", str(wish.max_draft_len)),
    )


def choices(length: int) -> list[list[int]]:
    """A tree of drafts that is a chain: each path is the beginning of the next."""
    return [[0] * depth for depth in range(1, length + 1)]


def serve_keys(spec: LLMDeploymentSpec, draft: Draft | None) -> dict[str, Any]:
    """The block `speculative_config` of the server's configuration file."""
    wish = spec.speculative
    if wish is None:
        return {}
    length = wish.max_draft_len
    if wish.method in COMPILED:
        kind = COMPILED[wish.method][1]
        chain = choices(length)
        config: dict[str, Any] = {"decoding_type": kind, "max_draft_len": length}
        if wish.method is SpeculationMethod.MEDUSA:
            config |= {"num_medusa_heads": length, "medusa_choices": chain}
        else:
            config["eagle_choices"] = chain
    else:
        config = {"decoding_type": DECODING_TYPES[wish.method]}
        # The layers of the checkpoint are counted, not the tokens: each drafts one.
        mtp = wish.method is SpeculationMethod.MTP
        config["num_nextn_predict_layers" if mtp else "max_draft_len"] = length
    if draft is not None:
        # The name that every 1.x takes.
        config["speculative_model_dir"] = draft.folder
    return {"speculative_config": config}
