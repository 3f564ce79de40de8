"""The processes that the runner starts: each a session of its own, all reaped, none left behind.

A container has no init but the runner. It reaps what it started and what was orphaned below it, and
at the end nothing below it lives, whatever session or group it has put itself into.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwright.runner.serve.processes import (
    adopt_orphans,
    all_processes,
    below,
    kill_group,
    kill_process,
)
from shardwright.runner.steps.lines import Lines

_POLL_SECONDS = 0.05
_READ_BYTES = 65536
# A grandchild may hold the pipe open after the child has ended.
_DRAIN_SECONDS = 1.0


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
    """The runner's child processes. Used by one thread."""

    def __init__(self) -> None:
        """Take care of orphans from now on."""
        adopt_orphans()
        self._children: dict[int, _Child] = {}

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        passed: Callable[[bytes], None],
    ) -> int:
        """Start a program; `passed` takes each line of its output, in a thread of its own.

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
            start_new_session=True,
        )
        lines = Lines(passed)
        pump = threading.Thread(target=_pump, args=(process, lines), name=name, daemon=True)
        pump.start()
        self._children[process.pid] = _Child(name, process, lines, pump)
        return process.pid

    def reap(self) -> list[Exit]:
        """Those that have ended since; orphans are reaped and not told."""
        ended: list[Exit] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if not pid:
                return ended
            child = self._children.pop(pid, None)
            if child is not None:
                code = os.waitstatus_to_exitcode(status)
                child.process.returncode = code
                child.pump.join(_DRAIN_SECONDS)
                ended.append(Exit(child.name, pid, code, "\n".join(child.lines.tail())))

    def running(self, name: str) -> int | None:
        """Process id of a child that has not ended."""
        return next((pid for pid, child in self._children.items() if child.name == name), None)

    def end(self, term_seconds: float, kill_seconds: float) -> list[int]:
        """End everything below this process.

        Args:
            term_seconds: How long what got SIGTERM may take; 0 sends SIGKILL at once.
            kill_seconds: How long to wait for what got SIGKILL.

        Returns:
            Process ids of what still lives: stuck in the kernel, which only the container's own end
            can wait for.
        """
        if term_seconds > 0:
            for pid in list(self._children):
                kill_group(pid, signal.SIGTERM)
            if self._wait(term_seconds) == []:
                return []
        deadline = time.monotonic() + kill_seconds
        while True:
            # Again and again: what lives may start others until it is gone.
            for process in below(os.getpid(), all_processes()):
                kill_process(process.pid, signal.SIGKILL)
            left = self._wait(4 * _POLL_SECONDS)
            if not left or time.monotonic() >= deadline:
                return left

    def _wait(self, seconds: float) -> list[int]:
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            left = [process.pid for process in below(os.getpid(), all_processes())]
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_SECONDS)


def _pump(process: subprocess.Popen[bytes], lines: Lines) -> None:
    if process.stdout is None:
        raise ValueError("the child was started without a pipe for its output")
    with process.stdout as pipe:
        while True:
            data = os.read(pipe.fileno(), _READ_BYTES)
            if not data:
                break
            lines.feed(data)
    lines.end()
