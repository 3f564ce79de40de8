"""How many pods the disruption budget keeps, so that evictions take replicas one at a time.

The eviction unit is a pod, the failure unit a group. The budget's controller counts ready pods that
are not on their way out, whoever they belong to, and knows nothing of groups: also the pods count
that a broken group has left for a moment, and those that a new one is about to make ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.api import names
from shardwright.observe.world import PodView
from shardwright.plan.groups import Group


def minimum_available(
    pods: Iterable[PodView],
    groups: Sequence[Group],
    replicas: int,
    max_unavailable: int,
) -> int:
    """`minAvailable` of the disruption budget, counted in pods.

    Of each group that may go one eviction is admitted. A pod of a replica that no longer serves,
    or not yet, is never a reason to let one of another replica go.

    Args:
        pods: Every pod of the deployment, those of incarnations that no wish names too.
        groups: The groups that serve, those included that are let into the budget in this pass.
        replicas: `spec.replicas`.
        max_unavailable: `spec.rollout.maxUnavailable`, in replicas.
    """
    members = {pod.uid for group in groups for pod in group.pods}
    counted = [
        pod
        for pod in pods
        if not pod.deleting
        and not pod.finished
        and (names.LABEL_PROTECTED in pod.labels or pod.uid in members)
    ]
    spare = sum(group.ready for group in groups) - (replicas - max_unavailable)
    if spare <= 0:
        # No eviction at all, also not in the moment in which pods turn ready that are not yet: the
        # budget's controller hears of it before we do.
        return len(counted)
    # Pods that start do not count: a replica that takes long must not hold up drains which the
    # others can bear.
    return max(0, sum(pod.ready for pod in counted) - spare)
