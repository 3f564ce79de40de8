"""Keys that are not deployments: a namespace's runner archives, a claim's artifacts.

A runner ConfigMap goes when no pod and no Job names it and it is not the current one. What becomes
of artifacts is decided in `plan.collection`, whose first lines also say what a user may rely on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from shardwright.api.names import LABEL_CLAIM_UID, LABEL_KEY, LABEL_REVISION, LABEL_STEP
from shardwright.api.settings import Settings
from shardwright.api.spec import CommonSpec
from shardwright.apply.executor import Executor
from shardwright.apply.writes import Create, Delete, Patch, Together, Write
from shardwright.control.queue import Key, Result
from shardwright.control.situate import parse_spec
from shardwright.control.store import Store
from shardwright.observe.world import ClaimView, PodView, Record
from shardwright.plan.collection import (
    Act,
    Clear,
    Forget,
    Mark,
    Order,
    Revive,
    Stock,
    UnreadableError,
    collect,
    is_sweep,
    named_by_revision,
    named_by_spec,
    works,
)
from shardwright.render.runner import runner_config_map_name
from shardwright.render.sweeps import record_patch, sweep_job
from shardwright.runner.contract import FETCHED, SWEEP_TRASH, SWEEPS

_log = structlog.get_logger(__name__)
# Between two looks at one claim. Many deployments may share it, and each of their events wakes it;
# and what one pass marks and the next one acts on is some time apart, in which whoever is about to
# name it is heard.
LOOK_SECONDS = 0.5
QUOTA_SECONDS = 30.0


class Collector:
    """Collects what nothing names any more."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._executor = executor
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._looked: dict[Key, float] = {}
        self._untouched: set[tuple[str, str]] = set()

    async def claim(self, key: Key) -> Result:
        """One pass over a claim's artifacts. Costs no request when nothing is to be done."""
        claim = self._store.claim(key.namespace, key.name)
        records = self._store.records_on(claim.uid) if claim is not None else ()
        if claim is None or claim.deleting or not records:
            self._looked.pop(key, None)
            return Result()
        now = self._monotonic()
        left = self._looked.get(key, now - LOOK_SECONDS) + LOOK_SECONDS - now
        if left > 0:
            return Result(requeue_after=left)
        self._looked[key] = now
        found = collect(self._stock(claim, records))
        if not found.acts:
            return Result(requeue_after=found.due)
        spec = self._spec(claim) if any(isinstance(act, Order) for act in found.acts) else None
        writes = tuple(self._write(act, claim, spec) for act in found.acts)
        for act in found.acts:
            if isinstance(act, Order) and act.action == SWEEP_TRASH:
                # from here on its files may be anywhere, whatever the server answers
                self._untouched.discard((act.record.uid, act.record.trash))
        done = await self._executor.execute([Together(writes)], by=key)
        self._remember(found.acts)
        if done.stale or done.blocked:
            return Result(requeue=True)
        _tell(found.acts)
        return Result(requeue_after=QUOTA_SECONDS if done.quota else LOOK_SECONDS)

    def _stock(self, claim: ClaimView, records: tuple[Record, ...]) -> Stock:
        timeouts = self._settings.timeouts
        jobs = self._store.jobs_on(claim.uid)
        named, hold = self._named(claim, records)
        reports = {
            job.uid: pod.report
            for job in jobs
            if is_sweep(job)
            for pod in self._store.pods_of(job.uid)
            if pod.report is not None
        }
        here = {(record.uid, record.trash) for record in self._store.records}
        self._untouched &= here
        return Stock(
            records=records,
            named=frozenset(named),
            hold=hold,
            jobs=jobs,
            reports=reports,
            retention=self._settings.retention,
            grace_seconds=timeouts.trash_grace_seconds,
            now=self._clock(),
            untouched=frozenset(self._untouched),
            retry_seconds=(timeouts.restart_backoff_max_seconds, 4 * timeouts.step_backoff_seconds),
        )

    def _named(self, claim: ClaimView, records: tuple[Record, ...]) -> tuple[set[str], str]:
        """Keys that must stay, and why more of them may have to."""
        named: set[str] = set()
        built: set[str] = set()
        revisions: set[str] = set()
        hold = ""
        for view in self._store.deployments_in(claim.namespace):
            try:
                named |= named_by_spec(view.spec)
                for revision in self._store.revisions_of(view.uid):
                    built |= named_by_revision(revision.data, claim.uid)
                    revisions.add(revision.name)
            except UnreadableError as error:
                hold = f"{view.name}: {error}"
        for job in self._store.jobs_on(claim.uid):
            if not is_sweep(job) and works(job):
                named.add(job.key)
                if job.step not in FETCHED and job.key not in built:
                    hold = f"Job {job.name} works on something that no revision knows"
        if all(record.key in named or record.key in built for record in records):
            return named | built, hold  # as nearly always: then pods need not be gone through
        for pod in self._store.pods:
            if pod.namespace == claim.namespace and not pod.finished:
                hold = _hold(pod, claim, revisions, built, named) or hold
        return named | built, hold

    def _spec(self, claim: ClaimView) -> CommonSpec | None:
        """A spec of a deployment on the claim: it knows the nodes and pull secrets."""
        for view in self._store.deployments_on(claim.namespace, claim.name):
            spec, _ = parse_spec(view.spec)
            if spec is not None and spec.storage.claim_name == claim.name:
                return spec
        return None

    def _write(self, act: Act, claim: ClaimView, spec: CommonSpec | None) -> Write:
        namespace = claim.namespace
        match act:
            case Order(record, action):
                body = sweep_job(record, action, claim, self._settings, spec)
                return Create("Job", body, expect_owner_uid=record.uid)
            case Clear(job):
                return Delete("Job", namespace, job.name, job.uid)
            case Forget(record):
                return Delete("ConfigMap", namespace, record.name, record.uid)
            case _:
                record = act.record
                ops = record_patch(act)
                return Patch("ConfigMap", namespace, record.name, record.uid, ops)

    def _remember(self, acts: list[Act]) -> None:
        """What was marked here and now, and what the server has agreed to."""
        for act in acts:
            if isinstance(act, Mark) and not act.record.trash:
                known = self._store.records.entry(*self._place(act.record))
                if known is not None and known.view.trash == act.stamp:
                    self._untouched.add((act.record.uid, act.stamp))

    def _place(self, record: Record) -> tuple[str, str]:
        claim = self._store.claim_by_uid(record.claim_uid)
        return (claim.namespace if claim is not None else "", record.name)

    async def namespace(self, key: Key) -> Result:
        """Old runners of a namespace in which nothing of ours runs."""
        current = runner_config_map_name()
        old = [item for item in self._store.runners_in(key.namespace) if item.name != current]
        if not old or self._busy(key.namespace):
            return Result()
        deletes = [Delete("ConfigMap", item.namespace, item.name, item.uid) for item in old]
        await self._executor.execute(deletes, by=key)
        return Result()

    def _busy(self, namespace: str) -> bool:
        deployments = self._store.deployments_in(namespace)
        return any(
            self._store.pods_of(view.uid) or self._store.jobs_of(view.uid) for view in deployments
        )


def _tell(acts: list[Act]) -> None:
    """Say in the log what was done."""
    for act in acts:
        match act:
            case Mark(record, reason):
                _log.info("artifact marked", step=record.step, artifact=record.key, reason=reason)
            case Revive(record):
                _log.info("artifact is back", step=record.step, artifact=record.key)
            case Order(record, action):
                _log.info("artifact swept", step=record.step, artifact=record.key, action=action)
            case Forget(record):
                _log.info("record deleted", step=record.step, artifact=record.key)
            case Clear(job) if is_sweep(job) and job.failed:
                _log.warning("sweep tried again", job=job.name, cause=job.failure_message)
            case _:
                pass


def _hold(
    pod: PodView, claim: ClaimView, revisions: set[str], built: set[str], named: set[str]
) -> str:
    """Why a pod that runs holds up the collection: it may load what nothing else names any more.

    A serving pod may outlive its revision and its deployment, a step's pod its Job.
    """
    revision = pod.labels.get(LABEL_REVISION, "")
    if revision and revision not in revisions:
        return f"pod {pod.name} serves {revision}, which is gone"
    step, key = pod.labels.get(LABEL_STEP, ""), pod.labels.get(LABEL_KEY, "")
    if key and step not in SWEEPS and pod.labels.get(LABEL_CLAIM_UID) == claim.uid:
        named.add(key)
        if step not in FETCHED and key not in built:
            return f"pod {pod.name} works on something that no revision knows"
    return ""
