"""Keys that are not deployments: a namespace's runner archives, a claim's artifacts.

A runner ConfigMap goes when no pod and no Job names it and it is not the current one. Artifacts
are kept as long as a revision names them.
"""

from __future__ import annotations

from shardwright.api.settings import Settings
from shardwright.apply.executor import Executor
from shardwright.apply.writes import Delete
from shardwright.control.queue import Key, Result
from shardwright.control.store import Store
from shardwright.render.runner import runner_config_map_name


class Collector:
    """Collects what nothing names any more."""

    def __init__(self, store: Store, executor: Executor, settings: Settings) -> None:
        self._store = store
        self._executor = executor
        self._settings = settings

    async def claim(self, key: Key) -> Result:  # noqa: ARG002
        """Nothing is deleted from a claim yet."""
        return Result()

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
