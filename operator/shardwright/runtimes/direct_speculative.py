"""Speculation in vLLM, NIM and SGLang: options of the start; drafts are chains of tokens.

NIM forwards vLLM's option to the vLLM inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from shardwright.api.spec import LLMDeploymentSpec, Runtime, SpeculationMethod
from shardwright.resolved import Draft
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal

# --speculative-config's `method` (vllm/config/speculative.py, SpeculativeMethod).
VLLM_METHODS: Mapping[SpeculationMethod, str] = {
    SpeculationMethod.DRAFT_MODEL: "draft_model",
    SpeculationMethod.EAGLE: "eagle",
    SpeculationMethod.EAGLE3: "eagle3",
    SpeculationMethod.NGRAM: "ngram",
    SpeculationMethod.MTP: "mtp",
}
# What NIM's documents name, by vLLM's words.
NIM_METHODS: Mapping[SpeculationMethod, str] = {
    method: VLLM_METHODS[method]
    for method in (SpeculationMethod.EAGLE3, SpeculationMethod.NGRAM, SpeculationMethod.MTP)
}
# --speculative-algorithm (srt/arg_groups/speculative_hook.py).
SGLANG_ALGORITHMS: Mapping[SpeculationMethod, str] = {
    SpeculationMethod.DRAFT_MODEL: "STANDALONE",
    SpeculationMethod.EAGLE: "EAGLE",
    SpeculationMethod.EAGLE3: "EAGLE3",
    SpeculationMethod.NGRAM: "NGRAM",
    SpeculationMethod.MTP: "NEXTN",
}
# Architectures whose layers hand their states on to later stages: those made of LlamaModel,
# Qwen2Model, Qwen3Model and SarvamMLAModel (`supports_aux_hidden_states_over_pp`).
_HAND_ON_WORDS = """
Ernie4_5ForCausalLM IQuestCoderForCausalLM InternLM3ForCausalLM LLaMAForCausalLM
Llama4ForCausalLM Llama4ForConditionalGeneration LlamaForCausalLM
LlavaForConditionalGeneration Ministral3ForCausalLM Mistral3ForConditionalGeneration
MistralForCausalLM Phi3ForCausalLM PixtralForConditionalGeneration Qwen2ForCausalLM
Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM Qwen3VLForConditionalGeneration
SarvamMLAForCausalLM TeleChat2ForCausalLM TeleChat3ForCausalLM TeleFLMForCausalLM
"""
_HAND_ON = frozenset(_HAND_ON_WORDS.split())
VLLM_OWNED = (("speculative", ("speculative-config", "spec-method", "spec-model", "spec-tokens")),)
SGLANG_OWNED = (
    ("speculative.method", ("speculative-algorithm", "speculative-eagle-topk")),
    (
        "speculative.model",
        ("speculative-draft-model-path", "speculative-draft-model-revision"),
    ),
    (
        "speculative.maxDraftLen",
        (
            "speculative-num-steps",
            "speculative-num-draft-tokens",
            "speculative-ngram-max-bfs-breadth",
        ),
    ),
)
_METHODS = {
    Runtime.VLLM: VLLM_METHODS,
    Runtime.SGLANG: SGLANG_ALGORITHMS,
    Runtime.NIM: NIM_METHODS,
}
_WITHOUT = {
    Runtime.VLLM: "vllm-speculation-methods",
    Runtime.SGLANG: "sglang-speculation-methods",
    Runtime.NIM: "nim-speculation-methods",
}
# What SGLang runs over several pipeline stages: NEXTN is read as EAGLE.
_OVER_STAGES = frozenset({SpeculationMethod.EAGLE, SpeculationMethod.MTP})
_NOT_BY_DATA = frozenset({SpeculationMethod.DRAFT_MODEL, SpeculationMethod.NGRAM})


def refuse(spec: LLMDeploymentSpec) -> Refusal | None:
    """Why the runtime cannot speculate so; nothing where nothing is asked."""
    wish, name = spec.speculative, spec.engine.runtime
    if wish is None:
        return None
    known = _METHODS[name]
    if wish.method not in known:
        return Refusal(
            "SpeculationNotSupported",
            f"speculative.method {wish.method} with engine.runtime {name}: it has "
            f"{', '.join(sorted(known))}; use one of them",
            source=_WITHOUT[name],
        )
    return _refuse_sglang(spec, wish.method) if name is Runtime.SGLANG else None


def drafts_over_stages(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Eagle3 over stages in vLLM: layers of all stages must hand their states on to the last.

    vLLM runs the draft on the last stage alone, whatever the method; only Eagle3 reads states of
    layers that lie on other stages.
    """
    wish, stages = spec.speculative, spec.parallelism.pipeline
    if spec.engine.runtime is not Runtime.VLLM or wish is None or stages == 1:
        return None
    if wish.method is not SpeculationMethod.EAGLE3 or facts.architecture in _HAND_ON:
        return None
    return Refusal(
        "SpeculationNotSupported",
        f"speculative.method Eagle3 with parallelism.pipeline {stages}: vLLM "
        f"{spec.engine.version} hands {facts.architecture}'s hidden states on to no later stage; "
        "use one stage, or another method of "
        f"{', '.join(sorted(set(VLLM_METHODS) - {SpeculationMethod.EAGLE3}))}",
        source="vllm-eagle3-stages",
    )


def _refuse_sglang(spec: LLMDeploymentSpec, method: SpeculationMethod) -> Refusal | None:
    split = spec.parallelism
    if split.pipeline > 1 and method not in _OVER_STAGES:
        return Refusal(
            "SpeculationNotSupported",
            f"speculative.method {method} with parallelism.pipeline {split.pipeline}: SGLang "
            "speculates over several stages with Eagle and MTP alone; use one of them, one stage, "
            "or runtime VLLM",
            source="sglang-speculation-stages",
        )
    if split.attention_groups > 1 and method in _NOT_BY_DATA:
        return Refusal(
            "SpeculationNotSupported",
            f"speculative.method {method} with parallelism.attentionData "
            f"{split.attention_groups}: SGLang does not draft so with attention by data; use Eagle "
            "or MTP, or leave attentionData out",
            source="sglang-speculation-attention-data",
        )
    if spec.lora is not None and method is SpeculationMethod.DRAFT_MODEL:
        return Refusal(
            "SpeculationNotSupported",
            "speculative.method DraftModel with lora: SGLang takes adapters beside NGram, MTP and "
            "Eagle alone; use one of them, or runtime VLLM",
            source="sglang-speculation-lora",
        )
    return None


def vllm_flags(spec: LLMDeploymentSpec, draft: Draft | None) -> list[str]:
    """Flags of `vllm serve` and `nim-serve`; nothing without speculation."""
    wish = spec.speculative
    if wish is None:
        return []
    config: dict[str, object] = {
        "method": VLLM_METHODS[wish.method],
        "num_speculative_tokens": wish.max_draft_len,
    }
    if draft is not None:
        config["model"] = draft.folder
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return ["--speculative-config", text]


def sglang_flags(spec: LLMDeploymentSpec, draft: Draft | None) -> list[str]:
    """Flags of `sglang.launch_server`; a pass checks one token more than was drafted."""
    wish = spec.speculative
    if wish is None:
        return []
    flags = ["--speculative-algorithm", SGLANG_ALGORITHMS[wish.method]]
    if draft is not None:
        flags += ["--speculative-draft-model-path", draft.folder]
    if wish.method is SpeculationMethod.NGRAM:
        # One branch is a chain; with more, pages of the KV cache would restrict the kernels.
        flags += ["--speculative-ngram-max-bfs-breadth", "1"]
    else:
        flags += ["--speculative-num-steps", str(wish.max_draft_len)]
        flags += ["--speculative-eagle-topk", "1"]
    return [*flags, "--speculative-num-draft-tokens", str(wish.max_draft_len + 1)]
