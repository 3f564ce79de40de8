"""The transport over TCP, for engines whose ranks meet at a master's address instead of MPI.

Every rank listens on a port of its own, tells rank 0 (the master) where, gets everybody's address
back, and connects to all lower ranks. A frame is sender's tag, length, data.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import struct
import threading
import time
from typing import Any

from shardwright_standin.ranks.transport import LostPeerError, Tag

_FRAME = struct.Struct("<BI")
_HELLO = struct.Struct("<I")
_RETRY_SECONDS = 0.2
_GONE = b""  # frames are never empty, so this marks a closed connection


class RendezvousError(TimeoutError):
    """Not all ranks met in time."""


class TCPTransport:
    """One rank of a mesh of connections."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._links: dict[int, socket.socket] = {}
        self._boxes: dict[tuple[int, Tag], queue.SimpleQueue[bytes]] = {
            (peer, tag): queue.SimpleQueue() for peer in range(size) for tag in Tag
        }
        self._sending = threading.Lock()

    @classmethod
    def meet(
        cls, rank: int, size: int, master: tuple[str, int], timeout_seconds: float
    ) -> TCPTransport:
        """Wait until all `size` ranks met at the master's address.

        Raises:
            RendezvousError: When they did not within the timeout.
        """
        deadline = time.monotonic() + timeout_seconds
        own = cls(rank, size)
        if size == 1:
            return own
        with _listen(master if rank == 0 else ("", 0)) as listener:
            try:
                if rank == 0:
                    own._serve_table(listener, deadline)
                else:
                    own._join(listener, master, deadline)
            except BaseException:
                own.close()
                raise
        for peer, link in own._links.items():
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=own._pump, args=(peer, link), daemon=True).start()
        return own

    def send(self, peer: int, tag: Tag, data: bytes) -> None:
        """Write one frame.

        Raises:
            LostPeerError: When the connection is gone.
        """
        try:
            with self._sending:
                self._links[peer].sendall(_FRAME.pack(int(tag), len(data)) + data)
        except OSError as error:
            raise LostPeerError(f"rank {self.rank}: connection to rank {peer} lost") from error

    def receive(self, peer: int, tag: Tag) -> bytes:
        """Take the next frame.

        Raises:
            LostPeerError: When the connection is gone.
        """
        data = self._boxes[peer, tag].get()
        if data == _GONE:
            self._boxes[peer, tag].put(_GONE)
            raise LostPeerError(f"rank {self.rank}: connection to rank {peer} closed by peer")
        return data

    def close(self) -> None:
        """Close all connections; peers notice at once, though a thread still reads here."""
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def _serve_table(self, listener: socket.socket, deadline: float) -> None:
        where: dict[int, tuple[str, int]] = {}
        while len(self._links) < self.size - 1:
            link, address = _accept(listener, deadline, f"{len(self._links) + 1}/{self.size}")
            peer, port = json.loads(_line(link))
            self._links[peer] = link
            where[peer] = (address[0], port)
        table = json.dumps(where).encode() + b"\n"
        for link in self._links.values():
            link.sendall(table)

    def _join(self, listener: socket.socket, master: tuple[str, int], deadline: float) -> None:
        link = _connect(master, deadline)
        self._links[0] = link
        port = listener.getsockname()[1]
        link.sendall(json.dumps([self.rank, port]).encode() + b"\n")
        link.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            table: dict[str, Any] = json.loads(_line(link))
        except TimeoutError as error:
            raise RendezvousError(f"rank {self.rank}: not all {self.size} ranks came") from error
        for peer in range(1, self.rank):
            host, peer_port = table[str(peer)]
            self._links[peer] = _connect((host, peer_port), deadline)
            self._links[peer].sendall(_HELLO.pack(self.rank))
        for _ in range(self.rank + 1, self.size):
            link, _ = _accept(listener, deadline, f"of {self.size}")
            (peer,) = _HELLO.unpack(_exactly(link, _HELLO.size))
            self._links[peer] = link

    def _pump(self, peer: int, link: socket.socket) -> None:
        try:
            while True:
                tag, length = _FRAME.unpack(_exactly(link, _FRAME.size))
                self._boxes[peer, Tag(tag)].put(_exactly(link, length))
        except OSError:
            for tag in Tag:
                self._boxes[peer, tag].put(_GONE)


def _listen(address: tuple[str, int]) -> socket.socket:
    # The master's name may resolve to an address that only others can use, so listen on all.
    return socket.create_server(("", address[1]), reuse_port=False)


def _accept(listener: socket.socket, deadline: float, seen: str) -> tuple[socket.socket, Any]:
    listener.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        link, address = listener.accept()
    except TimeoutError as error:
        raise RendezvousError(f"rendezvous timed out with {seen} ranks") from error
    link.settimeout(max(0.01, deadline - time.monotonic()))
    return link, address


def _connect(address: tuple[str, int], deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection(address, timeout=5)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RendezvousError(f"cannot reach {address[0]}:{address[1]}: {error}") from error
            time.sleep(_RETRY_SECONDS)


def _line(link: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        line += _exactly(link, 1)
    return bytes(line)


def _exactly(link: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more:
            raise LostPeerError("closed")
        data += more
    return bytes(data)
