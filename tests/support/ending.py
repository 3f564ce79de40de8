"""What a deployment came to, without what no two runs have in common.

UIDs, incarnations, replica indexes and attempt numbers, names made of them, times, and nodes are
left out; all else of revisions, records, Services, the disruption budget, Jobs and pods stays.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.kube import Kube

from shardwright.runner.contract import ENV_REQUEST
from shardwright_sandbox.rest import Json

PREFIX = "shardwright.dev/"
HOSTNAME = "kubernetes.io/hostname"
_VOLATILE = frozenset(
    f"{PREFIX}{name}"
    for name in ("incarnation", "replica", "claim-uid", "revision", "attempt", "source-attempt")
)


def ending(kube: Kube, name: str) -> Json:
    """The end of one deployment that is alone in its namespace."""
    found = kube.get(name)
    uid = found["metadata"]["uid"]
    space = f"namespaces/{kube.namespace}"
    revisions = sorted(
        kube.raw(f"/apis/apps/v1/{space}/controllerrevisions")["items"],
        key=lambda item: int(item["revision"]),
    )
    plain = _Plain(
        name,
        kube.namespace,
        {item["metadata"]["name"]: f"revision-{item['revision']}" for item in revisions},
    )
    records = kube.raw(f"/api/v1/{space}/configmaps", labelSelector=f"{PREFIX}record")["items"]
    status = found["status"]
    return {
        "spec": found["spec"],
        "conditions": {
            item["type"]: (item["status"], item["reason"]) for item in status["conditions"]
        },
        "engine": plain.json(status["engine"]),
        "readyReplicas": status.get("readyReplicas", 0),
        "finalizers": found["metadata"].get("finalizers", []),
        "revisions": [_revision(item, plain) for item in revisions],
        "records": sorted(
            (
                {
                    field: text
                    for field, text in item["data"].items()
                    if field not in ("createdAt", "usedAt", "attempt")
                }
                for item in records
                # What was begun and given up again is a matter of the moment.
                if item["data"]["state"] != "Building"
            ),
            key=lambda data: (data["step"], data["key"]),
        ),
        "services": [
            plain.json(_service(item["spec"]))
            for item in sorted(
                kube.raw(f"/api/v1/{space}/services")["items"],
                key=lambda item: str(item["spec"].get("clusterIP") == "None"),
            )
        ],
        "budgets": [
            item["spec"]
            for item in kube.raw(f"/apis/policy/v1/{space}/poddisruptionbudgets")["items"]
        ],
        "jobs": sorted(
            {
                (
                    job["metadata"]["labels"][f"{PREFIX}step"],
                    job["metadata"]["labels"][f"{PREFIX}key"],
                    bool(job["status"].get("completionTime")),
                    [owner["uid"] == uid for owner in job["metadata"]["ownerReferences"]] == [True],
                )
                for job in kube.jobs()
            }
        ),
        "tokens": [one == [True] for one in token_owners(kube)],
        "pods": sorted(
            (_pod(pod, uid, plain) for pod in kube.pods(live=False)),
            key=lambda pod: json.dumps(pod, sort_keys=True),
        ),
    }


def token_owners(kube: Kube) -> list[list[bool]]:
    """For each token's Secret and each of its owners: is it a leader's pod that is there?"""
    secrets = kube.raw(
        f"/api/v1/namespaces/{kube.namespace}/secrets", labelSelector=f"{PREFIX}incarnation"
    )["items"]
    leaders = {
        pod["metadata"]["uid"]
        for pod in kube.pods(live=False)
        if pod["metadata"]["labels"][f"{PREFIX}stage"] == "0"
    }
    return [
        [owner["uid"] in leaders for owner in secret["metadata"]["ownerReferences"]]
        for secret in secrets
    ]


def _revision(item: Json, plain: _Plain) -> Any:
    data = {field: value for field, value in item["data"].items() if field != "claimUID"}
    return {"number": item["revision"], "data": plain.json(data)}


def _service(spec: Json) -> Json:
    kept = {name: value for name, value in spec.items() if name != "clusterIPs"}
    kept["clusterIP"] = "None" if spec.get("clusterIP") == "None" else "some"
    return kept


def _pod(pod: Json, uid: str, plain: _Plain) -> Any:
    meta, spec = pod["metadata"], json.loads(json.dumps(pod["spec"]))
    spec.pop("nodeName", None)
    spec.get("nodeSelector", {}).pop(HOSTNAME, None)
    for term in (spec.get("affinity") or {}).get("podAntiAffinity", {}).values():
        for rule in term:
            for label in _VOLATILE & set(rule["labelSelector"]["matchLabels"]):
                rule["labelSelector"]["matchLabels"][label] = "any"
    for container in spec["containers"]:
        for variable in container.get("env", []):
            if variable["name"] == ENV_REQUEST:
                request = json.loads(variable["value"])
                request["replica"] = request["incarnation"] = "any"
                variable["value"] = request
    labels = {name: text for name, text in meta["labels"].items() if name not in _VOLATILE}
    return plain.json(
        {
            "stage": meta["labels"][f"{PREFIX}stage"],
            "revision": meta["labels"][f"{PREFIX}revision"],
            "labels": labels,
            "phase": pod["status"]["phase"],
            "going": "deletionTimestamp" in meta,
            "owned": [owner["uid"] for owner in meta["ownerReferences"]] == [uid],
            "spec": spec,
        }
    )


class _Plain:
    """Takes names that no two runs share out of any JSON."""

    def __init__(self, name: str, namespace: str, revisions: dict[str, str]) -> None:
        self._namespace = namespace
        self._revisions = revisions
        self._pod = re.compile(rf"\b{re.escape(name)}-[0-9a-f]{{4}}-\d+-\d+-(\d+)\b")
        self._token = re.compile(rf"\b{re.escape(name)}-[0-9a-f]{{4}}-\d+-\d+-token\b")
        self._ranks = re.compile(rf"\b{re.escape(name)}-[0-9a-f]{{4}}-ranks\b")

    def json(self, value: Any) -> Any:
        """The value without them."""
        text = json.dumps(value, sort_keys=True)
        text = self._pod.sub(r"pod-of-stage-\1", text)
        text = self._token.sub("token", text)
        text = self._ranks.sub("ranks", text).replace(self._namespace, "namespace")
        for name, plain in self._revisions.items():
            text = text.replace(name, plain)
        return json.loads(text)
