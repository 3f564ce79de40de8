"""A Node object as a NodeView: GPU inventory, allocatable resources, and whether it takes pods.

Labels are those of GPU Feature Discovery (NVIDIA/k8s-device-plugin, internal/lm and
docs/gpu-feature-discovery), of GKE and of CoreWeave. Counts come from `status.allocatable` and
never from `nvidia.com/gpu.count`, which counts MIG slices under the strategy "single" and goes on
counting GPUs that have failed. A label that is absent means "not known"; it never means zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from shardwright.api.names import LABEL_NVLINK_SIZE
from shardwright.api.settings import Settings
from shardwright.observe.products import base_product, nvlink_prior
from shardwright.observe.quantity import resources_of
from shardwright.observe.requests import pod_requests
from shardwright.observe.slices import slice_inventory
from shardwright.observe.world import (
    GPUInventory,
    NodePool,
    NodeView,
    Resources,
    Sharing,
    Taint,
)

__all__ = ["CLIQUE_LABEL", "node_pools", "node_view", "pod_requests"]

_GFD = "nvidia.com"
CLIQUE_LABEL = f"{_GFD}/gpu.clique"
_MIG_RESOURCE = f"{_GFD}/mig-"
_GKE = "cloud.google.com"
_SHARED_STRATEGIES = frozenset({"time-slicing", "time-sharing", "mps"})


@dataclass(slots=True)
class _Labels:
    """A node's labels, read with a note of what could not be read."""

    labels: Mapping[str, str]
    warnings: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        return self.labels.get(name, "")

    def number(self, name: str) -> int | None:
        """A label's whole number, None when it is absent or unreadable (then with a warning)."""
        text = self.labels.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()):
            self.warnings.append(
                f"label {name}={text!r} is ignored: expected a whole number of 0 or more"
            )
            return None
        return int(text)


def node_view(
    body: Mapping[str, Any], settings: Settings, slices: Sequence[Mapping[str, Any]] = ()
) -> NodeView:
    """Project a Node (and its ResourceSlices) to what decisions need.

    Args:
        body: The Node as the API server returns it.
        settings: For the product labels and the administrator's table of NVLink islands.
        slices: ResourceSlices, of this node or of all; needed only where a DRA driver hands out
            the GPUs and the device plugin does not.

    Raises:
        QuantityError: When a quantity of `status` cannot be read, which the API server rules out.
    """
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = _Labels(meta.get("labels") or {})
    allocatable = resources_of(status.get("allocatable") or {})
    capacity = resources_of(status.get("capacity") or {})
    gpu = _inventory(labels, allocatable, capacity, settings)
    if capacity.gpus == 0:
        published = slice_inventory(meta["name"], slices)
        gpu = gpu if published is None else _with_labels(published, gpu)
    gpu = replace(gpu, nvlink_size=_nvlink_size(labels, gpu, settings))
    ready, since = _readiness(body)
    return NodeView(
        name=meta["name"],
        uid=meta.get("uid", ""),
        gpu=gpu,
        allocatable=allocatable,
        labels=dict(labels.labels),
        taints=tuple(
            Taint(taint["key"], taint.get("value") or "", taint.get("effect", "NoSchedule"))
            for taint in spec.get("taints") or ()
        ),
        ready=ready,
        not_ready_since=since,
        unschedulable=bool(spec.get("unschedulable")),
        deleting=bool(meta.get("deletionTimestamp")),
        warnings=tuple(labels.warnings),
    )


def _inventory(
    labels: _Labels, allocatable: Resources, capacity: Resources, settings: Settings
) -> GPUInventory:
    """What labels and the device plugin tell; `nvlink_size` is filled in later."""
    product = next((found for key in settings.product_keys if (found := labels.text(key))), "")
    sharing = _sharing(labels, product, capacity)
    # Labels describe one product per node. Fewer GPUs of it than the node has means that there are
    # others (GPU Feature Discovery counts by product, and only warns in its own log).
    described = labels.number(f"{_GFD}/gpu.count")
    mixed = sharing is Sharing.EXCLUSIVE and described is not None and 0 < described < capacity.gpus
    if mixed:
        labels.warnings.append(
            f"label {_GFD}/gpu.product={product} describes {described} of {capacity.gpus} GPUs: "
            "the node mixes products, so no pod that needs one of them is placed here"
        )
    return GPUInventory(
        product=product,
        count=allocatable.gpus,
        capacity=capacity.gpus,
        memory_mib=labels.number(f"{_GFD}/gpu.memory") or 0,
        compute=(
            labels.number(f"{_GFD}/gpu.compute.major") or 0,
            labels.number(f"{_GFD}/gpu.compute.minor") or 0,
        ),
        sharing=sharing,
        clique=labels.text(CLIQUE_LABEL),
        driver=_driver(labels),
        mixed=mixed,
    )


def _sharing(labels: _Labels, product: str, capacity: Resources) -> Sharing:
    """How the GPUs are handed out; what is sliced is named before what is shared.

    `gpu.replicas` is "0" where GPUs are MIG-enabled under the strategy "mixed", which says nothing
    of the whole GPUs beside them. A shared resource that was renamed leaves the product unsuffixed.
    """
    if product.endswith("-MIG-INVALID"):
        return Sharing.INVALID
    if "-MIG-" in product or labels.text(f"{_GKE}/gke-gpu-partition-size"):
        return Sharing.MIG
    if capacity.gpus == 0 and any(name.startswith(_MIG_RESOURCE) for name in capacity.other):
        return Sharing.MIG
    shared = (
        product.endswith("-SHARED")
        or (labels.number(f"{_GFD}/gpu.replicas") or 0) > 1
        or labels.text(f"{_GFD}/gpu.sharing-strategy") in _SHARED_STRATEGIES
        or labels.text(f"{_GKE}/gke-gpu-sharing-strategy") in _SHARED_STRATEGIES
    )
    return Sharing.SHARED if shared else Sharing.EXCLUSIVE


def _driver(labels: _Labels) -> str:
    """The driver's version, under the label's present or its deprecated names."""
    if full := labels.text(f"{_GFD}/cuda.driver-version.full"):
        return full
    for prefix, last in (("cuda.driver-version", "revision"), ("cuda.driver", "rev")):
        parts = [labels.text(f"{_GFD}/{prefix}.{part}") for part in ("major", "minor", last)]
        if parts[0]:
            return ".".join(part for part in parts if part)
    return ""


def _with_labels(published: GPUInventory, labelled: GPUInventory) -> GPUInventory:
    """Device attributes first; labels (which may be there too) fill what they leave out."""
    return replace(
        published,
        product=published.product or labelled.product,
        memory_mib=published.memory_mib or labelled.memory_mib,
        compute=published.compute if published.compute != (0, 0) else labelled.compute,
        driver=published.driver or labelled.driver,
        clique=labelled.clique,
    )


def _nvlink_size(labels: _Labels, gpu: GPUInventory, settings: Settings) -> int:
    """GPUs of one NVLink domain: the node's label, else the settings, else the product's prior.

    Slices and shares of a GPU have no link to each other. A domain is never larger than the node.
    """
    if gpu.sharing is not Sharing.EXCLUSIVE:
        return 0
    size = labels.number(LABEL_NVLINK_SIZE)
    if size is None:
        size = _island(gpu.product, gpu.capacity, settings)
    return min(size, gpu.capacity)


def _island(product: str, gpus: int, settings: Settings) -> int:
    told = settings.nvlink_islands.get(product)
    if told is None:
        told = settings.nvlink_islands.get(base_product(product))
    return told if told is not None else nvlink_prior(product, gpus) or 0


def _readiness(body: Mapping[str, Any]) -> tuple[bool, float | None]:
    """Whether the Ready condition is True, and since when it is not (epoch seconds).

    A node without the condition has not reported yet: not ready since it was created.
    """
    conditions = (body.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if condition.get("type") == "Ready":
            if condition.get("status") == "True":
                return True, None
            stamp = condition.get("lastTransitionTime")
            break
    else:
        stamp = None
    stamp = stamp or body["metadata"].get("creationTimestamp")
    return False, datetime.fromisoformat(stamp).timestamp() if stamp else None


def node_pools(settings: Settings) -> tuple[NodePool, ...]:
    """The node pools of the settings as views; the NVLink prior stands in where none is set."""
    pools = []
    for pool in settings.node_pools:
        major, _, minor = pool.compute_capability.partition(".")
        pools.append(
            NodePool(
                name=pool.name,
                product=pool.product,
                gpus_per_node=pool.gpus_per_node,
                max_nodes=pool.max_nodes,
                nvlink_size=min(
                    pool.nvlink_size or _island(pool.product, pool.gpus_per_node, settings),
                    pool.gpus_per_node,
                ),
                compute=(int(major), int(minor)),
                memory_mib=pool.memory_mib,
            )
        )
    return tuple(pools)
