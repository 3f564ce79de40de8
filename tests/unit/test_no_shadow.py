"""`operator/` is a source root and must not hide the standard library's `operator` module."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "operator"


def _python(*arguments: str, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path:
        env["PYTHONPATH"] = path
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["operator/__init__.py", "operator/__init__.pyi", "operator.py"])
def test_no_file_makes_the_source_root_a_package(name: str) -> None:
    assert not (ROOT / name).exists(), f"{name} would shadow the standard library's operator module"


def test_operator_is_the_standard_librarys() -> None:
    standard = Path(sysconfig.get_paths()["stdlib"]).resolve()
    assert operator.__file__ is not None
    assert Path(operator.__file__).resolve() == standard / "operator.py"


@pytest.mark.parametrize("path", ["", str(ROOT), str(SOURCES)])
@pytest.mark.parametrize("folder", [ROOT, SOURCES], ids=["root", "sources"])
def test_python_starts_from_every_folder_that_could_shadow(folder: Path, path: str) -> None:
    script = "import collections, operator; print(operator.__file__)"
    done = _python("-S", "-c", script, folder=folder, path=path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).name == "operator.py"
    assert not Path(done.stdout.strip()).is_relative_to(ROOT / "operator")


def test_nothing_at_the_top_of_the_sources_has_a_standard_librarys_name() -> None:
    tops = {entry.name.removesuffix(".py") for entry in SOURCES.iterdir()}
    assert "shardwright" in tops
    assert not tops & sys.stdlib_module_names
