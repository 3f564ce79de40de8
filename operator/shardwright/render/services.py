"""What stands beside a deployment's pods: two Services and a disruption budget."""

from __future__ import annotations

from shardwright.api import names
from shardwright.render.common import Manifest, Owner, labels
from shardwright.render.names import ranks_service_name


def ranks_service(namespace: str, owner: Owner) -> Manifest:
    """The headless Service under which ranks find each other, ready or not."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(ranks_service_name(owner.name, owner.uid), namespace, owner),
        "spec": {
            "clusterIP": "None",
            # Ranks meet before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {names.LABEL_DEPLOYMENT: owner.name},
            "ports": [_port("runner", names.PORT_RUNNER, "runner")],
        },
    }


def leader_service(namespace: str, owner: Owner) -> Manifest:
    """The Service that clients use: leaders of groups that serve."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(owner.name, namespace, owner),
        "spec": {
            "type": "ClusterIP",
            "selector": {names.LABEL_DEPLOYMENT: owner.name, names.LABEL_SERVING: "true"},
            "ports": [_port("http", 80, "http")],
        },
    }


def disruption_budget(namespace: str, owner: Owner, *, minimum_available: int) -> Manifest:
    """The budget over all pods of serving groups.

    `minimum_available` counts pods: an integer needs no scale subresource that counts pods, and
    ours counts replicas. An unhealthy pod never blocks a drain.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(owner.name, namespace, owner),
        "spec": {
            "minAvailable": minimum_available,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {
                "matchLabels": {
                    names.LABEL_DEPLOYMENT: owner.name,
                    names.LABEL_PROTECTED: "true",
                }
            },
        },
    }


def _metadata(name: str, namespace: str, owner: Owner) -> Manifest:
    return {
        "name": name,
        "namespace": namespace,
        "labels": labels({names.LABEL_DEPLOYMENT: owner.name}),
        "ownerReferences": [owner.reference(controller=True)],
    }


def _port(name: str, port: int, target: str) -> Manifest:
    return {"name": name, "port": port, "targetPort": target, "protocol": "TCP"}
