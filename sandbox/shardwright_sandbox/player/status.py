"""What a kubelet would write into a pod's status."""

import hashlib
from datetime import UTC, datetime

from shardwright_sandbox.player.view import PodView
from shardwright_sandbox.rest import Json

_TRUE = ("PodReadyToStartContainers", "Initialized")


def now() -> str:
    """The time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, *, true: bool, reason: str = "") -> Json:
    condition = {
        "type": kind,
        "status": "True" if true else "False",
        "lastTransitionTime": now(),
    }
    return condition | ({"reason": reason} if reason else {})


def _readiness(*, ready: bool, reason: str = "ContainersNotReady") -> list[Json]:
    why = "" if ready else reason
    return [
        _condition("ContainersReady", true=ready, reason=why),
        _condition("Ready", true=ready, reason=why),
    ]


def _containers(pod: PodView, state: Json, *, ready: bool, started: bool) -> list[Json]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": ready,
            "started": started,
            "restartCount": 0,
            "state": state,
        }
        for container in pod.raw["spec"]["containers"]
    ]


def _addresses(pod: PodView) -> Json:
    """Addresses out of the uid: stable, and different enough for a test network."""
    digest = hashlib.sha256(pod.uid.encode()).digest()
    address = f"10.{200 + digest[0] % 40}.{digest[1]}.{1 + digest[2] % 254}"
    return {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1"}


def _began(container: Json) -> Json:
    """An init container once the others have started: a sidecar runs beside them."""
    sidecar = container.get("restartPolicy") == "Always"
    over = {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": True,
        "started": sidecar,
        "restartCount": 0,
        "state": {"running": {"startedAt": now()}} if sidecar else {"terminated": over},
    }


def running(pod: PodView, *, ready: bool) -> Json:
    """The containers have started."""
    state = {"running": {"startedAt": now()}}
    return {
        "phase": "Running",
        "startTime": now(),
        **_addresses(pod),
        "conditions": [_condition(kind, true=True) for kind in _TRUE] + _readiness(ready=ready),
        "containerStatuses": _containers(pod, state, ready=ready, started=True),
        "initContainerStatuses": [
            _began(container) for container in pod.raw["spec"].get("initContainers", [])
        ],
    }


def became_ready(pod: PodView) -> Json:
    """The readiness probe has succeeded."""
    statuses = [
        {**status, "ready": True} for status in pod.raw["status"].get("containerStatuses", [])
    ]
    return {"conditions": _readiness(ready=True), "containerStatuses": statuses}


def waiting(pod: PodView, reason: str) -> Json:
    """The containers cannot start."""
    state = {"waiting": {"reason": reason, "message": "made so by the sandbox"}}
    return {
        "conditions": [
            _condition("PodReadyToStartContainers", true=True),
            *_readiness(ready=False),
        ],
        "containerStatuses": _containers(pod, state, ready=False, started=False),
    }


def ended(pod: PodView, *, exit_code: int, message: str, reason: str = "") -> Json:
    """The containers have ended; the request's container leaves `message`."""
    good = exit_code == 0
    statuses = []
    old = {status["name"]: status for status in pod.raw["status"].get("containerStatuses", [])}
    for status in _containers(pod, {}, ready=False, started=False):
        began = old.get(status["name"], {}).get("state", {}).get("running", {}).get("startedAt")
        terminated = {
            "exitCode": exit_code,
            "reason": reason or ("Completed" if good else "Error"),
            "startedAt": began or now(),
            "finishedAt": now(),
        }
        if status["name"] == pod.main and message:
            terminated["message"] = message
        statuses.append({**status, "state": {"terminated": terminated}})
    why = "PodCompleted" if good else "PodFailed"
    return {
        "phase": "Succeeded" if good else "Failed",
        "conditions": _readiness(ready=False, reason=why),
        "containerStatuses": statuses,
    }
