"""The runner's side of its ranks: who has come, what each prints, how it ended."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.runner.contract import ServeRequest
from shardwright.runner.log import say
from shardwright.runner.serve.frames import FRAME_LIMIT_BYTES, ChannelError, read_frame, write_frame
from shardwright.runner.serve.prepare import order_of

_FIRST_SECONDS = 10.0
_FOREVER_SECONDS = 365 * 86400.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)


@dataclass(frozen=True)
class RankStarted:
    """A rank of this pod has asked for its command; `pid` is that of its rank program."""

    rank: int
    local: int
    pid: int


@dataclass(frozen=True)
class RankEnded:
    """A rank's command has ended: with an exit status, or minus the signal that ended it."""

    rank: int
    code: int
    tail: str


@dataclass(frozen=True)
class RankMisplaced:
    """Open MPI has started ranks otherwise than it was asked to."""

    problem: str


def placement_problem(request: ServeRequest, rank: int, local: int, size: int) -> str:
    """How a rank's place differs from what the request wants, or nothing.

    Ranks fill stages in order, the tensor rank fastest: the engine takes its part of the weights by
    its rank, and its GPU by the local one.
    """
    if size != request.world_size:
        return (
            f"the MPI world has {size} ranks, tensor {request.tensor} × pipeline "
            f"{request.pipeline} needs {request.world_size}"
        )
    if rank != request.stage * request.tensor + local:
        first = request.stage * request.tensor
        return (
            f"rank {rank} was started as number {local} on stage {request.stage}, which has ranks "
            f"{first} to {first + request.tensor - 1} in order"
        )
    return ""


class RankServer:
    """Where the pod's rank programs come to, over a socket that only its own user may use."""

    def __init__(
        self,
        path: Path,
        request: ServeRequest,
        order: Mapping[str, Any],
        told: Callable[[RankStarted | RankEnded | RankMisplaced], None],
        printed: Callable[[int, bytes], None],
    ) -> None:
        """Listen from now on.

        Args:
            path: Of the socket.
            request: What the pod is asked to do.
            order: What ranks run (`prepare.order`).
            told: Takes what happens; called in other threads. An end is acknowledged when it
                returns.
            printed: Takes each line of each rank; called in other threads.

        Raises:
            OSError: The socket cannot be made there.
        """
        self._request, self._order, self._told, self._printed = request, order, told, printed
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        path.chmod(0o600)
        self._socket.listen(128)
        self._path = path
        threading.Thread(target=self._serve, name="ranks", daemon=True).start()

    def close(self) -> None:
        """Take no more ranks."""
        self._path.unlink(missing_ok=True)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                stream, _ = self._socket.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._follow, args=(stream,), name="rank", daemon=True).start()

    def _follow(self, stream: socket.socket) -> None:
        rank = -1
        with stream:
            try:
                _same_user(stream)
                hello = _read(stream, _FIRST_SECONDS)
                rank, local, size = (int(hello[name]) for name in ("rank", "local", "size"))
                problem = placement_problem(self._request, rank, local, size)
                if problem:
                    _write(stream, {"refused": problem})
                    self._told(RankMisplaced(problem))
                    return
                self._told(RankStarted(rank, local, int(hello["pid"])))
                _write(stream, order_of(self._order, rank))
                self._listen(stream, rank)
            except (ChannelError, ValueError, KeyError, TypeError) as error:
                # Its program was killed with it, or it is none; Open MPI ends the job then, and the
                # launcher's exit tells.
                say("a rank program went without a word", rank=rank, error=str(error))
                if rank >= 0:
                    self._told(RankEnded(rank, -9, f"rank program lost: {error}"))

    def _listen(self, stream: socket.socket, rank: int) -> None:
        while True:
            message = _read(stream, _FOREVER_SECONDS)
            if "line" in message:
                self._printed(rank, str(message["line"]).encode("utf-8", "replace"))
            elif "exit" in message:
                self._told(RankEnded(rank, int(message["exit"]), str(message.get("tail", ""))))
                _write(stream, {"seen": True})
                return


def _read(stream: socket.socket, seconds: float) -> dict[str, Any]:
    found = json.loads(read_frame(stream, FRAME_LIMIT_BYTES, time.monotonic() + seconds))
    if not isinstance(found, dict):
        raise ChannelError("a message that is no JSON object")
    return found


def _write(stream: socket.socket, message: Mapping[str, Any]) -> None:
    payload = json.dumps(message).encode()
    write_frame(stream, payload, FRAME_LIMIT_BYTES, time.monotonic() + _FIRST_SECONDS)


def _same_user(stream: socket.socket) -> None:
    """Make sure that the other end is our own user's.

    Raises:
        ChannelError: It is not.
    """
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    if uid != os.getuid():
        raise ChannelError("a process of another user asked for a rank's command")
