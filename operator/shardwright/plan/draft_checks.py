"""Whether a draft fits its model, told from the facts of both before anything is built.

What a draft proposes the model checks token by token, so that both must count the same tokens;
heads work on the model's own hidden states, so that those must be of one width.
"""

from __future__ import annotations

from shardwright.api.spec import CommonSpec, SpeculationMethod
from shardwright.plan.question import model_of
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal


def refuse_draft(spec: CommonSpec, facts: ModelFacts, draft: ModelFacts | None) -> Refusal | None:
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


def _without_layers(spec: CommonSpec, facts: ModelFacts) -> bool:
    """Whether the model is known to bring no multi-token-prediction layers."""
    model = model_of(facts, spec.model.uri)
    return not isinstance(model, Refusal) and not model.draft_layers
