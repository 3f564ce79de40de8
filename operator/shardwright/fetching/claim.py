"""pvc://: a model that lies on a claim already. It is looked at where it is; nothing is copied."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright.fetching.failures import permanent
from shardwright.fetching.remote import FILES_LIMIT, RemoteFile
from shardwright.fetching.selection import CONFIG, choose
from shardwright.fetching.uris import ClaimFolder
from shardwright.fetching.weights import check_weights
from shardwright.runner.contract import REASON_ACCESS_DENIED, REASON_MODEL_NOT_FOUND, ModelFacts


def inspect(place: ClaimFolder, root: Path, *, heads: bool = False) -> ModelFacts | None:
    """The facts of a model in place, after a look whether it is whole; None of heads.

    Of the weights only the headers are read: they tell a file that was cut off.

    Args:
        place: Claim and path, as the uri has it.
        root: Where the claim is mounted.
        heads: A part of a model is asked for, which tells no facts.

    Raises:
        FetchError: There is no such folder, it cannot be read, or the model is not whole.
        OSError: The storage failed.
    """
    where = f"pvc://{place.claim}/{place.path}"
    folder = root / place.path
    if not folder.resolve().is_relative_to(root.resolve()):
        raise permanent(REASON_MODEL_NOT_FOUND, f"{where}: a link leads out of the claim")
    try:
        if not (folder / CONFIG).is_file():
            if (folder / CONFIG).is_symlink():
                raise permanent(
                    REASON_MODEL_NOT_FOUND,
                    f"{where}: {CONFIG} is a link to {(folder / CONFIG).readlink()}, which leads "
                    "nowhere here: only the claim is mounted; make it a relative link inside the "
                    "claim, or copy the file",
                )
            raise permanent(
                REASON_MODEL_NOT_FOUND,
                f"{where}: the claim holds no {place.path}/{CONFIG}; correct model.uri, or copy "
                "the model there",
            )
        files = choose(_files(folder), where)
        return check_weights(folder, [file.name for file in files], where, heads=heads)
    except PermissionError as error:
        raise permanent(
            REASON_ACCESS_DENIED,
            f"{where}: {error.filename} cannot be read by user {os.getuid()} and group "
            f"{os.getgid()}; give others read access to the model's files (chmod -R o+rX)",
        ) from error


def _files(folder: Path) -> list[RemoteFile]:
    """All files of the folder; links are followed, since a hub's cache is made of them."""
    found: list[RemoteFile] = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file():
                relative = path.relative_to(folder).as_posix()
                found.append(RemoteFile(relative, path.stat().st_size))
        if len(found) > FILES_LIMIT:
            raise permanent(
                REASON_MODEL_NOT_FOUND,
                f"{folder} has more than {FILES_LIMIT} files; name the model's own folder",
            )
    return found


def _raise(error: OSError) -> None:
    raise error
