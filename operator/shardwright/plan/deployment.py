"""One pass over one deployment: what it asks, what became of it, what to do next.

    aim → observe groups → mend → chains → advance → act

A pass that changes what must be remembered only says so (and writes down what is known of
artifacts); the next one acts on it. So a crash between any two calls loses nothing, and nothing is
done that status does not already say; except for the first wish of a new deployment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from shardwright.api.changes import why
from shardwright.api.names import LABEL_REVISION
from shardwright.plan import acts, gating, recording
from shardwright.plan import chain as chains_
from shardwright.plan import gate as gates
from shardwright.plan.adapter_states import Adapters
from shardwright.plan.adapters import adapters_of
from shardwright.plan.aim import Aim, aim
from shardwright.plan.attempts import Chain, Shop
from shardwright.plan.groups import Group, next_deadline, observe_group, slot_of
from shardwright.plan.memory import Memory, recall, same, within_reach
from shardwright.plan.revisions import Revision, asked_again, proven, serving
from shardwright.plan.rollout import Wish, advance, mend, until_forgiven
from shardwright.plan.situation import CreatePods, Decision, Findings, Intent, Situation
from shardwright.plan.steering import after_mending, goal_of, settle_loan
from shardwright.plan.stepfaults import floors
from shardwright.runtimes.base import Refusal

# Secrets are not watched: that would take the right to read them all.
MISSING_SECRET_SECONDS = 10.0
FETCHING = ""  # the name under which the chain of an unresolved spec's model is kept


def decide(situation: Situation, *, move_possible: bool = False) -> Decision:
    """What to do now about one deployment; see the module's first lines for the order.

    `move_possible`: a group on a cordoned node could be placed elsewhere on free GPUs.
    """
    timeouts = situation.settings.timeouts
    memory = within_reach(recall(situation.status, situation.pods), situation.now, timeouts)
    if situation.unreadable:
        return _frozen(situation, memory)
    decision = _decide(situation, memory, move_possible=move_possible)
    if decision.remembered and _new(situation):
        # The first wish may be acted on at once: were it forgotten, the pods would tell it, and
        # without pods no number has been used.
        return _decide(situation, decision.memory, move_possible=move_possible)
    return decision


def _new(situation: Situation) -> bool:
    """Whether nothing was ever said or created of this deployment."""
    return situation.status.observed_generation < 0 and not situation.pods


def _decide(situation: Situation, memory: Memory, *, move_possible: bool) -> Decision:
    shop = _shop(situation, memory)
    aimed = aim(situation, shop)
    revisions = aimed.revisions
    by_name = {revision.name: revision for revision in revisions}
    groups = {wish.index: _observe(situation, by_name, wish) for wish in memory.wishes}
    served = serving(revisions, situation.records, memory.rolled_back)
    target = aimed.target or served
    evidence = target is not None and any(
        group.ready and group.revision == target.name for group in groups.values()
    )
    recorded = target is not None and proven(target.resolved, situation.records)
    chains = _chains(aimed, target, memory.wishes, by_name, shop)
    adapters = _adapters(aimed, situation, shop, memory.wishes, served)
    chains.update(adapters.chains)
    proof_failure = gating.proof_failure(target, situation)
    judged = gates.verdict(target.resolved, situation.records) if target is not None else None
    answers = evidence or (target is not None and gates.loaded(target.resolved, situation.records))
    proven_now = recorded or (answers and (judged is None or judged.passed))
    too_low = judged is not None and judged.failed and not recorded
    if target is not None and chains[target.name].ready:
        wanted = situation.spec is None or situation.spec.replicas > 0
        scoring = chains_.scoring(target.resolved, shop, answers=evidence, wanted=wanted)
        if scoring is not None:
            chains[acts.scoring_of(target.name)] = scoring
    else:
        scoring = None
    goal = goal_of(
        situation,
        memory,
        target=target,
        served=served,
        chain=chains.get(target.name) if target else None,
        proven_now=proven_now,
        failed=proof_failure is not None or too_low or gating.given_up(scoring),
        revisions=revisions,
        move_possible=move_possible,
    )
    verdict = mend(
        memory.wishes,
        groups,
        goal,
        incarnations=memory.incarnations,
        now=situation.now,
        jitter=situation.jitter,
        timeouts=situation.settings.timeouts,
    )
    after = after_mending(
        memory,
        verdict,
        situation.revisions,
        aimed,
        target,
        chains,
        to_ask=chains_.to_ask(target.resolved, situation.records) if target is not None else (),
    )
    intents: list[Intent] = list(aimed.intents)
    intents += recording.records_of_verdict(
        situation, verdict, by_name, target.name if target else ""
    )
    intents += recording.records_of_chains(situation, chains)
    if target is not None and not recorded:
        intents += gating.proofs(
            situation, target, judged, evidence=evidence, proven_now=proven_now
        )
    after = replace(after, wishes=gating.adopted(after.wishes, groups, by_name, goal))
    if verdict.failed_proof is None:
        wishes, used = advance(after.wishes, groups, goal, incarnations=after.incarnations)
        after = replace(after, wishes=wishes, incarnations=used)
    chain = chains.get(target.name) if target is not None else None
    hopeless = (
        proof_failure is not None
        or verdict.failed_proof is not None
        or too_low
        or gating.given_up(chain)
        or gating.given_up(scoring)
    )
    after = settle_loan(after, goal, hopeless=hopeless)
    if evidence and target is not None:
        after = replace(after, settled=target.name)
    findings = Findings(
        refusal=aimed.refusal,
        fetching=aimed.fetching,
        target=target,
        # Told as of now: a revision rolled back in this very pass serves no more.
        serving=serving(revisions, situation.records, after.rolled_back),
        standing=_standing(revisions, groups, after.rolled_back),
        target_proven=proven_now,
        chain=chains.get(target.name) if target is not None else None,
        scoring=scoring,
        verdict=judged,
        try_next=gating.try_next(situation, target) if judged is not None and judged.failed else "",
        proof_failure=proof_failure,
        groups=tuple(groups[wish.index] for wish in memory.wishes),
        wishes=after.wishes,
        # What lies on a dead node cannot end, and must not keep a whole deployment from Ready.
        leaving=sum(
            not acts.on_dead_node(situation, pod)
            for pod in acts.leaving(situation.pods, memory.wishes)
        ),
        rebuild_reason=_rebuild_reason(target, served, by_name, groups),
        model=aimed.model,
        adapters=adapters,
        better=aimed.better,
    )
    remembered = not same(memory, after)
    if not remembered:
        intents += acts.act(
            situation,
            findings,
            wishes=memory.wishes,
            revisions=revisions,
            chains=chains,
        )
    return Decision(
        memory=after,
        remembered=remembered,
        intents=tuple(intents),
        findings=findings,
        requeue=_requeue(situation, after, chains, groups),
    )


def _frozen(situation: Situation, memory: Memory) -> Decision:
    """Some revision cannot be read (a newer operator wrote it): touch nothing, and say so."""
    by_name = {revision.name: revision for revision in situation.revisions}
    refusal = Refusal(
        "RevisionUnreadable",
        f"ControllerRevision {situation.unreadable[0]}; nothing is touched: run the operator that "
        "wrote it, or delete the revision if nothing runs from it",
    )
    groups = tuple(
        _observe(situation, by_name, wish) for wish in memory.wishes if wish.revision in by_name
    )
    findings = Findings(refusal=refusal, groups=groups, wishes=memory.wishes)
    return Decision(memory, remembered=False, intents=(), findings=findings)


def _shop(situation: Situation, memory: Memory) -> Shop:
    return Shop(
        records=situation.records,
        jobs=situation.jobs,
        job_pods=situation.job_pods,
        tries=memory.tries,
        nodes=situation.nodes,
        edit=situation.edit,
        now=situation.now,
        jitter=situation.jitter,
        timeouts=situation.settings.timeouts,
        fleet_lost=situation.fleet_lost,
        floors=floors(situation.settings),
        asked_again=asked_again(situation.deployment.restarted_at),
    )


def _observe(situation: Situation, revisions: Mapping[str, Revision], wish: Wish) -> Group:
    revision = revisions.get(wish.revision)
    pods = [pod for pod in situation.pods if slot_of(pod) == (wish.index, wish.incarnation)]
    return observe_group(
        index=wish.index,
        incarnation=wish.incarnation,
        revision=wish.revision,
        pipeline=revision.resolved.pipeline if revision is not None else len(pods),
        pods=pods,
        nodes=situation.nodes,
        now=situation.now,
        timeouts=situation.settings.timeouts,
        fleet_lost=situation.fleet_lost,
    )


def _chains(
    aimed: Aim,
    target: Revision | None,
    wishes: tuple[Wish, ...],
    revisions: Mapping[str, Revision],
    shop: Shop,
) -> dict[str, Chain]:
    """The chain of the target and of every revision that a wish names."""
    chains: dict[str, Chain] = {}
    if target is not None:
        chains[target.name] = chains_.judge(target.resolved, shop)
    for wish in wishes:
        revision = revisions.get(wish.revision)
        if revision is not None and wish.revision not in chains:
            chains[wish.revision] = chains_.judge(revision.resolved, shop)
    if aimed.fetching is not None:
        chains[FETCHING] = aimed.fetching
    return chains


def _adapters(
    aimed: Aim,
    situation: Situation,
    shop: Shop,
    wishes: tuple[Wish, ...],
    served: Revision | None,
) -> Adapters:
    """Adapters of a spec that was accepted; of any other they are left as they are."""
    if aimed.refusal is not None:
        return Adapters()
    live = {wish.revision for wish in wishes}
    live |= {pod.labels.get(LABEL_REVISION, "") for pod in situation.pods}
    live |= {one.name for one in (aimed.target, served) if one is not None}
    return adapters_of(
        situation,
        shop,
        aim=aimed.target,
        serving=served,
        live=[one for one in aimed.revisions if one.name in live],
    )


def _standing(
    revisions: Iterable[Revision], groups: Mapping[int, Group], barred: Collection[str]
) -> tuple[Revision, ...]:
    """Revisions with a replica that serves, but for those that were rolled back."""
    names = {group.revision for group in groups.values() if group.ready and group.serving}
    return tuple(one for one in revisions if one.name in names and one.name not in barred)


def _rebuild_reason(
    target: Revision | None,
    served: Revision | None,
    revisions: Mapping[str, Revision],
    groups: Mapping[int, Group],
) -> str:
    """What the user changed, from what serves to what is asked for."""
    if target is None:
        return ""
    old = served
    if old is None or old.name == target.name:
        outdated = [group.revision for group in groups.values() if group.revision != target.name]
        old = revisions.get(outdated[0]) if outdated else None
    if old is None:
        return ""
    return why(
        old.resolved.spec.model_dump(by_alias=True, mode="json"),
        target.resolved.spec.model_dump(by_alias=True, mode="json"),
    )


def _requeue(
    situation: Situation,
    memory: Memory,
    chains: Mapping[str, Chain],
    groups: Mapping[int, Group],
) -> float | None:
    """Seconds until time alone may change the answer."""
    now = situation.now
    timeouts = situation.settings.timeouts
    waits = [wish.not_before - now for wish in memory.wishes if wish.not_before > now]
    waits += [chain.delay for chain in chains.values() if chain.delay > 0]
    waits += [tries.not_before - now for tries in memory.tries.values() if tries.not_before > now]
    waits += [left for group in groups.values() if (left := next_deadline(group, now, timeouts))]
    waits += [
        left
        for wish in memory.wishes
        if (left := until_forgiven(wish, groups.get(wish.index), now, timeouts))
    ]
    if situation.fleet_lost:
        waits.append(timeouts.node_dead_seconds)
    if situation.missing_secrets or situation.missing_adapter_secrets:
        waits.append(MISSING_SECRET_SECONDS)
    homes = [pod.node or pod.pin for pod in situation.pods]
    homes += [job.node for job in situation.jobs if not (job.complete or job.failed)]
    for home in homes:
        node = situation.nodes.get(home)
        if node is not None and node.not_ready_since is not None:
            left = node.not_ready_since + timeouts.node_dead_seconds - now
            if left > 0:
                waits.append(left)
    return min(waits) + 0.05 if waits else None


def after_quota(situation: Situation, decision: Decision, refusal: str) -> Decision:
    """A quota refused a pod: the incarnation is released whole and tried again later.

    Gated pods count against a quota, so half a group would keep others from theirs.
    """
    born = next((item for item in decision.intents if isinstance(item, CreatePods)), None)
    # The server's words begin with what was refused: a step's Job is no matter of the replica.
    if not refusal.startswith("pods ") or born is None:
        return decision
    used = decision.memory.incarnations + 1
    wishes = tuple(
        replace(
            wish,
            incarnation=used,
            # Each try makes pods and deletes them again: rarely.
            not_before=situation.now + situation.settings.timeouts.restart_backoff_max_seconds / 10,
            reason="QuotaExceeded",
            cause=refusal,
        )
        if wish.index == born.wish.index
        else wish
        for wish in decision.memory.wishes
    )
    memory = replace(decision.memory, wishes=wishes, incarnations=used)
    return replace(decision, memory=memory)
