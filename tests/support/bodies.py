"""Kubernetes objects as the API server returns them, as small as they can be."""

from __future__ import annotations

from typing import Any

from shardwright.api import names

Body = dict[str, Any]
UID = "11111111-aaaa"


def meta(name: str, uid: str, version: int, **more: Any) -> Body:
    return {
        "namespace": "llm",
        "name": name,
        "uid": uid,
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **more,
    }


def owner(uid: str, kind: str = names.KIND, *, controller: bool = True) -> Body:
    return {"apiVersion": "x/v1", "kind": kind, "name": "o", "uid": uid, "controller": controller}


def deployment(
    name: str = "a", uid: str = UID, version: int = 1, *, claim: str = "models", **more: Any
) -> Body:
    return {
        "metadata": meta(name, uid, version, generation=more.pop("generation", 1)),
        "spec": {"storage": {"claimName": claim}, "model": {"uri": "hf://o/m"}, "replicas": 2},
        "status": more.pop("status", {"observedGeneration": -1}),
    }


def pod(
    name: str,
    uid: str,
    version: int,
    *,
    owners: list[Body] | None = None,
    node: str = "",
    phase: str = "Pending",
    gpus: int = 1,
    **spec: Any,
) -> Body:
    return {
        "metadata": meta(name, uid, version, ownerReferences=owners or []),
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"limits": {names.GPU_RESOURCE: str(gpus)}}}],
            **spec,
        },
        "status": {"phase": phase},
    }


def job(
    name: str, uid: str, version: int, *, owners: list[str], key: str = "k1", **more: Any
) -> Body:
    return {
        "metadata": meta(
            name,
            uid,
            version,
            ownerReferences=[owner(one, controller=False) for one in owners],
            labels={
                names.LABEL_STEP: "engine",
                names.LABEL_KEY: key,
                names.LABEL_ATTEMPT: "2",
                names.LABEL_CLAIM_UID: "claim-uid",
            },
        ),
        "spec": {"suspend": more.pop("suspend", False), "template": {"spec": {"containers": []}}},
        "status": more.pop("status", {}),
    }


def claim(name: str = "models", uid: str = "claim-uid", version: int = 1, volume: str = "") -> Body:
    return {
        "metadata": meta(name, uid, version),
        "spec": {"accessModes": ["ReadWriteMany"], "volumeName": volume},
        "status": {"phase": "Bound" if volume else "Pending"},
    }


def volume(name: str, version: int = 1, **spec: Any) -> Body:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        "spec": spec,
    }


def record(name: str, uid: str, version: int, *, key: str = "k1", **data: str) -> Body:
    return {
        "metadata": meta(
            name,
            uid,
            version,
            labels={names.LABEL_RECORD: "true", names.LABEL_CLAIM_UID: "claim-uid"},
        ),
        "data": {"step": "engine", "key": key, "state": "Ready", **data},
    }


def node(name: str, version: int = 1, *, gpus: int = 8, ready: bool = True) -> Body:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "8", names.GPU_RESOURCE: str(gpus)},
            "capacity": {"cpu": "8", names.GPU_RESOURCE: str(gpus)},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        },
    }


def child(name: str, uid: str, version: int, owner_uid: str, generation: int = 0) -> Body:
    found = meta(name, uid, version, ownerReferences=[owner(owner_uid)])
    if generation:
        found["generation"] = generation
    return {"metadata": found}
