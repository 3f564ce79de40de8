"""Nodes, pods and requests for tests of placement, filled with what a test does not care about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.observe.world import (
    GPUInventory,
    NodeView,
    PodView,
    Resources,
    Sharing,
    Taint,
)
from shardwright.plan.placement import PlacementRequest

GIB = 1024**3
H100 = "NVIDIA-H100-80GB-HBM3"
ZONE = "topology.kubernetes.io/zone"
RACK = "example.com/rack"
LEVELS = (RACK, ZONE)


def gpu_node(
    name: str,
    gpus: int = 8,
    *,
    product: str = H100,
    healthy: int | None = None,
    nvlink: int | None = None,
    sharing: Sharing = Sharing.EXCLUSIVE,
    clique: str = "",
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    cpu: int = 128,
    memory: int = 1024,
    pods: int = 110,
    other: Mapping[str, int] | None = None,
    rack: str = "",
    zone: str = "",
    inventory: Mapping[str, Any] | None = None,
    **view: Any,
) -> NodeView:
    """A node with GPUs (0: without), memory in GiB."""
    count = gpus if healthy is None else healthy
    gpu = {
        "product": product if gpus else "",
        "count": count,
        "capacity": gpus,
        "sharing": sharing,
        "nvlink_size": (gpus if nvlink is None else nvlink),
        "clique": clique,
        **(inventory or {}),
    }
    return NodeView(
        name=name,
        uid=f"uid-{name}",
        gpu=GPUInventory(**gpu),
        allocatable=Resources(
            cpu * 1000,
            memory * GIB,
            1000 * GIB,
            pods,
            0 if gpu.get("slices_only") else count,
            dict(other or {}),
        ),
        labels={
            "kubernetes.io/hostname": name,
            **({RACK: rack} if rack else {}),
            **({ZONE: zone} if zone else {}),
            **(labels or {}),
        },
        taints=taints,
        **view,
    )


def replica(stages: int = 2, tensor: int = 8, **fields: Any) -> PlacementRequest:
    """A request for a replica of `stages` × `tensor` with a modest need for everything else."""
    return PlacementRequest(
        product=fields.pop("product", H100),
        gpus_per_pod=tensor,
        stages=stages,
        per_pod=fields.pop("per_pod", Resources(8000, 64 * GIB, 20 * GIB)),
        levels=fields.pop("levels", LEVELS),
        **fields,
    )


def gpus(count: int, *, pods: int = 1, memory: int = 0) -> Resources:
    """What pods with so many GPUs take together."""
    return Resources(gpus=count, pods=pods, memory_bytes=memory * GIB)


def pod(uid: str, **fields: Any) -> PodView:
    """A pod of another's with one GPU."""
    fields.setdefault("requests", gpus(1))
    return PodView(namespace="default", name=f"pod-{uid}", uid=uid, **fields)
