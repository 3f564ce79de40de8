"""Groups of experts and of attention: what no runtime can do, whatever its flags are called.

Both are made of the tensor ranks of one stage. `expert` deals whole experts out to so many of them;
the rest of `tensor` cuts each expert. `attentionData` lets so many groups of them run attention for
requests of their own, each with all heads of the group's ranks. GPUs stay tensor × pipeline.
"""

from __future__ import annotations

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.words import counted


def experts_not_divisible(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Experts dealt out to more ranks than there are experts for, or to unequal shares."""
    groups, experts = spec.parallelism.expert_groups, facts.experts
    if groups == 1 or (experts and experts % groups == 0):
        return None
    if not experts:
        return Refusal(
            "ExpertsNotDivisible",
            f"parallelism.expert {groups}: {facts.architecture} has no routed experts to deal out",
            source="experts-of-dense",
        )
    return Refusal(
        "ExpertsNotDivisible",
        f"parallelism.expert {groups} does not divide the model's {counted(experts, 'expert')}: "
        "every rank holds equally many",
    )


def attention_by_data_of_dense(spec: LLMDeploymentSpec, facts: ModelFacts) -> Refusal | None:
    """Attention by data of a model without experts to share: that is what replicas are."""
    groups = spec.parallelism.attention_groups
    if groups == 1 or facts.experts:
        return None
    return Refusal(
        "AttentionDataWithoutExperts",
        f"parallelism.attentionData {groups}: {facts.architecture} has no experts for the groups "
        "to share, so that they would be replicas which wait for each other (spec.replicas)",
        source="attention-data-of-dense",
    )


MODEL_CHECKS = (experts_not_divisible, attention_by_data_of_dense)
