"""The whole operator on real nodes: kubelets, containers, MPI. Only the engine is a stand-in."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.real.live import Live
from tests.real.site import CLAIM, HEAD, MODEL, RANKS, Site
from tests.standin.running import PROMPTS
from tests.support import fetch_image, rights, standin_model
from tests.support.kube import Kube
from tests.support.operator import Operator
from tests.support.real_recovery import RECOVERY, Timing, table
from tests.support.watcher import watching

from shardwright_sandbox import audit
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.pytest_plugin import Namespace, fresh_namespace

# What real containers need on a busy machine: where a test has a deadline met, its module says so.
TIMEOUTS = {
    "bindSeconds": 60,
    "startSeconds": 180,
    "readySeconds": 240,
    "nodeDeadSeconds": 60,
    "stepSeconds": 600,
}
SMALL = {"cpu": "2", "memory": "1Gi", "ephemeralStorage": "1Gi"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder; its texts may be as long as the examples say."""
    return standin_model.make_long_model(tmp_path_factory.mktemp("models") / MODEL)


@pytest.fixture(scope="session")
def reference(model: Path) -> dict[str, str]:
    """What the unsharded model says to each of the 20 prompts."""
    return standin_model.unsharded(model, PROMPTS)


@pytest.fixture(scope="session")
def fetcher(real_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image that fetches, on every real node; its name."""
    archive = fetch_image.write_fetch_image(tmp_path_factory.mktemp("image") / "fetch.tar")
    nodes = real_sandbox.real_nodes().values()
    with ThreadPoolExecutor(len(nodes)) as workers:
        list(workers.map(lambda node: node.load_image(archive), nodes))
    archive.unlink()
    return fetch_image.REFERENCE


@pytest.fixture(scope="module")
def timeouts() -> Mapping[str, float]:
    """Deadlines of a module's operator; a module may have its own."""
    return TIMEOUTS


@pytest.fixture(scope="module")
def running(
    real_sandbox: Sandbox,
    fetcher: str,
    timeouts: Mapping[str, float],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Operator]:
    """One operator for the tests of a module; it logs no error and asks for nothing forbidden."""
    assert real_sandbox.layout is not None
    begun = audit.position(real_sandbox.layout.audit_log)
    started = Operator(
        real_sandbox.kubeconfig_for("sandbox-operator"),
        tmp_path_factory.mktemp("operator"),
        operatorImage=fetcher,
        readLinks=True,
        stepResources=SMALL,
        fetchResources=SMALL,
        timeouts=timeouts,
        # Nobody waits for this one's Lease to expire, and a busy machine may be slow to renew it.
        lease={"durationSeconds": 30, "renewSeconds": 20, "retrySeconds": 1},
    )
    try:
        started.start().wait()
        yield started
        assert started.alive, started.log.read_text(encoding="utf-8")[-5000:]
        assert started.stop(90) == 0
        assert started.errors() == []
        asked = audit.entries(real_sandbox.layout.audit_log, offset=begun)
        assert rights.beyond(asked, "sandbox-operator") == set()
    finally:
        if started.alive:
            started.kill()


@pytest.fixture
def site(real_namespace: Namespace, model: Path, reference: dict[str, str]) -> Iterator[Site]:
    """A fresh namespace whose claim holds the model; its deployments are gone after the test."""
    yield from _site(real_namespace, model, reference)


@pytest.fixture(scope="module")
def shared_site(real_sandbox: Sandbox, model: Path, reference: dict[str, str]) -> Iterator[Site]:
    """The same for all tests of a module."""
    with fresh_namespace(real_sandbox) as namespace:
        yield from _site(namespace, model, reference)


@pytest.fixture(scope="module")
def live(running: Operator, shared_site: Site) -> Iterator[Live]:
    """The module's namespace, watched."""
    with watching(shared_site.sandbox.api, shared_site.kube.namespace) as watcher:
        yield Live(shared_site, watcher)


def _site(namespace: Namespace, model: Path, reference: dict[str, str]) -> Iterator[Site]:
    claim = namespace.claim(CLAIM)
    shutil.copytree(model, claim / MODEL)
    kube = Kube(namespace.sandbox.api, namespace.name)
    yield Site(kube, namespace.sandbox, claim, reference)
    kube.clear()
    # Nobody asks any more: they need no time to drain.
    kube.core.delete_collection_namespaced_pod(kube.namespace, grace_period_seconds=1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show where each rank of each shape ran, and how long each recovery took."""
    told: dict[str, list[Any]] = defaultdict(list)
    for name, value in (
        item
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for item in report.user_properties
    ):
        told[name].append(value)
    shown = {
        "ranks on real nodes": [HEAD, *told[RANKS]] if told[RANKS] else [],
        "recovery on real nodes": table([Timing(**one) for one in told[RECOVERY]]),
    }
    for title, lines in shown.items():
        if lines:
            terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)
