"""What a command imports: help and memory wait for no client of a cluster."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from shardwright.cli.app import COMMANDS, app

# The client of the cluster, the operator's framework, servers and downloads.
CLUSTER = {"kubernetes", "kopf", "aiohttp"}
FETCHING = {"awscrt", "huggingface_hub", "httpx2", "tenacity", "urllib3"}
OPERATOR = {"prometheus_client", "structlog", "shardwright.control", "shardwright.main"}
MODELS = {"pydantic", "yaml", "shardwright.api", "shardwright.sizing", "shardwright.plan"}
NOT_OURS = {"moto", "boto3", "botocore", "numpy"}
HEAVY = CLUSTER | FETCHING | OPERATOR | NOT_OURS

SCRIPT = """
import json, sys
from shardwright.cli.app import main
sys.argv = ["shardwright", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    code = end.code
print(json.dumps({"code": code or 0, "modules": sorted(sys.modules)}), file=sys.stderr)
"""


def imported(*arguments: str, folder: Path | None = None) -> set[str]:
    """Modules that a process has at its end which ran this command line."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "100"},
    )
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["code"] == 0, done.stdout + done.stderr
    return set(told["modules"])


@pytest.fixture
def question(tmp_path: Path) -> Path:
    body = {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "one"},
        "spec": {"model": {"uri": "hf://meta-llama/Llama-3.1-8B@main"}},
    }
    (tmp_path / "llmd.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    nodes = {"nodes": [{"product": "NVIDIA-H200", "count": 1}]}
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump(nodes), encoding="utf-8")
    return tmp_path


def test_help_imports_nothing_that_commands_need() -> None:
    assert imported("--help") & (HEAVY | MODELS) == set()


def test_memory_imports_the_memory_model_alone() -> None:
    options = ("--model", "llama-3.1-8b", "--gpu-product", "NVIDIA-H200")
    for last in (("--help",), ("-o", "json")):
        found = imported("memory", *options, *last)
        assert found & (HEAVY | {"shardwright.plan", "shardwright.apply"}) == set()
        assert "shardwright.sizing.memory" in found


@pytest.mark.parametrize("command", ["plan", "explain"])
def test_planning_from_files_imports_no_client_of_a_cluster(question: Path, command: str) -> None:
    found = imported(command, "llmd.yaml", "--nodes", "nodes.yaml", folder=question)
    assert found & HEAVY == set()
    assert "shardwright.apply.client" not in found


def test_a_described_object_is_diagnosed_without_one(tmp_path: Path) -> None:
    (tmp_path / "seen.yaml").write_text("symptoms: [LatencyFlatWithTensor]\nfacts: {tensor: 16}\n")
    assert imported("doctor", "--describe", "seen.yaml", folder=tmp_path) & HEAVY == set()


def test_the_operator_imports_what_it_needs() -> None:
    """The measure of the others: these names are what is really imported."""
    found = imported("run", "--help")
    assert found >= CLUSTER | {"prometheus_client", "structlog", "shardwright.control"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    entry = COMMANDS[name]
    told = inspect.getdoc(entry.load()) or ""
    assert " ".join(told.split("\n\n")[0].split()).startswith(entry.help)
    assert entry.help.endswith(".")


def test_every_command_is_listed_and_found() -> None:
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    for name, entry in COMMANDS.items():
        assert entry.help[:40] in listed.stdout
        own = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
        assert own.exit_code == 0
        assert f"shardwright {name}" in own.stdout or f" {name} " in own.stdout
        assert "Usage:" in own.stdout


def test_a_command_that_there_is_not_is_told_with_the_one_that_is_meant() -> None:
    result = CliRunner().invoke(app, ["memroy"])
    assert result.exit_code == 2
    assert "memory" in result.output
