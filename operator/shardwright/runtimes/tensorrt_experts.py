"""Expert parallelism and data-parallel attention in TensorRT-LLM.

TensorRT backend: the converter fixes `moe_ep × moe_tp = tensor` in the checkpoint, so that it is
part of its key. PyTorch backend: options of the server's start. Attention by data is one switch
there: as many groups as tensor ranks (mapping.py: `dp_size = tp_size if enable_attention_dp`), with
`max_batch_size` requests for each rank.
"""

from __future__ import annotations

from typing import Any

from shardwright.api.spec import Backend, LLMDeploymentSpec, WeightPrecision
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal


def convert_flags(spec: LLMDeploymentSpec) -> tuple[str, ...]:
    """Flags of convert_checkpoint.py; none where every expert is cut over all ranks."""
    split = spec.parallelism
    if split.expert_groups == 1:
        return ()
    return (
        *("--moe_tp_size", str(split.tensor // split.expert_groups)),
        *("--moe_ep_size", str(split.expert_groups)),
    )


def expert_options(spec: LLMDeploymentSpec) -> dict[str, Any]:
    """Keys of LlmArgs on the PyTorch backend; none where the split is neutral."""
    split = spec.parallelism
    options: dict[str, Any] = {}
    if split.expert_groups > 1:
        options["moe_expert_parallel_size"] = split.expert_groups
        options["moe_tensor_parallel_size"] = split.tensor // split.expert_groups
    if split.attention_groups > 1:
        options["enable_attention_dp"] = True
    return options


def attention_by_data_not_on_backend(spec: LLMDeploymentSpec) -> Refusal | None:
    """Attention by data with a compiled engine."""
    groups = spec.parallelism.attention_groups
    if groups == 1 or spec.engine.backend is Backend.PYTORCH:
        return None
    return Refusal(
        "AttentionDataNotSupported",
        f"parallelism.attentionData {groups} with engine.backend TensorRT: attention by data is an "
        "option of the PyTorch backend; use that, or leave attentionData out",
        source="trtllm-attention-data-pytorch",
    )


def experts_not_in_quantizer(spec: LLMDeploymentSpec) -> Refusal | None:
    """Whole experts in a checkpoint that quantize.py splits."""
    groups, precision = spec.parallelism.expert_groups, spec.quantization
    if groups == 1 or spec.engine.backend is not Backend.TENSORRT:
        return None
    if precision.weights is WeightPrecision.INT4_GPTQ:
        return None
    if precision.weights is WeightPrecision.NONE and precision.kv_cache.value == "None":
        return None
    return Refusal(
        "ExpertsNotSupported",
        f"parallelism.expert {groups} with quantization.weights {precision.weights}, kvCache "
        f"{precision.kv_cache} on engine.backend TensorRT: quantize.py splits the checkpoint there "
        "and knows no groups of experts; leave expert out, use backend PyTorch, or quantize "
        "nothing",
        source="trtllm-quantize-experts",
    )


def attention_not_in_all_ranks(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:  # noqa: ARG001
    """Fewer attention groups than tensor ranks: the switch knows all or none."""
    split = spec.parallelism
    if split.attention_groups in (1, split.tensor):
        return None
    return Refusal(
        "AttentionDataNotSupported",
        f"parallelism.attentionData {split.attention_groups} with tensor {split.tensor}: "
        "TensorRT-LLM runs attention by data in as many groups as there are tensor ranks",
        source="trtllm-attention-data-all",
    )
