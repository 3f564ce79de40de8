"""The packed runner: one small file that any Python from 3.9 on runs, and that imports no other."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.steps import Volumes

import shardwright
from shardwright.render import runner as packing
from shardwright.render.runner import (
    LIMIT_BYTES,
    OLDEST_PYTHON,
    runner_archive,
    runner_config_map,
    runner_config_map_name,
)
from shardwright.runner.__main__ import USAGE, main
from shardwright.runner.contract import (
    ENV_POD_UID,
    ENV_REQUEST,
    REASON_MANIFEST_MISSING,
    REASON_TOOL_FAILED,
    Report,
    StepRequest,
    SweepRequest,
    decode,
    encode,
)
from shardwright.runner.steps import main as steps
from shardwright.runner.steps.stop import Stop

ROOT = Path(shardwright.__file__).parent
MODULES = sorted((ROOT / "runner").rglob("*.py"))
OURS = "shardwright.runner"


def imports(path: Path) -> set[str]:
    """Full names of the modules that a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_runner_is_written_for_the_oldest_python(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=OLDEST_PYTHON)
    names = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        for alias in node.names
    }
    # Without it an annotation such as `int | None` fails when the module is loaded.
    assert "annotations" in names or not any(
        isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign) for node in ast.walk(tree)
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("dataclass"):
            assert not {word.arg for word in node.keywords} & {"slots", "kw_only", "match_args"}
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            assert "strict" not in {word.arg for word in node.keywords}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_runner_imports_the_standard_library_and_the_runner(path: Path) -> None:
    # Modules that came to the standard library after the oldest Python.
    newer = {"tomllib"}
    for name in imports(path):
        top = name.split(".")[0]
        standard = top in sys.stdlib_module_names and top not in newer
        assert standard or name == OURS or name.startswith(f"{OURS}."), f"{path.name}: {name}"


def test_the_archive_holds_the_runner_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(runner_archive())) as archive:
        found = set(archive.namelist())
    wanted = {f"shardwright/{path.relative_to(ROOT).as_posix()}" for path in MODULES}
    assert found == wanted | {"__main__.py", "shardwright/__init__.py"}


def test_the_archive_is_packed_once_and_its_name_is_its_content() -> None:
    assert runner_archive() is runner_archive()
    assert runner_config_map("a")["metadata"]["name"] == runner_config_map_name()
    assert runner_config_map("a")["binaryData"] == runner_config_map("b")["binaryData"]


def test_a_runner_that_outgrows_a_config_map_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(runner_archive()) <= LIMIT_BYTES
    monkeypatch.setattr(packing, "LIMIT_BYTES", 1000)
    with pytest.raises(ValueError, match="a ConfigMap takes 1000"):
        runner_archive.__wrapped__()


@cache
def pythons() -> list[str]:
    """Interpreters of this machine that a vendor's image may have."""
    found = [sys.executable]
    for minor in range(9, 15):
        path = shutil.which(f"python3.{minor}")
        # A version manager's stand-in may be there for a version that is not chosen.
        if (
            path
            and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
        ):
            found.append(path)
    return found


def test_the_oldest_python_is_among_those_tried() -> None:
    oldest = "python{}.{}".format(*OLDEST_PYTHON)
    if not any(path.endswith(oldest) for path in pythons()):
        pytest.skip(f"no {oldest} on this machine: checked by its grammar only")
    done = subprocess.run([oldest, "-V"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Python 3.9.")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "shardwright-runner.pyz"
    path.write_bytes(runner_archive())
    return path


@pytest.mark.parametrize("python", pythons())
def test_the_packed_runner_makes_an_artifact(tmp_path: Path, packed: Path, python: str) -> None:
    volumes = Volumes.make(tmp_path / "volumes")
    request = volumes.checkpoint()
    program = (
        f"import sys; sys.path.insert(0, {str(packed)!r});"
        "from pathlib import Path;"
        "from shardwright.runner.contract import *;"
        "from shardwright.runner.steps.main import step_main;"
        "from shardwright.runner.steps.request import Places; import os;"
        f"assert step_main.__code__.co_filename.startswith({str(packed)!r});"
        f"request = decode(StepRequest, os.environ[{ENV_REQUEST!r}]);"
        "sys.exit(step_main(request, Places(*map(Path, sys.argv[1:4])), Path(sys.argv[4])))"
    )
    places = volumes.places
    log = tmp_path / "log"
    done = subprocess.run(
        [python, "-I", "-S", "-c", program]
        + [str(path) for path in (places.store, places.source, places.scratch, log)],
        env={"PATH": os.environ["PATH"], ENV_REQUEST: encode(request), ENV_POD_UID: "pod-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert decode(Report, log.read_text()).outcome == "Done"
    assert volumes.manifest(request).key == request.key


@pytest.mark.parametrize("python", pythons())
def test_every_module_of_the_packed_runner_loads(packed: Path, python: str) -> None:
    names = [
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        for path in MODULES
        if path.name not in ("__init__.py", "__main__.py")
    ]
    program = (
        f"import sys, importlib; sys.path.insert(0, {str(packed)!r})\n"
        f"for name in {names!r}: importlib.import_module(name)"
    )
    done = subprocess.run(
        [python, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("python", pythons())
def test_the_packed_runner_starts_and_knows_its_verbs(packed: Path, python: str) -> None:
    done = subprocess.run([python, str(packed)], capture_output=True, text=True, check=False)
    assert done.returncode == USAGE
    assert "expected one of step, beside, sweep, serve, fetch" in done.stdout


def test_a_python_that_is_too_old_says_so_in_the_report(tmp_path: Path, packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        text = archive.read("__main__.py").decode()
    log = tmp_path / "log"
    program = text.replace("/dev/termination-log", str(log)).replace("(3, 9)", "(99, 0)")
    assert program.count("(99, 0)") == 1
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 1
    report = decode(Report, log.read_text())
    assert report.outcome == "Permanent"
    assert "older than 3.9" in report.message


def test_the_first_lines_are_read_by_any_python() -> None:
    text = packing._main().decode()
    assert text.isascii()
    # No f-string, annotation or keyword that an old parser would stumble over before it can report.
    old = ast.parse(text, feature_version=(3, 4))
    assert not [node for node in ast.walk(old) if isinstance(node, ast.JoinedStr | ast.AnnAssign)]


def last_words(log: Path) -> Report:
    return decode(Report, log.read_text())


def test_an_unknown_verb_is_a_report_too(tmp_path: Path) -> None:
    for argv in ([], ["build"], ["step", "twice"]):
        assert main(argv, {}, tmp_path / "log") == USAGE
        assert last_words(tmp_path / "log").reason == REASON_TOOL_FAILED


@pytest.mark.parametrize("verb", ["step", "sweep", "serve", "fetch"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"contract": 99}', '{"contract": 1}'])
def test_a_request_that_cannot_be_read_is_reported(tmp_path: Path, verb: str, text: str) -> None:
    log = tmp_path / "log"
    assert main([verb], {ENV_REQUEST: text}, log) == 1
    report = last_words(log)
    assert (report.outcome, report.reason) == ("Environment", REASON_TOOL_FAILED)
    assert ENV_REQUEST in report.message


def test_an_exception_that_nobody_expected_is_reported_with_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: StepRequest) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(steps, "step_main", broken)
    request = Volumes.make(tmp_path / "volumes").checkpoint()
    log = tmp_path / "log"
    assert main(["step"], {ENV_REQUEST: encode(request)}, log) == 1
    report = last_words(log)
    assert report.outcome == "Environment"
    assert "ZeroDivisionError: a bug" in report.message
    assert report.log_tail.splitlines()[-1] == "ZeroDivisionError: a bug"


def test_a_fetch_is_handed_to_the_clients_of_the_operator_s_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[StepRequest, str]] = []

    def fetch(request: StepRequest, *, pod_uid: str, env: object, stop: Stop) -> int:
        seen.append((request, pod_uid))
        return 7

    monkeypatch.setitem(sys.modules, "shardwright.fetching", SimpleNamespace(main=fetch))
    monkeypatch.setattr(Stop, "listen", lambda _: None)
    monkeypatch.setenv(ENV_POD_UID, "pod-1")
    request = replace(Volumes.make(tmp_path / "volumes").checkpoint(), step="model")
    assert main(["fetch"], {ENV_REQUEST: encode(request)}, tmp_path / "log") == 7
    assert seen == [(request, "pod-1")]


def test_a_fetch_in_another_image_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shardwright.fetching", None)
    request = Volumes.make(tmp_path / "volumes").checkpoint()
    assert main(["fetch"], {ENV_REQUEST: encode(request)}, tmp_path / "log") == 1
    assert "needs the operator's own image" in last_words(tmp_path / "log").message


def test_a_report_that_cannot_be_written_is_no_success(tmp_path: Path) -> None:
    assert main(["sweep"], {ENV_REQUEST: "{"}, tmp_path / "none/log") == 1


def test_the_packed_sweep_finds_no_claim_here(tmp_path: Path, packed: Path) -> None:
    """The whole way from the command line of the pod, as far as it goes without its volumes."""
    asked = SweepRequest("Restore", "engine", "0" * 16, "17959536000000000")
    done = subprocess.run(
        [sys.executable, str(packed), "sweep"],
        env={ENV_REQUEST: encode(asked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "the claim is not mounted" in lines[0]["detail"]
    assert REASON_MANIFEST_MISSING not in done.stdout
