"""Running one of the vendor's tools: its own process group, its log passed on, nothing left over.

The tool gets a session of its own, so that all it starts can be ended with it. What a tool leaves
running when it exits is ended too, before anyone looks at its result.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.runner.steps.lines import Lines

# From SIGTERM to SIGKILL. A pod has 30 s between the two by default, and needs some to clean up.
TERM_SECONDS = 10.0
# How long the log is read on after the tool's own exit, if something still holds it open.
LINGER_SECONDS = 2.0
# How long what got SIGKILL is waited for.
GONE_SECONDS = 5.0
_POLL_SECONDS = 0.25
_CHUNK = 64 * 1024
_INIT = 1


@dataclass(frozen=True)
class Ending:
    """How a tool ended.

    Attributes:
        code: Exit status; negative is the number of the signal that killed it, as `subprocess` has
            it.
        tail: Last lines of its log.
        stopped: Why the runner ended it; empty if it ended by itself.
        seconds: From start to end.
    """

    code: int
    tail: tuple[str, ...]
    stopped: str = ""
    seconds: float = 0.0


def run_tool(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    why_stop: Callable[[], str],
    echo: Callable[[bytes], None] | None = None,
    term_seconds: float = TERM_SECONDS,
) -> Ending:
    """Run a command line to its end; stdout and stderr go to the log together.

    Args:
        argv: The command line; no shell is involved.
        env: The whole environment of the tool.
        cwd: A folder that can be written to.
        why_stop: Asked a few times a second; a reason ends the tool, an empty string goes on.
        echo: Takes each line of the log; standard output by default.
        term_seconds: How long the tool may take to end when it is told to.

    Raises:
        OSError: The tool cannot be started: it is not there, or may not be run.
    """
    lines = Lines(echo or _to_stdout)
    started = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 - the command line is the request's
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        stopped = _follow(process, lines, why_stop, term_seconds)
    finally:
        # Before the leader is reaped, so that its number cannot be another group's by now.
        _kill_rest(process.pid)
        code = process.wait()
        _wait_for_rest(process.pid)
        if process.stdout is not None:
            process.stdout.close()
    lines.end()
    return Ending(
        code=code,
        tail=tuple(lines.tail()),
        stopped=stopped,
        seconds=time.monotonic() - started,
    )


def _follow(
    process: subprocess.Popen[bytes],
    lines: Lines,
    why_stop: Callable[[], str],
    term_seconds: float,
) -> str:
    """Pass the log on until the tool has ended; returns why the runner ended it, if it did."""
    if process.stdout is None:
        raise ValueError("the tool was started without a pipe for its log")
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    stopped, kill_at, gone_at = "", float("inf"), 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            open_ = bool(selector.get_map())
            if open_ and selector.select(_POLL_SECONDS):
                data = _read(pipe)
                if data:
                    lines.feed(data)
                elif data is not None:
                    selector.unregister(pipe)
                    open_ = False
            elif not open_:
                time.sleep(_POLL_SECONDS / 5)
            now = time.monotonic()
            _reap_orphans(process.pid)
            if _has_ended(process.pid):
                gone_at = gone_at or now
                if not open_ or now - gone_at >= LINGER_SECONDS:
                    return stopped
            elif not stopped:
                stopped = why_stop()
                if stopped:
                    kill_at = now + term_seconds
                    _signal_group(process.pid, signal.SIGTERM)
            elif now >= kill_at:
                _signal_group(process.pid, signal.SIGKILL)


def _read(pipe: int) -> bytes | None:
    """What is there; empty at the end, None when there is nothing now."""
    try:
        return os.read(pipe, _CHUNK)
    except BlockingIOError:
        return None


def _has_ended(pid: int) -> bool:
    """Whether the tool's first process has exited; it is not reaped."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, options) is not None


def _reap_orphans(own: int) -> None:
    """As a container's first process, take the exits of processes whose parents are gone."""
    if os.getpid() != _INIT:
        return
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while True:
        found = os.waitid(os.P_ALL, 0, options)
        if found is None or found.si_pid == own:
            # The tool's own exit is taken last, and hides others only for the moment.
            return
        os.waitpid(found.si_pid, os.WNOHANG)


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _kill_rest(leader: int) -> None:
    """Kill what is left of the tool's group; in a container, whatever else it has left."""
    _signal_group(leader, signal.SIGKILL)
    if os.getpid() == _INIT:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def _wait_for_rest(leader: int) -> None:
    """Wait for what was killed to be gone: a write that is under way is still carried out.

    What hangs in the kernel is not waited for without end; only the container's end can.
    """
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        if _reap_all() if os.getpid() == _INIT else _is_gone(leader):
            return
        time.sleep(_POLL_SECONDS / 25)


def _reap_all() -> bool:
    """As a container's first process, take all exits; whether nobody is left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if not pid:
            return False


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _to_stdout(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
