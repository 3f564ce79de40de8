"""Running the stand-ins as programs: an installed root, a fitting Python, servers, questions."""

# ruff: noqa: S310 - all addresses are of servers that the tests started

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from shardwright_standin.faults import CONTROL

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = ("numpy", "yaml", "click", "prometheus_client")
# Long enough for ranks on a machine that is busy with something else; waits poll and end early.
DEADLINE_SECONDS = 120.0

PROMPTS = tuple(
    f"{subject} {verb}"
    for subject in ("The capital of France", "A rank", "Two nodes", "Über 9000 tokens", "x")
    for verb in ("is", "waits for its peers because", "= 2 + 2 =", "?" * 60)
)


@cache
def interpreter(*modules: str) -> str:
    """A Python that has these modules, or an empty string."""
    code = f"import importlib.util as u, sys; sys.exit(any(not u.find_spec(m) for m in {modules}))"
    for candidate in (sys.executable, "/usr/bin/python3"):
        if shutil.which(candidate) and _succeeds([candidate, "-c", code]):
            return candidate
    return ""


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, check=False).returncode == 0


def why_no_mpi() -> str:
    """Why ranks cannot run over MPI here, or nothing."""
    if shutil.which("mpirun") is None:
        return "mpirun is missing (Debian: openmpi-bin)"
    if not interpreter(*MODULES, "mpi4py"):
        return f"no Python has all of mpi4py, {', '.join(MODULES)} (Debian: python3-mpi4py …)"
    return ""


def why_no_numpy() -> str:
    """Why the arithmetic cannot be tested in this process, or nothing."""
    return "" if importlib.util.find_spec("numpy") else "numpy is missing in this environment"


@dataclass(slots=True)
class Machine:
    """An installed root and the environment its programs run in."""

    root: Path
    python: str
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self, **changes: str) -> dict[str, str]:
        """The process environment, with GPUs and the root's programs."""
        inherited = ("HOME", "LANG", "PYTHONPATH", "TMPDIR", "OPENBLAS_CORETYPE")
        kept = {name: os.environ[name] for name in inherited if name in os.environ}
        path = [
            str(Path(self.python).parent),
            str(self.root / "usr/local/bin"),
            str(self.root / "usr/bin"),
            "/usr/local/bin:/usr/bin:/bin",
        ]
        return {
            **kept,
            "PATH": ":".join(path),
            "NVIDIA_VISIBLE_DEVICES": "0,1,2,3",
            "PYTHONUNBUFFERED": "1",
            **self.variables,
            **changes,
        }

    def command(self, words: Sequence[str]) -> list[str]:
        """The command line as it stands in a pod, made to run in this root."""
        line = [
            str(self.root / word.lstrip("/")) if word.startswith(("/app/", "/opt/")) else word
            for word in words
        ]
        return [self.python if word == "python3" else word for word in line]

    def run(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        return subprocess.run(
            self.command(words),
            env=self.environment(**changes),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def good(self, *words: str, **changes: str) -> str:
        """Run a program that must end well; its output."""
        done = self.run(*words, **changes)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def started(self, *words: str, **changes: str) -> Iterator[Started]:
        """A program that runs meanwhile; whatever is left of it is killed."""
        log = self.folder / f"log-{time.monotonic_ns()}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(words),
                env=self.environment(**changes),
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Started(process, log)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True, slots=True)
class Started:
    """A running program and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """What it said so far."""
        return self.log.read_text(errors="replace")

    def until(self, url: str) -> None:
        """Wait until the server answers at `url`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(url, timeout=5)
                return
            time.sleep(0.1)
        raise AssertionError(f"{url} did not answer\n{self.text()}")

    def until_said(self, words: str) -> None:
        """Wait until the log has these words."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while words not in self.text():
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def ended(self) -> int:
        """Its exit status as a shell shows it."""
        code = self.process.wait(DEADLINE_SECONDS)
        return code if code >= 0 else 128 - code

    def ranks(self, count: int) -> list[dict[str, str]]:
        """The ranks' reports, once all are in the log: mpirun passes on late what ranks say."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(lines := self._reports()) < count:
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        found = []
        for line in lines:
            head, _, rest = line.partition(": ")
            pairs = dict(pair.split("=", 1) for pair in rest.split())
            found.append({"rank": head.split()[-1], **pairs})
        return found

    def _reports(self) -> list[str]:
        lines = self.text().splitlines(keepends=True)
        return [one for one in lines if one.startswith("[standin] rank ") and one.endswith("\n")]


class Faults:
    """The control file of a machine's faults, which programs read anew whenever they look."""

    def __init__(self, machine: Machine) -> None:
        self._path = machine.folder / "faults.yaml"
        machine.variables[CONTROL] = str(self._path)

    def ask(self, **rule: Any) -> None:
        """Have this rule from now on, and no other."""
        self._write([{"id": "it", **rule}])

    def none(self) -> None:
        """Have no rule any more; whoever is held by one goes on."""
        self._write([])

    def _write(self, rules: Sequence[Mapping[str, Any]]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"rules": rules}))
        new.replace(self._path)


def ask(url: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """Status and content of an answer; JSON decoded."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            status, raw, kind = answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        status, raw, kind = error.code, error.read(), error.headers["Content-Type"]
    return status, json.loads(raw) if kind == "application/json" else raw.decode()


def survivors(session: int) -> list[str]:
    """Command lines of the processes of a session that still run, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, own = stat.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append((stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def until_none_survives(session: int) -> None:
    """Wait until a session has no process left."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while left := survivors(session):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
