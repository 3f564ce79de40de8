"""Reading a JSON object from a file that somebody else wrote: bounded, and nothing else."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

# The largest configurations are indices of shards: a line a tensor, some MB for the largest models.
LIMIT_BYTES = 64 * 2**20
_DIGITS = 64


class JsonFileError(ValueError):
    """A file is missing, too large, or no JSON object."""


def read_object(path: Path, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: A regular file; a link to one is followed (a hub's cache is made of links).
        limit_bytes: A larger file is refused unread.

    Raises:
        JsonFileError: It is not there, no regular file, too large, no JSON, no object, or nested
            too deep.
        OSError: The storage failed.
    """
    try:
        # Opened without waiting: a pipe of that name would never come to an end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise JsonFileError(f"{path} is not there") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise JsonFileError(f"{path} is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise JsonFileError(
            f"{path} has {max(status.st_size, len(data))} bytes, the limit is {limit_bytes}"
        )
    try:
        content = json.loads(data, parse_int=_integer)
    except RecursionError:
        raise JsonFileError(f"{path} is nested too deep") from None
    except ValueError as error:
        raise JsonFileError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise JsonFileError(f"{path} holds {type(content).__name__}, not an object")
    return content


def _integer(digits: str) -> int:
    """Counts have some digits; thousands of them would only cost time, a lot of it."""
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
