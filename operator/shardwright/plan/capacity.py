"""What is taken on each node: by pods, and by promises that no pod has redeemed yet.

Promises are derived from objects and never remembered: a pod whose gate is lifted counts on the
node it is pinned to before the scheduler has bound it, a resumed step Job counts where its template
is pinned until its pod appears. So the answer is the same after a restart of the operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardwright.observe.world import JobView, PodView, Resources


def pod_home(pod: PodView) -> str:
    """The node on which a pod takes resources, "" if it takes none.

    A pod that is bound counts until it has finished or is gone, also while it is being deleted. An
    unbound one counts on its pin once its gates are lifted; never while it is gated, and no more
    when it is being deleted, since the API server refuses to bind such a pod.
    """
    if pod.finished:
        return ""
    if pod.node:
        return pod.node
    return "" if pod.gated or pod.deleting else pod.pin


def job_home(job: JobView) -> str:
    """The node that a step Job without a pod of its own holds a place on, "" if it holds none."""
    over = job.complete or job.failed or job.deleting
    return "" if job.suspended or over else job.node


def usage(pods: Iterable[PodView], jobs: Iterable[JobView]) -> dict[str, Resources]:
    """What is taken, by node name; a node on which nothing is taken is absent.

    A Job counts on its node only until a pod of its own is seen, in whatever phase: from then on
    the pod counts. Its pod is told by `owner_uid`.
    """
    taken: dict[str, Resources] = {}
    owners: set[str] = set()
    for pod in pods:
        owners.add(pod.owner_uid)
        if home := pod_home(pod):
            taken[home] = taken.get(home, Resources()) + pod.requests
    for job in jobs:
        if (home := job_home(job)) and job.uid not in owners:
            taken[home] = taken.get(home, Resources()) + _with_pod(job.requests)
    return {node: tidied for node, total in taken.items() if (tidied := _tidy(total)) != _NOTHING}


class UsageTracker:
    """The answer of `usage`, kept up to date change by change at a cost that does not grow.

    Feed it every pod and Job as it is seen (`put_…` replaces what the same uid said before) and as
    it goes (`remove_…`); the order in which pods and Jobs arrive does not matter.
    """

    def __init__(self) -> None:
        self._pods: dict[str, _Held] = {}
        self._jobs: dict[str, JobView] = {}
        self._promises: dict[str, _Held] = {}
        self._pods_of: Counter[str] = Counter()
        self._taken: dict[str, Resources] = {}

    def put_pod(self, pod: PodView) -> None:
        """Take a pod as it is now."""
        self.remove_pod(pod.uid)
        held = _Held(pod_home(pod), pod.requests, pod.owner_uid)
        self._pods[pod.uid] = held
        self._add(held)
        if pod.owner_uid:
            self._pods_of[pod.owner_uid] += 1
            self._settle(pod.owner_uid)

    def remove_pod(self, uid: str) -> None:
        """Forget a pod that is gone; one never seen is no error, deletions may come first."""
        held = self._pods.pop(uid, None)
        if held is None:
            return
        self._drop(held)
        if held.owner_uid:
            self._pods_of[held.owner_uid] -= 1
            if not self._pods_of[held.owner_uid]:
                del self._pods_of[held.owner_uid]
            self._settle(held.owner_uid)

    def put_job(self, job: JobView) -> None:
        """Take a step Job as it is now."""
        self._jobs[job.uid] = job
        self._settle(job.uid)

    def remove_job(self, uid: str) -> None:
        """Forget a step Job that is gone."""
        self._jobs.pop(uid, None)
        self._settle(uid)

    def by_node(self) -> dict[str, Resources]:
        """What is taken now, by node name, as `usage` of all pods and Jobs would say."""
        return dict(self._taken)

    def _settle(self, uid: str) -> None:
        """Let a Job's promise stand exactly as long as it has no pod."""
        before = self._promises.pop(uid, None)
        if before is not None:
            self._drop(before)
        job = self._jobs.get(uid)
        if job is not None and uid not in self._pods_of and (home := job_home(job)):
            promise = _Held(home, _with_pod(job.requests))
            self._promises[uid] = promise
            self._add(promise)

    def _add(self, held: _Held) -> None:
        if held.node:
            self._set(held.node, self._taken.get(held.node, _NOTHING) + held.requests)

    def _drop(self, held: _Held) -> None:
        if held.node:
            self._set(held.node, self._taken.get(held.node, _NOTHING) - held.requests)

    def _set(self, node: str, total: Resources) -> None:
        tidied = _tidy(total)
        if tidied == _NOTHING:
            self._taken.pop(node, None)
        else:
            self._taken[node] = tidied


@dataclass(frozen=True, slots=True)
class _Held:
    """What one pod or promise takes, and where."""

    node: str
    requests: Resources
    owner_uid: str = ""


_NOTHING = Resources()


def _tidy(total: Resources) -> Resources:
    """Leave out other resources of which nothing is taken, so that equal answers compare equal."""
    return replace(total, other={name: n for name, n in total.other.items() if n})


def _with_pod(requests: Resources) -> Resources:
    """A Job's template counted as the one pod it will be."""
    return replace(requests, pods=max(1, requests.pods))
