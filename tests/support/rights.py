"""The operator's rights as a table, and what it did as an audit log tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

CLUSTER = "cluster"
SERVED = "served"
OWN = "own"


class Right(NamedTuple):
    """One verb on one resource (`pods`, `llmdeployments/status`).

    `scope` is `cluster`, `served` (namespaces whose LLMDeployments are served) or `own` (the
    operator's namespace).
    """

    scope: str
    group: str
    resource: str
    verb: str


def _rights(scope: str, group: str, resources: str, verbs: str) -> list[Right]:
    return [
        Right(scope, group, resource, verb)
        for resource in resources.split()
        for verb in verbs.split()
    ]


# Everything the operator may do: a change here goes with one in the chart's _rbac.tpl.
VERBS: tuple[Right, ...] = (
    *_rights(CLUSTER, "", "nodes persistentvolumes pods", "list watch"),
    *_rights(CLUSTER, "resource.k8s.io", "resourceslices", "list watch"),
    *_rights(CLUSTER, "apiextensions.k8s.io", "customresourcedefinitions", "get"),
    *_rights(SERVED, "shardwright.dev", "llmdeployments", "list watch"),
    *_rights(SERVED, "shardwright.dev", "llmdeployments/status", "patch"),
    *_rights(SERVED, "", "pods", "get create patch delete"),
    *_rights(SERVED, "", "configmaps", "get list watch create patch delete"),
    *_rights(SERVED, "", "services", "get list watch create patch"),
    *_rights(SERVED, "", "persistentvolumeclaims", "list watch"),
    *_rights(SERVED, "", "secrets", "get create"),
    *_rights(SERVED, "batch", "jobs", "get list watch create patch delete"),
    *_rights(SERVED, "apps", "controllerrevisions", "get list watch create patch delete"),
    *_rights(SERVED, "policy", "poddisruptionbudgets", "get list watch create patch"),
    *_rights(SERVED, "events.k8s.io", "events", "create"),
    *_rights(OWN, "coordination.k8s.io", "leases", "create get update"),
)
# Only for objects of these names; a name that follows from the release is left out.
NAMED = {"customresourcedefinitions": "llmdeployments.shardwright.dev"}


def beyond(audit: Iterable[Mapping[str, Any]], user: str) -> set[tuple[str, str, str]]:
    """Requests of `user` in an audit log (`shardwright_sandbox.audit.entries`) without a right.

    Returns:
        Group, resource and verb of each kind of request. Scopes are not told apart: an audit log
        does not know which namespaces are served.
    """
    granted = {(right.group, right.resource, right.verb) for right in VERBS}
    found = set()
    for entry in audit:
        reference = entry.get("objectRef") or {}
        if entry["user"]["username"] != user or not reference.get("resource"):
            continue  # discovery and the server's version are open to everybody
        resource = reference["resource"]
        if reference.get("subresource"):
            resource += f"/{reference['subresource']}"
        found.add((reference.get("apiGroup", ""), resource, entry["verb"]))
    return found - granted
