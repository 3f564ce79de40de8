"""What NIM cannot do beyond the checks of all runtimes that load checkpoints themselves."""

from __future__ import annotations

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.direct import Asked
from shardwright.runtimes.direct_checks import SpecCheck
from shardwright.runtimes.flag_files import REASON_RESERVED, REASON_UNKNOWN, flags

RECORD = "nim-serve-2.1.5"


def config_not_recorded(asked: Asked) -> Refusal | None:
    """A flag of the vLLM inside that NVIDIA's documents do not name: whether it is there is open.

    A release of NIM holds a vLLM of its own (2.1.5 holds 0.31.0), whose command line is not the
    recorded one.
    """
    known, owned = flags(RECORD), asked.engine.owned
    for name in asked.spec.engine.config:
        if name in known:
            continue
        if name in owned:
            return Refusal(
                REASON_RESERVED,
                f"engine.config.{name} is set by the operator; use {owned[name]} instead",
            )
        free = ", ".join(sorted(set(known) - set(owned)))
        return Refusal(
            REASON_UNKNOWN,
            f"engine.config.{name}: of the flags that {asked.named} forwards to its vLLM, recorded "
            f"is {free}; leave {name} out, or use runtime VLLM, whose flags are recorded in full",
            "nim-vllm-inside",
        )
    return None


def several_stages(spec: LLMDeploymentSpec) -> Refusal | None:
    """Pipeline stages: NIM spreads them over nodes by a Ray cluster of its own."""
    stages = spec.parallelism.pipeline
    if stages == 1:
        return None
    return Refusal(
        "PipelineNotSupported",
        f"parallelism.pipeline {stages} with NIM {spec.engine.version}: its profiles have "
        "one stage (pp1), and over nodes it starts a Ray cluster of its own (nim-serve-ray) "
        "instead of ranks that the operator places; use pipeline 1 with more tensor ranks, or "
        "runtime VLLM",
        "nim-one-stage",
    )


def adapters_not_taken(asked: Asked) -> Refusal | None:
    """LoRA: not with a container that has no model of its own."""
    if asked.spec.lora is None:
        return None
    return Refusal(
        "LoRANotSupported",
        f"lora with {asked.named}: the model-free container with vLLM serves no adapters; use "
        "runtime VLLM or SGLang, or serve the adapter merged into its base",
        "nim-no-lora",
    )


def experts_not_dealt_out(asked: Asked) -> Refusal | None:
    """Whole experts on ranks: a profile does not say it."""
    groups = asked.spec.parallelism.expert_groups
    if groups == 1:
        return None
    return Refusal(
        "ExpertsNotSupported",
        f"parallelism.expert {groups} with {asked.named}: a profile is split by tensor and "
        "pipeline ranks alone; leave it out, or use runtime VLLM or SGLang",
        "nim-profile-tags",
    )


def attention_not_by_data(asked: Asked) -> Refusal | None:
    """Attention by data: a profile does not say it."""
    groups = asked.spec.parallelism.attention_groups
    if groups == 1:
        return None
    return Refusal(
        "AttentionDataNotSupported",
        f"parallelism.attentionData {groups} with {asked.named}: a profile is split by tensor and "
        "pipeline ranks alone; leave it out, or use runtime VLLM or SGLang",
        "nim-profile-tags",
    )


SPEC_CHECKS: tuple[SpecCheck, ...] = (
    config_not_recorded,
    lambda asked: several_stages(asked.spec),
    adapters_not_taken,
    experts_not_dealt_out,
    attention_not_by_data,
)
