"""`trtllm-llmapi-launch`: each MPI rank runs it; rank 0 runs the command beside the ranks' work.

The real one is a shell script (read at 020c89e6). Kept from it: the command is joined and split
again at blanks, with names of files expanded; MPI's variables are taken out of its environment; and
only when it ends well are the ranks told to stop. When it fails the ranks stay, and the job hangs
until somebody ends it. Rank 0's own server and the worker loop run in this process. Its port
is any one: the real script's first free one from 10012 on may be found by two jobs of one machine.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Client

from shardwright_standin.faults import Faults
from shardwright_standin.front.group import ipc_environment, without_mpi
from shardwright_standin.ranks import main as rank_process
from shardwright_standin.tools.llm import SPAWN_PROXY

_RANK = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMI_ID")
_SIZE = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


def main() -> int:
    """The program."""
    rank = int(next((os.environ[name] for name in _RANK if os.environ.get(name)), "0"))
    size = next((os.environ[name] for name in _SIZE if os.environ.get(name)), "1")
    print(f"mpi_rank: {rank}\ntllm_mpi_size: {size}", file=sys.stderr, flush=True)
    Faults(program="trtllm-llmapi-launch", rank=rank).reach("start")
    os.environ[SPAWN_PROXY] = "1"
    os.environ["tllm_mpi_size"] = size  # noqa: SIM112 - the real one's spelling
    os.environ.update(ipc_environment())
    if rank == 0:
        threading.Thread(target=_run_command, args=(split(sys.argv[1:]),), daemon=True).start()
    rank_process.run_mpi("trtllm-serve", once=False)
    return 0


def split(arguments: list[str]) -> list[str]:
    """The words a shell makes of the unquoted, joined arguments."""
    words = []
    for word in " ".join(arguments).split():
        found = sorted(glob.glob(word)) if glob.has_magic(word) else []  # noqa: PTH207
        words += found or [word]
    return words


def _run_command(command: list[str]) -> None:
    print(f"rank0 run {' '.join(command)} in background", file=sys.stderr, flush=True)
    code = subprocess.call(command, env=without_mpi(os.environ))
    if code:
        # `set -e` in the real script's subshell: "stop" is never sent.
        print(f"[standin] the command ended with {code}; ranks stay", file=sys.stderr, flush=True)
        return
    while True:
        try:
            with Client(rank_process.address(), authkey=rank_process.key()) as connection:
                connection.send_bytes(b'{"do": "stop"}')
        except ConnectionError:
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
