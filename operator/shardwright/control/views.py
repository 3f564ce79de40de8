"""What passes read: views of the cluster, found by owner, claim, artifact or name.

`Views` holds the tables and answers; `control.store` feeds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.api.names import HOSTNAME_LABEL
from shardwright.apply.client import Body
from shardwright.apply.kinds import meta
from shardwright.control.queue import Key
from shardwright.control.tables import Table
from shardwright.observe.projections import claim_view
from shardwright.observe.world import (
    ChildView,
    ClaimView,
    DeploymentView,
    JobView,
    NodeView,
    PodView,
    Record,
    RevisionView,
)
from shardwright.plan.capacity import UsageTracker


class Views:
    """The tables of all kinds, and the questions that passes ask.

    Attributes:
        nodes: By name.
        usage: What is asked for on each node, `usage.by_node()`.
        waiters: Keys that wait for capacity or inventory; see `wait_for_capacity`.
        planned: Keys whose plan is looked at again when nodes change; see `keep_plan`.
        interests: Artifacts (claim uid, key) that keys need; see `needs`.
    """

    def __init__(self) -> None:
        self.usage = UsageTracker()
        self.waiters: set[Key] = set()
        self.planned: set[Key] = set()
        self.interests: dict[Key, frozenset[tuple[str, str]]] = {}
        self.inventory_version = 0  # counts changes of nodes that a decision could see
        self.nodes: dict[str, NodeView] = {}
        self._hosts: tuple[int, dict[str, str]] = (-1, {})
        self.deployments: Table[DeploymentView] = Table(
            {
                "uid": lambda view: (view.uid,),
                "namespace": lambda view: (view.namespace,),
                "claim": claims_named,
            }
        )
        self.pods: Table[PodView] = Table(
            {"owner": lambda view: (view.owner_uid,), "node": lambda view: (view.node or view.pin,)}
        )
        self.jobs: Table[JobView] = Table(
            {
                "uid": lambda view: (view.uid,),
                "owner": lambda view: view.owners,
                "artifact": lambda view: ((view.claim_uid, view.key),),
                "claim": lambda view: (view.claim_uid,),
            }
        )
        self.records: Table[Record] = Table({"claim": lambda view: (view.claim_uid,)})
        self.adapters: Table[ChildView] = Table({"owner": lambda view: (view.owner_uid,)})
        self.runners: Table[ChildView] = Table({"namespace": lambda view: (view.namespace,)})
        self.revisions: Table[RevisionView] = Table({"owner": lambda view: (view.owner_uid,)})
        self.services: Table[ChildView] = Table({"owner": lambda view: (view.owner_uid,)})
        self.budgets: Table[ChildView] = Table({"owner": lambda view: (view.owner_uid,)})
        # what is kept of these is a cut-down body: a claim is seen together with its volume, a
        # node with its slices
        self.claim_bodies: Table[Body] = Table(
            {
                "uid": lambda body: (meta(body)["uid"],),
                "volume": lambda body: (body["spec"]["volumeName"],),
            }
        )
        self.volumes: Table[Body] = Table()
        self.node_bodies: Table[Body] = Table()
        self.slices: Table[Body] = Table({"node": lambda body: (body["spec"].get("nodeName", ""),)})

    @property
    def hosts(self) -> Mapping[str, str]:
        """Hostname label to node name, for nodes whose two names differ (some clouds).

        Asked for by every pass, so worked out once for each state of the inventory.
        """
        if self._hosts[0] != self.inventory_version:
            found = {
                host: name
                for name, node in self.nodes.items()
                if (host := node.labels.get(HOSTNAME_LABEL, name)) != name
            }
            self._hosts = (self.inventory_version, found)
        return self._hosts[1]

    def deployment(self, namespace: str, name: str) -> DeploymentView | None:
        """An LLMDeployment."""
        return self.deployments.get(namespace, name)

    def pods_of(self, owner_uid: str) -> tuple[PodView, ...]:
        """Pods that a deployment or a Job controls, by name."""
        return tuple(sorted(self.pods.by("owner", owner_uid), key=lambda pod: pod.name))

    def jobs_for(self, claim_uid: str, key: str) -> tuple[JobView, ...]:
        """Step Jobs that make one artifact on one claim, oldest attempt first."""
        found = self.jobs.by("artifact", (claim_uid, key))
        return tuple(sorted(found, key=lambda job: (job.attempt, job.name)))

    def jobs_on(self, claim_uid: str) -> tuple[JobView, ...]:
        """All step Jobs that work on one claim."""
        return tuple(sorted(self.jobs.by("claim", claim_uid), key=lambda job: job.name))

    def jobs_of(self, owner_uid: str) -> tuple[JobView, ...]:
        """Step Jobs that a deployment needs."""
        return tuple(sorted(self.jobs.by("owner", owner_uid), key=lambda job: job.name))

    def records_on(self, claim_uid: str) -> tuple[Record, ...]:
        """What is known of the artifacts on one claim."""
        return tuple(sorted(self.records.by("claim", claim_uid), key=lambda item: item.name))

    def revisions_of(self, owner_uid: str) -> tuple[RevisionView, ...]:
        """A deployment's revisions, lowest number first."""
        found = self.revisions.by("owner", owner_uid)
        return tuple(sorted(found, key=lambda item: (item.number, item.name)))

    def services_of(self, owner_uid: str) -> tuple[ChildView, ...]:
        """A deployment's Services."""
        return self.services.by("owner", owner_uid)

    def budgets_of(self, owner_uid: str) -> tuple[ChildView, ...]:
        """A deployment's PodDisruptionBudgets."""
        return self.budgets.by("owner", owner_uid)

    def runners_in(self, namespace: str) -> tuple[ChildView, ...]:
        """Runner ConfigMaps of a namespace."""
        return self.runners.by("namespace", namespace)

    def claim(self, namespace: str, name: str) -> ClaimView | None:
        """A PersistentVolumeClaim with its volume's topology."""
        body = self.claim_bodies.get(namespace, name)
        if body is None:
            return None
        return claim_view(body, self.volumes.get("", body["spec"]["volumeName"]))

    def claim_by_uid(self, uid: str) -> ClaimView | None:
        """A PersistentVolumeClaim by its uid."""
        for body in self.claim_bodies.by("uid", uid):
            return self.claim(meta(body)["namespace"], meta(body)["name"])
        return None

    def deployments_on(self, namespace: str, claim: str) -> tuple[DeploymentView, ...]:
        """LLMDeployments whose spec names a claim, by name."""
        found = self.deployments.by("claim", (namespace, claim))
        return tuple(sorted(found, key=lambda view: view.name))

    def deployments_in(self, namespace: str) -> tuple[DeploymentView, ...]:
        """LLMDeployments of a namespace, by name."""
        found = self.deployments.by("namespace", namespace)
        return tuple(sorted(found, key=lambda view: view.name))

    def deployment_by_uid(self, uid: str) -> DeploymentView | None:
        """An LLMDeployment by its uid."""
        return next(iter(self.deployments.by("uid", uid)), None)

    def all_keys(self) -> set[Key]:
        """Every key there is work for."""
        found: set[Key] = set()
        for view in self.deployments:
            found.add(Key("deployment", view.namespace, view.name))
            found.add(Key("namespace", view.namespace))
            found |= {Key("claim", *place) for place in claims_named(view)}
        for record in self.records:
            if (claim := self.claim_by_uid(record.claim_uid)) is not None:
                found.add(Key("claim", claim.namespace, claim.name))
        return found

    # What passes say about themselves.

    def wait_for_capacity(self, key: Key, waits: bool) -> None:  # noqa: FBT001 - a state
        """Whether `key` is to be woken when capacity or inventory changes."""
        if waits:
            self.waiters.add(key)
        else:
            self.waiters.discard(key)

    def keep_plan(self, key: Key, keeps: bool) -> None:  # noqa: FBT001 - a state
        """Whether `key` has a plan that nodes may make impossible, or a better one possible."""
        if keeps:
            self.planned.add(key)
        else:
            self.planned.discard(key)

    def needs(self, key: Key, artifacts: Iterable[tuple[str, str]]) -> None:
        """Which artifacts (claim uid, key) wake `key` when their records or Jobs change."""
        self.interests[key] = frozenset(artifacts)


def claims_named(view: DeploymentView) -> Iterable[tuple[str, str]]:
    """The claims (namespace, name) that a deployment's spec names: storage, and a pvc:// model."""
    found = []
    storage, model = view.spec.get("storage"), view.spec.get("model")
    if isinstance(storage, Mapping) and storage.get("claimName"):
        found.append((view.namespace, str(storage["claimName"])))
    if isinstance(model, Mapping) and str(model.get("uri", "")).startswith("pvc://"):
        claim = str(model["uri"]).removeprefix("pvc://").partition("/")[0]
        if (view.namespace, claim) not in found:
            found.append((view.namespace, claim))
    return found
