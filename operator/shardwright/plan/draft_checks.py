"""Whether a draft fits its model, told from the facts of both before anything is built.

What a draft proposes the model checks token by token, so that both must count the same tokens;
heads work on the model's own hidden states, so that those must be of one width.
"""

from __future__ import annotations

from shardwright.api.asked import AskedParallelism, AskedSpec
from shardwright.api.spec import CommonSpec, LLMDeploymentSpec, Parallelism, SpeculationMethod
from shardwright.plan.question import model_of
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal

_WITH_ATTENTION = frozenset(
    {SpeculationMethod.DRAFT_MODEL, SpeculationMethod.EAGLE, SpeculationMethod.EAGLE3}
)


def refuse_draft(
    spec: LLMDeploymentSpec | AskedSpec, facts: ModelFacts, draft: ModelFacts | None
) -> Refusal | None:
    """Why this draft cannot draft for this model; None of the facts where it tells none."""
    wish = spec.speculative
    if wish is None:
        return None
    if wish.method is SpeculationMethod.MTP and _without_layers(spec, facts):
        return Refusal(
            "DraftDoesNotFit",
            f"speculative.method MTP: {facts.architecture} has no multi-token-prediction layers in "
            "its config.json; use another method",
            source="mtp-needs-layers",
        )
    if draft is None or wish.model is None:
        return None
    if wish.method is SpeculationMethod.DRAFT_MODEL and draft.vocab_size != facts.vocab_size:
        return Refusal(
            "DraftDoesNotFit",
            f"speculative.model.uri {wish.model.uri} has a vocabulary of {draft.vocab_size:,} "
            f"entries, the model of {facts.vocab_size:,}: a draft model must count the same "
            "tokens; use one of the same family",
            source="draft-vocabulary",
        )
    ranks = _ranks(spec.parallelism)
    if wish.method in _WITH_ATTENTION and draft.heads and draft.heads % ranks:
        fit = max(size for size in range(1, ranks) if draft.heads % size == 0)
        return Refusal(
            "DraftDoesNotFit",
            f"speculative.model.uri {wish.model.uri} has {draft.heads} attention heads, which "
            f"{ranks} tensor ranks cannot share evenly, and a draft is split as its model is; use "
            f"one whose heads {ranks} divides, or so few ranks as {fit}",
            source="draft-tensor-ranks",
        )
    heads = wish.method in (SpeculationMethod.EAGLE, SpeculationMethod.EAGLE3)
    if heads and draft.hidden_size != facts.hidden_size:
        return Refusal(
            "DraftDoesNotFit",
            f"speculative.model.uri {wish.model.uri} was trained for hidden states of "
            f"{draft.hidden_size:,}, the model's are {facts.hidden_size:,} wide; name the one that "
            f"was trained for {spec.model.uri}",
            source="eagle-hidden-states",
        )
    return None


def _ranks(split: Parallelism | AskedParallelism | None) -> int:
    """The ranks that share a group's heads; 1 while they are open."""
    tensor = split.tensor if split is not None else None
    return (tensor or 1) // ((split.attention_data if split is not None else None) or 1)


def _without_layers(spec: CommonSpec, facts: ModelFacts) -> bool:
    """Whether the model is known to bring no multi-token-prediction layers."""
    model = model_of(facts, spec.model.uri)
    return not isinstance(model, Refusal) and not model.draft_layers
