"""Where things are in a serving pod, and how long things may take. Tests bring their own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import shardwright.runner
from shardwright.runner.contract import ADAPTERS_DIR, SCRATCH, STORE, TOKEN_DIR, TOKEN_FILE
from shardwright.runner.termination import TERMINATION_LOG

# Names of the two programs that Open MPI starts: its remote shell, and what each rank is.
AGENT_PROGRAM = "mpi-agent"
RANK_PROGRAM = "rank"

_PROGRAM = """\
#!{python}
import sys

sys.path[:0] = [{root!r}]
from shardwright.runner.serve.{module} import main

sys.exit(main(sys.argv[1:], {places!r}))
"""
# The kernel reads no more of a script's first line.
_SHEBANG_LIMIT = 120


@dataclass(frozen=True)
class Places:
    """Folders and files of the pod, as text so that a program's source can hold them."""

    store: str = STORE
    scratch: str = SCRATCH
    token: str = f"{TOKEN_DIR}/{TOKEN_FILE}"
    adapters: str = ADAPTERS_DIR
    termination_log: str = str(TERMINATION_LOG)
    shm: str = "/dev/shm"  # noqa: S108 - the pod's own memory volume

    @property
    def token_path(self) -> Path:
        """The mounted token."""
        return Path(self.token)

    @property
    def shm_path(self) -> Path:
        """The memory volume."""
        return Path(self.shm)

    @property
    def run(self) -> Path:
        """The runner's own folder: programs, hostfile, socket."""
        return Path(self.scratch) / "run"

    @property
    def socket(self) -> Path:
        """Where ranks of this pod find their runner."""
        return self.run / "ranks.sock"

    @property
    def world(self) -> Path:
        """Which address is which stage, for the agent."""
        return self.run / "world.json"

    def dump(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Places:
        """From text of the same runner.

        Raises:
            ValueError: When it is not that.
        """
        raw = json.loads(text)
        return cls(**{item.name: str(raw[item.name]) for item in fields(cls)})


@dataclass(frozen=True)
class Pace:
    """Times in seconds that no request sets."""

    beat: float = 2.0  # between two states told to a peer
    look: float = 2.0  # between two looks at the engine's health
    canary: float = 60.0  # between two generations of one token, once it serves
    sample: float = 5.0  # between two looks at the engine's metrics
    gpus: float = 15.0  # between two looks at the GPUs' use
    generation: float = 60.0  # that a generation of one token may take before it is tried again
    settle: float = 1.0  # for the causes of one end to come together
    verdict: float = 5.0  # that a worker waits for the leader's word on whose fault it was
    lame_duck: float = 5.0  # that a drained leader goes on serving while the news of it spreads
    adapters: float = 60.0  # that a leader waits for its adapters before it is ready
    missing: float = 90.0  # without a token after a process of the engine has ended
    end: float = 10.0  # from SIGTERM to SIGKILL
    gone: float = 10.0  # from SIGKILL to giving up


def archive() -> str:
    """The folder or zip file that `shardwright.runner` is imported from."""
    return str(Path(shardwright.runner.__file__).parents[2])


def write_programs(places: Places) -> None:
    """Put the agent and the rank program into the run folder, for mpirun to start.

    Each is a Python script that imports this very runner: mpirun's agent is one word then, and
    nothing depends on what the environment of the daemons is.

    Raises:
        OSError: The scratch volume cannot be written.
        ValueError: The interpreter's path is longer than a script may name.
    """
    places.run.mkdir(parents=True, exist_ok=True, mode=0o700)
    python = sys.executable
    if len(python) > _SHEBANG_LIMIT or " " in python:
        raise ValueError(f"the interpreter's path {python!r} cannot stand in a script")
    for name, module in ((AGENT_PROGRAM, "agent"), (RANK_PROGRAM, "rank")):
        path = places.run / name
        text = _PROGRAM.format(python=python, root=archive(), module=module, places=places.dump())
        path.write_text(text, encoding="utf-8")
        path.chmod(0o700)
