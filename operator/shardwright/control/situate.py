"""From the store to a Situation: one deployment's part of the world, as plain frozen data.

Reading a spec and a revision's data is the costly part of a pass, and neither changes under its
generation or uid: what was read is kept.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import ValidationError

from shardwright.api.asked import AskedSpec
from shardwright.api.engines import leaves_version_open
from shardwright.api.problems import problems
from shardwright.api.settings import Settings
from shardwright.api.spec import CommonSpec
from shardwright.api.status import LLMDeploymentStatus
from shardwright.control.adapters import AdapterReader
from shardwright.control.fleets import FleetCounter
from shardwright.control.links import LinkReader
from shardwright.control.queue import Key
from shardwright.control.secrets import Secrets, SecretThere
from shardwright.control.store import Store
from shardwright.control.usage import UsageReader
from shardwright.observe.nodes import node_pools
from shardwright.observe.world import (
    ClaimView,
    DeploymentView,
    NodeView,
    PodView,
    RevisionView,
)
from shardwright.plan.drafts import draft_claim
from shardwright.plan.inventory import Product, products
from shardwright.plan.memory import recall
from shardwright.plan.resolve import source_claim
from shardwright.plan.revisions import Revision, asked_digest, read, serving
from shardwright.plan.situation import Situation
from shardwright.plan.versions import with_kept_version

FLEET_WINDOW_SECONDS = 60.0
FLEET_PATIENCE_SECONDS = 600.0


class Situator:
    """Builds Situations; keeps what was parsed."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        secret_there: SecretThere,
        links: LinkReader,
        adapters: AdapterReader,
        usage: UsageReader,
        *,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._settings = settings
        self._secrets = Secrets(secret_there, clock)
        self._links = links
        self._adapters = adapters
        self._usage = usage
        self._clock = clock
        self._jitter = jitter
        # By deployment, so that what is gone leaves nothing behind.
        self._specs: dict[Key, tuple[str, int, AskedSpec | None, str, str]] = {}
        self._revisions: dict[Key, dict[str, Revision]] = {}
        self._fleet = FleetWatch(settings.timeouts.node_dead_seconds)
        self._counted: tuple[int, Mapping[str, Product]] | None = None
        self._fleets = FleetCounter(store, settings)

    def forget(self, key: Key) -> None:
        """A deployment is gone."""
        self._specs.pop(key, None)
        self._revisions.pop(key, None)
        self._fleets.forget(key)
        self._secrets.forget(key)

    async def situation(self, view: DeploymentView) -> Situation:
        """What is known of one deployment now."""
        store = self._store
        spec, error, digest = self._spec(view)
        # Asked first: from here on nothing is awaited, so that all of it is of one moment.
        key, own, others = _key(view), _secrets_of(spec), _adapters_secrets_of(spec)
        self._secrets.name(key, (*own, *others))
        missing = await self._secrets.missing(key, own)
        lacking = await self._secrets.missing(key, others)
        revisions, unreadable = self._read(view, store.revisions_of(view.uid))
        claims = self._claims(view, spec, revisions)
        uids = {claim.uid for claim in claims.values()} | {
            revision.resolved.claim_uid for revision in revisions
        }
        jobs = tuple(job for uid in sorted(uids) for job in store.jobs_on(uid))
        nodes = store.nodes
        hosts = store.hosts
        now = self._clock()
        return Situation(
            now=now,
            jitter=self._jitter(),
            settings=self._settings,
            deployment=view,
            spec=spec,
            spec_error=error,
            spec_digest=digest,
            status=LLMDeploymentStatus.model_validate(view.status or {}),
            claims=claims,
            missing_secrets=missing,
            revisions=revisions,
            pods=_homed(store.pods_of(view.uid), hosts),
            jobs=tuple(replace(job, node=hosts.get(job.node, job.node)) for job in jobs)
            if hosts
            else jobs,
            job_pods={job.uid: _homed(store.pods_of(job.uid), hosts) for job in jobs},
            records={
                (record.claim_uid, record.step, record.key): record
                for uid in uids
                for record in store.records_on(uid)
            },
            nodes=nodes,
            fleet_lost=self._fleet.lost(nodes, now),
            products=self._products(),
            fleets=self._fleets.of(_key(view), view, spec, digest, revisions),
            links=dict(self._links.heard(_key(view))),
            adapters=dict(self._adapters.heard(_key(view))),
            missing_adapter_secrets=frozenset(lacking),
            usage=dict(self._usage.heard(_key(view))),
            unreadable=unreadable,
            version_given=not leaves_version_open(view.spec),
        )

    def _products(self) -> Mapping[str, Product]:
        """What the cluster has, counted once a change of its nodes."""
        version = self._store.inventory_version
        if self._counted is None or self._counted[0] != version:
            found = products(self._store.nodes.values(), node_pools(self._settings))
            self._counted = (version, found)
        return self._counted[1]

    def _spec(self, view: DeploymentView) -> tuple[AskedSpec | None, str, str]:
        key = _key(view)
        known = self._specs.get(key)
        if known is not None and known[:2] == (view.uid, view.generation):
            return known[2:]
        spec, error = parse_spec(self._with_version(view))
        digest = asked_digest(spec) if spec is not None else ""
        self._specs[key] = (view.uid, view.generation, spec, error, digest)
        return spec, error, digest

    def _with_version(self, view: DeploymentView) -> Mapping[str, object]:
        """The spec as written, with the version of its engine that is kept where it has none."""
        if not leaves_version_open(view.spec):
            return view.spec
        revisions, _ = self._read(view, self._store.revisions_of(view.uid))
        records = {
            (record.claim_uid, record.step, record.key): record
            for uid in {revision.resolved.claim_uid for revision in revisions}
            for record in self._store.records_on(uid)
        }
        barred = recall(LLMDeploymentStatus.model_validate(view.status or {}), ()).rolled_back
        return with_kept_version(view.spec, revisions, serving(revisions, records, barred))

    def _read(
        self, view: DeploymentView, views: tuple[RevisionView, ...]
    ) -> tuple[tuple[Revision, ...], tuple[str, ...]]:
        """Revisions by number, and what is wrong with those that cannot be read."""
        known = self._revisions.get(_key(view), {})
        fresh: dict[str, Revision] = {}
        unreadable = []
        for item in views:
            if item.uid in known:
                fresh[item.uid] = replace(known[item.uid], number=item.number)
                continue
            try:
                fresh[item.uid] = read(item)
            except (ValueError, TypeError, KeyError) as error:
                unreadable.append(f"{item.name}: {error}")
        self._revisions[_key(view)] = fresh
        ordered = sorted(fresh.values(), key=lambda one: (one.number, one.name))
        return tuple(ordered), tuple(unreadable)

    def _claims(
        self,
        view: DeploymentView,
        spec: CommonSpec | None,
        revisions: tuple[Revision, ...],
    ) -> dict[str, ClaimView]:
        """Claims by name: the spec's, its model's, and those of its revisions."""
        names = {revision.resolved.spec.storage.claim_name for revision in revisions}
        if spec is not None:
            names |= {spec.storage.claim_name, source_claim(spec), draft_claim(spec)}
        names.discard("")
        found = {name: self._store.claim(view.namespace, name) for name in sorted(names)}
        return {name: claim for name, claim in found.items() if claim is not None}


def _secrets_of(spec: CommonSpec | None) -> list[str]:
    """Secrets without which the model cannot be fetched or served."""
    if spec is None:
        return []
    names = [secret.name for secret in spec.pod.image_pull_secrets]
    if spec.model.secret_ref is not None:
        names.insert(0, spec.model.secret_ref.name)
    drafts = spec.speculative.model if spec.speculative is not None else None
    if drafts is not None and drafts.secret_ref is not None:
        names.insert(0, drafts.secret_ref.name)
    return names


def _adapters_secrets_of(spec: CommonSpec | None) -> list[str]:
    """Secrets without which some adapter cannot be fetched, once each."""
    if spec is None or spec.lora is None:
        return []
    asked = [one.secret_ref.name for one in spec.lora.adapters if one.secret_ref is not None]
    return list(dict.fromkeys(asked))


def _key(view: DeploymentView) -> Key:
    return Key("deployment", view.namespace, view.name)


def _homed(pods: tuple[PodView, ...], hosts: Mapping[str, str]) -> tuple[PodView, ...]:
    """Pods with their pins as node names."""
    if not hosts:
        return pods
    return tuple(replace(pod, pin=hosts.get(pod.pin, pod.pin)) for pod in pods)


def parse_spec(raw: Mapping[str, object]) -> tuple[AskedSpec | None, str]:
    """The spec and an empty string, or None and what is wrong, field by field."""
    try:
        return AskedSpec.read(raw), ""
    except ValidationError as error:
        told = problems(error, AskedSpec, "spec")
        more = f" and {len(told) - 3} more" if len(told) > 3 else ""  # noqa: PLR2004
        return None, "; ".join(told[:3]) + more


class FleetWatch:
    """Whether the fleet is lost, or was found back a moment ago: its nodes come back one by one.

    The last of them have been NotReady for as long as the first; from the look that finds most of
    the fleet back each gets the time that any other node has, however long ago the last look was.
    """

    def __init__(self, node_dead_seconds: float) -> None:
        self._patience = node_dead_seconds
        self._lost = False
        self._back_at = -math.inf

    def lost(self, nodes: Mapping[str, NodeView], now: float) -> bool:
        """Look at the nodes; `now` in seconds of the clock that their times are of."""
        before, self._lost = self._lost, fleet_lost(nodes, now)
        if before and not self._lost:
            self._back_at = now
        return self._lost or now - self._back_at < self._patience


def fleet_lost(nodes: Mapping[str, NodeView], now: float) -> bool:
    """Whether more than half of the GPU nodes went within a minute.

    Then the fault is more likely between the control plane and its nodes than in every node, and
    replacing everything at once would make an outage of it.
    """
    gpu_nodes = [node for node in nodes.values() if node.gpu.capacity]
    lost = sorted(node.not_ready_since for node in gpu_nodes if node.not_ready_since is not None)
    half = len(gpu_nodes) // 2 + 1
    if len(gpu_nodes) < 3 or len(lost) < half:  # noqa: PLR2004 - of two nodes one is no majority
        return False
    return any(
        lost[index + half - 1] - lost[index] <= FLEET_WINDOW_SECONDS
        and now - lost[index] < FLEET_PATIENCE_SECONDS
        for index in range(len(lost) - half + 1)
    )
