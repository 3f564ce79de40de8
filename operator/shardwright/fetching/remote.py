"""What a source says of a model: its files, their sizes and checksums, and the commit of it all.

A `Source` lists and streams; it writes nothing. Everything that is written, counted, verified and
published is the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from shardwright.fetching.failures import permanent
from shardwright.runner.contract import MANIFEST, REASON_MODEL_NOT_FOUND
from shardwright.runner.verify import inside

# A model has some hundred files; a listing that is longer names the wrong folder.
FILES_LIMIT = 10_000
_NAME_BYTES = 1024
_PART_BYTES = 255
# Where a fetch notes what it has begun; beside the files, since it goes with them.
PLAN = ".shardwright-fetch.json"


@dataclass(frozen=True, slots=True)
class Digest:
    """A checksum as the source gives it.

    Attributes:
        algorithm: `sha256`, `sha1`, `md5`, `git` (SHA-1 of a git blob), `crc32`, `crc32c` or
            `crc64nvme`.
        value: In lower-case hexadecimal.
        part_bytes: 0 for the checksum of the bytes; else the checksum of the checksums of parts of
            this size, as S3 computes it for an upload in parts.
    """

    algorithm: str
    value: str
    part_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model at its source.

    Attributes:
        name: Path relative to the model's folder, with `/` between parts.
        size: Bytes.
        digest: None when the source gives no checksum that can be recomputed.
        address: What the source finds it by: an object's key, a blob's digest.
        version: What tells this content from another under the same address.
    """

    name: str
    size: int
    digest: Digest | None = None
    address: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A model at its source: its files, and the commit or digest that names all of it."""

    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class Body(Protocol):
    """The bytes of a file from `start` on; closed by leaving its `with` block."""

    start: int

    def read(self, size: int) -> bytes:
        """At most `size` bytes; empty at the end.

        Raises:
            TransientError: The connection broke.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Source(Protocol):
    """A place that models are fetched from."""

    tools: dict[str, str]

    def survey(self) -> Listing:
        """All files of the model, moving names resolved.

        Raises:
            FetchError: There is no such model, or no access to it.
            TransientError: Not now.
        """
        ...

    def describe(self, file: RemoteFile) -> RemoteFile:
        """The same file with its checksum, where that takes a request of its own.

        Raises:
            FetchError: No access to it.
            ChangedError: It is gone.
            TransientError: Not now.
        """
        ...

    def open(self, file: RemoteFile, offset: int) -> Body:
        """The file's bytes from `offset` on, or from the start if the server knows no ranges.

        Raises:
            FetchError: No access to it.
            ChangedError: The file is not what was listed.
            TransientError: Not now.
        """
        ...

    def close(self) -> None:
        """Give back connections."""
        ...


def refuse_names(files: tuple[RemoteFile, ...], where: str) -> None:
    """Do nothing if all names can be written below a folder and stay there.

    Raises:
        FetchError: A name leads elsewhere, is taken by this operator, or stands twice.
    """
    if len(files) > FILES_LIMIT:
        raise permanent(
            REASON_MODEL_NOT_FOUND,
            f"{where} has {len(files)} files, the limit is {FILES_LIMIT}; name the model's own "
            "folder",
        )
    seen: set[str] = set()
    for file in files:
        if not is_plain(file.name):
            raise permanent(
                REASON_MODEL_NOT_FOUND,
                f"{where} has a file named {file.name[:200]!r}, which cannot be written safely; "
                "rename it there",
            )
        if file.name in seen:
            raise permanent(REASON_MODEL_NOT_FOUND, f"{where} has two files named {file.name}")
        seen.add(file.name)


def is_plain(name: str) -> bool:
    """Whether a name is a relative path of ordinary parts, none of them hidden or ours."""
    parts = name.split("/")
    return (
        inside(name)
        and name.isprintable()
        and "\\" not in name
        and len(name.encode()) <= _NAME_BYTES
        and all(part not in ("", ".") and len(part.encode()) <= _PART_BYTES for part in parts)
        and name not in (MANIFEST, PLAN)
    )
