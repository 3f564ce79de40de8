"""Frames on a stream: a length of four bytes, then the payload.

A frame that is longer than its reader allows is refused before any of it is read. Every read has a
deadline for the whole frame, so that a peer that sends a byte a second holds nobody up.
"""

from __future__ import annotations

import socket
import struct
import time

# What the two sides say to each other: states, log lines, command lines.
FRAME_LIMIT_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")


class ChannelError(Exception):
    """A peer cannot be talked to: it is gone, silent, not who it says, or speaks something else."""


class ClosedError(ChannelError):
    """The other side has closed the connection."""


class SilentError(ChannelError):
    """The other side said nothing, or not enough, in time."""


def read_frame(stream: socket.socket, limit_bytes: int, deadline: float) -> bytes:
    """The payload of the next frame.

    Args:
        stream: A connected stream socket.
        limit_bytes: The longest payload that is accepted.
        deadline: Until when all of it must be there, on the clock of `time.monotonic`.

    Raises:
        ClosedError: The stream ended, at the start of a frame or inside one.
        SilentError: The deadline passed.
        ChannelError: The frame is empty or longer than the limit, or the connection broke.
    """
    (length,) = _LENGTH.unpack(_read_exactly(stream, _LENGTH.size, deadline))
    if not 0 < length <= limit_bytes:
        raise ChannelError(f"a frame of {length} bytes was announced, 1 to {limit_bytes} may be")
    return _read_exactly(stream, length, deadline)


def write_frame(stream: socket.socket, payload: bytes, limit_bytes: int, deadline: float) -> None:
    """Send one frame.

    Raises:
        ChannelError: The payload is empty or longer than the limit, the connection broke, or the
            other side took nothing until the deadline.
    """
    if not 0 < len(payload) <= limit_bytes:
        raise ChannelError(f"a frame of {len(payload)} bytes, 1 to {limit_bytes} may be")
    try:
        stream.settimeout(_left(deadline))
        stream.sendall(_LENGTH.pack(len(payload)) + payload)
    except socket.timeout as error:  # noqa: UP041 - no TimeoutError before Python 3.10
        raise SilentError("the other side takes nothing") from error
    except OSError as error:
        raise ClosedError(f"the connection broke: {error}") from error


def _read_exactly(stream: socket.socket, count: int, deadline: float) -> bytes:
    parts = []
    while count:
        try:
            stream.settimeout(_left(deadline))
            part = stream.recv(min(count, 65536))
        except socket.timeout as error:  # noqa: UP041 - no TimeoutError before Python 3.10
            raise SilentError("nothing came in time") from error
        except OSError as error:
            raise ClosedError(f"the connection broke: {error}") from error
        if not part:
            raise ClosedError("the other side has closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise SilentError("the deadline passed")
    return left
