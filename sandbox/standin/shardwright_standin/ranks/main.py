"""A rank's process: `python -m shardwright_standin.ranks.main --transport mpi|tcp …`.

Rank 0 listens for the HTTP side at the address that `TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR` names and
admits it by the key in `TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY` (the real launcher's names).
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from multiprocessing.connection import Listener
from urllib.parse import urlsplit

from shardwright_standin.faults import Faults
from shardwright_standin.ranks.loop import Leader, Rank
from shardwright_standin.ranks.mpi import MPITransport
from shardwright_standin.ranks.tcp import TCPTransport
from shardwright_standin.ranks.transport import LostPeerError, Transport

ADDRESS = "TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"
KEY = "TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY"
MEETING_SECONDS = 1800.0


def address() -> tuple[str, int]:
    """Where rank 0 listens.

    Raises:
        SystemExit: When the environment names no such address.
    """
    parts = urlsplit(os.environ.get(ADDRESS, ""))
    if parts.scheme != "tcp" or not parts.hostname or not parts.port:
        sys.exit(f"{ADDRESS}={os.environ.get(ADDRESS)!r} is not of the form tcp://HOST:PORT")
    return parts.hostname, parts.port


def key() -> bytes:
    """What both sides of that connection must know.

    Raises:
        SystemExit: When the environment has none.
    """
    text = os.environ.get(KEY, "")
    if not text:
        sys.exit(f"{KEY} is not set; both the ranks and the HTTP side need it")
    return bytes.fromhex(text)


def run(transport: Transport, program: str, *, once: bool) -> None:
    """Be one rank until rank 0 is told to stop."""
    faults = Faults(program=program)
    rank = Rank(transport, faults)
    if transport.rank != 0:
        rank.follow()
    else:
        with Listener(address(), authkey=key()) as listener:
            Leader(rank).accept_from(listener, once=once)
    transport.close()


def run_mpi(program: str, *, once: bool) -> None:
    """Be a rank of MPI's world; an error here ends the whole job."""
    transport = MPITransport()
    try:
        run(transport, program, once=once)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        transport.abort(1)
        raise


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=("mpi", "tcp"), required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--master", default="127.0.0.1:29501")
    parser.add_argument("--timeout", type=float, default=MEETING_SECONDS)
    asked = parser.parse_args()
    if asked.transport == "mpi":
        run_mpi(asked.program, once=True)
        return
    host, _, port = asked.master.rpartition(":")
    met = TCPTransport.meet(asked.rank, asked.size, (host, int(port)), asked.timeout)
    try:
        run(met, asked.program, once=True)
    except LostPeerError as error:
        sys.exit(f"[rank {asked.rank}] {error}")


if __name__ == "__main__":
    main()
