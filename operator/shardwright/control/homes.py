"""Homes for what a pass wants placed: builds the requests, asks the placer, words the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from shardwright.api.names import GPU_RESOURCE, HOSTNAME_LABEL, LABEL_REVISION
from shardwright.api.spec import BuildOn, LLMDeploymentSpec, StagePlacement, Toleration
from shardwright.apply.writes import Together, Write
from shardwright.control.carry import Carrier
from shardwright.control.placer import Placer, Queued, Ticket
from shardwright.control.queue import Key
from shardwright.control.store import Store
from shardwright.observe.world import ClaimView, PodView, Resources
from shardwright.plan.conditions import Outcome
from shardwright.plan.gate import gate_keys
from shardwright.plan.groups import Group, slot_of
from shardwright.plan.placed import Placed
from shardwright.plan.placement import (
    NoRoom,
    Placement,
    PlacementRequest,
    order_of_placement,
)
from shardwright.plan.resolve import adapter_key
from shardwright.plan.situation import Decision, PlaceGroup, PlaceStep, Situation
from shardwright.resolved import Resolved
from shardwright.runner.contract import STEP_ADAPTER

_Answer = TypeVar("_Answer")
# A pod that is there so long after its kubelet should have killed it may be there for ever.
STUCK_SECONDS = 60.0
_GPU_TAINT = Toleration(key=GPU_RESOURCE, operator="Exists")


class Homes:
    """One pass's placements."""

    def __init__(self, key: Key, placer: Placer, store: Store, situation: Situation) -> None:
        self._key = key
        self._placer = placer
        self._store = store
        self._situation = situation
        self._group: tuple[PlaceGroup, Placement | NoRoom | Queued] | None = None
        self._resumed: tuple[PlaceStep, str] | None = None
        self._step: tuple[PlaceStep, NoRoom | Queued] | None = None  # the first that waits
        self._promised: list[str] = []
        self._borrow = ""
        # Whether somebody who waited behind this deployment may be next.
        self.made_way = False
        self._refused = False
        self._stuck = False

    def spread(self, spec: LLMDeploymentSpec) -> bool | None:
        """Whether stages go to different nodes: None leaves it to the spec, where Auto spreads."""
        if spec.placement.pipeline_stages is not StagePlacement.AUTO:
            return None
        return spreads(spec, self._situation)

    @property
    def waiting(self) -> bool:
        """Whether this deployment must be woken when capacity or inventory changes."""
        short = self._step is not None or (
            self._group is not None and isinstance(self._group[1], NoRoom | Queued)
        )
        return self._refused or self._stuck or short

    @property
    def placed(self) -> bool:
        """Whether a group got its nodes."""
        return self._group is not None and isinstance(self._group[1], Placement)

    @property
    def announced(self) -> bool:
        """Whether a loan was announced, to be taken in the next pass."""
        return bool(self._borrow)

    def move_possible(self) -> bool:
        """Whether a group on a cordoned node would find free GPUs elsewhere; asked only then."""
        situation = self._situation
        nodes = situation.nodes
        for pod in situation.pods:
            node = nodes.get(pod.node)
            if node is None or not node.unschedulable or not pod.ready:
                continue
            revision = situation.revision(pod.labels.get(LABEL_REVISION, ""))
            if revision is None:
                continue
            request = self._request(revision.resolved, pod.requests, (), frozenset())
            self._stuck = not self._placer.could_place(request)
            return not self._stuck
        return False

    def find(self, decision: Decision) -> None:
        """Decide the placements that the pass asks for."""
        self._refused = decision.findings.refusal is not None
        self._find_group(decision)
        self._find_step(decision)
        for kind, step in ((PlaceGroup, False), (PlaceStep, True)):
            if not any(isinstance(item, kind) for item in decision.intents):
                self.made_way |= self._placer.forget(self._key, step=step)
        self._borrow = self._loan(decision)

    def _find_group(self, decision: Decision) -> None:
        """The first group that finds a place; else the words of the first one asked for."""
        for wanted in decision.intents:
            if isinstance(wanted, PlaceGroup):
                answer = self._place(wanted, decision)
                if isinstance(answer, Placement):
                    self._group = (wanted, answer)
                    return
                self._group = self._group or (wanted, answer)

    def _place(self, wanted: PlaceGroup, decision: Decision) -> Placement | NoRoom | Queued:
        pods = wanted.group.pods
        others = frozenset(
            node
            for group in decision.findings.groups
            if group.index != wanted.group.index
            for node in group.nodes
            if node
        )
        request = self._request(wanted.resolved, pods[0].requests, wanted.wish.avoid, others)
        priority = max(pod.priority for pod in pods)
        created = self._situation.deployment.created
        ticket = Ticket(
            self._key, request, order_of_placement(priority, created), self._label("replica")
        )
        uids = [pod.uid for pod in pods]
        waited = ticket.slot in self._placer.waiting
        now = self._situation.now
        before = [pod for pod in self._situation.pods if _leaves(pod, wanted.group, now)]
        answer = _elsewhere_first(
            ticket,
            lambda one: self._placer.place_group(one, uids),
            soon=lambda: self._placer.could_place(request, without=before),
        )
        if isinstance(answer, Placement):
            self._promised += uids
            self.made_way |= waited
        return answer

    def _find_step(self, decision: Decision) -> None:
        """The first step that finds a node; else the words of the first one asked for.

        So a build that waits for GPUs keeps no fetch waiting. It is the one that queues, and no
        other step takes GPUs before it.
        """
        first: Ticket | None = None
        for wanted in decision.intents:
            if not isinstance(wanted, PlaceStep) or (first is not None and wanted.artifact.gpus):
                continue
            ticket = self._step_ticket(wanted)
            answer = _elsewhere_first(ticket, partial(self._placer.place_step, uid=wanted.job.uid))
            if isinstance(answer, str):
                self._promised.append(wanted.job.uid)
                self._resumed = (wanted, answer)
                break
            first = first or ticket
            told = self._step
            if told is None or told[0].artifact.step == STEP_ADAPTER:
                self._step = (wanted, answer)
        if first is not None:
            self._placer.wait(first)

    def _step_ticket(self, wanted: PlaceStep) -> Ticket:
        artifact, spec, job = wanted.artifact, wanted.spec, wanted.job
        claim = self._situation.claims.get(spec.storage.claim_name)
        request = PlacementRequest(
            product=artifact.product,
            gpus_per_pod=artifact.gpus,
            stages=1,
            per_pod=_without_gpus(job.requests),
            # A fetch takes no GPU, but in many clusters every node has some.
            tolerations=[*spec.placement.tolerations, _GPU_TAINT],
            node_selector={**spec.placement.node_selector, **self._one_node(claim)},
            spread=False,
            avoid=frozenset(wanted.avoid),
            node_terms=claim.node_terms if claim is not None else (),
        )
        created = self._situation.deployment.created
        return Ticket(
            self._key,
            request,
            order_of_placement(0, created, is_step=True),
            self._label(f"step {artifact.step}"),
        )

    def _label(self, what: str) -> str:
        return f"a {what} of {self._key.namespace}/{self._key.name}"

    def _request(
        self,
        resolved: Resolved,
        per_pod: Resources,
        avoid: Iterable[str],
        others: frozenset[str],
    ) -> PlacementRequest:
        spec = resolved.spec
        claim = self._situation.claims.get(spec.storage.claim_name)
        return PlacementRequest(
            product=spec.gpu.product,
            gpus_per_pod=resolved.tensor,
            stages=resolved.pipeline,
            per_pod=_without_gpus(per_pod),
            tolerations=spec.placement.tolerations,
            node_selector={**spec.placement.node_selector, **self._one_node(claim)},
            spread=spreads(spec, self._situation),
            levels=resolved.levels,
            avoid=frozenset(avoid),
            sibling_nodes=others,
            node_terms=claim.node_terms if claim is not None else (),
        )

    def _one_node(self, claim: ClaimView | None) -> dict[str, str]:
        """A volume for one node holds all its pods on that node once one of them is there."""
        if claim is None or claim.shared:
            return {}
        homes = sorted(
            {pod.node or pod.pin for pod in self._situation.pods if not pod.finished} - {""}
        )
        node = self._situation.nodes.get(homes[0]) if homes else None
        return {HOSTNAME_LABEL: node.labels.get(HOSTNAME_LABEL, node.name)} if node else {}

    def _loan(self, decision: Decision) -> str:
        """Which serving group gives way, when the candidate finds no room and may borrow."""
        spec, findings = self._situation.spec, decision.findings
        refused = [found[1] for found in (self._group, self._step) if found is not None]
        if (
            spec is None
            or spec.rollout.build_on is not BuildOn.BORROW
            or decision.memory.borrowed
            or findings.target_proven
            or not any(isinstance(answer, NoRoom) for answer in refused)
        ):
            return ""
        serving = [group for group in findings.groups if group.serving]
        ready = sum(group.ready for group in serving)
        if not serving or ready - 1 < spec.replicas - spec.rollout.max_unavailable:
            return ""
        lent = min(serving, key=lambda group: (group.ready, -group.index))
        return f"replica {lent.index} on {', '.join(lent.nodes)}"

    def writes(self, carrier: Carrier) -> list[Write | Together]:
        """Pins and lifted gates, and resumed Jobs."""
        found: list[Write | Together] = []
        if self._group is not None:
            wanted, answer = self._group
            if isinstance(answer, Placement):
                placed = Placed(answer.nodes, self._situation.now)
                found += carrier.placements(wanted.group, placed)
        if self._resumed is not None:
            step, node = self._resumed
            found.append(carrier.resume(step.job.name, step.job.uid, node))
        return found

    def hostname(self, node: str) -> str:
        """The value of a node's hostname label, which need not be the node's name."""
        known = self._situation.nodes.get(node)
        return known.labels.get(HOSTNAME_LABEL, node) if known is not None else node

    def settle(self) -> None:
        """The writes are through: what they say is in the store now, or is not true."""
        self._placer.free_of_promise(self._promised)

    def outcome(self, quota: str) -> Outcome:
        """What came of it, for status."""
        no_room = queued = step_room = ""
        candidate = False
        placed: dict[int, Sequence[str]] = {}
        if self._group is not None:
            wanted, answer = self._group
            if isinstance(answer, NoRoom):
                candidate = wanted.candidate
                no_room = answer.message() + (self._advice() if candidate else "")
            elif isinstance(answer, Queued):
                queued = f"there would be room, but {answer.behind} comes first"
            else:
                placed[wanted.group.index] = answer.nodes
        if self._step is not None:
            step, found = self._step
            # An adapter that waits for a node keeps nothing else waiting; its own state tells it.
            fetches = step.artifact.step == STEP_ADAPTER
            if isinstance(found, NoRoom) and not fetches:
                step_room = f"step {step.artifact.step}: {found.message()}{self._advice()}"
            elif isinstance(found, Queued) and not fetches:
                queued = f"there would be room, but {found.behind} comes first"
        return Outcome(
            no_room=no_room,
            no_room_candidate=candidate,
            no_room_for_step=step_room,
            queued_behind=queued,
            quota=quota,
            borrow=self._borrow,
            placed=placed,
        )

    def _advice(self) -> str:
        spec = self._situation.spec
        if spec is None or spec.rollout.build_on is BuildOn.BORROW:
            return ""
        if not any(pod.ready for pod in self._situation.pods):
            return ""
        return (
            ", or set spec.rollout.buildOn: Borrow to let a serving replica give way within "
            f"maxUnavailable ({spec.rollout.max_unavailable})"
        )


def spreads(spec: LLMDeploymentSpec, situation: Situation) -> bool:
    """Whether stages go to different nodes.

    Auto spreads, since TP takes the node's NVLink domain and stages only pass activations on;
    where GPUs have no NVLink a shared node is nearer than any network.
    """
    if spec.placement.pipeline_stages is not StagePlacement.AUTO:
        return spec.placement.pipeline_stages is StagePlacement.SPREAD
    of_product = [
        node.gpu for node in situation.nodes.values() if node.gpu.product == spec.gpu.product
    ]
    linked = any(gpu.nvlink_size for gpu in of_product)
    roomy = any(gpu.capacity >= spec.world_size for gpu in of_product)
    return linked or not roomy


def _leaves(pod: PodView, group: Group, now: float) -> bool:
    """Whether a pod of an earlier incarnation of this replica is on its way out, and not stuck."""
    index, incarnation = slot_of(pod)
    stuck = pod.gone_by is not None and now >= pod.gone_by + STUCK_SECONDS
    return index == group.index and incarnation < group.incarnation and not stuck


def _elsewhere_first(
    ticket: Ticket, place: Callable[[Ticket], _Answer], soon: Callable[[], bool] = lambda: False
) -> _Answer:
    """Avoided nodes are taken only when nothing else has room, nor will have (`soon`).

    The try before this one may keep the room elsewhere until its last pod is gone. And a small
    cluster may have no others: a node that was rebooted, or on which a rank once died, must not
    keep a replica out for good. If it is bad indeed, the restart budget ends it.
    """
    answer = place(ticket)
    if isinstance(answer, NoRoom) and ticket.request.avoid and not soon():
        patient = replace(ticket.request, avoid=frozenset())
        return place(replace(ticket, request=patient))
    return answer


def _without_gpus(requests: Resources) -> Resources:
    """Requests besides GPUs, which the placement counts by itself."""
    return Resources(
        cpu_millis=requests.cpu_millis,
        memory_bytes=requests.memory_bytes,
        ephemeral_bytes=requests.ephemeral_bytes,
        pods=1,
        other=requests.other,
    )


def interests(situation: Situation, decision: Decision) -> set[tuple[str, str]]:
    """(claim uid, key) of every artifact whose record or Job concerns this deployment."""
    found: set[tuple[str, str]] = set()
    revisions = [*situation.revisions]
    if decision.findings.target is not None:
        revisions.append(decision.findings.target)
    for revision in revisions:
        resolved = revision.resolved
        found |= {(resolved.claim_uid, artifact.key) for artifact in resolved.artifacts}
        found.add((resolved.claim_uid, resolved.proof_key))
        found |= {(resolved.claim_uid, key) for key in gate_keys(resolved)}
    fetching = decision.findings.fetching
    spec = situation.spec
    if fetching is not None and fetching.artifact is not None and spec is not None:
        claim = situation.claims.get(spec.storage.claim_name)
        if claim is not None:
            found.add((claim.uid, fetching.artifact.key))
    claims = {revision.resolved.claim_uid for revision in revisions}
    if spec is not None and spec.lora is not None:
        named = situation.claims.get(spec.storage.claim_name)
        claims |= {named.uid} if named is not None else set()
        keys = {adapter_key(asked.uri) for asked in spec.lora.adapters}
        found |= {(uid, key) for uid in claims for key in keys}
    return found
