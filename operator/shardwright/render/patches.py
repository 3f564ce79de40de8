"""Changes of objects that exist, as JSON patches that test the UID first.

A patch is one step: it happens whole, to the very object it was meant for, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwright.api import names
from shardwright.render.common import Owner

Operations = tuple[dict[str, Any], ...]


def pointer(*parts: str) -> str:
    """A JSON pointer to these keys (RFC 6901)."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def placement_patch(pod_uid: str, node: str, placement: str, gates: Sequence[str]) -> Operations:
    """Pin a gated pod to a node and lift our gate, in one step.

    Args:
        pod_uid: The pod as it was seen.
        node: The value of the node's `kubernetes.io/hostname` label.
        placement: The whole replica's placement, for a successor to finish or release.
        gates: Names of the pod's scheduling gates in their order.

    Raises:
        ValueError: When our gate is not among them: then a pin cannot be set any more.
    """
    if names.SCHEDULING_GATE not in gates:
        raise ValueError(
            f"pod {pod_uid} has no gate {names.SCHEDULING_GATE} among {list(gates)}: it was placed "
            "already"
        )
    at = str(list(gates).index(names.SCHEDULING_GATE))
    gate = pointer("spec", "schedulingGates", at)
    return (
        _same(pod_uid),
        {"op": "test", "path": f"{gate}/name", "value": names.SCHEDULING_GATE},
        {"op": "add", "path": pointer("spec", "nodeSelector", names.HOSTNAME_LABEL), "value": node},
        {
            "op": "add",
            "path": pointer("metadata", "annotations", names.ANNOTATION_PLACEMENT),
            "value": placement,
        },
        {"op": "remove", "path": gate},
    )


def serve_patch(pod_uid: str, *, leader: bool) -> Operations:
    """Let a pod into the disruption budget and, if it is the leader, into the Service."""
    added = [names.LABEL_PROTECTED, *([names.LABEL_SERVING] if leader else [])]
    return (
        _same(pod_uid),
        *(
            {"op": "add", "path": pointer("metadata", "labels", label), "value": "true"}
            for label in added
        ),
    )


def adapters_patch(pod_uid: str, digest: str) -> Operations:
    """Note on a leader which table of adapters it is told of, so that its kubelet looks at once."""
    path = pointer("metadata", "annotations", names.ANNOTATION_ADAPTERS)
    return (_same(pod_uid), {"op": "add", "path": path, "value": digest})


def unserve_patch(pod_uid: str) -> Operations:
    """Take a leader out of the Service before it is drained; fails where the label is not set."""
    path = pointer("metadata", "labels", names.LABEL_SERVING)
    return (_same(pod_uid), {"op": "remove", "path": path})


def resume_patch(job_uid: str, node: str) -> Operations:
    """Pin a suspended Job's pod to a node and let it start, in one step.

    A Job's node selector may change as long as it is suspended and never started.
    """
    path = pointer("spec", "template", "spec", "nodeSelector", names.HOSTNAME_LABEL)
    return (
        _same(job_uid),
        {"op": "test", "path": "/spec/suspend", "value": True},
        {"op": "add", "path": path, "value": node},
        {"op": "replace", "path": "/spec/suspend", "value": False},
    )


def adopt_patch(job_uid: str, owner: Owner) -> Operations:
    """Add an owner to a Job that another deployment created."""
    return (
        _same(job_uid),
        {
            "op": "add",
            "path": "/metadata/ownerReferences/-",
            "value": owner.reference(controller=False),
        },
    )


def disown_patch(job_uid: str, owners: Sequence[str], leaving: str) -> Operations:
    """Remove an owner from a Job that others still need.

    Args:
        job_uid: The Job as it was seen.
        owners: UIDs of its owners in their order.
        leaving: UID of the one that goes.

    Raises:
        ValueError: When it is not among them, or is the only one: then the Job is deleted instead.
    """
    if leaving not in owners or len(owners) == 1:
        raise ValueError(f"Job {job_uid} with owners {list(owners)}: {leaving} cannot leave others")
    path = pointer("metadata", "ownerReferences", str(list(owners).index(leaving)))
    return (
        _same(job_uid),
        {"op": "test", "path": f"{path}/uid", "value": leaving},
        {"op": "remove", "path": path},
    )


def _same(uid: str) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/uid", "value": uid}
