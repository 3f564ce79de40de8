"""One real node: a process that is the machine, and the programs of a node inside it.

Everything of the node lives in the namespaces of its first process (`init.py`): when that process
ends, the kernel ends every kubelet, shim and container with it and drops every mount. So a node can
be switched off like a machine, and a sandbox that was killed leaves no container behind.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.real.folder import NodeFolder

INIT = Path(__file__).with_name("init.py")
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")


@dataclass(frozen=True, slots=True)
class Machine:
    """The namespaces of one node, held by the recorded process `node-<name>`.

    `first` is the machine's own number of the node's process 1.
    """

    name: str
    first: int

    def command(self, *words: str | Path) -> list[str]:
        """A command line that runs `words` on this node, from the machine."""
        enter = ["nsenter", f"--target={self.first}", *_NAMESPACES, "--wd=/", "--"]
        return [*enter, *(str(word) for word in words)]

    def run(self, *words: str | Path, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Run a command on this node to its end; what it printed.

        Raises:
            SandboxError: If it fails, with its words.
        """
        done = subprocess.run(
            self.command(*words),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if done.returncode != 0:
            raise SandboxError(
                f"`{' '.join(map(str, words))}` on node {self.name} failed (exit "
                f"{done.returncode}): {(done.stderr or done.stdout).strip()[-1500:]}"
            )
        return done.stdout

    def path(self, inside: str) -> Path:
        """Where a path of the node is found from the machine."""
        return Path(f"/proc/{self.first}/root", inside.lstrip("/"))


@dataclass(frozen=True, slots=True)
class Size:
    """What the kubelet shall find: cores, bytes of memory, bytes of its own volume."""

    cpus: int
    memory_bytes: int
    volume_bytes: int


def boot(
    name: str,
    folder: NodeFolder,
    size: Size,
    cgroup: str,
    processes: Processes,
    log: Path,
    *,
    die_with_parent: bool,
) -> Machine:
    """Start a node's first process and wait until it has furnished the node.

    Raises:
        SandboxError: If it ends instead, with the end of its log.
    """
    folder.root.mkdir(parents=True, exist_ok=True)
    folder.ready.unlink(missing_ok=True)
    command = [
        "unshare",
        *_NAMESPACES,
        # what the sandbox mounts later for a claim must be seen on nodes; nothing goes back
        "--propagation=slave",
        "--fork",
        "--kill-child=SIGKILL",
        "--mount-proc",
        "--",
        sys.executable,
        # by path and without the user's packages: it must not load a Kubernetes client to sleep
        "-I",
        str(INIT),
        f"--name={name}",
        f"--ready={folder.ready}",
        f"--cgroup={cgroup}",
        f"--cpus={size.cpus}",
        f"--memory-bytes={size.memory_bytes}",
        f"--volume-bytes={size.volume_bytes}",
    ]
    entry = processes.start(f"node-{name}", command, log, die_with_parent=die_with_parent)
    wait(folder.ready.exists, f"node {name}", processes)
    return Machine(name, _child(entry.pid))


def attach(name: str, processes: Processes) -> Machine:
    """The node of this name that runs.

    Raises:
        SandboxError: If it does not.
    """
    entry = processes.named(f"node-{name}")
    if entry is None or not entry.alive():
        raise SandboxError(f"the real node {name} does not run; `make sandbox-down`, then up again")
    return Machine(name, _child(entry.pid))


def _child(parent: int) -> int:
    """The one child of a process.

    Read from all processes: `/proc/<pid>/task/<pid>/children` is not there in every kernel.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if int(fields[1]) == parent:
            return int(stat.parent.name)
    raise SandboxError(f"the process {parent}, which should hold a node, has no child")


def wait(done: Callable[[], bool], what: str, processes: Processes, seconds: float = 60.0) -> None:
    """Wait until `done`, as long as every recorded process runs."""
    deadline = time.monotonic() + seconds
    while not done():
        processes.check()
        if time.monotonic() > deadline:
            last = processes.entries[-1]
            raise SandboxError(
                f"{what} was not ready within {seconds} s; the end of {last.log}:\n"
                f"{last.log_tail()}"
            )
        time.sleep(0.03)


def namespace_of(pid: int | str, kind: str = "net") -> str:
    """Which namespace a process is in."""
    return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
