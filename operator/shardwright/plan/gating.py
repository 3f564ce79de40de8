"""One pass's part of the accuracy gate: what is written down, and which replicas it spares.

The decisions themselves (what is measured, what passes) are in `gate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.observe.world import Record, RecordState
from shardwright.plan import gate as gates
from shardwright.plan import recording
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.groups import Group
from shardwright.plan.revisions import Revision, cured, ungated_wish
from shardwright.plan.rollout import Goal, Wish
from shardwright.plan.situation import Intent, Situation
from shardwright.resolved import Resolved
from shardwright.runner.contract import STEP_PROOF


def given_up(chain: Chain | None) -> bool:
    """Whether only the user can help a chain on."""
    return chain is not None and chain.next in (Next.STALLED, Next.FAIL)


def proofs(
    situation: Situation,
    target: Revision,
    judged: gates.Verdict | None,
    *,
    evidence: bool,
    proven_now: bool,
) -> list[Intent]:
    """What is written down of a target that is not proven yet."""
    resolved, intents = target.resolved, list[Intent]()
    gate = resolved.gate
    if gate is not None and evidence and not gates.loaded(resolved, situation.records):
        intents += recording.loads_of(situation, resolved, gate)
    failed = proof_failure(target, situation) is not None
    if judged is not None and judged.failed and not failed:
        said = f"{gates.told(judged)}; try {try_next(situation, target)}"
        intents += recording.too_low(situation, target, said)
    if proven_now:
        intents += recording.proof_of(situation, target)
    return intents


def try_next(situation: Situation, target: Revision | None) -> str:
    """What to try when the target answers too badly."""
    if target is None:
        return ""
    resolved = target.resolved
    known = (situation.products or {}).get(resolved.spec.gpu.product)
    compute = known.compute if known is not None else None
    return gates.next_precision(resolved.spec, resolved.facts, compute)


def adopted(
    wishes: tuple[Wish, ...],
    groups: Mapping[int, Group],
    revisions: Mapping[str, Revision],
    goal: Goal,
) -> tuple[Wish, ...]:
    """Replicas of a revision that differs from the target in its gate alone become its own.

    Their pods are what the target's would be: nothing is gained by making them anew. While the
    target is to be proven that is so of a candidate only: what serves goes on under the gate that
    it has passed.
    """
    target = revisions.get(goal.target)
    settled = goal.target_proven and goal.serving == goal.target
    if target is None or (goal.target_proven and not settled):
        return wishes

    def same(wish: Wish) -> bool:
        other = revisions.get(wish.revision)
        return other is not None and gates.same_pods(other.resolved, target.resolved)

    def candidate(wish: Wish) -> bool:
        group = groups.get(wish.index)
        return wish.revision not in goal.proven and not (group is not None and group.serving)

    return tuple(
        replace(wish, revision=target.name)
        if wish.revision != target.name and (settled or candidate(wish)) and same(wish)
        else wish
        for wish in wishes
    )


def proof_failure(target: Revision | None, situation: Situation) -> Record | None:
    """The record of a proof that failed for good under this very wish, None when there is none.

    A wish that differs in what no key holds (options, pod settings, a restart asked for) may be the
    cure, and tries once itself. Another gate is no cure for what does not load.
    """
    if target is None:
        return None
    resolved = target.resolved
    if (found := _failed(situation, resolved, resolved.proof_key, target.pinned)) is not None:
        return found
    if resolved.gate is None:
        return None
    return _failed(situation, resolved, resolved.gate.loads_key, ungated_wish(resolved))


def _failed(situation: Situation, resolved: Resolved, key: str, wish: str) -> Record | None:
    record = situation.records.get((resolved.claim_uid, STEP_PROOF, key))
    if record is None or record.state is not RecordState.FAILED:
        return None
    return None if cured(record, wish) else record
