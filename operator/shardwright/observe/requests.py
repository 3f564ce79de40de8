"""What a pod asks for, counted as kube-scheduler counts it.

The rules are those of `PodRequests` in k8s.io/component-helpers/resource: containers that run side
by side add up, ordinary init containers run one at a time beside the sidecars started before them,
and the larger of the two counts; pod-level requests replace the sum for CPU and memory; the
RuntimeClass's overhead comes on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright.observe.quantity import resources_of
from shardwright.observe.world import Resources

# Resources that may be asked for on the pod as a whole (hugepages too, which are not counted here).
_POD_LEVEL = ("cpu", "memory")


def pod_requests(body: Mapping[str, Any]) -> Resources:
    """The resources a pod (or a pod template: anything with a pod's `spec`) takes from its node.

    A limit stands in for a request that is missing, as API server defaulting does: templates have
    not been through it. A container that is being resized counts with the largest of what is asked,
    granted and in use. The pod itself counts as one in `pods`.

    Raises:
        QuantityError: When a quantity cannot be read; the message names the resource.
    """
    spec = body.get("spec") or {}
    granted = _granted(body.get("status") or {})
    total, sidecars, peak = Resources(), Resources(), Resources()
    for container in spec.get("containers") or ():
        total += _container(container, granted)
    for container in spec.get("initContainers") or ():
        own = _container(container, granted)
        if container.get("restartPolicy") == "Always":
            total += own
            sidecars += own
            peak = _larger(peak, sidecars)
        else:
            peak = _larger(peak, own + sidecars)
    total = _pod_level(_larger(total, peak), spec.get("resources") or {})
    total += resources_of(spec.get("overhead") or {})
    # Sums carry what one side lacks as zero; zeros are left out so that equal needs compare equal.
    return replace(total, pods=1, other={name: n for name, n in total.other.items() if n})


def _container(container: Mapping[str, Any], granted: Mapping[str, Resources]) -> Resources:
    resources = container.get("resources") or {}
    asked = resources_of({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
    return _larger(asked, granted.get(container.get("name", ""), Resources()))


def _granted(status: Mapping[str, Any]) -> dict[str, Resources]:
    """By container name, what the kubelet has allocated or still holds during a resize."""
    found: dict[str, Resources] = {}
    for kind in ("containerStatuses", "initContainerStatuses"):
        for entry in status.get(kind) or ():
            allocated = resources_of(entry.get("allocatedResources") or {})
            actual = resources_of((entry.get("resources") or {}).get("requests") or {})
            found[entry.get("name", "")] = _larger(allocated, actual)
    return found


def _pod_level(total: Resources, resources: Mapping[str, Any]) -> Resources:
    requests = resources.get("requests") or {}
    limits = resources.get("limits") or {}
    asked = {name: requests[name] for name in _POD_LEVEL if name in requests}
    whole = resources_of(asked)
    # A pod-level limit alone becomes the request only where no container asks for the resource.
    fallback = resources_of({name: limits[name] for name in _POD_LEVEL if name in limits})
    return replace(
        total,
        cpu_millis=whole.cpu_millis if "cpu" in asked else total.cpu_millis or fallback.cpu_millis,
        memory_bytes=whole.memory_bytes
        if "memory" in asked
        else total.memory_bytes or fallback.memory_bytes,
    )


def _larger(one: Resources, two: Resources) -> Resources:
    """The larger of two needs, resource by resource."""
    return Resources(
        cpu_millis=max(one.cpu_millis, two.cpu_millis),
        memory_bytes=max(one.memory_bytes, two.memory_bytes),
        ephemeral_bytes=max(one.ephemeral_bytes, two.ephemeral_bytes),
        gpus=max(one.gpus, two.gpus),
        other={
            name: max(one.other.get(name, 0), two.other.get(name, 0))
            for name in {*one.other, *two.other}
        },
    )
