"""Publishing an artifact: everything on disk, the manifest last, then one rename.

Others see the artifact's folder either whole or not at all. A rename on one file system is atomic,
and it does not replace a folder that holds something: of several that publish the same key one
wins, and the others find its folder, check it and throw their own away.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from shardwright.runner.contract import MANIFEST, FileEntry, Manifest, encode
from shardwright.runner.log import say
from shardwright.runner.verify import ArtifactError, Wanted, check, sha256_of

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
# How often a folder without a valid manifest is taken out of the way before this is given up.
_ROUNDS = 8


class ContentError(Exception):
    """A folder holds something that no artifact may hold."""


def settle(folder: Path, between: Callable[[], None]) -> dict[str, FileEntry]:
    """Size and SHA-256 of every file below a folder, all of it written through to the disk.

    Args:
        folder: What the tools have left.
        between: Called between files and chunks; what it raises ends this.

    Returns:
        Entries by path relative to the folder, `/` between parts.

    Raises:
        ContentError: There is a link, socket, pipe or device: an artifact holds its own bytes.
        OSError: The storage failed.
    """
    entries: dict[str, FileEntry] = {}
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders.sort()
        for name in [*folders, *names]:
            path = Path(place, name)
            mode = path.lstat().st_mode
            relative = path.relative_to(folder).as_posix()
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise ContentError(f"{relative} is no regular file (mode {stat.filemode(mode)})")
            if relative == MANIFEST:
                raise ContentError(f"{MANIFEST} is there already: only the runner writes it")
            between()
            digest = sha256_of(path, between)
            sync(path)
            entries[relative] = FileEntry(size=path.stat().st_size, sha256=digest)
        sync(Path(place))
    return entries


def seal(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into a settled folder, through to the disk.

    Raises:
        OSError: The storage failed.
    """
    path = folder / MANIFEST
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(encode(manifest))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    sync(folder)


def publish(sealed: Path, final: Path, wanted: Wanted, aside: Path) -> Manifest | None:
    """Rename a sealed folder to its final name.

    A folder of that name which is not the artifact (files missing, no manifest) is a ruin: it is
    moved aside first, and moved back if it turns out to be another one than was judged, since a
    competitor may have published between the two.

    Args:
        sealed: The folder to publish, on the same file system.
        final: The artifact's own folder.
        wanted: What a competitor's folder is checked against.
        aside: An existing folder of this pod's own, where ruins go.

    Returns:
        None when this folder was published; else the manifest of the one that was there first.

    Raises:
        OSError: The storage failed, or `sealed` is gone.
    """
    own = _identity(sealed)
    if own is None:
        raise FileNotFoundError(errno.ENOENT, "the folder to publish is gone", str(sealed))
    make(final.parent)
    for attempt in range(_ROUNDS):
        try:
            os.rename(sealed, final)  # noqa: PTH104 - what publishes is this call and no other
        except OSError as error:
            # A network file system may do a rename and lose the answer.
            if _identity(final) == own:
                break
            if error.errno not in _TAKEN:
                raise
            manifest = _judge(final, wanted, aside / f"ruin-{attempt}")
            if manifest is not None:
                return manifest
        else:
            break
    else:
        raise OSError(
            errno.ENOTEMPTY, f"{final} was taken {_ROUNDS} times by something that is no artifact"
        )
    sync(final.parent)
    return None


def _judge(final: Path, wanted: Wanted, aside: Path) -> Manifest | None:
    """The manifest of what is in the way; None when it was a ruin and is out of the way."""
    judged = _identity(final)
    try:
        return check(final, wanted)
    except ArtifactError as error:
        say("a folder that is not the artifact is taken away", path=str(final), found=str(error))
    if judged is None:
        return None
    try:
        os.rename(final, aside)  # noqa: PTH104 - as above
    except FileNotFoundError:
        return None
    if _identity(aside) != judged:
        # Not what was judged: somebody published meanwhile. If a third one has done so since, both
        # are as good, and this one stays aside.
        try:
            os.rename(aside, final)  # noqa: PTH104 - as above
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
    return None


def make(folder: Path) -> None:
    """Make a folder and those above it, so that they are there after a power cut.

    Raises:
        OSError: The storage failed.
    """
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def discard(folder: Path) -> None:
    """Delete a folder and all that is in it; one that is not there, or going, is fine.

    Raises:
        OSError: Something cannot be deleted.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    # The name of this argument's successor, onexc, is not known to Python 3.11.
    shutil.rmtree(folder, onerror=_tolerate)


def sync(path: Path) -> None:
    """Have a file's bytes, or a folder's names, written to the disk.

    Raises:
        OSError: The storage failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no fsync of a folder; their servers keep the order.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _tolerate(_function: object, _path: str, info: tuple[type, BaseException, object]) -> None:
    if not isinstance(info[1], FileNotFoundError):
        raise info[1]


def _raise(error: OSError) -> None:
    raise error
