"""The model, or the heads, that draft tokens: a fetch of its own beside the served model's.

It is keyed by its uri like any model, so that what one deployment drafts with another may serve.
Medusa's heads are no model of their own and tell no facts: they are fetched under a key of theirs.
"""

from __future__ import annotations

from shardwright.api.settings import Settings
from shardwright.api.spec import CommonSpec, SpeculationMethod
from shardwright.observe.world import Record, RecordState
from shardwright.plan.fetched import claim_of, fetch_artifact, folder_of
from shardwright.resolved import Artifact, Draft, Resolved
from shardwright.runner.contract import (
    DRAFT_SOURCE,
    INPUT_PART,
    PART_HEADS,
    SOURCE,
    STEP_MODEL,
    artifact_key,
)


def draft_uri(spec: CommonSpec) -> str:
    """Uri of what drafts; empty when nothing of its own does."""
    wish = spec.speculative
    return wish.model.uri if wish is not None and wish.model is not None else ""


def draft_inputs(spec: CommonSpec) -> dict[str, object]:
    """What its fetch is keyed by."""
    heads = spec.speculative is not None and spec.speculative.method is SpeculationMethod.MEDUSA
    return {"uri": draft_uri(spec), **({INPUT_PART: PART_HEADS} if heads else {})}


def draft_key(spec: CommonSpec) -> str:
    """Key of its fetch; empty when there is none."""
    return artifact_key(STEP_MODEL, draft_inputs(spec)) if draft_uri(spec) else ""


def draft_claim(spec: CommonSpec) -> str:
    """The claim that a pvc:// draft lies on, or an empty string."""
    return claim_of(draft_uri(spec))


def draft_folder(spec: CommonSpec) -> str:
    """Where pods find it."""
    # The model's own claim is mounted once.
    shared = draft_claim(spec) == claim_of(spec.model.uri)
    elsewhere = SOURCE if shared else DRAFT_SOURCE
    return folder_of(draft_uri(spec), draft_key(spec), spec.storage.claim_name, elsewhere)


def draft_artifact(spec: CommonSpec, settings: Settings, commit: str = "") -> Artifact:
    """Its fetch."""
    return fetch_artifact(draft_uri(spec), draft_inputs(spec), settings, commit)


def draft_of(spec: CommonSpec, record: Record, previous: Resolved | None) -> Draft:
    """The draft with its commit, which is resolved once for a uri on a claim, then kept."""
    key = draft_key(spec)
    kept = (
        previous is not None
        and previous.draft is not None
        and previous.draft.key == key
        and previous.claim_uid == record.claim_uid
    )
    commit = previous.draft.commit if kept and previous and previous.draft else record.commit
    return Draft(key=key, commit=commit, folder=draft_folder(spec))


def fetched(record: Record | None) -> bool:
    """Whether it is there."""
    return record is not None and record.state is RecordState.READY
