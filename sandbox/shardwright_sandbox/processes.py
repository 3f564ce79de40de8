"""The sandbox's processes: started in groups of their own, recorded, ended for certain.

They are recorded in a file before anything else is done with them, so that a
`down` in another process, or the next `up` after a crash, finds and ends them.
A process id alone proves nothing (ids are reused), so its start time is
recorded too and compared before any signal is sent.
"""

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwright_sandbox.errors import SandboxError

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 3000


@dataclass(frozen=True)
class Recorded:
    """One process as the file remembers it."""

    name: str
    pid: int
    started: str
    log: str

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return _start_mark(self.pid) == self.started

    def log_tail(self) -> str:
        """The end of its log."""
        try:
            data = Path(self.log).read_bytes()
        except FileNotFoundError:
            return "(no log)"
        return data[-_TAIL_BYTES:].decode(errors="replace")


class Processes:
    """The processes of one state folder."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._entries: list[Recorded] = []
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        if record.exists():
            content = json.loads(record.read_text())
            self._entries = [Recorded(**entry) for entry in content["processes"]]
            self.fingerprint = str(content["fingerprint"])
        else:
            self.fingerprint = ""

    @property
    def entries(self) -> tuple[Recorded, ...]:
        """All recorded processes, in the order of their start."""
        return tuple(self._entries)

    def named(self, name: str) -> Recorded | None:
        """The recorded process of this name."""
        return next((entry for entry in self._entries if entry.name == name), None)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        die_with_parent: bool = False,
    ) -> Recorded:
        """Start one process; its output goes to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
                start_new_session=True,
                preexec_fn=_parent_death_signal() if die_with_parent else None,  # noqa: PLW1509
            )
        self._children[child.pid] = child
        entry = Recorded(name, child.pid, _start_mark(child.pid), str(log))
        self._entries.append(entry)
        self.save()
        return entry

    def save(self) -> None:
        """Write the record; by rename, so that it is never half written."""
        scratch = self._record.with_suffix(".new")
        entries = [asdict(entry) for entry in self._entries]
        scratch.write_text(json.dumps({"fingerprint": self.fingerprint, "processes": entries}))
        scratch.rename(self._record)

    def check(self) -> None:
        """Raise with the end of its log when one of them has ended."""
        for entry in self._entries:
            child = self._children.get(entry.pid)
            if child is not None:
                child.poll()
            if not entry.alive():
                code = f" (exit {child.returncode})" if child is not None else ""
                raise SandboxError(
                    f"{entry.name} ended unexpectedly{code}; the end of {entry.log}:\n"
                    f"{entry.log_tail()}"
                )

    def stop(self, *names: str, grace: float = 0.0) -> None:
        """End the named processes, or all, last started first.

        The control plane's state is thrown away, so it gets no grace; the
        operator and the player get some.
        """
        chosen = [entry for entry in reversed(self._entries) if not names or entry.name in names]
        if grace > 0:
            for entry in chosen:
                _signal(entry, signal.SIGTERM)
            self._wait(chosen, grace)
        for entry in chosen:
            _signal(entry, signal.SIGKILL)
        left = self._wait(chosen, 10.0)
        if not left:
            # what they started has got the signal too, and takes a moment of its own
            left = _wait_for_groups(chosen, 10.0)
        if left:
            raise SandboxError(
                "these processes did not end within 10 s of SIGKILL: "
                + ", ".join(f"{entry.name} ({entry.pid})" for entry in left)
            )
        self._entries = [entry for entry in self._entries if entry not in chosen]
        if self._record.parent.is_dir():
            self.save()

    def _over(self, entry: Recorded) -> bool:
        """Whether it has ended and, if it is our child, is no zombie any more."""
        if child := self._children.get(entry.pid):
            return child.poll() is not None
        return not entry.alive()

    def _wait(self, chosen: Sequence[Recorded], seconds: float) -> list[Recorded]:
        deadline = time.monotonic() + seconds
        while True:
            left = [entry for entry in chosen if not self._over(entry)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.02)


def _signal(entry: Recorded, number: signal.Signals) -> None:
    if not entry.alive():
        return
    try:
        os.killpg(entry.pid, number)
    except ProcessLookupError:
        return  # it ended between the look and the signal, which is what we want


def _wait_for_groups(chosen: Sequence[Recorded], seconds: float) -> list[Recorded]:
    """Wait until nothing runs in the groups of these processes; those where something does."""
    deadline = time.monotonic() + seconds
    while True:
        groups = _living_groups()
        left = [entry for entry in chosen if entry.pid in groups]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _living_groups() -> set[int]:
    """Process groups with a member that is no zombie; empty where there is no /proc."""
    groups = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group, *_ = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            groups.add(int(group))
    return groups


def _start_mark(pid: int) -> str:
    """Something that tells this process from a later one with the same id; "" if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return ""
        done = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()
    # the command's name is in brackets and may hold blanks: count from behind it
    fields = stat.rpartition(")")[2].split()
    state, start_time = fields[0], fields[19]
    return "" if state in "ZX" else start_time


def _parent_death_signal() -> Callable[[], None] | None:
    """A function that asks the kernel for SIGKILL when the parent dies; None where it cannot.

    The C library is loaded here, before the fork: after it only async-safe
    work is allowed.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return None

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask
