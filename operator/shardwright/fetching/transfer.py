"""One file: gone on with from where it was left, verified, published; discarded alone if wrong."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

from shardwright.fetching.digests import Meter
from shardwright.fetching.failures import (
    REASON_CHECKSUM_MISMATCH,
    CorruptError,
    FetchError,
    TransientError,
    environment,
)
from shardwright.fetching.folders import Folders
from shardwright.fetching.patience import Halt, Patience, Retrier
from shardwright.fetching.progress import Progress
from shardwright.fetching.remote import RemoteFile, Source
from shardwright.runner.contract import REASON_DISK_FULL, FileEntry
from shardwright.runner.log import say

# Large enough that the interpreter's lock is rarely taken, small enough to notice a signal soon.
_CHUNK = 2**20
# A connection that broke before it brought so much counts as a failed try.
_GAIN_BYTES = 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Transfer:
    """Brings files from a source into the artifact's folder; one instance serves all threads."""

    def __init__(
        self,
        source: Source,
        folders: Folders,
        patience: Patience,
        halt: Halt,
        progress: Progress,
    ) -> None:
        self._source = source
        self._folders = folders
        self._patience = patience
        self._halt = halt
        self._progress = progress

    def bring(self, file: RemoteFile) -> FileEntry:
        """Size and SHA-256 of a file that is whole and published when this returns.

        Raises:
            FetchError: It cannot be had.
            ChangedError: It is not what was listed.
            StoppedError, AbandonedError: Work must end; what has come is kept.
            OSError: The storage failed.
        """
        entry = self._published(file)
        if entry is None:
            entry = self._fetched(file)
        self._progress.finish()
        return entry

    def _published(self, file: RemoteFile) -> FileEntry | None:
        """The entry of a file that an earlier attempt has published; read again to be sure."""
        path = self._folders.final / file.name
        if not path.is_file() or path.is_symlink() or path.stat().st_size != file.size:
            return None
        meter = Meter(file.size, file.digest)
        with path.open("rb", buffering=0) as published:
            self._reread(published, meter)
        if problem := meter.difference():
            say("a published file is not what the source has", file=file.name, found=problem)
            self._progress.have(-meter.size)
            path.unlink()
            return None
        return FileEntry(file.size, meter.sha256)

    def _fetched(self, file: RemoteFile) -> FileEntry:
        partial = self._folders.partial(file)
        if file.digest is None:
            # Without a checksum nobody could tell whether the halves of two attempts fit.
            partial.unlink(missing_ok=True)
        else:
            self._folders.take_over(file)
        for _ in range(self._patience.corrupt_tries):
            try:
                sha256 = self._receive(file, partial)
            except CorruptError as error:
                problem = str(error)
                say("a file is wrong and is fetched again", file=file.name, found=problem)
                self._progress.have(-min(partial.stat().st_size, file.size))
                partial.unlink()
                continue
            self._folders.publish(file, partial)
            return FileEntry(file.size, sha256)
        raise environment(
            REASON_CHECKSUM_MISMATCH,
            f"{file.name} came with a wrong checksum {self._patience.corrupt_tries} times: "
            f"{problem}; look for a proxy that changes answers, or upload the file again",
        )

    def _receive(self, file: RemoteFile, partial: Path) -> str:
        """SHA-256 of a file that is whole in its unfinished place.

        Raises:
            CorruptError: Its checksum is wrong.
        """
        with _opened(partial) as out:
            reception = _Reception(file, out)
            self._reread(out, reception.meter)
            retrier = Retrier(file.name, self._patience, self._halt)
            while reception.meter.size < file.size:
                retrier.call(lambda: self._stretch(reception))
            if problem := reception.meter.difference():
                raise CorruptError(problem)
            return reception.meter.sha256

    def _stretch(self, reception: _Reception) -> None:
        """Take what one connection brings.

        Raises:
            TransientError: It brought too little.
        """
        file, meter = reception.file, reception.meter
        before = meter.size
        with self._source.open(file, before) as body:
            if body.start != before:
                # A server without ranges starts over, and the bytes that are there pass by unseen:
                # the checksum over all of them tells in the end whether they were the same.
                self._skip(body.read, before - body.start)
            try:
                while chunk := body.read(_CHUNK):
                    self._halt.check()
                    if meter.size + len(chunk) > file.size:
                        raise CorruptError(f"more than its {file.size} bytes came")
                    self._write(reception.out, chunk, file)
                    meter.update(chunk)
                    self._progress.receive(len(chunk))
            except TransientError as error:
                if meter.size - before < _GAIN_BYTES:
                    raise
                say("the connection broke", file=file.name, at=meter.size, error=str(error))
                return
        if meter.size < file.size and meter.size - before < _GAIN_BYTES:
            raise TransientError(f"the answer ended at byte {meter.size} of {file.size}")

    def _skip(self, read: Callable[[int], bytes], size: int) -> None:
        while size:
            self._halt.check()
            chunk = read(min(size, _CHUNK))
            if not chunk:
                raise TransientError("the answer ended before the bytes that are missing")
            size -= len(chunk)

    def _write(self, out: io.FileIO, chunk: bytes, file: RemoteFile) -> None:
        view = memoryview(chunk)
        try:
            while view:
                view = view[out.write(view) or 0 :]
        except OSError as error:
            if error.errno not in _FULL:
                raise
            left = file.size - out.tell()
            raise full(file.name, left, self._folders.free_bytes()) from error

    def _reread(self, file: io.FileIO, meter: Meter) -> None:
        """Take bytes that are on the volume already."""
        file.seek(0)
        while chunk := file.read(_CHUNK):
            self._halt.check()
            meter.update(chunk)
            self._progress.have(len(chunk))


class _Reception:
    """A file under way: where it is written, and the checksums of what is there."""

    def __init__(self, file: RemoteFile, out: io.FileIO) -> None:
        self.file = file
        self.out = out
        self.meter = Meter(file.size, file.digest)


def full(what: str, needed: int, free: int) -> FetchError:
    """The failure of a volume without room.

    Args:
        what: What has no room.
        needed: Bytes that are missing of it.
        free: Bytes that the volume has.
    """
    return environment(
        REASON_DISK_FULL,
        f"the claim is full: {what} needs {needed} more bytes ({needed / 2**30:.1f} GiB), "
        f"{free} are free ({free / 2**30:.1f} GiB); enlarge the claim (storage.claimName) by "
        f"{max(needed - free, 0) / 2**30:.1f} GiB or make room; what has come so far is kept",
    )


def _opened(partial: Path) -> io.FileIO:
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    return io.FileIO(descriptor, "r+")
