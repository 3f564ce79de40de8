"""Tests of the whole operator on the sandbox: real control plane, simulated nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import rights
from tests.support.kube import Kube
from tests.support.operator import Operator

from shardwright_sandbox import audit
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.pytest_plugin import FleetMaker, Namespace

# Nobody waits for this one to expire, and a busy machine may be slow to renew it.
PATIENT_LEASE = {"durationSeconds": 30, "renewSeconds": 20, "retrySeconds": 1}


@pytest.fixture(scope="module")
def running(
    sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Operator]:
    """One operator for the tests of a module, with the settings of its constant `OPERATOR` if any.

    At the end it must not have logged an error, nor asked for anything that its chart does not
    grant: the user it runs as here may do everything, so a missing right would not show.
    """
    begun = audit.position(sandbox.layout.audit_log)
    operator = Operator(
        sandbox.kubeconfig_for("sandbox-operator"),
        tmp_path_factory.mktemp("op"),
        **{"lease": PATIENT_LEASE, **getattr(request.module, "OPERATOR", {})},
    )
    try:
        operator.start().wait()
        yield operator
        assert operator.alive, operator.log.read_text(encoding="utf-8")[-5000:]
        assert operator.stop() == 0
        assert operator.errors() == []
        asked = audit.entries(sandbox.layout.audit_log, offset=begun)
        assert rights.beyond(asked, "sandbox-operator") == set()
    finally:
        if operator.alive:
            operator.kill()


@pytest.fixture
def make_operator(sandbox: Sandbox, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """Makes operators that a test starts and kills itself; whatever still runs is killed."""
    made: list[Operator] = []

    def make(**settings: Any) -> Operator:
        folder = tmp_path / f"operator-{len(made)}"
        folder.mkdir()
        operator = Operator(sandbox.kubeconfig_for("sandbox-operator"), folder, **settings)
        made.append(operator)
        return operator

    yield make
    for operator in made:
        if operator.alive:
            operator.kill()


@pytest.fixture
def kube(sandbox: Sandbox, namespace: Namespace, fleet: FleetMaker) -> Iterator[Kube]:
    """A fresh namespace with a shared claim named `models`.

    Its deployments go before the nodes do (hence `fleet`): pods that the operator still places
    while nodes vanish would be bound to nodes that nobody plays any more, and never end.
    """
    namespace.claim()
    found = Kube(sandbox.api, namespace.name)
    yield found
    found.clear()


@pytest.fixture
def h100s(fleet: FleetMaker) -> list[str]:
    """Four nodes of eight H100."""
    return fleet(
        [
            {
                "name": "h100",
                "count": 4,
                "gpu": {"product": "NVIDIA-H100-80GB-HBM3", "count": 8},
            }
        ]
    )
