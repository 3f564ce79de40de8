"""Expert parallelism and data-parallel attention in vLLM and SGLang.

vLLM counts its tensor ranks for each data-parallel rank: `tensor / attentionData` ranks of each of
`attentionData` groups are the stage's GPUs, and experts are dealt out to all of them or to none.
SGLang counts as the API does. Limits are those of one group: vLLM's are; SGLang divides its own by
the number of groups, so that they are multiplied here.
"""

from __future__ import annotations

from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal

VLLM_OWNED = (
    ("parallelism.expert", ("enable-expert-parallel",)),
    ("parallelism.attentionData", ("data-parallel-size",)),
)
SGLANG_OWNED = (
    ("parallelism.expert", ("ep-size",)),
    ("parallelism.attentionData", ("attn-dp-size", "enable-dp-attention")),
)


def vllm_tensor(spec: LLMDeploymentSpec) -> int:
    """What vLLM calls the tensor-parallel size: ranks of one group."""
    return spec.parallelism.attention_ranks


def vllm_flags(spec: LLMDeploymentSpec) -> list[str]:
    """Flags of `vllm serve`; nothing where the split is neutral."""
    split = spec.parallelism
    flags = []
    if split.attention_groups > 1:
        flags += ["--data-parallel-size", str(split.attention_groups)]
        if spec.lora is not None:
            # By default there are as many HTTP servers as groups, and then none of them may load an
            # adapter while it serves (vllm/entrypoints/cli/serve.py).
            flags += ["--api-server-count", "1"]
    if split.expert_groups > 1:
        flags.append("--enable-expert-parallel")
    return flags


def sglang_flags(spec: LLMDeploymentSpec) -> list[str]:
    """Flags of `sglang.launch_server`; nothing where the split is neutral."""
    split = spec.parallelism
    flags = []
    if split.expert_groups > 1:
        flags += ["--ep-size", str(split.expert_groups)]
    if split.attention_groups > 1:
        flags += ["--attn-dp-size", str(split.attention_groups)]
    return flags


def proof_inputs(spec: LLMDeploymentSpec) -> dict[str, object]:
    """What asks for a candidate; None where neutral."""
    split = spec.parallelism
    return {"expert": split.expert, "attentionData": split.attention_data}


def groups_not_possible(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:  # noqa: ARG001
    """Groups that vLLM does not make, and adapters that SGLang does not load into several."""
    split = spec.parallelism
    if spec.engine.runtime is not Runtime.VLLM:
        return _adapters_in_groups(spec)
    if split.expert_groups not in (1, split.tensor):
        return Refusal(
            "ExpertsNotSupported",
            f"parallelism.expert {split.expert_groups} with tensor {split.tensor}: vLLM deals "
            "experts out to all ranks of a stage or to none",
            source="vllm-expert-parallel-size",
        )
    if split.attention_groups > 1 and split.pipeline > 1:
        return Refusal(
            "AttentionDataNotSupported",
            f"parallelism.attentionData {split.attention_groups} with pipeline {split.pipeline}: "
            "vLLM deals nodes out to attention groups first, so that no node would be a stage",
            source="vllm-data-parallel-nodes",
        )
    return None


def _adapters_in_groups(spec: LLMDeploymentSpec) -> Refusal | None:
    groups = spec.parallelism.attention_groups
    if spec.lora is None or groups == 1:
        return None
    return Refusal(
        "AttentionDataNotSupported",
        f"parallelism.attentionData {groups} with lora: SGLang loads no adapter while it serves "
        "into more than one attention group",
        source="sglang-lora-groups",
    )
