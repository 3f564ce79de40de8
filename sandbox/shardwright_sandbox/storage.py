"""Claims that are folders on this machine.

A volume here is a PersistentVolume with a host path, bound beforehand to its
claim. On simulated nodes nothing mounts it; the player finds the folder by the
claim's namespace and name and works in it as a container would. Real nodes are
on the same machine, so the same folder is what their pods share.
"""

import shutil
import time
from pathlib import Path

from kubernetes import client

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.real import volumes
from shardwright_sandbox.rest import CONFLICT, NOT_FOUND, Json, Rest, RestError, rest_of

STORAGE_CLASS = "sandbox-rwx"
RWX = "ReadWriteMany"
RWO = "ReadWriteOnce"
ZONE_LABEL = "topology.kubernetes.io/zone"

_VOLUMES = "/api/v1/persistentvolumes"


def ensure_class(api: client.ApiClient) -> None:
    """Make the StorageClass; it provisions nothing, volumes are made by `make_claim`."""
    body = {
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "Immediate",
        "reclaimPolicy": "Retain",
    }
    try:
        rest_of(api).post("/apis/storage.k8s.io/v1/storageclasses", body)
    except RestError as error:
        if error.status != CONFLICT:
            raise


def claim_folder(claims: Path, namespace: str, name: str) -> Path:
    """The folder of a claim: where the player and tests find its files."""
    return claims / namespace / name


def make_claim(
    api: client.ApiClient,
    claims: Path,
    namespace: str,
    name: str,
    *,
    mode: str = RWX,
    size: str = "4Ti",
    zone: str | None = None,
    limit_bytes: int | None = None,
    keep_files: bool = False,
    wait_seconds: float = 60.0,
) -> Path:
    """Make a bound claim with an empty folder and return the folder.

    Args:
        api: the cluster.
        claims: the sandbox's folder of claims (`Sandbox.claims`).
        namespace: of the claim.
        name: of the claim.
        mode: `ReadWriteMany`, or `ReadWriteOnce` for storage that cannot be shared.
        size: capacity of volume and claim.
        zone: ties the volume to nodes of this zone, as cloud disks are.
        limit_bytes: makes the folder a file system of that size (needs root), so that it can be
            full; `shardwright_sandbox.real.volumes` fills and frees it.
        keep_files: leave what an earlier claim of the same name left in the folder.
        wait_seconds: how long the binding may take.
    """
    folder = claim_folder(claims, namespace, name)
    if folder.exists() and not keep_files:
        _remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # containers run under users that this machine does not know
    folder.chmod(0o777)
    if limit_bytes is not None and not folder.is_mount():
        volumes.limit(folder, limit_bytes)
    rest = rest_of(api)
    affinity: Json | None = None
    if zone is not None:
        term = {"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}
        affinity = {"required": {"nodeSelectorTerms": [term]}}
    volume = f"{namespace}-{name}"
    _drop_released(rest, volume)
    rest.post(
        _VOLUMES,
        {
            "metadata": {"name": volume},
            "spec": {
                "storageClassName": STORAGE_CLASS,
                "capacity": {"storage": size},
                "accessModes": [mode],
                "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": name},
                "hostPath": {"path": str(folder), "type": "Directory"},
                **({"nodeAffinity": affinity} if affinity else {}),
            },
        },
    )
    rest.post(
        _claims(namespace),
        {
            "metadata": {"name": name},
            "spec": {
                "storageClassName": STORAGE_CLASS,
                "accessModes": [mode],
                "resources": {"requests": {"storage": size}},
                "volumeName": volume,
            },
        },
    )
    _wait_bound(rest, namespace, name, wait_seconds)
    return folder


def remove_claims(api: client.ApiClient, claims: Path, namespace: str) -> None:
    """Remove a namespace's claims, their volumes and their folders."""
    rest = rest_of(api)
    rest.delete(_claims(namespace))
    for volume in rest.get(_VOLUMES)["items"]:
        if volume["spec"].get("claimRef", {}).get("namespace") == namespace:
            rest.delete(f"{_VOLUMES}/{volume['metadata']['name']}")
    if (claims / namespace).exists():
        _remove(claims / namespace)


def _remove(folder: Path) -> None:
    """Remove a folder of claims, whatever is mounted in it."""
    volumes.unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _claims(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"


def _volume(rest: Rest, name: str) -> Json | None:
    try:
        return rest.get(f"{_VOLUMES}/{name}")
    except RestError as error:
        if error.status == NOT_FOUND:
            return None
        raise


def _drop_released(rest: Rest, volume: str) -> None:
    """Remove the volume of an earlier claim of this name: a released one never binds again."""
    found = _volume(rest, volume)
    if found is None:
        return
    if found["status"].get("phase") == "Bound":
        raise SandboxError(
            f"the volume {volume} is still bound to a claim; delete that claim before making anew"
        )
    rest.delete(f"{_VOLUMES}/{volume}")
    deadline = time.monotonic() + 10
    while _volume(rest, volume) is not None:
        if time.monotonic() > deadline:
            raise SandboxError(f"the released volume {volume} was not removed within 10 s")
        time.sleep(0.05)


def _wait_bound(rest: Rest, namespace: str, name: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        phase = rest.get(f"{_claims(namespace)}/{name}").get("status", {}).get("phase")
        if phase == "Bound":
            return
        if time.monotonic() > deadline:
            raise SandboxError(
                f"claim {namespace}/{name} is {phase}, not Bound, after {seconds} s; "
                "does kube-controller-manager run?"
            )
        time.sleep(0.05)
