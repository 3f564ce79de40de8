"""What the planner may use, for deployments that leave fields open: counted as rarely as can be.

Every GPU is counted once a change of the nodes and way to select them. What is free changes with
every pod and is counted only while a plan is to be made; while none is possible, not even with
every GPU free, once a change of the nodes.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.asked import AskedSpec
from shardwright.api.settings import Settings
from shardwright.control.queue import Key
from shardwright.control.store import Store
from shardwright.observe.world import DeploymentView, RecordState, Resources
from shardwright.plan.capacity import pod_home
from shardwright.plan.fleets import Fleets, fleets_of, free_fleet
from shardwright.plan.resolve import model_key
from shardwright.plan.revisions import Revision, wish_of
from shardwright.runner.contract import STEP_MODEL


class FleetCounter:
    """Counts fleets; keeps what was counted."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._version = -1
        self._counted: dict[str, Fleets] = {}
        self._hopeless: dict[Key, int] = {}

    def forget(self, key: Key) -> None:
        """A deployment is gone."""
        self._hopeless.pop(key, None)

    def of(
        self,
        key: Key,
        view: DeploymentView,
        spec: AskedSpec | None,
        digest: str,
        revisions: tuple[Revision, ...],
    ) -> Fleets | None:
        """What the planner may use; None where nothing is open.

        Args:
            key: The deployment's.
            view: The deployment.
            spec: Its spec, None when it cannot be read.
            digest: The spec's.
            revisions: The deployment's.
        """
        if spec is None or not spec.open:
            self.forget(key)
            return None
        fleets = self._all(spec)
        if not self._to_be_planned(view, spec, digest, revisions):
            self.forget(key)
            return fleets
        version = self._store.inventory_version
        if _accepted(view) == "NoPlanPossible":
            if self._hopeless.get(key) == version:
                return fleets
            self._hopeless[key] = version
        free = free_fleet(
            self._store.nodes.values(), spec.placement, self._settings, self._taken(view)
        )
        return replace(fleets, free=free)

    def _all(self, spec: AskedSpec) -> Fleets:
        store = self._store
        if self._version != store.inventory_version:
            self._version, self._counted = store.inventory_version, {}
        where = spec.placement.model_dump_json(include={"node_selector", "tolerations"})
        if where not in self._counted:
            found = fleets_of(store.nodes.values(), spec.placement, self._settings)
            self._counted[where] = found
        return self._counted[where]

    def _to_be_planned(
        self,
        view: DeploymentView,
        spec: AskedSpec,
        digest: str,
        revisions: tuple[Revision, ...],
    ) -> bool:
        """Whether the model is known, and no revision holds a plan for this wish."""
        claim = self._store.claim(view.namespace, spec.storage.claim_name)
        if claim is None:
            return False
        wish = wish_of(digest, view.restarted_at, claim.uid)
        if any(revision.means(wish) for revision in revisions):
            return False
        model = (STEP_MODEL, model_key(spec), RecordState.READY)
        records = self._store.records_on(claim.uid)
        return any((record.step, record.key, record.state) == model for record in records)

    def _taken(self, view: DeploymentView) -> dict[str, Resources]:
        """What others hold, by node: the deployment's own pods make room for their successors."""
        store = self._store
        taken = dict(store.usage.by_node())
        for pod in store.pods_of(view.uid):
            home = pod_home(pod)
            if home in taken:
                taken[home] -= pod.requests
        for host, name in store.hosts.items():
            # Pods that are not bound yet count on the hostname they are pinned to.
            if host in taken:
                taken[name] = taken.get(name, Resources()) + taken.pop(host)
        return taken


def _accepted(view: DeploymentView) -> str:
    """The reason of Accepted in the stored status, "" while there is none."""
    conditions: object = (view.status or {}).get("conditions", ())
    found = conditions if isinstance(conditions, list) else ()
    return next((str(item.get("reason")) for item in found if item.get("type") == "Accepted"), "")
