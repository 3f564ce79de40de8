"""One pass for one key: observe → plan → place → render → apply → report.

Read `_deployment` top to bottom: it is the operator. Everything that decides is pure and lives in
`plan`; everything that writes goes through the executor; status is written in one place, at the
end, and only when it changed.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from shardwright.api import names
from shardwright.api.status import LLMDeploymentStatus
from shardwright.apply.client import Cluster
from shardwright.apply.errors import Forbidden, Invalid
from shardwright.apply.executor import Outcome as Done
from shardwright.apply.kinds import SECRET
from shardwright.apply.writes import ApplyStatus, Create, Together, Write
from shardwright.control.carry import Carrier
from shardwright.control.collect import Collector
from shardwright.control.homes import Homes, interests
from shardwright.control.loop import Parts
from shardwright.control.measure import measure_placement, measure_steps, measure_turns
from shardwright.control.placer import Placer
from shardwright.control.queue import Key, Result
from shardwright.control.secrets import SecretThere
from shardwright.control.situate import Situator
from shardwright.control.transitions import transitions
from shardwright.observe.world import DeploymentView
from shardwright.plan.adapter_report import readers
from shardwright.plan.advice import telling
from shardwright.plan.deployment import after_quota, decide
from shardwright.plan.links import unheard
from shardwright.plan.report import applied, defect, report
from shardwright.plan.situation import CreatePods, CreateStep, Decision, Situation
from shardwright.render.runner import runner_config_map, runner_config_map_name
from shardwright.render.tokens import draw_token

_log = structlog.get_logger(__name__)
SOON_SECONDS = 0.001
QUOTA_SECONDS = 30.0


class Reconciler:
    """Makes the passes; called by the queue's workers, one at a time for a key."""

    def __init__(self, parts: Parts) -> None:
        self.store = parts.store
        self.executor = parts.executor
        self.settings = parts.settings
        self.add = parts.add
        self.metrics = parts.metrics
        self.links = parts.links
        self.adapters = parts.adapters
        self.usage = parts.usage
        self.situator = Situator(
            parts.store,
            parts.settings,
            _secret_there(parts.cluster),
            parts.links,
            parts.adapters,
            parts.usage,
        )
        self.placer = Placer(parts.store)
        self.collector = Collector(parts.store, parts.executor, parts.settings)
        self._failing: set[Key] = set()  # keys whose last pass ended in a fault of ours

    async def __call__(self, key: Key) -> Result:
        """One pass."""
        if key.kind == "deployment":
            return await self._deployment(key)
        if key.kind == "claim":
            return await self.collector.claim(key)
        return await self.collector.namespace(key)

    async def _deployment(self, key: Key) -> Result:
        view = self.store.deployment(key.namespace, key.name)
        if view is None or view.deleting:
            self._forget(key)
            return Result()
        situation = await self.situator.situation(view)
        homes = Homes(key, self.placer, self.store, situation)
        try:
            decision = decide(situation, move_possible=homes.move_possible())
        except Exception as error:
            # Logged in full, and tried again, by whoever called. One that comes again is told to
            # the user: nobody looks for a status that stays as it was.
            if key in self._failing:
                await self._status(key, view, situation, defect(situation, error))
            self._failing.add(key)
            raise
        self._failing.discard(key)
        there = {pod.uid for pod in situation.pods}
        self.links.want(key, unheard(situation, decision.findings), there)
        self.adapters.want(key, readers(decision.findings))
        self.usage.want(key, telling(situation, decision.findings))
        # Before anything is awaited: what happens meanwhile must wake this key.
        self.store.needs(key, interests(situation, decision))
        refused = ""
        try:
            homes.find(decision)
            self.store.wait_for_capacity(key, homes.waiting)
            self.store.keep_plan(key, situation.spec is not None and bool(situation.spec.open))
            done = await self.executor.execute(self._writes(view, decision, homes), by=key)
        except (Invalid, Forbidden) as error:
            # The server will not have it (a priority class, a security level, a right that lacks):
            # status says so, and it is tried again rarely.
            refused, done = str(error), Done()
        finally:
            homes.settle()
        if homes.made_way:
            self.add(self.store.waiters - {key})
        if done.stale:
            return Result(requeue=True)
        measure_steps(self.metrics, situation, decision)
        measure_placement(self.metrics, situation, homes.placed, done)
        if done.done and done.complete and not (decision.remembered or refused or homes.announced):
            # What was written shows in the next turn, which says all of it at once.
            return Result(requeue_after=SOON_SECONDS)
        decision = after_quota(situation, decision, done.quota)
        taken = next((words for words in done.blocked if "belongs to" in words), "")
        outcome = replace(homes.outcome(done.quota), refused=refused, taken=taken)
        wrote = await self._status(key, view, situation, report(situation, decision, outcome))
        if not wrote or done.blocked or refused:
            return Result(requeue=True)
        if done.quota:
            return Result(requeue_after=QUOTA_SECONDS)
        if decision.remembered or done.done or homes.announced:
            return Result(requeue_after=SOON_SECONDS)
        return Result(requeue_after=decision.requeue)

    def _forget(self, key: Key) -> None:
        """The object is gone or going: garbage collection takes what it owned."""
        self._failing.discard(key)
        self.situator.forget(key)
        self.links.forget(key)
        self.adapters.forget(key)
        self.usage.forget(key)
        made_way = [self.placer.forget(key, step=step) for step in (False, True)]
        self.store.wait_for_capacity(key, False)  # noqa: FBT003 - a state
        self.store.keep_plan(key, False)  # noqa: FBT003 - a state
        self.store.needs(key, ())
        if any(made_way):
            self.add(set(self.store.waiters))

    def _writes(
        self, view: DeploymentView, decision: Decision, homes: Homes
    ) -> list[Write | Together]:
        """What the pass wants written, in order."""
        carrier = Carrier(
            view,
            self.settings,
            spread=homes.spread,
            children=frozenset(
                (kind, child.name)
                for kind, found in (
                    ("Service", self.store.services_of(view.uid)),
                    ("PodDisruptionBudget", self.store.budgets_of(view.uid)),
                )
                for child in found
            ),
            hostname=homes.hostname,
            draw_token=draw_token,
        )
        return [
            *self._runner(view, decision),
            *carrier.writes(decision.intents),
            *homes.writes(carrier),
        ]

    def _runner(self, view: DeploymentView, decision: Decision) -> list[Write]:
        """The namespace's runner, before the first pod that mounts it."""
        if not any(isinstance(intent, CreatePods | CreateStep) for intent in decision.intents):
            return []
        current = runner_config_map_name()
        if any(item.name == current for item in self.store.runners_in(view.namespace)):
            return []
        return [Create("ConfigMap", runner_config_map(view.namespace))]

    async def _status(
        self, key: Key, view: DeploymentView, situation: Situation, status: LLMDeploymentStatus
    ) -> bool:
        """Write status if it changed, then tell of transitions; False when it was out of date.

        The resourceVersion that the pass read goes along: a status is never written over an object
        that has changed since.
        """
        old = situation.status
        if status == old:
            return True
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {
                "name": view.name,
                "namespace": view.namespace,
                "uid": view.uid,
                "resourceVersion": str(view.resource_version),
            },
            "status": applied(status),
        }
        written = await self.executor.execute([ApplyStatus(body)], by=key)
        if written.stale:
            return False
        measure_turns(self.metrics, old, status)
        posts = transitions(view, old, status, situation.now)
        for post in posts:
            _log.info(post.reason, note=post.note, generation=view.generation)
        if posts:
            await self.executor.execute([Together(tuple(posts))], by=key)
        return True


def _secret_there(cluster: Cluster) -> SecretThere:
    """Asks whether a Secret exists; its content is never read."""

    async def there(namespace: str, name: str) -> bool:
        return await cluster.exists(SECRET, namespace, name)

    return there
