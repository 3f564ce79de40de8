"""The stand-in's package is no dependency of the operator: it is found by its path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.standin import running
from tests.support import standin_model

if str(standin_model.STANDIN) not in sys.path:
    sys.path.insert(0, str(standin_model.STANDIN))


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
    return standin_model.make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def reference(model: Path) -> dict[str, str]:
    """What the unsharded model says to each of the 20 prompts."""
    return standin_model.unsharded(model, running.PROMPTS)
