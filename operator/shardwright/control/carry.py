"""From intents to writes: the plan's words become manifests and patches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.apply.writes import Apply, Create, Delete, Patch, Together, Write
from shardwright.observe.world import DeploymentView
from shardwright.plan import revisions
from shardwright.plan.groups import Group, stage_of
from shardwright.plan.placed import Placed
from shardwright.plan.situation import (
    AdoptStep,
    CreatePods,
    CreateStep,
    DeletePod,
    DropStep,
    FinishPlacement,
    Intent,
    KeepAdapters,
    KeepChildren,
    LetServe,
    MakeRevision,
    PruneRevision,
    RaiseRevision,
    TellAdapters,
    WriteRecord,
)
from shardwright.render import adapters, jobs, patches, pods, records, services, tokens
from shardwright.render.common import Owner, labels
from shardwright.render.names import rank_address, ranks_service_name
from shardwright.render.runner import runner_config_map_name


class Carrier:
    """Renders the intents of one deployment."""

    def __init__(
        self,
        view: DeploymentView,
        settings: Settings,
        *,
        spread: Callable[[LLMDeploymentSpec], bool | None],
        children: frozenset[tuple[str, str]],
        hostname: Callable[[str], str],
        draw_token: Callable[[], str],
    ) -> None:
        self._view = view
        self._settings = settings
        self._owner = Owner(view.name, view.uid)
        self._spread = spread
        self._children_there = children
        self._hostname = hostname
        self._draw_token = draw_token

    def writes(self, intents: Sequence[Intent]) -> list[Write | Together]:
        """Writes in the intents' order; placements are not here, the placer decides them."""
        return [write for intent in intents for write in self._write(intent)]

    def _write(self, intent: Intent) -> Sequence[Write | Together]:
        match intent:
            case MakeRevision() | RaiseRevision() | PruneRevision() | WriteRecord():
                return [self._known(intent)]
            case CreateStep() | AdoptStep() | DropStep():
                return [self._step(intent)]
            case CreatePods():
                return _at_once(self._pods(intent))
            case FinishPlacement(group) if group.placement is not None:
                return self.placements(group, group.placement)
            case LetServe(group):
                return _at_once(
                    self._patch(
                        "Pod",
                        pod.name,
                        pod.uid,
                        patches.serve_patch(pod.uid, leader=stage_of(pod) == 0),
                    )
                    for pod in group.pods
                )
            case DeletePod(pod, grace):
                return [Delete("Pod", pod.namespace, pod.name, pod.uid, grace)]
            case KeepChildren(minimum):
                return _at_once(self._children(minimum))
            case KeepAdapters(tables, first):
                body = adapters.adapters_config_map(
                    self._view.namespace, self._owner, tables, first
                )
                return [Apply("ConfigMap", body)]
            case TellAdapters(pod, digest):
                ops = patches.adapters_patch(pod.uid, digest)
                return [self._patch("Pod", pod.name, pod.uid, ops)]
            case _:
                return []

    def _known(self, intent: MakeRevision | RaiseRevision | PruneRevision | WriteRecord) -> Write:
        match intent:
            case MakeRevision(revision):
                return Create("ControllerRevision", self._revision(revision), self._view.uid)
            case RaiseRevision(revision, number):
                op = {"op": "replace", "path": "/revision", "value": number}
                return self._patch("ControllerRevision", revision.name, revision.uid, [op])
            case PruneRevision(revision):
                return self._delete("ControllerRevision", revision.name, revision.uid)
            case WriteRecord(record, claim):
                return Apply("ConfigMap", records.record_body(record, claim))

    def _step(self, intent: CreateStep | AdoptStep | DropStep) -> Write:
        match intent:
            case CreateStep():
                return self._job(intent)
            case AdoptStep(job):
                ops = patches.adopt_patch(job.uid, self._owner)
                return self._patch("Job", job.name, job.uid, ops)
            case DropStep(job, alone):
                if alone:
                    return self._delete("Job", job.name, job.uid)
                ops = patches.disown_patch(job.uid, job.owners, self._view.uid)
                return self._patch("Job", job.name, job.uid, ops)

    def placements(self, group: Group, placed: Placed) -> list[Write | Together]:
        """Pin and lift the gate of each pod that has it; all of them carry the whole placement.

        The token of a group of several stages comes first: no pod of it can start without, and as
        long as one has its gate there is a next pass that sees to it.
        """
        gated = [pod for pod in group.pods if pod.gated]
        lifted = [
            self._patch(
                "Pod",
                pod.name,
                pod.uid,
                patches.placement_patch(
                    pod.uid,
                    self._hostname(placed.nodes[stage_of(pod)]),
                    placed.dump(),
                    [names.SCHEDULING_GATE],
                ),
            )
            for pod in gated
        ]
        return [*self._token(group), Together(tuple(lifted))]

    def _token(self, group: Group) -> list[Write]:
        leader = group.leader
        if group.pipeline == 1 or leader is None:
            return []
        identity = pods.GroupIdentity(
            namespace=self._view.namespace,
            owner=self._owner,
            replica=group.index,
            incarnation=group.incarnation,
            revision=group.revision,
            serving=group.serving,
        )
        secret = tokens.token_secret(identity, leader.name, leader.uid, self._draw_token())
        return [Create("Secret", secret, leader.uid)]

    def resume(self, job_name: str, job_uid: str, node: str) -> Write:
        """Pin a suspended Job and let it run."""
        ops = patches.resume_patch(job_uid, self._hostname(node))
        return self._patch("Job", job_name, job_uid, ops)

    def _patch(self, kind: str, name: str, uid: str, ops: Sequence[Mapping[str, Any]]) -> Patch:
        return Patch(kind, self._view.namespace, name, uid, ops)

    def _delete(self, kind: str, name: str, uid: str) -> Delete:
        return Delete(kind, self._view.namespace, name, uid)

    def _revision(self, revision: revisions.Revision) -> dict[str, Any]:
        return {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {
                "name": revision.name,
                "namespace": self._view.namespace,
                "labels": labels({names.LABEL_DEPLOYMENT: self._view.name}),
                "ownerReferences": [self._owner.reference(controller=True)],
            },
            "data": revisions.dump(revision.resolved),
            "revision": revision.number,
        }

    def _job(self, intent: CreateStep) -> Write:
        body = jobs.step_job(
            intent.artifact,
            attempt=intent.attempt,
            source_attempt=intent.source_attempt,
            also_attempts=intent.also_attempts,
            owners=[self._owner],
            spec=intent.spec,
            claim=intent.claim,
            settings=self._settings,
            runner_config_map=runner_config_map_name(),
            leader=self._address(intent.leader) if intent.leader else "",
        )
        return Create("Job", body)

    def _address(self, pod: str) -> str:
        """DNS name of a pod of this deployment, whether it is ready or not."""
        service = ranks_service_name(self._owner.name, self._owner.uid)
        return rank_address(pod, service, self._view.namespace)

    def _pods(self, intent: CreatePods) -> Sequence[Write]:
        identity = pods.GroupIdentity(
            namespace=self._view.namespace,
            owner=self._owner,
            replica=intent.wish.index,
            incarnation=intent.wish.incarnation,
            revision=intent.wish.revision,
            serving=intent.serving,
            spread=self._spread(intent.resolved.spec),
        )
        rendered = pods.group_pods(intent.resolved, identity, runner_config_map_name())
        return [Create("Pod", rendered[stage], self._view.uid) for stage in intent.stages]

    def _children(self, minimum: int) -> Sequence[Write]:
        namespace = self._view.namespace
        children = [
            ("Service", services.ranks_service(namespace, self._owner)),
            ("Service", services.leader_service(namespace, self._owner)),
        ]
        budget = services.disruption_budget(namespace, self._owner, minimum_available=minimum)
        budgets = ("PodDisruptionBudget", budget["metadata"]["name"])
        if minimum or budgets in self._children_there:
            # Before the first group serves there is nothing to protect.
            children.append(("PodDisruptionBudget", budget))
        return [self._child(kind, body) for kind, body in children]

    def _child(self, kind: str, body: dict[str, Any]) -> Write:
        """Created first, so that an object of somebody else's that has the name is left alone."""
        if (kind, body["metadata"]["name"]) in self._children_there:
            return Apply(kind, body)
        return Create(kind, body, self._view.uid)


def _at_once(writes: Iterable[Write]) -> Sequence[Write | Together]:
    """Writes that do not depend on each other, as one item of a list."""
    found = tuple(writes)
    return [Together(found)] if len(found) > 1 else found
