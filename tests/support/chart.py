"""Renders the chart with the real Helm and reads what comes out."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from shardwright_sandbox import clients
from shardwright_sandbox.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "shardwright"
NAMESPACE = "shardwright-system"


@functools.cache
def helm_program() -> Path:
    """Helm of the fourth line."""
    return clients.helm(Progress(quiet=True))


@functools.cache
def kubectl_program() -> Path:
    """A kubectl near the control plane's version."""
    return clients.kubectl(Progress(quiet=True))


def run(*command: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program; the caller judges its result."""
    return subprocess.run(
        [str(word) for word in command],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


def template(
    values: dict[str, Any] | None = None, release: str = "shardwright", namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    """`helm template` with `values`."""
    return run(
        helm_program(),
        "template",
        release,
        CHART,
        f"--namespace={namespace}",
        "--kube-version=1.37.2",
        "--values=-",
        stdin=yaml.safe_dump(values or {}),
    )


def objects(
    values: dict[str, Any] | None = None, release: str = "shardwright", namespace: str = NAMESPACE
) -> list[dict[str, Any]]:
    """The objects that the chart renders."""
    rendered = _rendered(yaml.safe_dump(values or {}), release, namespace)
    return [document for document in yaml.safe_load_all(rendered) if document]


@functools.cache
def _rendered(values: str, release: str, namespace: str) -> str:
    done = template(yaml.safe_load(values), release, namespace)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_kind(rendered: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those of one kind."""
    return [item for item in rendered if item["kind"] == kind]


def the(rendered: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only one of its kind."""
    (found,) = of_kind(rendered, kind)
    return found


def settings(rendered: list[dict[str, Any]]) -> dict[str, Any]:
    """The operator's configuration file."""
    loaded = yaml.safe_load(
        next(
            one["data"]["config.yaml"]
            for one in of_kind(rendered, "ConfigMap")
            if "config.yaml" in one["data"]
        )
    )
    assert isinstance(loaded, dict)
    return loaded
