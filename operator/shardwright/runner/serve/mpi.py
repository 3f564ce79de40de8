"""How `mpirun` is asked to start one rank a GPU on every stage, through our agent.

Open MPI 4 has its own run-time (ORTE), Open MPI 5 uses PRRTE; they name their settings differently,
so the version decides. Settings go through the environment, where both look for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_VERSION = re.compile(r"mpirun \(Open MPI\) (\d+)\.(\d+)(?:\.(\d+))?")
_ORTE_MAJOR = 4
_MAJORS = (_ORTE_MAJOR, 5)
# What Open MPI takes for this machine in a hostfile.
HERE = "localhost"


class MPIError(Exception):
    """This image's `mpirun` cannot be used."""


@dataclass(frozen=True)
class MPI:
    """The image's Open MPI."""

    text: str
    major: int

    @property
    def orte(self) -> bool:
        """Whether its run-time is ORTE, as in Open MPI 4."""
        return self.major == _ORTE_MAJOR

    @property
    def daemon(self) -> str:
        """Name of the program on the other stages."""
        return "orted" if self.orte else "prted"


def read_version(output: str) -> MPI:
    """What `mpirun --version` says.

    Raises:
        MPIError: It is no Open MPI, or one whose settings are not known.
    """
    match = _VERSION.search(output)
    if not match:
        raise MPIError(
            f"mpirun --version says {output.strip()[:80]!r}; Open MPI {_MAJORS[0]} or "
            f"{_MAJORS[-1]} is needed to start ranks on several stages"
        )
    major = int(match.group(1))
    text = ".".join(part for part in match.groups() if part)
    if major not in _MAJORS:
        raise MPIError(f"Open MPI {text}: only versions {_MAJORS[0]} and {_MAJORS[-1]} are known")
    return MPI(text, major)


def hostfile(addresses: Sequence[str], tensor: int) -> str:
    """One line a stage, in order, with a slot a GPU.

    So ranks fill stages one after the other, and the tensor rank is what changes fastest.
    """
    return "".join(f"{address} slots={tensor}\n" for address in addresses)


def command(
    hosts: str, program: str, *, world_size: int, tensor: int, as_root: bool
) -> tuple[str, ...]:
    """The command line; every rank is `program`, which asks its own pod's runner what to run.

    So no argument and no environment of the engine ever passes through Open MPI's quoting, and
    each rank gets the environment of its own pod.
    """
    return (
        "mpirun",
        *(("--allow-run-as-root",) if as_root else ()),
        *("-np", str(world_size)),
        *("--hostfile", hosts),
        *("--map-by", f"ppr:{tensor}:node"),
        # The engine binds its threads itself; a pod's CPU set is not the machine's.
        *("--bind-to", "none"),
        program,
    )


def settings(mpi: MPI, agent: str, interface: str, given: Mapping[str, str]) -> dict[str, str]:
    """Environment of `mpirun` and of its daemons.

    Args:
        mpi: The image's version.
        agent: Path of the program that takes the place of ssh.
        interface: Network interface that the stages see each other on; empty leaves the choice.
        given: The pod's environment: what a fabric profile or the user sets there stays.
    """
    if mpi.orte:
        ours = {"OMPI_MCA_plm": "rsh", "OMPI_MCA_plm_rsh_agent": agent}
        control = "OMPI_MCA_oob_tcp_if"
    else:
        ours = {"PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": agent}
        control = "PRTE_MCA_prte_if"
    for prefix in (control, "OMPI_MCA_btl_tcp_if"):
        free = not {f"{prefix}_include", f"{prefix}_exclude"} & set(given)
        if interface and free:
            ours[f"{prefix}_include"] = interface
    return ours


def rank_of(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, local rank and world size, as Open MPI tells each process.

    Raises:
        MPIError: It did not.
    """
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")
    try:
        rank, local, size = (int(environment[name]) for name in names)
    except (KeyError, ValueError) as error:
        raise MPIError(f"{error} of Open MPI is not in the environment") from error
    return rank, local, size
