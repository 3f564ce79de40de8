"""Which revision a spec asks for, or why there is none: accept, fetch, check the model, resolve.

A refused spec, and one whose model's facts are not known yet, leave what serves as the aim: nothing
that runs is touched by a wish that cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.world import ClaimView, Record, RecordState
from shardwright.plan import chain as chains
from shardwright.plan.chain import Chain, Shop
from shardwright.plan.checks import accept
from shardwright.plan.resolve import model_artifact, model_key, resolve
from shardwright.plan.revisions import Revision, wish_of
from shardwright.plan.situation import Intent, MakeRevision, RaiseRevision, Situation
from shardwright.runner.contract import STEP_MODEL
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime


@dataclass(frozen=True, slots=True)
class Aim:
    """The revision asked for (None: what serves stays the aim), or the reason there is none."""

    target: Revision | None
    revisions: tuple[Revision, ...]
    refusal: Refusal | None = None
    fetching: Chain | None = None
    model: Record | None = None
    intents: tuple[Intent, ...] = ()


def aim(situation: Situation, shop: Shop) -> Aim:
    """What the spec asks for."""
    spec = situation.spec
    revisions = situation.revisions
    if spec is None:
        return Aim(None, revisions, refusal=Refusal("InvalidSpec", situation.spec_error))
    refusal = accept(situation, spec)
    claim = situation.claims.get(spec.storage.claim_name)
    known = _known(situation, claim)
    if refusal is not None or claim is None:
        return Aim(known, revisions, refusal=refusal)
    record = situation.records.get((claim.uid, STEP_MODEL, model_key(spec)))
    if known is not None:
        return _again(known, revisions, record)
    if record is None or record.state is not RecordState.READY or record.facts is None:
        artifact = model_artifact(spec, situation.settings, _pinned(situation, spec, claim))
        fetching = chains.judge_artifact(claim.uid, artifact, shop)
        return Aim(None, revisions, fetching=fetching, model=record)
    engine = runtime(spec.engine.runtime)
    refusal = engine.refuse_model(spec, record.facts)
    if refusal is not None:
        return Aim(None, revisions, refusal=refusal, model=record)
    resolved = resolve(
        spec,
        runtime=engine,
        settings=situation.settings,
        claim=claim,
        record=record,
        facts=record.facts,
        restarted_at=situation.deployment.restarted_at,
        previous=revisions[-1].resolved if revisions else None,
    )
    wish = _wish(situation, claim.uid)
    made = Revision(
        name=f"{situation.deployment.name}-{wish}",
        uid="",
        number=revisions[-1].number + 1 if revisions else 1,
        resolved=resolved,
        wish=wish,
    )
    return Aim(made, (*revisions, made), model=record, intents=(MakeRevision(made),))


def _wish(situation: Situation, claim_uid: str) -> str:
    return wish_of(situation.spec_digest, situation.deployment.restarted_at, claim_uid)


def _known(situation: Situation, claim: ClaimView | None) -> Revision | None:
    """The revision that this very wish made before, if it still stands.

    With the claim gone the newest revision stays the aim, if nothing else was asked for.
    """
    if claim is None:
        newest = situation.revisions[-1] if situation.revisions else None
        same = newest and newest.wish == _wish(situation, newest.resolved.claim_uid)
        return newest if same else None
    wish = _wish(situation, claim.uid)
    return next((item for item in situation.revisions if item.wish == wish), None)


def _again(known: Revision, revisions: tuple[Revision, ...], record: Record | None) -> Aim:
    """An old wish finds its old revision, and raises its number if it is not the newest."""
    newest = revisions[-1]
    if known.name == newest.name:
        return Aim(known, revisions, model=record)
    raised = replace(known, number=newest.number + 1)
    others = tuple(item for item in revisions if item.name != known.name)
    return Aim(
        raised,
        (*others, raised),
        model=record,
        intents=(RaiseRevision(known, raised.number),),
    )


def _pinned(situation: Situation, spec: LLMDeploymentSpec, claim: ClaimView) -> str:
    """The commit that an earlier revision resolved this uri to: upstream pushes change nothing."""
    for revision in reversed(situation.revisions):
        resolved = revision.resolved
        if resolved.claim_uid == claim.uid and resolved.spec.model.uri == spec.model.uri:
            return resolved.commit
    return ""
