"""Speculation: what holds for every runtime."""

from __future__ import annotations

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.runtimes.base import ModelSource


def proof_inputs(spec: LLMDeploymentSpec, model: ModelSource) -> dict[str, object]:
    """What a proof's key says of speculation; nothing without it, so that old keys stand."""
    wish = spec.speculative
    if wish is None:
        return {}
    drafted: dict[str, object] = {"method": wish.method.value, "maxDraftLen": wish.max_draft_len}
    if model.draft is not None:
        drafted["model"] = model.draft.key
        if model.draft.commit:
            drafted["commit"] = model.draft.commit
    return {"speculative": drafted}
