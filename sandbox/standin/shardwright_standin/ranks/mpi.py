"""The transport over MPI.

Open MPI waits by spinning, which on a machine with fewer cores than ranks takes the core from the
rank that is waited for. So messages are probed for with growing pauses instead of received blindly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shardwright_standin.ranks.transport import Tag

_SHORTEST_PAUSE = 50e-6
_LONGEST_PAUSE = 5e-3


class MPITransport:
    """Ranks of MPI's world; MPI itself ends the job when one of them dies."""

    def __init__(self) -> None:
        # Starting MPI is this import's doing, so it must not happen in programs that only parse.
        from mpi4py import MPI  # noqa: PLC0415

        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        # Requests under way with the data they read, which must live as long.
        self._sending: list[tuple[Any, bytes]] = []

    def send(self, peer: int, tag: Tag, data: bytes) -> None:
        """Start sending.

        It does not wait for the end: a large message ends only once its receiver takes it, and in
        an exchange both sides send first.
        """
        self._sending = [under_way for under_way in self._sending if not under_way[0].Test()]
        request = self._world.Isend([data, self._mpi.BYTE], dest=peer, tag=int(tag))
        self._sending.append((request, data))

    def receive(self, peer: int, tag: Tag) -> bytes:
        """Probe, then receive."""
        status = self._mpi.Status()
        _until(lambda: self._world.Iprobe(source=peer, tag=int(tag), status=status))
        data = bytearray(status.Get_count(self._mpi.BYTE))
        self._world.Recv([data, self._mpi.BYTE], source=peer, tag=int(tag))
        return bytes(data)

    def close(self) -> None:
        """Finish sending and finalize MPI; then this process may end without ending the job."""
        for request, _ in self._sending:
            _until(request.Test)
        self._sending = []
        if not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def abort(self, code: int) -> None:
        """End the whole job."""
        self._world.Abort(code)


def _until(ready: Callable[[], bool]) -> None:
    pause = _SHORTEST_PAUSE
    while not ready():
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
