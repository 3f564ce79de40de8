"""Starting and ending the processes of an engine's ranks."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from shardwright_standin.ports import LOOPBACK, reserved
from shardwright_standin.ranks.main import ADDRESS, KEY

# What the real launcher takes out of the environment of what it starts.
MPI_VARIABLES = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "SLURM_",
    "MPI_",
    "UCX_",
    "I_MPI_",
    "HYDRA_",
    "KMP_",
    "MPICH_",
    "MV2_",
    "CRAY_",
)
_GRACE_SECONDS = 10.0


class NoMPIError(RuntimeError):
    """There is no mpirun to start ranks with."""


def without_mpi(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what MPI's own daemon set."""
    return {
        name: value for name, value in environment.items() if not name.startswith(MPI_VARIABLES)
    }


def ipc_environment() -> dict[str, str]:
    """An address of their own and a new key for rank 0 and its HTTP side."""
    return {ADDRESS: f"tcp://{LOOPBACK}:{reserved()}", KEY: secrets.token_hex(32)}


class Group:
    """Processes that end together: when one ends, the others are ended too."""

    def __init__(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> None:
        self.alive = threading.Event()
        self.alive.set()
        self._processes = [subprocess.Popen(command, env=dict(environment)) for command in commands]
        for process in self._processes:
            threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    def wait(self) -> int:
        """Wait for all; the first non-zero exit status, as a shell shows it."""
        codes = [process.wait() for process in self._processes]
        return next((code if code > 0 else 128 - code for code in codes if code), 0)

    def end(self) -> None:
        """End what still runs, gently first."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def end_when_idle(self) -> None:
        """Give ranks that were told to stop their time, then end what is left."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while time.monotonic() < deadline and any(one.poll() is None for one in self._processes):
            time.sleep(0.02)
        self.end()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self.alive.clear()
        if code:
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            sys.stderr.write(f"[standin] ranks' process {process.pid} ended: {name}\n")
            for other in self._processes:
                if other.poll() is None:
                    other.terminate()


def mpi_group(ranks: int, program: str, environment: Mapping[str, str]) -> Group:
    """Ranks of one node under an mpirun of their own, as the real server spawns its workers.

    Raises:
        NoMPIError: When mpirun is not installed.
    """
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise NoMPIError("mpirun was not found; install Open MPI (Debian: openmpi-bin)")
    command = [
        mpirun,
        *("-n", str(ranks)),
        "--oversubscribe",
        *("--bind-to", "none"),
        # Ranks of one node need no network, and no other address to find each other by.
        *("--mca", "btl", "vader,self", "--mca", "oob_tcp_if_include", "lo"),
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *(sys.executable, "-m", "shardwright_standin.ranks.main"),
        *("--transport", "mpi", "--program", program),
    ]
    return Group([command], without_mpi(environment))


def tcp_group(
    own: Sequence[int],
    size: int,
    master: str,
    program: str,
    timeout_seconds: float,
    environment: Mapping[str, str],
) -> Group:
    """This node's ranks of a world that meets at `master`."""
    commands = [
        [
            *(sys.executable, "-m", "shardwright_standin.ranks.main", "--transport", "tcp"),
            *("--program", program, "--rank", str(rank), "--size", str(size)),
            *("--master", master, "--timeout", str(timeout_seconds)),
        ]
        for rank in own
    ]
    return Group(commands, environment)
