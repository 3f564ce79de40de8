"""The adapters that a spec asks for: what becomes of each, what is fetched, what leaders are told.

Each adapter is an artifact of its own, fetched like a model and judged by its own facts. Whatever
is wrong with one is told under its name and touches no other, nor anything that serves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardwright.api.lora import Adapter as Asked
from shardwright.api.lora import LoRA
from shardwright.api.spec import CommonSpec
from shardwright.observe.world import ClaimView, Record, RecordState
from shardwright.plan.adapter_checks import other_name, refuse_adapter
from shardwright.plan.adapter_states import Adapters, AdapterState, Found, number_of
from shardwright.plan.attempts import Chain, Next, Shop
from shardwright.plan.chain import judge_artifact
from shardwright.plan.fetched import claim_of
from shardwright.plan.resolve import (
    adapter_artifact,
    adapter_folder,
    adapter_key,
    model_key,
    source_claim,
)
from shardwright.plan.revisions import Revision
from shardwright.plan.situation import Situation
from shardwright.runner.contract import STEP_ADAPTER, STEP_MODEL, Adapter, ModelFacts

_PREFIX = "adapter/"  # no revision's name has a slash
_FETCH_FINDS_FAULT = frozenset({"AdapterInvalid", "UnsafeWeights"})


@dataclass(frozen=True, slots=True)
class _Base:
    """What an adapter is to be loaded into: model, limits and claims of one revision."""

    spec: CommonSpec
    lora: LoRA
    claim_uid: str
    model: ModelFacts


def adapters_of(
    situation: Situation,
    shop: Shop,
    *,
    aim: Revision | None,
    serving: Revision | None,
    live: Iterable[Revision],
) -> Adapters:
    """What to do about the adapters of the spec.

    Each revision has a table of its own, so that what serves keeps all that it can take while
    another model, other limits or another claim are on their way.

    Args:
        situation: What is known; its spec was accepted.
        shop: What fetches are judged by.
        aim: What the spec asks for; None while its model is fetched.
        serving: What serves; None before anything does.
        live: All revisions that have pods or are to have some.
    """
    spec = situation.spec
    claim = situation.claims.get(spec.storage.claim_name) if spec is not None else None
    told = aim or serving
    if spec is None or claim is None or told is None:
        return Adapters()
    asked = spec.lora.adapters if spec.lora is not None else []
    fetches = {one.name: _chain(one, situation, shop, claim) for one in asked}
    found: dict[str, tuple[Found, ...]] = {}
    for revision in live:
        base = _base(revision, situation)
        if base is not None:
            found[revision.name] = tuple(
                _found(one, base, situation, fetches[one.name]) for one in asked
            )
    chains = {
        _PREFIX + adapter_key(one.uri): fetches[one.name]
        for one in asked
        if _mounted(one, spec) and not fetches[one.name].ready and not _lacks_secret(one, situation)
    }
    first = serving if serving is not None and serving.name in found else told
    return Adapters(found, told=told.name, first=first.name, chains=chains)


def _base(revision: Revision, situation: Situation) -> _Base | None:
    """None for a revision that takes no adapters.

    The model's record has its whole config; without it some sizes are not known.
    """
    resolved = revision.resolved
    lora = resolved.spec.lora
    if lora is None:
        return None
    known = situation.records.get((resolved.claim_uid, STEP_MODEL, model_key(resolved.spec)))
    facts = known.facts if known is not None and known.commit == resolved.commit else None
    return _Base(resolved.spec, lora, resolved.claim_uid, facts or resolved.facts)


def _found(asked: Asked, base: _Base, situation: Situation, fetch: Chain) -> Found:
    """One adapter as one revision's leaders can have it."""
    if not _mounted(asked, base.spec):
        return _elsewhere(asked, base.spec)
    key = adapter_key(asked.uri)
    record = situation.records.get((base.claim_uid, STEP_ADAPTER, key))
    if record is None or record.state is not RecordState.READY:
        return _not_there(asked, situation, fetch)
    return _judged(asked, base, record)


def _mounted(asked: Asked, spec: CommonSpec) -> bool:
    claim = claim_of(asked.uri)
    return not claim or claim in (spec.storage.claim_name, source_claim(spec))


def _elsewhere(asked: Asked, spec: CommonSpec) -> Found:
    """An adapter on a claim that the serving pods do not mount."""
    return Found(
        asked.name,
        AdapterState.INVALID,
        "AdapterClaimNotMounted",
        f"{asked.uri} is on claim {claim_of(asked.uri)}; serving pods mount "
        f"{spec.storage.claim_name} (storage) and the claim of a pvc:// model: copy it there, or "
        "name it by hf://, s3:// or oci://",
    )


def _chain(asked: Asked, situation: Situation, shop: Shop, claim: ClaimView) -> Chain:
    artifact = adapter_artifact(asked.uri, situation.settings)
    record = situation.records.get((claim.uid, STEP_ADAPTER, artifact.key))
    if record is not None and record.state is RecordState.READY:
        return Chain(Next.READY)
    return judge_artifact(claim.uid, artifact, shop)


def _lacks_secret(asked: Asked, situation: Situation) -> bool:
    secret = asked.secret_ref
    return secret is not None and secret.name in situation.missing_adapter_secrets


def _not_there(asked: Asked, situation: Situation, chain: Chain) -> Found:
    if chain.ready:
        return Found(
            asked.name,
            AdapterState.FETCHING,
            "AdapterOnAnotherClaim",
            "it was fetched onto the claim that the spec names, which these replicas do not mount",
        )
    if _lacks_secret(asked, situation) and asked.secret_ref is not None:
        return Found(
            asked.name,
            AdapterState.FAILED,
            "SecretNotFound",
            f"there is no Secret {asked.secret_ref.name} in namespace "
            f"{situation.deployment.namespace}; create it, or take the reference out",
        )
    reason = chain.reason or chain.next.value
    if chain.next in (Next.STALLED, Next.FAIL):
        state = AdapterState.INVALID if reason in _FETCH_FINDS_FAULT else AdapterState.FAILED
        return Found(asked.name, state, reason, chain.message)
    return Found(asked.name, AdapterState.FETCHING, reason, chain.message)


def _judged(asked: Asked, base: _Base, record: Record) -> Found:
    facts, model = record.adapter, base.spec.model
    if facts is None:
        return Found(
            asked.name,
            AdapterState.FAILED,
            "AdapterNotKnown",
            f"ConfigMap {record.name} tells no facts of it; delete it to have it fetched again",
        )
    refusal = refuse_adapter(
        asked.name,
        facts,
        base.lora,
        served_name=model.served_name,
        uri=model.uri,
        model=base.model,
        runtime=base.spec.engine.runtime,
    )
    if refusal is not None:
        return Found(asked.name, AdapterState.INVALID, refusal.reason, refusal.message)
    entry = Adapter(
        name=asked.name,
        folder=adapter_folder(asked.uri, base.spec),
        key=record.key,
        number=number_of(record.key, record.commit),
        rank=facts.rank,
        modules=facts.modules,
        in_place=bool(claim_of(asked.uri)),
    )
    told = other_name(facts, model.uri)
    return Found(asked.name, AdapterState.READY, "AdapterReady", told, entry)


_ONE_ADVICE = (
    "one adapter: merged into its base and deployed whole it costs no slots and no arithmetic of "
    "its own; keep it apart if others will follow"
)


def advice(lora: LoRA | None) -> tuple[str, ...]:
    """What to tell of the adapters as they are asked for."""
    return (_ONE_ADVICE,) if lora is not None and len(lora.adapters) == 1 else ()
