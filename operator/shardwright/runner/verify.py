"""Whether a folder holds the artifact that its manifest promises.

Asked before an artifact is made (it may be there already), before one is made from it, after a race
was lost, and before one is loaded. Standard library only; nothing of the folder is executed, no
path leaves it, and no link is followed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from shardwright.runner.contract import (
    MANIFEST,
    REASON_MANIFEST_MISMATCH,
    REASON_MANIFEST_MISSING,
    ContractError,
    FileEntry,
    Manifest,
    decode,
    differences,
    manifest_problem,
    ranks_of,
)

# A manifest lists some hundred files; a larger one is none of ours.
MANIFEST_LIMIT_BYTES = 16 * 2**20
# Hashed at every check: configurations, which somebody may have edited without changing their size.
# Weights are compared by size there; reading terabytes at each start would double its time.
SMALL_FILE_BYTES = 2**20
_CHUNK = 4 * 2**20


class ArtifactError(Exception):
    """A folder is not the artifact asked for.

    Attributes:
        reason: `ManifestMissing` or `ManifestMismatch`, for the report.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Wanted:
    """What a folder is asked to hold; `world_size` 0 means not split by ranks.

    `inputs` are what the key is the hash of, where they are known: they tell how another artifact
    differs.
    """

    step: str
    key: str
    world_size: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict)


def _nothing() -> None:
    """Called between chunks when the caller has nothing to do there."""


def check(
    folder: Path,
    wanted: Wanted,
    *,
    hash_up_to: int | None = SMALL_FILE_BYTES,
    between: Callable[[], None] = _nothing,
) -> Manifest:
    """The manifest of a folder that holds exactly the artifact asked for.

    Args:
        folder: The artifact's folder.
        wanted: Step, key and world size that the manifest must say.
        hash_up_to: Files of at most so many bytes are hashed too; None hashes all of them.
        between: Called between files and between chunks; what it raises ends the check.

    Raises:
        ArtifactError: With the first difference and the count of others.
        OSError: The storage failed; that says nothing about the artifact.
    """
    manifest = read_manifest(folder)
    problem = manifest_problem(manifest, wanted.step, wanted.key, wanted.world_size)
    if problem:
        told = [problem]
        if wanted.inputs and manifest.key != wanted.key and manifest.step == wanted.step:
            told += differences(manifest.inputs, wanted.inputs)
        raise ArtifactError(REASON_MANIFEST_MISMATCH, f"{folder.name}: {'; '.join(told)}")
    found = []
    try:
        for name, entry in sorted(manifest.files.items()):
            between()
            difference = _difference(folder, name, entry, hash_up_to, between)
            if difference:
                found.append(difference)
        found.extend(_stray_ranks(folder, manifest))
    except FileNotFoundError as error:
        raise ArtifactError(
            REASON_MANIFEST_MISSING, f"{folder} was taken away while it was looked at"
        ) from error
    if found:
        more = f" (and {len(found) - 1} more differences)" if len(found) > 1 else ""
        raise ArtifactError(REASON_MANIFEST_MISMATCH, f"{folder.name}: {found[0]}{more}")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder, as it stands; its files are not looked at.

    Raises:
        ArtifactError: There is none, or it cannot be read as one.
        OSError: The storage failed.
    """
    path = folder / MANIFEST
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MANIFEST_LIMIT_BYTES:
            raise ArtifactError(
                REASON_MANIFEST_MISSING,
                f"{path} is no file of at most {MANIFEST_LIMIT_BYTES} bytes",
            )
        manifest = decode(Manifest, path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(REASON_MANIFEST_MISSING, f"{folder} holds no {MANIFEST}") from None
    except (ContractError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactError(
            REASON_MANIFEST_MISSING, f"{path} cannot be read as a manifest: {error}"
        ) from error
    if not isinstance(manifest.inputs, dict) or not all(
        _well_formed(name, entry) for name, entry in manifest.files.items()
    ):
        raise ArtifactError(
            REASON_MANIFEST_MISSING, f"{path}: its inputs or its list of files are malformed"
        )
    return manifest


def sha256_of(path: Path, between: Callable[[], None] = _nothing) -> str:
    """SHA-256 of a file, read in chunks; `between` is called before each of them.

    Raises:
        OSError: The file is a link, or cannot be read.
    """
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(_CHUNK))
        while True:
            between()
            size = file.readinto(buffer)
            if not size:
                return digest.hexdigest()
            digest.update(buffer[:size])


def inside(name: str) -> bool:
    """Whether a name of a manifest or a request stays in its folder: relative, no `..`."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _well_formed(name: object, entry: FileEntry) -> bool:
    return (
        isinstance(name, str)
        and inside(name)
        and isinstance(entry.size, int)
        and isinstance(entry.sha256, str)
    )


def _difference(
    folder: Path,
    name: str,
    entry: FileEntry,
    hash_up_to: int | None,
    between: Callable[[], None],
) -> str:
    """What is wrong with one file, or nothing."""
    path = folder / name
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing, the manifest has it with {entry.size} bytes"
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is not a regular file"
    if status.st_size < entry.size:
        return (
            f"{name} is truncated: {status.st_size} bytes, the manifest says {entry.size} "
            f"({entry.size - status.st_size} are missing)"
        )
    if status.st_size > entry.size:
        return f"{name} has {status.st_size} bytes, the manifest says {entry.size}"
    if hash_up_to is None or entry.size <= hash_up_to:
        found = sha256_of(path, between)
        if found != entry.sha256:
            return (
                f"{name} was changed: SHA-256 {found[:16]}…, the manifest says {entry.sha256[:16]}…"
            )
    return ""


def _stray_ranks(folder: Path, manifest: Manifest) -> list[str]:
    """Rank files that the manifest does not know: left there from another world."""
    strays = {path.name for path in folder.iterdir()} - set(manifest.files)
    return [
        f"{name} is there, the manifest does not name it"
        for name in sorted(strays)
        if ranks_of([name])
    ]
