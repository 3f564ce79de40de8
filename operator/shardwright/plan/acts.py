"""From what is remembered and what is there to what is done now.

Nothing here changes the wish: pods that no wish names go, in order; what a wish lacks is created,
one unplaced replica at a time; Jobs that a chain asks for are made, adopted or given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shardwright.api import names
from shardwright.api.spec import CommonSpec
from shardwright.observe.world import PodView
from shardwright.plan import budget
from shardwright.plan.adapter_report import table_of
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.breakage import dead_node
from shardwright.plan.groups import Group, State, slot_of, stage_of
from shardwright.plan.recording import begun
from shardwright.plan.revisions import Revision, proven, prunable
from shardwright.plan.rollout import Wish
from shardwright.plan.situation import (
    AdoptStep,
    CreatePods,
    CreateStep,
    DeletePod,
    DropStep,
    Findings,
    FinishPlacement,
    Intent,
    KeepAdapters,
    KeepChildren,
    LetServe,
    PlaceGroup,
    PlaceStep,
    PruneRevision,
    Situation,
    TellAdapters,
)


def act(
    situation: Situation,
    findings: Findings,
    *,
    wishes: Sequence[Wish],
    revisions: tuple[Revision, ...],
    chains: Mapping[str, Chain],
) -> list[Intent]:
    """Everything to be done in this pass, in order."""
    groups = {group.index: group for group in findings.groups}
    by_name = {revision.name: revision for revision in revisions}
    served = _served(situation, findings.groups, by_name)
    return [
        # Before what is let into the budget counts there, and before what goes is missing.
        *_children(situation, findings, served),
        # Before the farewells: requests must reach the new replica when the old one goes.
        *served,
        *farewells(situation, wishes),
        *_placements_begun(findings.groups),
        *_adapters(findings),
        # Replicas before steps: a build that is refused must not keep a dead one away.
        *_births(situation, findings, wishes, groups, chains, by_name),
        *_homes(findings, wishes, groups, chains, by_name),
        *_steps(situation, findings, chains, by_name),
        *_pruned(situation, revisions, wishes, findings),
    ]


def leaving(pods: Iterable[PodView], wishes: Sequence[Wish]) -> tuple[PodView, ...]:
    """Pods that no wish names."""
    wanted = {(wish.index, wish.incarnation) for wish in wishes}
    return tuple(pod for pod in pods if slot_of(pod) not in wanted)


def farewells(situation: Situation, wishes: Sequence[Wish]) -> list[Intent]:
    """Delete what no wish names: the leader first, drained, then the workers.

    A group that is broken or never ran has nothing to drain: it goes at once.
    """
    groups: dict[tuple[int, int], list[PodView]] = {}
    for pod in leaving(situation.pods, wishes):
        groups.setdefault(slot_of(pod), []).append(pod)
    gone: list[Intent] = []
    for pods in groups.values():
        alive = [pod for pod in pods if not pod.deleting]
        leaders = [pod for pod in pods if stage_of(pod) == 0]
        orderly = (
            any(pod.ready for pod in leaders)
            and not any(pod.finished or pod.disrupted for pod in pods)
            and not any(on_dead_node(situation, pod) for pod in leaders)
        )
        if not orderly and not any(pod.deleting and pod.started for pod in leaders):
            gone.extend(DeletePod(pod) for pod in alive)
        elif leaders and not leaders[0].deleting:
            gone.append(DeletePod(leaders[0]))
        elif not leaders or leaders[0].finished or on_dead_node(situation, leaders[0]):
            gone.extend(DeletePod(pod) for pod in alive)
    return gone


def on_dead_node(situation: Situation, pod: PodView) -> bool:
    """Whether its node is dead: nothing ends it before the node is back or gone."""
    timeouts = situation.settings.timeouts
    return dead_node(pod.node, situation.nodes, situation.now, timeouts) is not None


def _placements_begun(groups: Iterable[Group]) -> list[Intent]:
    """A placement that another life began: lift the remaining gates."""
    return [
        FinishPlacement(group)
        for group in groups
        if group.state is State.PLACING
        and group.placement is not None
        and any(pod.gated for pod in group.pods)
    ]


def _served(
    situation: Situation, groups: Iterable[Group], revisions: Mapping[str, Revision]
) -> list[LetServe]:
    """Proven groups whose pods do not carry the serving labels yet."""
    promoted: list[LetServe] = []
    for group in groups:
        revision = revisions.get(group.revision)
        if revision is None or group.state in (State.ABSENT, State.BROKEN):
            continue
        unlabelled = any(names.LABEL_PROTECTED not in pod.labels for pod in group.pods)
        if unlabelled and proven(revision.resolved, situation.records):
            promoted.append(LetServe(group))
    return promoted


def scoring_of(revision: str) -> str:
    """The name under which the scores are kept that a replica of a revision is asked for."""
    return f"{_SCORING}{revision}"


_SCORING = "score/"  # no revision's name has a slash


def _asked_leader(findings: Findings) -> str:
    """Name of the pod that a score asks: the leader of a whole replica of the target."""
    target = findings.target
    leaders = (
        group.leader.name
        for group in findings.groups
        if group.ready and group.leader and target is not None and group.revision == target.name
    )
    return next(leaders, "")


def _steps(
    situation: Situation,
    findings: Findings,
    chains: Mapping[str, Chain],
    revisions: Mapping[str, Revision],
) -> list[Intent]:
    """Make, adopt and place the Jobs that the chains ask for; give up those that none does."""
    intents: list[Intent] = []
    wanted: set[tuple[str, str, str]] = set()
    uid = situation.deployment.uid
    for name, chain in chains.items():
        artifact = chain.artifact
        if artifact is None:
            continue
        revision = revisions.get(name.removeprefix(_SCORING))
        spec: CommonSpec | None = revision.resolved.spec if revision is not None else situation.spec
        if spec is None:
            continue
        claim = situation.claims.get(spec.storage.claim_name)
        if claim is None or (revision is not None and claim.uid != revision.resolved.claim_uid):
            continue  # the claim is gone; one of the same name holds nothing of the old
        if (claim.uid, artifact.step, artifact.key) in wanted:
            continue
        wanted.add((claim.uid, artifact.step, artifact.key))
        if chain.next is Next.CREATE:
            intents += begun(situation, artifact, claim)
            made_from = chain.source.attempt if chain.source is not None else 0
            leader = _asked_leader(findings) if name.startswith(_SCORING) else ""
            beside = chain.also_attempts
            intents.append(
                CreateStep(artifact, chain.attempt, spec, claim, made_from, beside, leader)
            )
        job = chain.job
        if job is None:
            continue
        if chain.next in (Next.WAIT, Next.PLACE) and not job.deleting and uid not in job.owners:
            intents.append(AdoptStep(job))
        if chain.next is Next.PLACE:
            tries = next(
                (
                    step.avoid_nodes
                    for step in situation.status.steps
                    if (step.step, step.key) == (artifact.step, artifact.key)
                ),
                [],
            )
            intents.append(PlaceStep(job, artifact, tuple(tries), spec))
    # An attempt that was counted as lost (its node died) must not go on when the node comes back.
    lost = {(step.step, step.key): step.attempts for step in situation.status.steps}
    for job in situation.jobs:
        over = job.complete or job.failed or job.deleting
        asked = (job.claim_uid, job.step, job.key) in wanted
        needed = asked and job.attempt > lost.get((job.step, job.key), 0)
        if uid in job.owners and not over and not needed:
            intents.append(DropStep(job, alone=set(job.owners) == {uid}))
    return intents


def _births(
    situation: Situation,
    findings: Findings,
    wishes: Sequence[Wish],
    groups: Mapping[int, Group],
    chains: Mapping[str, Chain],
    revisions: Mapping[str, Revision],
) -> list[Intent]:
    """Create the pods of one more group, unless another one still waits for a place.

    A candidate that waits holds up no replica that serves, and comes last itself.
    """
    proof = {
        wish.index for wish in wishes if findings.to_be_proven(wish.revision, groups[wish.index])
    }
    gated = {index for index, group in groups.items() if group.state is State.GATED}
    if gated - proof:
        return []
    for wish in sorted(wishes, key=lambda item: (item.index in proof, item.index)):
        group = groups[wish.index]
        revision = revisions.get(wish.revision)
        chain = chains.get(wish.revision)
        if (
            group.state not in (State.ABSENT, State.PARTIAL)
            or revision is None
            or chain is None
            or not chain.ready
            or wish.held
            or situation.now < wish.not_before
        ):
            continue
        present = {stage_of(pod) for pod in group.pods}
        lacking = tuple(
            stage for stage in range(revision.resolved.pipeline) if stage not in present
        )
        serves = proven(revision.resolved, situation.records)
        return [CreatePods(wish, revision.resolved, lacking, serves)]
    return []


def _homes(
    findings: Findings,
    wishes: Sequence[Wish],
    groups: Mapping[int, Group],
    chains: Mapping[str, Chain],
    revisions: Mapping[str, Revision],
) -> list[Intent]:
    """Ask for nodes for groups that have all their pods and no place, the candidate last.

    While a replica of the same GPU product is on its way back (its pods are not there yet, or its
    backoff runs) the candidate does not take the GPUs that it left.
    """
    asked: list[PlaceGroup] = []
    proof: list[PlaceGroup] = []
    coming: set[str] = set()
    for wish in wishes:
        group = groups[wish.index]
        revision = revisions.get(wish.revision)
        if revision is None:
            continue
        candidate = findings.to_be_proven(wish.revision, group)
        if group.state is State.GATED:
            place = PlaceGroup(group, wish, revision.resolved, candidate)
            (proof if candidate else asked).append(place)
        chain = chains.get(wish.revision)
        back = group.state in (State.ABSENT, State.PARTIAL) and not wish.held
        if back and not candidate and chain is not None and chain.ready:
            coming.add(revision.resolved.spec.gpu.product)
    patient = [place for place in proof if place.resolved.spec.gpu.product not in coming]
    return [*asked, *patient]


def _children(situation: Situation, findings: Findings, served: Sequence[LetServe]) -> list[Intent]:
    """Services and the disruption budget, once there is anything they could stand for."""
    if findings.target is None and findings.serving is None and not findings.groups:
        return []
    spec = situation.spec
    replicas = spec.replicas if spec is not None else len(findings.groups)
    unavailable = spec.rollout.max_unavailable if spec is not None else 0
    admitted = [promoted.group for promoted in served]
    serving = [group for group in findings.groups if group.serving or group in admitted]
    minimum = budget.minimum_available(situation.pods, serving, replicas, unavailable)
    return [KeepChildren(minimum)]


def _adapters(findings: Findings) -> list[Intent]:
    """The tables of adapters, and a word to each leader that was not told of its own yet."""
    adapters = findings.adapters
    if not adapters.by_revision:
        return []
    digests = adapters.digests
    told: list[Intent] = []
    for group in findings.groups:
        leader = group.leader
        if leader is None or not leader.started or leader.deleting:
            continue
        digest = digests.get(table_of(leader, group))
        if digest is not None and leader.adapters != digest:
            told.append(TellAdapters(leader, digest))
    return [KeepAdapters(adapters.tables, adapters.first), *told]


def _pruned(
    situation: Situation,
    revisions: tuple[Revision, ...],
    wishes: Sequence[Wish],
    findings: Findings,
) -> list[Intent]:
    live = {wish.revision for wish in wishes}
    # Pods may carry the name of a revision whose gate alone was another.
    live |= {pod.labels.get(names.LABEL_REVISION, "") for pod in situation.pods}
    for revision in (findings.target, findings.serving):
        if revision is not None:
            live.add(revision.name)
    return [PruneRevision(revision) for revision in prunable(revisions, frozenset(live))]
