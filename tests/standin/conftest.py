"""The stand-in's package is no dependency of the operator: it is found by its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.standin import running

STANDIN = running.REPOSITORY / "sandbox" / "standin"
if str(STANDIN) not in sys.path:
    sys.path.insert(0, str(STANDIN))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system's part that the stand-in's installer writes, usable from where it is."""
    from shardwright_standin.install import install  # noqa: PLC0415 - after the path is set

    root = tmp_path_factory.mktemp("root")
    install(root, "1.2.1", prefix=str(root))
    return root


@pytest.fixture
def machine(installed: Path, tmp_path: Path) -> running.Machine:
    """A machine with four GPUs whose programs need no MPI."""
    python = running.interpreter(*running.MODULES)
    if not python:
        pytest.skip(f"no Python has all of {', '.join(running.MODULES)}")
    return running.Machine(installed, python, tmp_path)


@pytest.fixture
def mpi_machine(installed: Path, tmp_path: Path) -> running.Machine:
    """A machine with four GPUs, Open MPI and mpi4py."""
    if reason := running.why_no_mpi():
        pytest.skip(reason)
    return running.Machine(installed, running.interpreter(*running.MODULES, "mpi4py"), tmp_path)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    python = running.interpreter("numpy")
    if not python:
        pytest.skip("no Python has numpy")
    folder = tmp_path_factory.mktemp("models") / "tiny"
    subprocess.run(
        [python, "-m", "shardwright_standin.model.make", str(folder)],
        env={**os.environ, "PYTHONPATH": _path()},
        check=True,
    )
    return folder


@pytest.fixture(scope="session")
def reference(model: Path) -> dict[str, str]:
    """What the unsharded model says to each of the 20 prompts."""
    python = running.interpreter("numpy")
    code = (
        "import json, sys; from pathlib import Path\n"
        "from shardwright_standin.model import geometry, make, network, shards, tokenizer\n"
        "folder = Path(sys.argv[1]); shape = geometry.read(folder)\n"
        "place = shards.Place(0, 1, 1)\n"
        "whole = network.Shard.load(shape, place, shards.cut(make.read(folder), shape, place))\n"
        "print(json.dumps({p: tokenizer.decode(t for t in network.generate(\n"
        "    whole, tokenizer.encode_chat([{'role': 'user', 'content': p}]), 12)\n"
        "    if t != tokenizer.EOS) for p in json.loads(sys.argv[2])}))\n"
    )
    done = subprocess.run(
        [python, "-c", code, str(model), json.dumps(running.PROMPTS)],
        env={**os.environ, "PYTHONPATH": _path()},
        check=True,
        capture_output=True,
        text=True,
    )
    answers: dict[str, str] = json.loads(done.stdout)
    # Equal answers would not tell a rank's fault.
    assert len(set(answers.values())) == len(running.PROMPTS)
    return answers


def _path() -> str:
    return os.pathsep.join(part for part in (str(STANDIN), os.environ.get("PYTHONPATH")) if part)
