"""How many connections the engine's port has open: requests that a drain must wait for.

Counted from the kernel's table of the pod's network, whatever the engine is. The servers of
TensorRT-LLM, vLLM and SGLang (uvicorn) close a connection that was idle for five seconds, so one
that stays open has a request in it. Bytes that a closed socket still has to send count too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

# include/net/tcp_states.h
_ESTABLISHED, _FIN_WAIT1, _CLOSE_WAIT, _CLOSING, _LAST_ACK = 1, 4, 8, 11, 9
# Address, peer, state and queues are the first of them.
_CELLS = 5
_OPEN = frozenset({_ESTABLISHED, _CLOSE_WAIT})
_SENDING = frozenset({_FIN_WAIT1, _CLOSING, _LAST_ACK})


@dataclass(frozen=True)
class Socket:
    """One line of the kernel's table; queues in bytes."""

    local_port: int
    state: int
    unsent: int


def read_table(text: str) -> list[Socket]:
    """The sockets of /proc/net/tcp or tcp6.

    Raises:
        ValueError: It is no such table.
    """
    found = []
    for line in text.splitlines()[1:]:
        cells = line.split()
        if len(cells) < _CELLS:
            raise ValueError(f"{line[:60]!r} is no line of /proc/net/tcp")
        port = int(cells[1].rpartition(":")[2], 16)
        unsent = int(cells[4].partition(":")[0], 16)
        found.append(Socket(port, int(cells[3], 16), unsent))
    return found


def in_flight(sockets: Iterable[Socket], port: int) -> int:
    """Connections of a server's port that still carry something."""
    return sum(
        socket.local_port == port
        and (socket.state in _OPEN or (socket.state in _SENDING and socket.unsent > 0))
        for socket in sockets
    )


def look(port: int, tables: Iterable[Path] = TABLES) -> int | None:
    """Connections of this pod's engine now; None where the kernel's table cannot be read."""
    found: list[Socket] = []
    seen = False
    for path in tables:
        try:
            found.extend(read_table(path.read_text(encoding="ascii")))
            seen = True
        except (OSError, ValueError):
            continue  # no IPv6 here, or no such table
    return in_flight(found, port) if seen else None
