"""Serving pods in the machine's process table: what runs in them, and what two of them share.

Real nodes are namespaces of this machine, so every process of every container is in its table. The
pod's UID stands in the environment of all of them, and the cgroup of the container holds even those
that have changed theirs. (Numbers of namespaces would not do: the kernel gives them out again.)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwright.runner.contract import ENV_POD_UID
from shardwright.runner.processes import read_stat
from shardwright.runner.serve.inflight import read_table
from shardwright.runner.serve.places import AGENT_PROGRAM, RANK_PROGRAM

PROC = Path("/proc")
RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"
# By the name of a program: Open MPI's own, and those of the runner that it starts.
_NAMES = {
    "mpirun": "mpirun",
    "orted": "daemon",
    "prted": "daemon",
    AGENT_PROGRAM: "agent",
    RANK_PROGRAM: "parent",
    # The runner asks it now and then.
    "nvidia-smi": "question",
}
# include/net/tcp_states.h
_LISTENING = 10
# It has ended while it was looked at, or is not ours to look at: then it is in no pod of ours.
_ENDED = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, slots=True)
class PodProcess:
    """One process of a serving pod, by the machine's own number.

    `part` is `runner`, `mpirun`, `daemon` (Open MPI's on the other stages), `agent` (what mpirun
    calls in the place of ssh), `parent` (the runner's, of each rank), `rank`, `server` or
    `question` (soon over); `rank` is −1 for what is none and belongs to none.
    """

    pid: int
    uid: str
    part: str
    rank: int

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def processes(uids: Collection[str]) -> list[PodProcess]:
    """Everything that runs in these pods now."""
    return [found for found in _all() if found.uid in uids]


def lasting(uids: Collection[str]) -> set[int]:
    """The machine's numbers of what runs in these pods and is no question of the moment."""
    # Twice: what a runner starts looks like itself at first.
    looks = [processes(uids) for _ in range(2)]
    first, second = ({one.pid for one in look if one.part != "question"} for look in looks)
    return first & second


def inhabitants(containers: Collection[str]) -> list[int]:
    """Processes in these containers' cgroups; one that waits to be reaped is none."""
    found = []
    for folder in PROC.glob("[0-9]*"):
        try:
            place = (folder / "cgroup").read_text(encoding="utf-8")
            if any(one in place for one in containers) and not _over(folder):
                found.append(int(folder.name))
        except _ENDED:
            continue
    return found


def ports(found: Collection[PodProcess]) -> set[tuple[str, int]]:
    """Where these processes' pods listen: network namespace and TCP port."""
    listening = set()
    for pid in {process.uid: process.pid for process in found}.values():
        folder = PROC / str(pid)
        try:
            space = str((folder / "ns/net").readlink())
            tables = [
                (folder / "net" / name).read_text(encoding="ascii") for name in ("tcp", "tcp6")
            ]
        except _ENDED:
            continue
        for line in (line for text in tables for line in read_table(text)):
            if line.state == _LISTENING:
                listening.add((space, line.local_port))
    return listening


def segments(found: Collection[PodProcess]) -> set[tuple[str, str]]:
    """Shared memory that these processes have mapped: device and inode of each file."""
    mapped = set()
    for process in found:
        try:
            text = (PROC / str(process.pid) / "maps").read_text(encoding="utf-8")
        except _ENDED:
            continue
        for line in text.splitlines():
            cells = line.split(None, 5)
            if len(cells) > 5 and cells[5].startswith("/dev/shm/"):  # noqa: S108 - the pod's own
                mapped.add((cells[3], cells[4]))
    return mapped


def shared(
    found: Collection[PodProcess], groups: Mapping[str, tuple[int, int]]
) -> set[tuple[str, object]]:
    """Ports and segments that pods of more than one group hold at this moment.

    Args:
        found: Processes of all pods.
        groups: Replica and incarnation of each pod, by UID.
    """
    parts = [
        [process for process in found if groups.get(process.uid) == number]
        for number in sorted(set(groups.values()))
    ]
    seen: set[tuple[str, object]] = set()
    twice: set[tuple[str, object]] = set()
    for part in parts:
        held: set[tuple[str, object]] = {("port", one) for one in ports(part)}
        held |= {("segment", one) for one in segments(part)}
        twice |= seen & held
        seen |= held
    return twice


def _all() -> Iterator[PodProcess]:
    for folder in PROC.glob("[0-9]*"):
        try:
            variables = _variables(folder)
            uid = variables.get(ENV_POD_UID)
            if uid is None or _over(folder):
                continue
            inner = _inner(folder)
            part = "runner" if inner == 1 else _part(folder, variables)
            yield PodProcess(
                int(folder.name),
                uid,
                part,
                int(variables.get(RANK_VARIABLE, "-1")),
            )
        except _ENDED:
            continue


def _variables(folder: Path) -> dict[str, str]:
    text = (folder / "environ").read_bytes().decode("utf-8", "replace")
    return dict(line.partition("=")[::2] for line in text.split("\0") if "=" in line)


def _over(folder: Path) -> bool:
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    return read_stat(text, os.sysconf("SC_CLK_TCK")).state in ("Z", "X")


def _inner(folder: Path) -> int:
    """Its number in its container."""
    text = (folder / "status").read_text(encoding="utf-8", errors="replace")
    line = next(line for line in text.splitlines() if line.startswith("NSpid:"))
    return int(line.split()[-1])


def _part(folder: Path, variables: dict[str, str]) -> str:
    words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    named = [Path(word).name for word in words[:2]]
    part = next((_NAMES[name] for name in named if name in _NAMES), "")
    return part or ("rank" if RANK_VARIABLE in variables else "server")
