"""Which clusters tests and the demo may write to.

They create and delete nodes, pods and namespaces. One wrong KUBECONFIG must
not cost anybody a cluster, so writing needs a positive sign: the sandbox's own
mark inside the cluster together with the name of its context, or the name of
the context in `SHARDWRIGHT_ALLOWED_CONTEXTS`.
"""

import os
from pathlib import Path

from kubernetes import client
from kubernetes.config import ConfigException, list_kube_config_contexts
from urllib3.exceptions import HTTPError

from shardwright_sandbox.config import CONTEXT
from shardwright_sandbox.errors import RefusedCluster, SandboxError
from shardwright_sandbox.rest import CONFLICT, RestError, api_client, rest_of

ALLOWED = "SHARDWRIGHT_ALLOWED_CONTEXTS"
MARKER_NAMESPACE = "kube-system"
MARKER = "shardwright-sandbox"
_PATH = f"/api/v1/namespaces/{MARKER_NAMESPACE}/configmaps"


def allowed_contexts() -> frozenset[str]:
    """Context names that the environment allows."""
    return frozenset(
        name.strip() for name in os.environ.get(ALLOWED, "").split(",") if name.strip()
    )


def current_context(kubeconfig: Path) -> str:
    """Name of the kubeconfig's current context."""
    try:
        return _active_context(kubeconfig)
    except ConfigException as error:
        raise SandboxError(
            f"the kubeconfig {kubeconfig} cannot be read: {error}; correct or unset KUBECONFIG"
        ) from error


def _active_context(kubeconfig: Path) -> str:
    _, active = list_kube_config_contexts(  # type: ignore[no-untyped-call]
        config_file=str(kubeconfig)
    )
    return str(active["name"])


def mark(api: client.ApiClient, sandbox_id: str) -> None:
    """Leave the sandbox's mark in its own cluster."""
    body = {"metadata": {"name": MARKER}, "data": {"sandbox": sandbox_id}}
    try:
        rest_of(api).post(_PATH, body)
    except RestError as error:
        if error.status != CONFLICT:
            raise


def check(kubeconfig: Path) -> client.ApiClient:
    """A client of the cluster, if it may be written to.

    Raises:
        RefusedCluster: If it is neither a sandbox nor allowed by name.
    """
    context = current_context(kubeconfig)
    if context in allowed_contexts():
        return api_client(kubeconfig)
    remedy = (
        f"unset KUBECONFIG to use a sandbox, or set {ALLOWED}={context} if tests may create and "
        "delete nodes, pods and namespaces in that cluster"
    )
    if context != CONTEXT:
        raise RefusedCluster(
            f"the current context of {kubeconfig} is {context!r}, neither the sandbox's "
            f"({CONTEXT!r}) nor named in {ALLOWED} ({', '.join(allowed_contexts()) or 'empty'}); "
            + remedy
        )
    api = api_client(kubeconfig)
    try:
        rest_of(api).get(f"{_PATH}/{MARKER}")
    except RestError as error:
        raise RefusedCluster(
            f"the context {context!r} of {kubeconfig} has the sandbox's name, but the cluster has "
            f"no readable ConfigMap {MARKER_NAMESPACE}/{MARKER} (HTTP {error.status}): it is not a "
            "sandbox; " + remedy
        ) from error
    except HTTPError as error:
        raise RefusedCluster(
            f"the cluster of {kubeconfig} (context {context!r}) does not answer: {error}; start it "
            "with `make sandbox-up`, or unset KUBECONFIG"
        ) from error
    return api
