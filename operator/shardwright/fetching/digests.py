"""Checksums while bytes pass by: SHA-256 for the manifest, and the one that the source gives.

CRCs are computed by the AWS Common Runtime, which has all that S3 knows; they tell accidents, not
intent, and so does MD5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from awscrt import checksums

from shardwright.fetching.remote import Digest

Buffer = bytes | memoryview


class _Sum(Protocol):
    def update(self, data: Buffer, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    def __init__(self, compute: Callable[[Buffer, int], int], size: int) -> None:
        self._compute = compute
        self._size = size
        self._value = 0

    def update(self, data: Buffer, /) -> None:
        self._value = self._compute(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


_CRCS: dict[str, tuple[Callable[[Buffer, int], int], int]] = {
    "crc32": (checksums.crc32, 4),
    "crc32c": (checksums.crc32c, 4),
    "crc64nvme": (checksums.crc64nvme, 8),
}
_HASHES = {"sha256": 32, "sha1": 20, "md5": 16, "git": 20}
# Bytes of a checksum, by algorithm.
SIZES = {**_HASHES, **{name: size for name, (_, size) in _CRCS.items()}}


class _Parts:
    """The checksum of the checksums of parts of equal size, the last one shorter."""

    def __init__(self, algorithm: str, part_bytes: int) -> None:
        self._algorithm = algorithm
        self._part_bytes = part_bytes
        self._outer = _sum(algorithm, 0)
        self._inner = _sum(algorithm, 0)
        self._room = part_bytes

    def update(self, data: Buffer, /) -> None:
        view = memoryview(data)
        while view:
            piece = view[: self._room]
            self._inner.update(piece)
            self._room -= len(piece)
            view = view[len(piece) :]
            if not self._room:
                self._turn()

    def digest(self) -> bytes:
        if self._room < self._part_bytes:
            self._turn()
        return self._outer.digest()

    def _turn(self) -> None:
        self._outer.update(self._inner.digest())
        self._inner = _sum(self._algorithm, 0)
        self._room = self._part_bytes


class Meter:
    """Takes a file's bytes in order and says at the end whether they are the right ones."""

    def __init__(self, size: int, digest: Digest | None) -> None:
        """Begin a file of `size` bytes.

        Raises:
            ValueError: The algorithm is not known.
        """
        self._wanted = digest
        self._own = hashlib.sha256()
        self._other: _Sum | None = None
        if digest is not None and (digest.algorithm != "sha256" or digest.part_bytes):
            self._other = (
                _Parts(digest.algorithm, digest.part_bytes)
                if digest.part_bytes
                else _sum(digest.algorithm, size)
            )
        self.size = 0

    def update(self, data: Buffer) -> None:
        """Take the next bytes."""
        self._own.update(data)
        if self._other is not None:
            self._other.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes so far, in hexadecimal."""
        return self._own.hexdigest()

    def difference(self) -> str:
        """How the checksum differs from the source's, or nothing."""
        if self._wanted is None:
            return ""
        found = self.sha256 if self._other is None else self._other.digest().hex()
        if found == self._wanted.value:
            return ""
        parts = f" over parts of {self._wanted.part_bytes} bytes" if self._wanted.part_bytes else ""
        return f"{self._wanted.algorithm}{parts} is {found}, the source says {self._wanted.value}"


def _sum(algorithm: str, size: int) -> _Sum:
    if algorithm in _CRCS:
        return _Crc(*_CRCS[algorithm])
    if algorithm not in _HASHES:
        raise ValueError(f"checksum {algorithm!r} is not known; known are {sorted(SIZES)}")
    if algorithm == "git":
        # git's object id of a blob: SHA-1 over a header with the size, and the bytes.
        found = hashlib.sha1(usedforsecurity=False)
        found.update(f"blob {size}\0".encode())
        return found
    return hashlib.new(algorithm, usedforsecurity=False)
