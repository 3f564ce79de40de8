"""Which keys a change concerns. Too many costs passes that find nothing; one too few stalls.

Our own status writes concern nobody: a pass that wants another one says so itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shardwright.api.names import KIND
from shardwright.apply.kinds import BUDGET, CLAIM, DEPLOYMENT, JOB, POD, REVISION, SERVICE, VOLUME
from shardwright.control.queue import Key
from shardwright.control.tables import Change
from shardwright.control.views import Views, claims_named
from shardwright.observe.world import (
    ChildView,
    DeploymentView,
    JobView,
    PodView,
    Record,
    RevisionView,
)
from shardwright.plan.capacity import job_home, pod_home


def affected(store: Views, kind: str, change: Change[Any]) -> set[Key]:
    """The keys that a change of one object concerns. The store has taken it already.

    Nodes and ResourceSlices are dealt with by `on_node`.
    """
    old = change.old.view if change.old else None
    new = change.new.view if change.new else None
    match kind:
        case _ if kind == DEPLOYMENT:
            return _on_deployment(old, new)
        case _ if kind == POD:
            return _on_pod(store, old, new)
        case _ if kind == JOB:
            return _on_job(store, old, new)
        case _ if kind == CLAIM:
            return _on_claim(store, *change.place)
        case _ if kind == VOLUME:
            found = store.claim_bodies.by("volume", change.place[1])
            names = [(body["metadata"]["namespace"], body["metadata"]["name"]) for body in found]
            return {key for place in names for key in _on_claim(store, *place)}
        case _ if kind in (SERVICE, BUDGET):
            same = change.old and change.new and change.new.version.same_content(change.old.version)
            return set() if same else _owner(store, old, new)
        case _ if kind == REVISION:
            return _owner(store, old, new) | _named_by(store, old, new)
        case "Record":
            return _on_record(store, old, new)
        case "Adapters":
            return _owner(store, old, new)
        case "Runner":
            return _on_runner(store, change.place[0], old)
    return set()


def on_node(store: Views, name: str) -> set[Key]:
    """A node came, went or changed: whoever has pods there, waits for room, or keeps a plan."""
    keys = store.waiters | store.planned
    for pod in store.pods.by("node", name):
        keys |= _of_pod(store, pod)
    return keys


def _on_deployment(old: DeploymentView | None, new: DeploymentView | None) -> set[Key]:
    if old is not None and new is not None:
        unchanged = replace(
            new, status=old.status, resource_version=old.resource_version, spec=old.spec
        )
        # the generation stands for the spec, which need not be compared
        if unchanged == old:
            return set()
    keys: set[Key] = set()
    for view in (old, new):
        if view is not None:
            keys.add(Key("deployment", view.namespace, view.name))
            keys |= {Key("claim", *place) for place in claims_named(view)}
            if old is None or new is None:
                keys.add(Key("namespace", view.namespace))
    return keys


def _on_pod(store: Views, old: PodView | None, new: PodView | None) -> set[Key]:
    if old is not None and new is not None:
        if replace(new, resource_version=old.resource_version) == old:
            return set()
        freed = pod_home(old) not in ("", pod_home(new)) or (
            old.uid != new.uid or old.requests != new.requests
        )
    else:
        freed = old is not None and pod_home(old) != ""
    keys = set(store.waiters) if freed else set()
    for view in (old, new):
        if view is not None:
            keys |= _of_pod(store, view)
    return keys


def _of_pod(store: Views, pod: PodView) -> set[Key]:
    """The deployment of a serving pod, or whoever needs the step that a Job's pod carries out."""
    if pod.owner_kind == KIND:
        return _deployments(store, (pod.owner_uid,))
    if pod.owner_kind == JOB:
        return {key for job in store.jobs.by("uid", pod.owner_uid) for key in _of_job(store, job)}
    return set()


def _on_job(store: Views, old: JobView | None, new: JobView | None) -> set[Key]:
    if old is not None and new is not None:
        if replace(new, resource_version=old.resource_version) == old:
            return set()
        freed = job_home(old) not in ("", job_home(new))
    else:
        freed = old is not None and job_home(old) != ""
    keys = set(store.waiters) if freed else set()
    for view in (old, new):
        if view is not None:
            keys |= _of_job(store, view)
    return keys


def _of_job(store: Views, job: JobView) -> set[Key]:
    return _deployments(store, job.owners) | _of_artifact(store, job.claim_uid, job.key)


def _on_record(store: Views, old: Record | None, new: Record | None) -> set[Key]:
    if old is not None and new is not None:
        # a note of the last use is no news
        same = replace(new, resource_version=old.resource_version, used=old.used, unused=old.unused)
        if same == old:
            return set()
    found = new or old
    return _of_artifact(store, found.claim_uid, found.key) if found is not None else set()


def _of_artifact(store: Views, claim_uid: str, key: str) -> set[Key]:
    """Whoever said that it needs the artifact, whoever did not say yet, and the claim itself."""
    keys: set[Key] = set()
    claim = store.claim_by_uid(claim_uid)
    if claim is None:
        return keys
    keys.add(Key("claim", claim.namespace, claim.name))
    for view in store.deployments_on(claim.namespace, claim.name):
        one = Key("deployment", view.namespace, view.name)
        if one not in store.interests or (claim_uid, key) in store.interests[one]:
            keys.add(one)
    # also those whose spec has moved to another claim while old revisions still live on this one
    for one, wanted in store.interests.items():
        if one.namespace == claim.namespace and (claim_uid, key) in wanted:
            keys.add(one)
    return keys


def _on_claim(store: Views, namespace: str, name: str) -> set[Key]:
    keys = {
        Key("deployment", view.namespace, view.name)
        for view in store.deployments_on(namespace, name)
    }
    return keys | {Key("claim", namespace, name)} if keys else keys


def _named_by(store: Views, old: RevisionView | None, new: RevisionView | None) -> set[Key]:
    """The claim whose artifacts a revision names, when it came or went; its number is no news."""
    if old is not None and new is not None and old.uid == new.uid:
        return set()
    keys: set[Key] = set()
    for view in (old, new):
        claim = store.claim_by_uid(str(view.data.get("claimUID", ""))) if view else None
        if claim is not None:
            keys.add(Key("claim", claim.namespace, claim.name))
    return keys


def _on_runner(store: Views, namespace: str, old: ChildView | None) -> set[Key]:
    keys = {Key("namespace", namespace)}
    if old is None:
        # pods may have waited for it
        for view in store.deployments_in(namespace):
            keys.add(Key("deployment", view.namespace, view.name))
    return keys


def _owner(
    store: Views, old: ChildView | RevisionView | None, new: ChildView | RevisionView | None
) -> set[Key]:
    return _deployments(store, [view.owner_uid for view in (old, new) if view is not None])


def _deployments(store: Views, uids: Iterable[str]) -> set[Key]:
    found = (store.deployment_by_uid(uid) for uid in uids)
    return {Key("deployment", view.namespace, view.name) for view in found if view is not None}
