"""The adapters that a spec asks for: what becomes of each, what is fetched, what leaders are told.

Each adapter is an artifact of its own, fetched like a model and judged by its own facts. Whatever
is wrong with one is told under its name and touches no other, nor anything that serves.
"""

from __future__ import annotations

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
    source_claim,
)
from shardwright.plan.situation import Situation
from shardwright.runner.contract import STEP_ADAPTER, Adapter, AdapterTable, ModelFacts

_PREFIX = "adapter/"  # no revision's name has a slash
_FETCH_FINDS_FAULT = frozenset({"AdapterInvalid", "UnsafeWeights"})


def adapters_of(
    situation: Situation, shop: Shop, model: ModelFacts | None, *, mounted: bool
) -> Adapters:
    """What to do about the adapters of the spec.

    Args:
        situation: What is known; its spec was accepted.
        shop: What fetches are judged by.
        model: The base model's facts; nothing is fetched or loaded before they are known.
        mounted: Whether pods of some revision look for a table of adapters.
    """
    spec = situation.spec
    claim = situation.claims.get(spec.storage.claim_name) if spec is not None else None
    if spec is None or claim is None or model is None:
        return Adapters()
    if spec.lora is None:
        return Adapters(table=AdapterTable() if mounted else None)
    chains: dict[str, Chain] = {}
    found: list[Found] = []
    for asked in spec.lora.adapters:
        refused = _elsewhere(asked, spec)
        if refused is not None:
            found.append(refused)
            continue
        chain = _chain(asked, situation, shop, claim)
        record = _record(asked, situation, claim)
        if record is None:
            found.append(_not_there(asked, situation, chain))
        else:
            found.append(_judged(asked, spec, spec.lora, record, model))
        if not chain.ready and not _lacks_secret(asked, situation):
            chains[_PREFIX + adapter_key(asked.uri)] = chain
    entries = tuple(one.entry for one in found if one.entry is not None)
    return Adapters(tuple(found), chains, AdapterTable(entries))


def _elsewhere(asked: Asked, spec: CommonSpec) -> Found | None:
    """An adapter on a claim that the serving pods do not mount."""
    claim = claim_of(asked.uri)
    if not claim or claim in (spec.storage.claim_name, source_claim(spec)):
        return None
    return Found(
        asked.name,
        AdapterState.INVALID,
        "AdapterClaimNotMounted",
        f"{asked.uri} is on claim {claim}; serving pods mount {spec.storage.claim_name} (storage) "
        "and the claim of a pvc:// model: copy it there, or name it by hf://, s3:// or oci://",
    )


def _chain(asked: Asked, situation: Situation, shop: Shop, claim: ClaimView) -> Chain:
    artifact = adapter_artifact(asked.uri, situation.settings)
    record = situation.records.get((claim.uid, STEP_ADAPTER, artifact.key))
    if record is not None and record.state is RecordState.READY:
        return Chain(Next.READY)
    return judge_artifact(claim.uid, artifact, shop)


def _record(asked: Asked, situation: Situation, claim: ClaimView) -> Record | None:
    """The record of a fetched adapter: on the spec's claim, or on one that pods still load from.

    A deployment that moves to another claim keeps serving its adapters from the old one.
    """
    key = adapter_key(asked.uri)
    uids = [claim.uid, *(item.resolved.claim_uid for item in reversed(situation.revisions))]
    records = (situation.records.get((uid, STEP_ADAPTER, key)) for uid in uids)
    return next(
        (one for one in records if one is not None and one.state is RecordState.READY), None
    )


def _lacks_secret(asked: Asked, situation: Situation) -> bool:
    secret = asked.secret_ref
    return secret is not None and secret.name in situation.missing_adapter_secrets


def _not_there(asked: Asked, situation: Situation, chain: Chain) -> Found:
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


def _judged(asked: Asked, spec: CommonSpec, lora: LoRA, record: Record, model: ModelFacts) -> Found:
    facts = record.adapter
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
        lora,
        served_name=spec.model.served_name,
        uri=spec.model.uri,
        model=model,
    )
    if refusal is not None:
        return Found(asked.name, AdapterState.INVALID, refusal.reason, refusal.message)
    entry = Adapter(
        name=asked.name,
        folder=adapter_folder(asked.uri, spec),
        key=record.key,
        number=number_of(record.key, record.commit),
        rank=facts.rank,
        modules=facts.modules,
        in_place=bool(claim_of(asked.uri)),
    )
    told = other_name(facts, spec.model.uri)
    return Found(asked.name, AdapterState.READY, "AdapterReady", told, entry)


_ONE_ADVICE = (
    "one adapter: merged into its base and deployed whole it costs no slots and no arithmetic of "
    "its own; keep it apart if others will follow"
)


def advice(lora: LoRA | None) -> tuple[str, ...]:
    """What to tell of the adapters as they are asked for."""
    return (_ONE_ADVICE,) if lora is not None and len(lora.adapters) == 1 else ()
