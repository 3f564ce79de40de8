"""Applies the project's CRDs and waits until the API server serves them."""

import time
from pathlib import Path

import yaml
from kubernetes import client

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.rest import Rest, rest_of

CRDS = Path(__file__).resolve().parents[2] / "crds"
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_APPLY = "application/apply-patch+yaml"


def apply_crds(
    api: client.ApiClient, folder: Path = CRDS, *, wait_seconds: float = 60.0
) -> list[str]:
    """Apply every CRD of a folder, server-side; the names, none if the folder has no CRDs."""
    rest = rest_of(api)
    names: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if not document or document.get("kind") != "CustomResourceDefinition":
                continue
            name = document["metadata"]["name"]
            query = "fieldManager=shardwright-sandbox&force=true"
            rest.patch(f"{_PATH}/{name}?{query}", document, _APPLY)
            names.append(name)
    deadline = time.monotonic() + wait_seconds
    for name in names:
        while not _established(rest, name):
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"the CRD {name} is not Established after {wait_seconds} s; look at its "
                    "conditions with `kubectl describe crd`"
                )
            time.sleep(0.05)
    return names


def _established(rest: Rest, name: str) -> bool:
    conditions = rest.get(f"{_PATH}/{name}").get("status", {}).get("conditions", [])
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions or ())
