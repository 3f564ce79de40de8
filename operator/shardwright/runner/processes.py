"""What /proc knows of the processes below this one, and of the signs they give."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shardwright.runner.log import say

_PROC = Path("/proc")
# After the name: state is the first of them, start time the twentieth.
_FIELDS = 20
# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37


@dataclass(frozen=True)
class Process:
    """One line of /proc: state as in proc(5), CPU time in seconds, start in ticks since boot."""

    pid: int
    parent: int
    state: str
    cpu_seconds: float
    started: int

    @property
    def stopped(self) -> bool:
        """Stopped by a signal or a debugger."""
        return self.state in ("T", "t")


def read_stat(text: str, ticks_per_second: int) -> Process:
    """A process from its /proc/PID/stat; the name in brackets may hold anything.

    Raises:
        ValueError: It is no such line.
    """
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if len(fields) < _FIELDS or "(" not in head:
        raise ValueError(f"{text[:40]!r} is no line of /proc/PID/stat")
    cpu = int(fields[11]) + int(fields[12])
    return Process(
        pid=int(head.split("(", 1)[0]),
        parent=int(fields[1]),
        state=fields[0],
        cpu_seconds=cpu / ticks_per_second,
        started=int(fields[19]),
    )


def all_processes() -> list[Process]:
    """Every process that can be seen."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
                found.append(read_stat(text, ticks))
            except (OSError, ValueError):
                continue  # it has ended in between
    return found


def below(root: int, processes: Iterable[Process]) -> list[Process]:
    """Living processes that descend from `root`; zombies only wait to be reaped."""
    children = defaultdict(list)
    for process in processes:
        children[process.parent].append(process)
    found, open_ = [], [root]
    while open_:
        for process in children.pop(open_.pop(), ()):
            open_.append(process.pid)
            if process.state not in ("Z", "X"):
                found.append(process)
    return found


def read_bytes(pids: Iterable[int]) -> int:
    """Bytes that these processes have read so far, of files and pipes alike."""
    total = 0
    for pid in pids:
        try:
            text = (_PROC / str(pid) / "io").read_text(encoding="ascii")
        except OSError:
            continue  # ended, or not ours to look at
        total += int(text.split("rchar:", 1)[1].split(None, 1)[0])
    return total


def adopt_orphans(*, wanted: bool = True) -> None:
    """Become the parent of processes below this one whose parent has ended, or be it no more.

    Process 1 of a container is that anyway.
    """
    if not _prctl(_PR_SET_CHILD_SUBREAPER, int(wanted)):
        say("orphans of this runner's processes go to process 1: this kernel has no subreapers")


def adopts_orphans() -> bool:
    """Whether this process is told to be the parent of orphans below it."""
    told = ctypes.c_int(0)
    return _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(told)) and bool(told.value)


def die_with_parent() -> None:
    """In a fresh child: be killed when the thread that started it has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> bool:
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        return bool(prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))) == 0)
    except (OSError, AttributeError):
        return False  # a C library without prctl; both uses only make an end cleaner


def kill_process(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # ended meanwhile
    except PermissionError:
        say("a process below the runner belongs to another user", pid=pid)


def kill_group(group: int, number: int) -> None:
    """Send a signal to a process group that may have ended."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # ended meanwhile
    except PermissionError:
        say("a process below the runner belongs to another user", group=group)
