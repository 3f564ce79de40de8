"""Namespaces for tests: usable when made, really gone when removed."""

import time
from collections.abc import Callable

from kubernetes import client

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.rest import NOT_FOUND, Rest, RestError, rest_of


def make_namespace(
    api: client.ApiClient,
    name: str,
    *,
    labels: dict[str, str] | None = None,
    wait_seconds: float = 60.0,
) -> None:
    """Make a namespace and wait for its default ServiceAccount, without which no pod is let in."""
    rest = rest_of(api)
    rest.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
    _until(
        lambda: _exists(rest, f"/api/v1/namespaces/{name}/serviceaccounts/default"),
        f"namespace {name} got no default ServiceAccount; does kube-controller-manager run?",
        wait_seconds,
    )


def ensure_namespace(api: client.ApiClient, name: str) -> None:
    """Make a namespace if it is not there."""
    if not _exists(rest_of(api), f"/api/v1/namespaces/{name}"):
        make_namespace(api, name)


def remove_namespace(api: client.ApiClient, name: str, *, wait_seconds: float = 120.0) -> None:
    """Remove a namespace and wait until its pods are gone, so that nothing of it holds a GPU.

    The namespace itself goes some seconds later; nobody waits for it, its name is not used again.
    """
    rest = rest_of(api)
    rest.delete(f"/api/v1/namespaces/{name}")
    _until(
        lambda: not rest.get(f"/api/v1/namespaces/{name}/pods")["items"],
        f"namespace {name} still has pods: do their nodes live, do they carry finalizers?",
        wait_seconds,
    )


def _exists(rest: Rest, path: str) -> bool:
    try:
        rest.get(path)
    except RestError as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return True


def _until(done: Callable[[], bool], problem: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise SandboxError(f"after {seconds} s: {problem}")
        time.sleep(0.05)
