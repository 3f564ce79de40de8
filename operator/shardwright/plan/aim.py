"""Which revision a spec asks for, or why there is none: accept, fetch, check the model, resolve.

A refused spec, and one whose model's facts are not known yet, leave what serves as the aim: nothing
that runs is touched by a wish that cannot be. Fields that a spec leaves open are chosen once, when
the model's facts are known, and kept in the revision for as long as the spec asks the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.api.asked import AskedSpec, asked_of
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.gpus import DriverMemory
from shardwright.observe.world import ClaimView, Record, RecordState
from shardwright.plan import chain as chains
from shardwright.plan.attempts import Chain, Shop
from shardwright.plan.baseline import gate_plan
from shardwright.plan.checks import accept, possible
from shardwright.plan.choice import Plan, kept, outlook, plan_for
from shardwright.plan.draft_checks import refuse_draft
from shardwright.plan.drafts import draft_artifact, draft_key, draft_uri, fetched
from shardwright.plan.fleets import Fleets, fleets_of
from shardwright.plan.given import given_room
from shardwright.plan.inventory import products
from shardwright.plan.question import headline_of
from shardwright.plan.resolve import Planned, model_artifact, model_key, resolve
from shardwright.plan.revisions import Revision, revision_of, wish_of
from shardwright.plan.situation import Intent, MakeRevision, RaiseRevision, Situation
from shardwright.resolved import Resolved
from shardwright.runner.contract import STEP_MODEL, ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.evaluation import Baseline
from shardwright.runtimes.registry import runtime
from shardwright.sizing.fleet_nodes import driver_report


@dataclass(frozen=True, slots=True)
class Aim:
    """The revision asked for (None: what serves stays the aim), or the reason there is none.

    `better` names a plan that has become possible, while the one that was chosen is kept.
    """

    target: Revision | None
    revisions: tuple[Revision, ...]
    refusal: Refusal | None = None
    fetching: Chain | None = None
    model: Record | None = None
    intents: tuple[Intent, ...] = ()
    better: str = ""


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
    facts = _facts(record)
    if known is not None:
        return _again(situation, spec, known, record)
    if record is None or facts is None:
        artifact = model_artifact(spec, situation.settings, _pinned(situation, spec, claim))
        fetching = chains.judge_artifact(claim.uid, artifact, shop)
        return Aim(None, revisions, fetching=fetching, model=record)
    drafts = None
    if draft_uri(spec):
        drafts = situation.records.get((claim.uid, STEP_MODEL, draft_key(spec)))
        if drafts is None or not fetched(drafts):
            commit = _draft_pinned(situation, spec, claim)
            artifact = draft_artifact(spec, situation.settings, commit)
            fetching = chains.judge_artifact(claim.uid, artifact, shop)
            if fetching.message:
                # The model's own fetch is told by the same condition, in the same words.
                fetching = replace(fetching, message=f"speculative.model: {fetching.message}")
            return Aim(None, revisions, fetching=fetching, model=record)
    filled = refuse_draft(spec, facts, drafts.facts if drafts else None) or _filled(
        situation, spec, facts, drafts.facts if drafts else None
    )
    if isinstance(filled, Refusal):
        return Aim(None, revisions, refusal=filled, model=record)
    whole, planned = filled
    baseline = _baseline(situation, whole, facts)
    if isinstance(baseline, Refusal):
        return Aim(None, revisions, refusal=baseline, model=record)
    resolved = resolve(
        whole,
        runtime=runtime(whole.engine.runtime),
        settings=situation.settings,
        claim=claim,
        record=record,
        facts=facts,
        restarted_at=situation.deployment.restarted_at,
        previous=revisions[-1].resolved if revisions else None,
        planned=replace(planned, baseline=baseline),
        drafts=drafts,
        before=[one.resolved for one in reversed(revisions[:-1])],
    )
    resolved = replace(resolved, version_given=situation.version_given)
    name = f"{situation.deployment.name}-{_wish(situation, claim.uid)}"
    number = revisions[-1].number + 1 if revisions else 1
    made = revision_of(name, "", number, resolved)
    return Aim(made, (*revisions, made), model=record, intents=(MakeRevision(made),))


def _facts(record: Record | None) -> ModelFacts | None:
    if record is None or record.state is not RecordState.READY:
        return None
    return record.facts


def _filled(
    situation: Situation, spec: AskedSpec, facts: ModelFacts, draft: ModelFacts | None
) -> tuple[LLMDeploymentSpec, Planned] | Refusal:
    """The spec with nothing open, and what is told of it; or why there is none."""
    engine = runtime(spec.engine.runtime)
    if not spec.open:
        whole = spec.filled()
        # Before its memory is counted: that asks for a shape which the model can have.
        refused = engine.refuse_model(whole, facts, _compute(situation, whole))
        if refused is not None:
            return refused
        memory, domain = _gpus(situation, whole)
        given = given_room(spec, whole, facts, memory, domain=domain, draft=draft)
        return given if isinstance(given, Refusal) else (whole, given)
    found = _plan(situation, spec, facts, draft)
    if isinstance(found, Refusal):
        return found
    planned = Planned(spec, found.chosen, found.room, found.reasons)
    refused = (
        accept(situation, asked_of(found.spec))
        or engine.refuse_model(found.spec, facts, _compute(situation, found.spec))
        or refuse_draft(found.spec, facts, draft)
    )
    return refused or (found.spec, planned)


def _compute(situation: Situation, spec: LLMDeploymentSpec) -> tuple[int, int] | None:
    """Compute capability of a spec's product; None while no node of the cluster tells it."""
    known = situation.products
    if known is None:
        known = products(situation.nodes.values(), ())
    product = known.get(spec.gpu.product)
    return product.compute if product is not None else None


def _gpus(situation: Situation, spec: LLMDeploymentSpec) -> tuple[DriverMemory, int]:
    """Memory of one GPU of a spec's product, and how many share a node's NVLink domain."""
    known = situation.products
    if known is None:
        known = products(situation.nodes.values(), ())
    product = known.get(spec.gpu.product)
    memory = driver_report(spec.gpu.product, product.memory_mib if product is not None else 0)
    return memory, product.largest_domain if product is not None else 0


def _baseline(
    situation: Situation, spec: LLMDeploymentSpec, facts: ModelFacts
) -> Baseline | Refusal | None:
    """Where the baseline of the spec's gate is measured, or why its gate cannot be."""
    memory, domain = _gpus(situation, spec)
    return gate_plan(spec, facts, memory, domain)


def _plan(
    situation: Situation, spec: AskedSpec, facts: ModelFacts, draft: ModelFacts | None
) -> Plan | Refusal:
    """What was chosen before for the same question, else what is chosen now."""
    revisions = situation.revisions
    before = kept(revisions[-1].resolved, spec) if revisions else None
    if before is None:
        return plan_for(spec, facts, _fleets(situation, spec), draft)
    gone = possible(situation, asked_of(before.spec))
    if gone is None:
        return before
    return _not_possible(situation, spec, revisions[-1].resolved, facts, gone)


def _fleets(situation: Situation, spec: AskedSpec) -> Fleets:
    if situation.fleets is not None:
        return situation.fleets
    return fleets_of(situation.nodes.values(), spec.placement, situation.settings)


def _not_possible(
    situation: Situation,
    spec: AskedSpec,
    resolved: Resolved,
    facts: ModelFacts | None,
    gone: Refusal,
) -> Refusal:
    """A kept plan that this cluster cannot run any more, and what would be chosen in its place."""
    draft = _draft_facts(situation, resolved)
    fleets = _fleets(situation, spec)
    now = outlook(resolved, facts, fleets, draft).now if facts is not None else ""
    instead = (
        f"now {now} would be chosen: change the spec (give parallelism and gpu, or another "
        "workload) to move to it"
        if now
        else "nothing else would be possible now"
    )
    return Refusal(
        "PlanNotPossible",
        f"the plan that was chosen, {headline_of(resolved.spec)}, has become impossible: "
        f"{gone.message}; what runs is left alone; {instead}",
    )


def _wish(situation: Situation, claim_uid: str) -> str:
    return wish_of(situation.spec_digest, situation.deployment.restarted_at, claim_uid)


def _known(situation: Situation, claim: ClaimView | None) -> Revision | None:
    """The revision that this very wish made before, if it still stands.

    With the claim gone the newest revision stays the aim, if nothing else was asked for.
    """
    if claim is None:
        newest = situation.revisions[-1] if situation.revisions else None
        same = newest and newest.means(_wish(situation, newest.resolved.claim_uid))
        return newest if same else None
    wish = _wish(situation, claim.uid)
    # The newest of them: to write down what was chosen, or back again, rolls nothing.
    return next((item for item in reversed(situation.revisions) if item.means(wish)), None)


def _again(situation: Situation, spec: AskedSpec, known: Revision, record: Record | None) -> Aim:
    """An old wish finds its old revision, and raises its number if it is not the newest."""
    revisions = situation.revisions
    better = ""
    if spec.open:
        facts = _facts(record)
        gone = possible(situation, asked_of(known.resolved.spec))
        if gone is not None:
            refusal = _not_possible(situation, spec, known.resolved, facts, gone)
            return Aim(known, revisions, refusal=refusal, model=record)
        if facts is not None:
            draft = _draft_facts(situation, known.resolved)
            better = outlook(known.resolved, facts, _fleets(situation, spec), draft).better
    newest = revisions[-1]
    if known.name == newest.name:
        return Aim(known, revisions, model=record, better=better)
    raised = replace(known, number=newest.number + 1)
    others = tuple(item for item in revisions if item.name != known.name)
    return Aim(
        raised,
        (*others, raised),
        model=record,
        intents=(RaiseRevision(known, raised.number),),
        better=better,
    )


def _pinned(situation: Situation, spec: AskedSpec, claim: ClaimView) -> str:
    """The commit that an earlier revision resolved this uri to: upstream pushes change nothing."""
    for revision in reversed(situation.revisions):
        resolved = revision.resolved
        if resolved.claim_uid == claim.uid and resolved.spec.model.uri == spec.model.uri:
            return resolved.commit
    return ""


def _draft_pinned(situation: Situation, spec: AskedSpec, claim: ClaimView) -> str:
    """The same of what drafts tokens."""
    key = draft_key(spec)
    for revision in reversed(situation.revisions):
        draft = revision.resolved.draft
        if draft is not None and draft.key == key and revision.resolved.claim_uid == claim.uid:
            return draft.commit
    return ""


def _draft_facts(situation: Situation, resolved: Resolved) -> ModelFacts | None:
    """Facts of what a revision drafts with."""
    if resolved.draft is None:
        return None
    return _facts(situation.records.get((resolved.claim_uid, STEP_MODEL, resolved.draft.key)))
