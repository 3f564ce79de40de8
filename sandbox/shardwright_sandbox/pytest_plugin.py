"""Fixtures for tests on a real API server.

One control plane serves the whole test session (starting one takes seconds);
tests keep apart by namespaces, and take the nodes they made away again.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.config import SandboxConfig
from shardwright_sandbox.crds import apply_crds
from shardwright_sandbox.fleet import Fleet, parse_fleet, real_pool
from shardwright_sandbox.namespaces import make_namespace, remove_namespace
from shardwright_sandbox.nodes import make_nodes, remove_nodes
from shardwright_sandbox.player.control import PlayerControl
from shardwright_sandbox.real.host import missing_here
from shardwright_sandbox.storage import RWX, make_claim, remove_claims


@pytest.fixture(scope="session")
def sandbox_config() -> SandboxConfig:
    """Settings of the session's sandbox; a conftest.py may override this fixture.

    No test waits for a silent node to be noticed, and a machine that is busy with something else
    may be slow to renew a lease: the grace period is long.
    """
    return SandboxConfig(audit=True, die_with_parent=True, node_grace_seconds=40)


@pytest.fixture(scope="session")
def sandbox(
    tmp_path_factory: pytest.TempPathFactory, sandbox_config: SandboxConfig
) -> Iterator[Sandbox]:
    """A running control plane with the CRDs; `KUBECONFIG`, when set and allowed, instead.

    `SHARDWRIGHT_KEEP_LOGS=1` leaves its logs for a look at a failure.
    """
    running = Sandbox.start(tmp_path_factory.mktemp("sandbox"), sandbox_config)
    try:
        apply_crds(running.api)
        yield running
        running.check()
    finally:
        running.stop(keep_logs=bool(os.environ.get("SHARDWRIGHT_KEEP_LOGS")))


REAL_NODES = "SHARDWRIGHT_REAL_NODES"
"""Set to `required`, tests of real nodes fail where they would be skipped."""


@pytest.fixture(scope="session")
def real_sandbox_config() -> SandboxConfig:
    """Settings of the session's sandbox with real nodes; a conftest.py may override them."""
    return SandboxConfig(audit=True, die_with_parent=True, real=(real_pool(3),))


@pytest.fixture(scope="session")
def real_sandbox(
    tmp_path_factory: pytest.TempPathFactory, real_sandbox_config: SandboxConfig
) -> Iterator[Sandbox]:
    """A control plane of its own with three real nodes, `real-0` to `real-2`, and the CRDs.

    A replica over two of them that loses one goes on with the third.

    Skipped, with the reason, where real nodes cannot run.
    """
    if reason := missing_here():
        if os.environ.get(REAL_NODES) == "required":
            pytest.fail(f"{REAL_NODES}=required, but {reason}")
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch:
        # somebody's cluster may be given for the other tests; real nodes are always our own
        patch.delenv("KUBECONFIG", raising=False)
        running = Sandbox.start(tmp_path_factory.mktemp("real"), real_sandbox_config)
    try:
        apply_crds(running.api)
        yield running
        running.check()
    finally:
        running.stop(keep_logs=bool(os.environ.get("SHARDWRIGHT_KEEP_LOGS")))


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test, with helpers that know it."""

    name: str
    sandbox: Sandbox

    def claim(
        self,
        name: str = "models",
        *,
        mode: str = RWX,
        zone: str | None = None,
        limit_bytes: int | None = None,
    ) -> Path:
        """A bound claim; its folder."""
        return make_claim(
            self.sandbox.api,
            self.sandbox.claims,
            self.name,
            name,
            mode=mode,
            zone=zone,
            limit_bytes=limit_bytes,
        )

    def __str__(self) -> str:
        return self.name


@contextmanager
def fresh_namespace(sandbox: Sandbox) -> Iterator[Namespace]:
    """A new namespace, gone with its pods and volumes afterwards; for fixtures of any scope."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    make_namespace(sandbox.api, name)
    try:
        yield Namespace(name, sandbox)
    finally:
        # first the pods, then what they have mounted
        remove_namespace(sandbox.api, name)
        if sandbox.layout is not None:
            remove_claims(sandbox.api, sandbox.claims, name)


@pytest.fixture
def namespace(sandbox: Sandbox) -> Iterator[Namespace]:
    """A fresh namespace, gone with its volumes after the test."""
    with fresh_namespace(sandbox) as made:
        yield made


@pytest.fixture
def real_namespace(real_sandbox: Sandbox) -> Iterator[Namespace]:
    """A fresh namespace in the sandbox with real nodes, gone with its volumes after the test."""
    with fresh_namespace(real_sandbox) as made:
        yield made


class FleetMaker:
    """Makes nodes and takes them away after the test."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._names: list[str] = []

    def __call__(self, fleet: Fleet | list[dict[str, Any]], **options: Any) -> list[str]:
        """Make the nodes of a fleet, or of a list of pools as a fleet file has them."""
        if not isinstance(fleet, Fleet):
            fleet = parse_fleet({"pools": fleet}, "the test's fleet")
        self._names += fleet.node_names()
        return make_nodes(self._api, fleet, **options)

    def remove(self) -> None:
        """Remove every node made, and the pods on them."""
        remove_nodes(self._api, self._names)
        self._names = []


@pytest.fixture
def fleet(sandbox: Sandbox) -> Iterator[FleetMaker]:
    """Makes nodes for one test: `fleet([{"name": "h100", "count": 2, "gpu": {...}}])`."""
    maker = FleetMaker(sandbox.api)
    yield maker
    maker.remove()


@pytest.fixture
def player(sandbox: Sandbox) -> Iterator[PlayerControl]:
    """Gives the player orders; all are taken back after the test."""
    control = PlayerControl(sandbox.api)
    control.reset()
    yield control
    control.reset()
