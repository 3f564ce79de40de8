"""What the wishes of a deployment are steered toward, and what is remembered once they moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.api.spec import Rollout
from shardwright.plan.aim import Aim
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.memory import Memory
from shardwright.plan.revisions import Revision, proven
from shardwright.plan.rollout import Goal, Verdict
from shardwright.plan.situation import Situation
from shardwright.resolved import Score


def goal_of(
    situation: Situation,
    memory: Memory,
    *,
    target: Revision | None,
    served: Revision | None,
    chain: Chain | None,
    proven_now: bool,
    failed: bool,
    revisions: tuple[Revision, ...],
    move_possible: bool,
) -> Goal:
    """What the wish is steered toward.

    A proven target whose artifacts are gone steers like an unproven one: nothing old is taken down
    for a group that cannot start.
    """
    spec = situation.spec
    proven_names = {
        revision.name for revision in revisions if proven(revision.resolved, situation.records)
    }
    there = chain is not None and chain.ready
    rolled_back = target is not None and target.name in memory.rolled_back
    if proven_now and target is not None:
        proven_names.add(target.name)
        if not rolled_back and there:
            served = target
    return Goal(
        replicas=spec.replicas if spec is not None else len(memory.wishes),
        rollout=spec.rollout if spec is not None else Rollout(),
        target=target.name if target is not None else "",
        serving=served.name if served is not None else "",
        target_proven=proven_now and (there or rolled_back),
        candidate_possible=there and not failed,
        proven=frozenset(proven_names),
        settled=target is not None and target.name == memory.settled,
        borrowed=bool(memory.borrowed),
        edit=situation.edit,
        cordoned=frozenset(name for name, node in situation.nodes.items() if node.unschedulable),
        move_possible=move_possible,
    )


def after_mending(
    memory: Memory,
    verdict: Verdict,
    written: tuple[Revision, ...],
    aimed: Aim,
    target: Revision | None,
    chains: Mapping[str, Chain],
    *,
    to_ask: Sequence[Score],
) -> Memory:
    """What is remembered beside the wishes.

    What was held against a score stays while nobody is there to be asked for it.

    Revisions that were rolled back stay barred until the newest one, that is asked for, has served:
    they are proven, and one of them would be taken for what serves as soon as it is not barred.
    That the newest is proven is not enough: it may be rolled back itself.
    """
    tries = dict(memory.tries)
    live = {
        (chain.artifact.step, chain.artifact.key)
        for chain in chains.values()
        if chain.artifact is not None
    }
    live |= {(score.step, score.key) for score in to_ask}
    for key in list(tries):
        if key not in live:
            del tries[key]
    for chain in chains.values():
        if chain.next is Next.COUNT and chain.artifact is not None and chain.tries is not None:
            tries[chain.artifact.step, chain.artifact.key] = chain.tries
    after = replace(memory, wishes=verdict.wishes, incarnations=verdict.incarnations, tries=tries)
    barred = memory.rolled_back
    asked = aimed.target.name if aimed.target is not None else ""
    if verdict.rolled_back is not None and target is not None:
        barred.pop(target.name, None)
        barred[target.name] = verdict.rolled_back.cause
    elif written and asked not in barred and asked == memory.settled == written[-1].name:
        barred = {}
    # Forgotten with its revision: as many are kept as there are revisions.
    there = {revision.name for revision in aimed.revisions}
    return after.barring({name: cause for name, cause in barred.items() if name in there})


def settle_loan(memory: Memory, goal: Goal, *, hopeless: bool) -> Memory:
    """A loan ends when the candidate serves, when nothing is left to prove, or it failed.

    One that is held waits for the user: what it was lent goes back meanwhile.
    """
    held = any(wish.held and wish.revision == goal.target for wish in memory.wishes)
    over = goal.target_proven or goal.target == goal.serving or hopeless or held
    if memory.borrowed and over:
        return replace(memory, borrowed="")
    return memory
