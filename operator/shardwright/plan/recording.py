"""What is written down of artifacts: begun, made, failed, proven, or found bad and withdrawn.

A record is one ConfigMap a key and claim, and the whole truth about the files: what pods find on
the claim is only believed when it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.observe.world import ClaimView, Record, RecordState
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.collection import UNUSABLE
from shardwright.plan.gate import ACCURACY_TOO_LOW, loaded
from shardwright.plan.revisions import Revision, ungated_wish
from shardwright.plan.rollout import Verdict
from shardwright.plan.situation import Intent, Situation, WriteRecord
from shardwright.resolved import Artifact, Gate, Resolved
from shardwright.runner.contract import STEP_MODEL, STEP_PROOF

# Wishes of what failed that are remembered; the oldest may try again after so many others.
KEPT_TRIES = 32


def begun(situation: Situation, artifact: Artifact, claim: ClaimView) -> list[Intent]:
    """A record before the first Job: so no folder is ever on the claim that no record tells of.

    Its Job may be dropped after it has published and before that was recorded.
    """
    if (claim.uid, artifact.step, artifact.key) in situation.records:
        return []
    first = Record(
        step=artifact.step,
        key=artifact.key,
        claim_uid=claim.uid,
        state=RecordState.BUILDING,
        inputs=artifact.inputs,
        created=situation.now,
    )
    return [WriteRecord(first, claim)]


def records_of_verdict(
    situation: Situation, verdict: Verdict, revisions: Mapping[str, Revision], target: str
) -> list[Intent]:
    """What broken groups say of artifacts: a failed proof, or files that are not what they were."""
    intents: list[Intent] = []
    if verdict.failed_proof is not None and target in revisions:
        failure = verdict.failed_proof
        failed = replace(
            _not_loaded(situation, revisions[target]),
            reason=failure.reason,
            message=failure.cause,
            log_tail=failure.log_tail,
        )
        intents.extend(_write(situation, failed))
    if verdict.bad_artifact is not None and verdict.bad_revision in revisions:
        resolved = revisions[verdict.bad_revision].resolved
        named = verdict.bad_artifact.key
        # What is loaded beside the served artifact is told apart by its key; it was fetched.
        bad = (
            (STEP_MODEL, named)
            if named in resolved.also
            else (resolved.serve_step, resolved.serve_key)
        )
        known = situation.records.get((resolved.claim_uid, *bad))
        if known is not None and known.state is RecordState.READY:
            intents.extend(
                _write(situation, _trashed(known, verdict.bad_artifact.cause, situation.now))
            )
    return intents


def _trashed(record: Record, message: str, now: float) -> Record:
    return Record(
        step=record.step,
        key=record.key,
        claim_uid=record.claim_uid,
        state=RecordState.TRASHED,
        name=record.name,
        inputs=record.inputs,
        commit=record.commit,
        facts=record.facts,
        adapter=record.adapter,
        reason=UNUSABLE,
        message=message,
        created=now,
        attempt=record.attempt,
        rebuilds=record.rebuilds + 1,
    )


def records_of_chains(situation: Situation, chains: Mapping[str, Chain]) -> list[Intent]:
    """Write down what finished Jobs made, or why they never will, or what they found damaged."""
    intents: list[Intent] = []
    for chain in chains.values():
        if chain.next is Next.WITHDRAW and chain.source is not None:
            bad = _trashed(chain.source, chain.message, situation.now)
            intents.extend(_write(situation, bad))
        artifact, report, job = chain.artifact, chain.report, chain.job
        if chain.next not in (Next.RECORD, Next.FAIL) or not (artifact and report and job):
            continue
        old = situation.records.get((job.claim_uid, artifact.step, artifact.key))
        done = chain.next is Next.RECORD
        made = Record(
            step=artifact.step,
            key=artifact.key,
            claim_uid=job.claim_uid,
            state=RecordState.READY if done else RecordState.FAILED,
            inputs=artifact.inputs,
            commit=report.commit,
            facts=report.facts,
            adapter=report.adapter,
            total_bytes=report.total_bytes,
            reason="" if done else report.reason,
            message="" if done else report.message,
            log_tail="" if done else report.log_tail,
            created=situation.now,
            used=situation.now,
            attempt=job.attempt,
            rebuilds=old.rebuilds if old is not None else 0,
            score=report.score if done else None,
            samples=report.samples if done else 0,
        )
        if chain.wish and not done:
            made = _tried(situation, made, chain.wish)
        intents.extend(_write(situation, made))
    return intents


def proof_of(situation: Situation, revision: Revision) -> list[Intent]:
    """Record the proof: a whole group of this revision is ready."""
    made = _proof(situation, revision.resolved, RecordState.READY)
    return _write(situation, replace(made, used=situation.now))


def loads_of(situation: Situation, resolved: Resolved, gate: Gate) -> list[Intent]:
    """Record that it loads and answers, which is the whole proof where no gate is."""
    return _write(situation, _loads(situation, resolved, gate))


def _not_loaded(situation: Situation, revision: Revision) -> Record:
    """A failed proof that is no matter of a gate: another gate finds it, too.

    Where it is known to load (another deployment may serve by that) only this proof has failed.
    """
    resolved, gate = revision.resolved, revision.resolved.gate
    if gate is None or loaded(resolved, situation.records):
        return _failed(situation, revision)
    made = replace(_loads(situation, resolved, gate), state=RecordState.FAILED, used=0.0)
    return _tried(situation, made, ungated_wish(resolved))


def _loads(situation: Situation, resolved: Resolved, gate: Gate) -> Record:
    return Record(
        step=STEP_PROOF,
        key=gate.loads_key,
        claim_uid=resolved.claim_uid,
        state=RecordState.READY,
        inputs=gate.loads_inputs,
        created=situation.now,
        used=situation.now,
    )


def too_low(situation: Situation, revision: Revision, message: str) -> list[Intent]:
    """Record that what was measured does not pass the gate."""
    failed = _failed(situation, revision)
    return _write(situation, replace(failed, reason=ACCURACY_TOO_LOW, message=message))


def _failed(situation: Situation, revision: Revision) -> Record:
    made = _proof(situation, revision.resolved, RecordState.FAILED)
    return _tried(situation, made, revision.pinned)


def _tried(situation: Situation, made: Record, wish: str) -> Record:
    """A failed proof or score, with the wishes that it was tried under so far.

    What has no place in the key may have been the cause, so another wish may try the same key; each
    once, lest two deployments that differ so try it in turn for ever.
    """
    old = situation.records.get((made.claim_uid, made.step, made.key))
    before = old.tried if old is not None and old.state is RecordState.FAILED else ()
    others = tuple(one for one in before if one != wish)
    return replace(made, tried=(*others, wish)[-KEPT_TRIES:])


def _proof(situation: Situation, resolved: Resolved, state: RecordState) -> Record:
    return Record(
        step=STEP_PROOF,
        key=resolved.proof_key,
        claim_uid=resolved.claim_uid,
        state=state,
        inputs=resolved.proof_inputs,
        created=situation.now,
    )


def _write(situation: Situation, record: Record) -> list[Intent]:
    claim = _claim(situation, record.claim_uid)
    return [WriteRecord(record, claim)] if claim is not None else []


def _claim(situation: Situation, uid: str) -> ClaimView | None:
    return next((claim for claim in situation.claims.values() if claim.uid == uid), None)
