"""Jobs that move artifacts to the trash, back, or delete them; and what is written on records.

A sweep takes no GPU and runs wherever the claim can be mounted, in the operator's own image as a
fetch does. It is not placed by the operator: the scheduler finds it a node.
"""

from __future__ import annotations

from typing import Any

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.api.spec import CommonSpec
from shardwright.observe.world import ClaimView, Record
from shardwright.plan.collection import Mark, Note, Revive
from shardwright.render import common
from shardwright.render.common import Manifest
from shardwright.render.names import bounded, uid_hash
from shardwright.render.records import moment
from shardwright.runner.contract import (
    STORE,
    SWEEP,
    SWEEP_PURGE,
    SweepRequest,
    encode,
    trash_folder,
)

SWEEP_COMMAND = ("python3", "-m", "shardwright.runner", "sweep")
# A rename takes no time, whatever the folder's size; deleting terabytes file by file does.
_RENAME_SECONDS = 600
_RESOURCES = {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "64Mi"}
_SCRATCH = "16Mi"

Operations = list[dict[str, Any]]


def sweep_name(action: str, record: Record) -> str:
    """Name of a sweep's Job: key, claim and stamp say which one it is."""
    claim = uid_hash(record.claim_uid, 8)
    return bounded(f"sw-{action.lower()}", f"{record.key}-{claim}-{record.trash}")


def sweep_job(
    record: Record,
    action: str,
    claim: ClaimView,
    settings: Settings,
    spec: CommonSpec | None,
) -> Manifest:
    """The Job of one sweep.

    Args:
        record: Owns it, so that it goes with the record; its stamp is part of the name.
        action: One of the contract's.
        claim: Where the artifact lives.
        settings: Image and deadlines.
        spec: Of a deployment on the claim, for the nodes and pull secrets it needs; None when there
            is none any more.
    """
    request = SweepRequest(action=action, step=record.step, key=record.key, stamp=record.trash)
    marks = common.labels(
        {
            names.LABEL_STEP: action,
            names.LABEL_ROLE: SWEEP,
            names.LABEL_KEY: record.key,
            # read back as the Job's attempt
            names.LABEL_ATTEMPT: record.trash,
            names.LABEL_CLAIM_UID: record.claim_uid,
        }
    )
    volumes: list[Manifest] = [
        {"name": "store", "persistentVolumeClaim": {"claimName": claim.name}},
        {"name": "scratch", "emptyDir": {"sizeLimit": _SCRATCH}},
    ]
    timeouts = settings.timeouts
    seconds = timeouts.step_seconds if action == SWEEP_PURGE else _RENAME_SECONDS
    container: Manifest = {
        "name": common.CONTAINER,
        "image": settings.operator_image,
        "command": list(SWEEP_COMMAND),
        "env": common.environment(encode(request), {"NVIDIA_VISIBLE_DEVICES": "none"}),
        "resources": {"requests": dict(_RESOURCES), "limits": dict(_RESOURCES)},
        "volumeMounts": common.mounts(volumes, store_read_only=False),
        "terminationMessagePolicy": "File",
        "securityContext": common.container_security(),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": sweep_name(action, record),
            "namespace": claim.namespace,
            "labels": dict(marks),
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": record.name,
                    "uid": record.uid,
                    "controller": False,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "backoffLimit": 0,
            "parallelism": 1,
            "completions": 1,
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": int(seconds + timeouts.start_seconds),
            "template": {
                "metadata": {"labels": marks, "annotations": dict(common.BASE_ANNOTATIONS)},
                "spec": {
                    **_pod_settings(spec),
                    "securityContext": common.pod_security(),
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def _pod_settings(spec: CommonSpec | None) -> Manifest:
    if spec is not None:
        found = common.pod_settings(spec)
        # a sweep pushes nobody aside
        found.pop("priorityClassName", None)
        return found
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": dict(common.BASE_NODE_SELECTOR),
        "tolerations": common.tolerations([]),
    }


def record_patch(act: Note | Mark | Revive) -> Operations:
    """What an act changes on its record: only if nobody changed it since it was read."""
    record = act.record
    same = {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": str(record.resource_version),
    }
    match act:
        case Note(_, unused):
            if unused:
                return [same, _put("unusedSince", moment(unused))]
            return [same, _drop("unusedSince")]
        case Mark(_, reason, stamp):
            place = f"{STORE}/{trash_folder(record.step, record.key, stamp)}"
            return [
                same,
                _put("state", "Trashed"),
                _put("reason", reason),
                _put("message", f"nothing names it since {moment(record.unused)}; {place}"),
                _put("trashStamp", stamp),
            ]
        case Revive():
            there = {
                "reason": record.reason,
                "message": record.message,
                "trashStamp": record.trash,
                "unusedSince": record.unused,
            }
            dropped = [_drop(name) for name, value in there.items() if value]
            return [same, _put("state", "Ready"), *dropped]


def _put(name: str, value: str) -> dict[str, Any]:
    return {"op": "add", "path": f"/data/{name}", "value": value}


def _drop(name: str) -> dict[str, Any]:
    return {"op": "remove", "path": f"/data/{name}"}
