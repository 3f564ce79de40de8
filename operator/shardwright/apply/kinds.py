"""The kinds the operator touches, and their REST paths: a small table instead of discovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.api.names import API_VERSION, KIND, PLURAL


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind lives. `metadata_only`: its content is never asked for."""

    api_version: str
    plural: str
    namespaced: bool = True
    metadata_only: bool = False

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The REST path; without a namespace, of the whole cluster."""
        root = "/api" if "/" not in self.api_version else "/apis"
        parts = [root, self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


DEPLOYMENT = KIND
POD = "Pod"
JOB = "Job"
NODE = "Node"
CLAIM = "PersistentVolumeClaim"
VOLUME = "PersistentVolume"
CONFIG_MAP = "ConfigMap"
REVISION = "ControllerRevision"
SERVICE = "Service"
BUDGET = "PodDisruptionBudget"
LEASE = "Lease"
SECRET = "Secret"  # noqa: S105 - the kind's name
SLICE = "ResourceSlice"
EVENT = "Event"
NAMESPACE = "Namespace"
CRD = "CustomResourceDefinition"

KINDS: dict[str, Kind] = {
    DEPLOYMENT: Kind(API_VERSION, PLURAL),
    POD: Kind("v1", "pods"),
    JOB: Kind("batch/v1", "jobs"),
    NODE: Kind("v1", "nodes", namespaced=False),
    CLAIM: Kind("v1", "persistentvolumeclaims"),
    VOLUME: Kind("v1", "persistentvolumes", namespaced=False),
    CONFIG_MAP: Kind("v1", "configmaps"),
    REVISION: Kind("apps/v1", "controllerrevisions"),
    SERVICE: Kind("v1", "services"),
    BUDGET: Kind("policy/v1", "poddisruptionbudgets"),
    LEASE: Kind("coordination.k8s.io/v1", "leases"),
    SECRET: Kind("v1", "secrets", metadata_only=True),
    SLICE: Kind("resource.k8s.io/v1", "resourceslices", namespaced=False),
    EVENT: Kind("events.k8s.io/v1", "events"),
    NAMESPACE: Kind("v1", "namespaces", namespaced=False),
    CRD: Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False),
}


def kind_of(kind: str) -> Kind:
    """The table's entry.

    Raises:
        KeyError: For a kind that the operator does not touch.
    """
    try:
        return KINDS[kind]
    except KeyError:
        raise KeyError(f"kind {kind!r} is not one of {', '.join(KINDS)}") from None


def meta(body: dict[str, Any]) -> dict[str, Any]:
    """The object's metadata."""
    found: dict[str, Any] = body.get("metadata") or {}
    return found
