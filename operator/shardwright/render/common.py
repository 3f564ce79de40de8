"""What serving pods and step pods have in common: owners, environment, security, volumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.api.names import API_VERSION, GPU_RESOURCE, KIND, LABEL_MANAGED_BY, MANAGED_BY
from shardwright.api.spec import CommonSpec, Toleration
from shardwright.runner.contract import (
    ADAPTERS_DIR,
    DRAFT_SOURCE,
    ENV_NODE_NAME,
    ENV_POD_NAME,
    ENV_POD_UID,
    ENV_REQUEST,
    RUNNER_DIR,
    RUNNER_FILE,
    SCRATCH,
    SOURCE,
    STORE,
    TOKEN_DIR,
)

Manifest = dict[str, Any]

CONTAINER = "engine"
RUNNER_COMMAND = ("python3", f"{RUNNER_DIR}/{RUNNER_FILE}")

# Vendor images are built to run as root; nothing the tools do needs it. Every pod that writes to
# the claim uses the same id, so that what one step makes the next one can read.
USER_ID = 1000

# Always there, so that the map a placement is added to exists in the stored object: the API server
# drops empty ones.
BASE_NODE_SELECTOR: Mapping[str, str] = {"kubernetes.io/os": "linux"}
BASE_ANNOTATIONS: Mapping[str, str] = {"kubectl.kubernetes.io/default-container": CONTAINER}

# An id without an entry in the image's passwd has no name and no home: tools that ask for either
# fail, and caches would go to a read-only place. All of it points at the scratch volume.
BASE_ENV: Mapping[str, str] = {
    "HOME": SCRATCH,
    "USER": "shardwright",
    "LOGNAME": "shardwright",
    "XDG_CACHE_HOME": f"{SCRATCH}/.cache",
    "HF_HOME": f"{SCRATCH}/.cache/huggingface",
    "TRITON_CACHE_DIR": f"{SCRATCH}/.cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{SCRATCH}/.cache/torchinductor",
    "CUDA_CACHE_PATH": f"{SCRATCH}/.cache/cuda",
}


@dataclass(frozen=True, slots=True)
class Owner:
    """An LLMDeployment as owner of other objects."""

    name: str
    uid: str

    def reference(self, *, controller: bool) -> Manifest:
        """An owner reference that never blocks the owner's deletion."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": self.name,
            "uid": self.uid,
            "controller": controller,
            "blockOwnerDeletion": False,
        }


def labels(*more: Mapping[str, str]) -> dict[str, str]:
    """Labels of an object of ours."""
    merged = {LABEL_MANAGED_BY: MANAGED_BY}
    for item in more:
        merged.update(item)
    return merged


def environment(request: str, *settings: Mapping[str, str]) -> list[Manifest]:
    """A container's environment: defaults, then `settings` in order, then the operator's own.

    One entry a name: the API server keeps duplicates, and programs disagree on which one counts.
    """
    merged = dict(BASE_ENV)
    for item in settings:
        merged.update(item)
    own = {
        ENV_POD_NAME: "metadata.name",
        ENV_POD_UID: "metadata.uid",
        ENV_NODE_NAME: "spec.nodeName",
    }
    return [
        *({"name": name, "value": value} for name, value in merged.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in own.items()
        ),
        {"name": ENV_REQUEST, "value": request},
    ]


def tolerations(asked: list[Toleration]) -> list[Manifest]:
    """The GPU nodes' usual taint, and what the user tolerates."""
    found: list[Manifest] = [{"key": GPU_RESOURCE, "operator": "Exists"}]
    for item in asked:
        written = item.model_dump(by_alias=True, mode="json", exclude_none=True)
        entry = {name: value for name, value in written.items() if value != ""}
        if entry not in found:
            found.append(entry)
    return found


def node_selector(spec: CommonSpec) -> dict[str, str]:
    """The user's node labels, and one that every node has."""
    return {**BASE_NODE_SELECTOR, **spec.placement.node_selector}


def pod_settings(spec: CommonSpec) -> Manifest:
    """Fields of a pod's spec that serving pods and step pods take from the user alike."""
    pod = spec.pod
    return {
        "restartPolicy": "Never",
        # Nothing in a pod talks to the API server.
        "automountServiceAccountToken": False,
        # A Service called "vllm" would set VLLM_PORT in every pod of its namespace.
        "enableServiceLinks": False,
        "nodeSelector": node_selector(spec),
        "tolerations": tolerations(spec.placement.tolerations),
        **({"serviceAccountName": pod.service_account_name} if pod.service_account_name else {}),
        **({"priorityClassName": pod.priority_class_name} if pod.priority_class_name else {}),
        **(
            {"imagePullSecrets": [{"name": item.name} for item in pod.image_pull_secrets]}
            if pod.image_pull_secrets
            else {}
        ),
    }


def pod_security(*, as_image_user: bool = False) -> Manifest:
    """A pod's security context at the restricted level.

    `as_image_user` leaves the image's own user, which for vendor images is root: added capabilities
    never reach another user's process.
    """
    who: Manifest = {"runAsNonRoot": True, "runAsUser": USER_ID, "runAsGroup": USER_ID}
    return {
        **({} if as_image_user else who),
        "fsGroup": USER_ID,
        # Walking through terabytes at each start would take longer than loading them.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(capabilities: list[str] | None = None) -> Manifest:
    """A container's security context: no privilege beyond what a fabric profile adds."""
    added = {"add": sorted(capabilities)} if capabilities else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}}


def volumes(
    spec: CommonSpec,
    *,
    shm: str,
    scratch: str,
    runner: str,
    source: str,
    draft: str = "",
    token: str = "",
    adapters: Manifest | None = None,
) -> list[Manifest]:
    """Volumes of a pod.

    `shm` and `scratch` are quantities, `runner` a ConfigMap, `token` a Secret, `source` and `draft`
    the claims that the model and the draft lie on, `adapters` the volume of the table of adapters;
    empty is none.
    """
    found: list[Manifest] = [
        {"name": "store", "persistentVolumeClaim": {"claimName": spec.storage.claim_name}},
        {"name": "scratch", "emptyDir": {"sizeLimit": scratch}},
    ]
    if shm:
        # Memory, counted in the container's limit; new with every pod.
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}})
    for name, claim in (("source", source), ("draft", draft if draft != source else "")):
        if claim and claim != spec.storage.claim_name:
            volume = {"claimName": claim, "readOnly": True}
            found.append({"name": name, "persistentVolumeClaim": volume})
    if runner:
        found.append({"name": "runner", "configMap": {"name": runner}})
    if token:
        # Readable by the pod's group, which its user is in, and by nobody else.
        secret = {"secretName": token, "defaultMode": 0o440}
        found.append({"name": "token", "secret": secret})
    if adapters:
        found.append(adapters)
    return found


def mounts(found: list[Manifest], *, store_read_only: bool) -> list[Manifest]:
    """Where a container sees these volumes."""
    paths = {
        "store": (STORE, store_read_only),
        "scratch": (SCRATCH, False),
        "shm": ("/dev/shm", False),  # noqa: S108 - a volume's mount point, not a temporary file
        "source": (SOURCE, True),
        "draft": (DRAFT_SOURCE, True),
        "runner": (RUNNER_DIR, True),
        "token": (TOKEN_DIR, True),
        "adapters": (ADAPTERS_DIR, True),
    }
    return [
        {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}
        for name, (path, read_only) in paths.items()
        if any(volume["name"] == name for volume in found)
    ]
