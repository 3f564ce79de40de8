"""The processes that the runner starts: each a session of its own, all reaped, none left behind.

A container has no init but the runner. It reaps what it started and what was orphaned below it, and
at the end nothing below it lives, whatever session or group it has put itself into. Steps and
serving pods end what they have started in this one way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shardwright.runner.lines import Lines
from shardwright.runner.processes import (
    Process,
    adopt_orphans,
    adopts_orphans,
    all_processes,
    below,
    kill_group,
    kill_process,
)

_POLL_SECONDS = 0.05
_READ_BYTES = 65536
# What a child has started may hold its output open after it has ended.
DRAIN_SECONDS = 1.0


@dataclass(frozen=True)
class Exit:
    """How a child ended: `code` is its exit status, or minus the signal that ended it."""

    name: str
    pid: int
    code: int
    tail: str


@dataclass
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    lines: Lines
    pump: threading.Thread


class Children:
    """The runner's child processes. Used by one thread.

    Processes that this one had before are none of them: they are neither reaped nor ended.
    """

    def __init__(self) -> None:
        """Take care of orphans from now on."""
        self._adopted = adopts_orphans()
        self._others = {(p.pid, p.started) for p in below(os.getpid(), all_processes())}
        adopt_orphans()
        self._children: dict[int, _Child] = {}
        self._ended: list[Exit] = []
        self._pumps: list[threading.Thread] = []

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        passed: Callable[[bytes], None],
        cwd: Path | None = None,
    ) -> int:
        """Start a program; `passed` takes each line of its output, in a thread of its own.

        Args:
            name: What it is called in its `Exit`.
            argv: The command line; no shell is involved.
            env: The whole environment.
            passed: Takes each line of stdout and stderr, newline included.
            cwd: Where it starts; here by default.

        Returns:
            Its process id, which is its process group's too.

        Raises:
            OSError: It cannot be started: it is not there, or may not be run.
        """
        process = subprocess.Popen(  # noqa: S603 - the command line is the request's
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        lines = Lines(passed)
        pump = threading.Thread(target=_follow, args=(process, lines), name=name, daemon=True)
        pump.start()
        self._children[process.pid] = _Child(name, process, lines, pump)
        return process.pid

    def reap(self) -> list[Exit]:
        """Those that have ended since; orphans are reaped and not told."""
        self._collect()
        ended, self._ended = self._ended, []
        return ended

    def running(self, name: str) -> int | None:
        """Process id of a child that has not ended."""
        return next((pid for pid, child in self._children.items() if child.name == name), None)

    def end(self, term_seconds: float, kill_seconds: float) -> list[int]:
        """End everything that was started, and all that it has started.

        Args:
            term_seconds: How long what got SIGTERM may take; 0 sends SIGKILL at once.
            kill_seconds: How long to wait for what got SIGKILL.

        Returns:
            Process ids of what still lives: stuck in the kernel, which only the container's own end
            can wait for.
        """
        left: list[int] = []
        if term_seconds > 0:
            for pid in list(self._children):
                kill_group(pid, signal.SIGTERM)
            left = self._wait(term_seconds)
        if left or term_seconds <= 0:
            left = self._kill(kill_seconds)
        for pump in self._pumps:
            pump.join(DRAIN_SECONDS)
        return left

    def close(self) -> None:
        """Leave orphans to whoever had them before."""
        if not self._adopted:
            adopt_orphans(wanted=False)

    def _kill(self, seconds: float) -> list[int]:
        deadline = time.monotonic() + seconds
        while True:
            # Again and again: what lives may start others until it is gone.
            for process in self._living():
                kill_process(process.pid, signal.SIGKILL)
            left = self._wait(4 * _POLL_SECONDS)
            if not left or time.monotonic() >= deadline:
                return left

    def _wait(self, seconds: float) -> list[int]:
        deadline = time.monotonic() + seconds
        while True:
            self._collect()
            left = [process.pid for process in self._living()]
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_SECONDS)

    def _living(self) -> list[Process]:
        """What lives below this process and was started since."""
        return below(os.getpid(), self._ours())

    def _ours(self) -> list[Process]:
        """All processes but the others: without their parents their own children are out too."""
        return [p for p in all_processes() if (p.pid, p.started) not in self._others]

    def _collect(self) -> None:
        """Reap whatever of ours has ended."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return
            if found is None:
                return
            if not self._take(found.si_pid):
                # One of the others stands in front; the kernel names no second one.
                for process in self._ours():
                    if process.parent == os.getpid() and process.state == "Z":
                        self._take(process.pid)
                return

    def _take(self, pid: int) -> bool:
        """Reap one that has ended, if it is ours."""
        if pid not in self._children and any(pid == other for other, _ in self._others):
            return False
        _, status = os.waitpid(pid, 0)
        child = self._children.pop(pid, None)
        if child is not None:
            code = os.waitstatus_to_exitcode(status)
            child.process.returncode = code
            child.pump.join(DRAIN_SECONDS)
            if child.pump.is_alive():
                self._pumps.append(child.pump)
            self._ended.append(Exit(child.name, pid, code, "\n".join(child.lines.tail())))
        return True


def pump(stream: IO[bytes], lines: Lines) -> None:
    """Read a program's output to its end."""
    with stream:
        while True:
            data = os.read(stream.fileno(), _READ_BYTES)
            if not data:
                break
            lines.feed(data)
    lines.end()


def _follow(process: subprocess.Popen[bytes], lines: Lines) -> None:
    if process.stdout is None:
        raise ValueError("the child was started without a pipe for its output")
    pump(process.stdout, lines)
