"""Bodies of kinds that are seen together with another kind, cut down to what their views need.

A claim is seen with its volume and a node with its ResourceSlices, in whatever order they arrive,
so the parts are kept and put together on demand. Most of a Node (images, addresses, managed fields)
is dropped: thousands of them stay in memory.
"""

from __future__ import annotations

from shardwright.apply.client import Body
from shardwright.apply.kinds import meta
from shardwright.observe.projections import node_terms


def _metadata(body: Body, *fields: str) -> Body:
    found = meta(body)
    return {name: found[name] for name in ("name", "uid", *fields) if name in found}


def trimmed_claim(body: Body) -> Body:
    """Of a PersistentVolumeClaim."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    return {
        "metadata": _metadata(body, "namespace", "deletionTimestamp"),
        "spec": {
            "accessModes": spec.get("accessModes") or [],
            "volumeName": spec.get("volumeName") or "",
        },
        "status": {
            "phase": status.get("phase", ""),
            "accessModes": status.get("accessModes") or [],
        },
    }


def trimmed_volume(body: Body) -> Body:
    """Of a PersistentVolume."""
    node_terms(body)  # refuse here what could not be read later
    return {
        "metadata": _metadata(body),
        "spec": {"nodeAffinity": (body.get("spec") or {}).get("nodeAffinity") or {}},
    }


def trimmed_node(body: Body) -> Body:
    """Of a Node."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    return {
        "metadata": _metadata(body, "labels", "deletionTimestamp", "creationTimestamp"),
        "spec": {
            "taints": spec.get("taints") or [],
            "unschedulable": spec.get("unschedulable", False),
        },
        "status": {
            "allocatable": status.get("allocatable") or {},
            "capacity": status.get("capacity") or {},
            "conditions": [
                {name: item.get(name) for name in ("type", "status", "lastTransitionTime")}
                for item in status.get("conditions") or ()
                if item.get("type") == "Ready"
            ],
        },
    }


def trimmed_slice(body: Body) -> Body:
    """Of a ResourceSlice."""
    return {"metadata": _metadata(body), "spec": body.get("spec") or {}}
