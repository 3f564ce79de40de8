"""Planning commands that read a cluster: a context of a kubeconfig, nodes, pods, a live object.

The API server is a small HTTP server that answers lists and objects as JSON, and nothing but reads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from kubernetes.aio.config import ConfigException
from typer.testing import CliRunner

from shardwright.apply.client import load_configuration
from shardwright.cli.app import app

H100 = "NVIDIA-H100-80GB-HBM3"
API = "shardwright.dev/v1alpha1"
SPEC = {
    "model": {"uri": "hf://meta-llama/Llama-3.1-8B@main"},
    "gpu": {"product": H100},
    "parallelism": {"tensor": 16},
    "storage": {"claimName": "models"},
}


def node(name: str) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti"}
    return {
        "metadata": {"name": name, "uid": name, "labels": {"nvidia.com/gpu.product": H100}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(home: str, gpus: int) -> dict[str, Any]:
    requests = {"requests": {"nvidia.com/gpu": str(gpus)}}
    return {
        "metadata": {"name": "other", "namespace": "default", "uid": "pod"},
        "spec": {"nodeName": home, "containers": [{"name": "main", "resources": requests}]},
        "status": {"phase": "Running"},
    }


OBJECTS: dict[str, Any] = {
    "/api/v1/nodes": {"kind": "NodeList", "metadata": {}, "items": [node("gpu-0"), node("gpu-1")]},
    "/api/v1/pods": {"kind": "PodList", "metadata": {}, "items": [pod("gpu-1", 6)]},
    f"/apis/{API}/namespaces/llm/llmdeployments/llama": {
        "apiVersion": API,
        "kind": "LLMDeployment",
        "metadata": {
            "name": "llama",
            "namespace": "llm",
            "uid": "u",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": SPEC,
        "status": {"observedGeneration": 1},
    },
}


class Handler(BaseHTTPRequestHandler):
    """Reads only."""

    asked: list[str]

    def do_GET(self) -> None:
        """Answer an object, or that there is none."""
        path = urlsplit(self.path).path
        self.asked.append(path)
        found = OBJECTS.get(path)
        missing = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}
        body = json.dumps(found or missing).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A server that the context `lab` of the kubeconfig leads to; the paths it was asked."""
    Handler.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        here = f"http://127.0.0.1:{server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "elsewhere",
            "clusters": [
                {"name": "lab", "cluster": {"server": here}},
                {"name": "elsewhere", "cluster": {"server": "http://127.0.0.1:1"}},
            ],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": "me"}}
                for name in ("lab", "elsewhere")
            ],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield Handler.asked
        server.shutdown()
        thread.join()


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    body = {
        "apiVersion": API,
        "kind": "LLMDeployment",
        "metadata": {"name": "llama"},
        "spec": {"model": SPEC["model"], "parallelism": {"tensor": 2}},
    }
    path = tmp_path / "llmd.yaml"
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return str(path)


def test_a_plan_reads_nodes_and_pods_of_the_context_it_is_given(
    asked: list[str], manifest: str
) -> None:
    result = CliRunner().invoke(app, ["plan", manifest, "--context", "lab"])
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "Nodes (context lab)" in text
    assert "10 of 16 GPUs free" in text
    assert "gpu-0" in text
    assert set(asked) == {"/api/v1/nodes", "/api/v1/pods"}


@pytest.mark.usefixtures("asked")
def test_a_cluster_that_does_not_answer_is_told_and_is_exit_code_two(manifest: str) -> None:
    result = CliRunner().invoke(app, ["plan", manifest, "--context", "elsewhere"])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert "list" in result.stderr.lower()


@pytest.mark.usefixtures("asked")
async def test_a_configuration_is_that_of_a_context_or_of_the_current_one() -> None:
    assert (await load_configuration()).host == "http://127.0.0.1:1"
    lab = await load_configuration(context="lab")
    assert lab.host != "http://127.0.0.1:1"
    assert lab.host.startswith("http://127.0.0.1:")
    # What every connection needs is there whichever way it was named.
    assert lab.connection_pool_maxsize == 64
    with pytest.raises(ConfigException):
        await load_configuration(context="moon")


def test_the_doctor_reads_the_object_and_the_nodes(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**config, "current-context": "lab"}), encoding="utf-8")
    result = CliRunner().invoke(app, ["doctor", "llama", "-n", "llm"])
    assert result.exit_code == 0, result.output
    assert "TensorBeyondNVLinkDomain" in result.stdout
    assert "tensor is 16, 8 GPUs share NVLink" in result.stdout
    assert "/api/v1/nodes" in asked
    missing = CliRunner().invoke(app, ["doctor", "none", "-n", "llm"])
    assert missing.exit_code == 2
    assert "none" in missing.stderr
