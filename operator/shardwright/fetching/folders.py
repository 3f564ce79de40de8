"""What a fetch keeps on the volume, so that another attempt goes on where this one ended.

- The artifact's own folder gets finished files one by one, each by a rename; the manifest last.
- `.shardwright-fetch.json` in it is the plan: what was listed, at which commit. The first attempt
  writes it, later ones follow it, so that all files are of one commit even if `@main` moves
  meanwhile. It goes when the manifest is there.
- `.tmp-<key>-<pod uid>` beside it holds this pod's unfinished files. Their names are hashes of what
  they will be, so that the next attempt takes over those that are still wanted.

An unfinished file is only ever appended to or deleted, never cut or written over with anything
else: should a pod that was taken for dead still write to one that was taken over, it writes the
same bytes to the same place.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from shardwright.fetching.remote import PLAN, Digest, Listing, RemoteFile, is_plain
from shardwright.runner.contract import (
    MANIFEST,
    Manifest,
    artifact_folder,
    canonical,
    temporary_folder,
)
from shardwright.runner.jsonfile import JsonFileError, read_object
from shardwright.runner.log import say
from shardwright.runner.publish import discard, make, seal, sync

_PLAN_VERSION = 1
_PARTIAL = ".part"
_UID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Folders:
    """The folders of one fetch."""

    def __init__(self, store: Path, step: str, key: str, pod_uid: str) -> None:
        """Name them; nothing is made yet.

        Raises:
            ValueError: The uid could name another folder.
        """
        if not _UID.fullmatch(pod_uid):
            raise ValueError(f"pod uid {pod_uid!r} is malformed: letters, digits and dashes only")
        self.final = store / artifact_folder(step, key)
        self.own = store / temporary_folder(step, key, pod_uid)
        self._others = f".tmp-{key}-*"
        self._plan = self.final / PLAN

    def open(self) -> None:
        """Make both folders.

        Raises:
            OSError: The volume cannot be written to.
        """
        make(self.final)
        make(self.own)

    def plan(self, source: str, commit: str) -> Listing | None:
        """What an earlier attempt has listed of the same source.

        Args:
            source: The uri of this attempt; its revision may have been pinned since.
            commit: The commit that this uri names, or an empty string.

        Returns:
            None when there is no plan that can be followed.
        """
        try:
            found = read_object(self._plan)
            listing = _listing(found)
        except JsonFileError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            say("the plan of an earlier attempt cannot be followed", error=str(error))
            return None
        same = found.get("source") == source or (commit and commit == listing.commit)
        return listing if found.get("version") == _PLAN_VERSION and same else None

    def keep_plan(self, source: str, listing: Listing) -> None:
        """Write the plan, unless another attempt has just done so; read it again afterwards.

        Raises:
            OSError: The volume cannot be written to.
        """
        draft = self.own / PLAN
        content = {"version": _PLAN_VERSION, "source": source, **asdict(listing)}
        with draft.open("w", encoding="utf-8") as file:
            file.write(canonical(content))
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link does not replace what is there.
            os.link(draft, self._plan)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not self._plan.exists():
                draft.replace(self._plan)
        draft.unlink(missing_ok=True)
        sync(self.final)

    def drop_plan(self) -> None:
        """Forget what was listed.

        Raises:
            OSError: It cannot be deleted.
        """
        self._plan.unlink(missing_ok=True)

    def partial(self, file: RemoteFile) -> Path:
        """Where this pod writes a file until it is whole."""
        identity = canonical(asdict(file))
        return self.own / (hashlib.sha256(identity.encode()).hexdigest()[:32] + _PARTIAL)

    def others_partial(self, file: RemoteFile) -> list[Path]:
        """The same file as other attempts have left it, the longest first."""
        name = self.partial(file).name
        found: list[tuple[int, Path]] = []
        for folder in self.final.parent.glob(self._others):
            if folder != self.own:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found.append(((folder / name).stat().st_size, folder / name))
        return [path for _, path in sorted(found, reverse=True)]

    def take_over(self, file: RemoteFile) -> None:
        """Go on with the longest beginning of a file that any attempt has left.

        Raises:
            OSError: The storage failed.
        """
        own = self.partial(file)
        size = own.stat().st_size if own.exists() else -1
        for path in self.others_partial(file)[:1]:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size > size:
                    path.replace(own)

    def publish(self, file: RemoteFile, partial: Path) -> None:
        """Give a whole file its name.

        Raises:
            OSError: The storage failed.
        """
        final = self.final / file.name
        make(final.parent)
        sync(partial)
        partial.replace(final)
        sync(final.parent)

    def tidy(self, names: Collection[str]) -> None:
        """Delete what is in the artifact's folder and not in the listing: ruins of another commit.

        Raises:
            OSError: Something cannot be deleted.
        """
        kept = {*names, PLAN}
        for path in sorted(self.final.rglob("*"), reverse=True):
            relative = path.relative_to(self.final).as_posix()
            if relative in kept and path.is_file() and not path.is_symlink():
                continue
            if path.is_dir() and not path.is_symlink():
                # Its own files come before it in this order; it stays if any are wanted.
                with contextlib.suppress(OSError):
                    path.rmdir()
                continue
            say("a file that is no part of the model is deleted", file=relative)
            path.unlink(missing_ok=True)

    def seal(self, manifest: Manifest) -> None:
        """Publish the manifest, then forget the plan and all unfinished files.

        Raises:
            OSError: The storage failed.
        """
        seal(self.own, manifest)
        (self.own / MANIFEST).replace(self.final / MANIFEST)
        sync(self.final)
        self.drop_plan()
        self.clear()

    def clear(self) -> None:
        """Delete the unfinished files of all attempts.

        Raises:
            OSError: Something cannot be deleted.
        """
        for folder in self.final.parent.glob(self._others):
            discard(folder)

    def free_bytes(self) -> int:
        """Bytes of the volume that this process may still write.

        Raises:
            OSError: The storage failed.
        """
        found = os.statvfs(self.own)
        return found.f_bavail * found.f_frsize


def _listing(found: dict[str, object]) -> Listing:
    """The listing in a plan.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    raw = found["files"]
    if not isinstance(raw, list):
        raise TypeError("files is no list")
    files = []
    for entry in raw:
        digest = entry["digest"]
        file = RemoteFile(
            name=str(entry["name"]),
            size=int(entry["size"]),
            digest=None
            if digest is None
            else Digest(str(digest["algorithm"]), str(digest["value"]), int(digest["part_bytes"])),
            address=str(entry["address"]),
            version=str(entry["version"]),
        )
        if not is_plain(file.name) or file.size < 0:
            raise ValueError(f"a file named {file.name[:80]!r}")
        files.append(file)
    return Listing(str(found["commit"]), tuple(files))
