"""Brings the parts of a control plane up, in the order in which they need one another."""

import socket
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kubernetes import client
from urllib3.exceptions import HTTPError

from shardwright_sandbox import components, credentials, guard, stages, storage
from shardwright_sandbox.binaries import Binaries
from shardwright_sandbox.config import Layout, SandboxConfig
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.rest import NOT_FOUND, Rest, RestError, api_client, rest_of

_POLL = 0.03


def launch(
    layout: Layout,
    config: SandboxConfig,
    binaries: Binaries,
    processes: Processes,
    progress: Progress,
    host: str = components.LOOPBACK,
) -> client.ApiClient:
    """Start every part of the control plane and wait until it is usable.

    The API server listens on `host` alone.

    Raises:
        SandboxError: If a part ends or is not ready in time, with the end of its log.
    """
    began = time.monotonic()
    processes.fingerprint = config.fingerprint()
    processes.save()
    credentials.write_signing_key(layout.service_account_key)
    credentials.write_tokens(layout.tokens, config.all_users)
    etcd_port, peer_port = _free_ports(2, components.LOOPBACK)
    (port,) = _free_ports(1, host)

    def run(name: str, command: list[str]) -> None:
        log = layout.logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(components.join(command) + "\n")
        processes.start(name, command, log, die_with_parent=config.die_with_parent)

    run("etcd", components.etcd(binaries, layout, etcd_port, peer_port))
    run("kube-apiserver", components.apiserver(binaries, layout, config, host, port, etcd_port))
    authority = layout.certs / "apiserver.crt"

    def wait(what: str, done: Callable[[], bool]) -> None:
        _wait(what, done, processes, began + config.ready_timeout_seconds)

    wait("the API server's certificate", lambda: authority.exists() and _listens(host, port))
    server = f"https://{host}:{port}"

    def kubeconfig(path: Path, user: str) -> Path:
        token = credentials.read_token(layout.tokens, user)
        assert token is not None  # noqa: S101 - written above
        return credentials.write_kubeconfig(path, server, authority, token)

    kubeconfig(layout.kubeconfig, "sandbox-admin")
    for user in config.all_users:
        kubeconfig(user_kubeconfig(layout, user), user)
    api = api_client(layout.kubeconfig)
    rest = rest_of(api)
    wait("the API server", lambda: _ready(rest))
    run(
        "kube-controller-manager",
        components.controller_manager(
            binaries, layout, config, user_kubeconfig(layout, "system:kube-controller-manager")
        ),
    )
    run(
        "kube-scheduler",
        components.scheduler(binaries, config, user_kubeconfig(layout, "system:kube-scheduler")),
    )
    run(
        "kwok",
        components.kwok(
            binaries,
            config,
            user_kubeconfig(layout, "sandbox-kwok"),
            stages.write_stages(layout.config / "stages.yaml", config),
            f"{stages.KUBELET_LABEL}={stages.KUBELET_RUNNING}",
        ),
    )
    guard.mark(api, str(uuid.uuid4()))
    storage.ensure_class(api)
    # the first sign that the controllers work; pods cannot be made before it
    wait("the controllers", lambda: _has_default_account(rest))
    progress.say(f"control plane ready in {time.monotonic() - began:.1f} s at {server}")
    return api


def user_kubeconfig(layout: Layout, user: str) -> Path:
    """Where the kubeconfig of a token user is."""
    return layout.config / f"{user.replace(':', '-')}.kubeconfig"


def _free_ports(count: int, host: str) -> list[int]:
    """Ports nobody listens on. All are held before any is let go, so they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def _wait(what: str, done: Callable[[], bool], processes: Processes, deadline: float) -> None:
    while not done():
        processes.check()
        if time.monotonic() > deadline:
            last = processes.entries[-1]
            raise SandboxError(
                f"{what} did not become ready in time; the end of {last.log}:\n{last.log_tail()}"
            )
        time.sleep(_POLL)


def _ready(rest: Rest) -> bool:
    """Whether the API server says so; that includes its own roles, made after its start."""
    try:
        rest.text("/readyz")
    except (RestError, HTTPError, OSError):
        return False
    return True


def _has_default_account(rest: Rest) -> bool:
    try:
        rest.get("/api/v1/namespaces/default/serviceaccounts/default")
    except RestError as error:
        if error.status == NOT_FOUND:
            return False
        raise
    return True
