"""The folder of models that some servers want: parts from the image, and files of the request.

Everything is made anew at each start, below the pod's scratch volume, and nowhere else: paths are
relative and do not lead out of it, linked folders are not followed, and sizes are bounded.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from shardwright.runner.contract import (
    COPIES_LIMIT_BYTES,
    FILES_LIMIT_BYTES,
    Prepared,
    inside,
)
from shardwright.runner.serve.text import filled


def write_repository(prepared: Prepared, root: Path, values: Mapping[str, str]) -> None:
    """Make the repository.

    Args:
        prepared: What goes into it.
        root: The folder; what an earlier container left there is removed.
        values: What placeholders in files stand for.

    Raises:
        OSError: The scratch volume cannot be written.
        ValueError: A path leads out of the folder, too much is asked for, or the image has no such
            folder.
    """
    outside = [path for path in (*prepared.copies, *prepared.files) if not inside(path)]
    if outside:
        raise ValueError(f"{outside[0]!r} is no path inside the model repository")
    texts = {path: filled(text, values).encode() for path, text in prepared.files.items()}
    size = sum(map(len, texts.values()))
    if size > FILES_LIMIT_BYTES:
        raise ValueError(f"the files of the repository have {size} bytes, over {FILES_LIMIT_BYTES}")
    if root.is_symlink() or root.is_file():
        root.unlink()
    elif root.exists():
        shutil.rmtree(root)
    root.mkdir(parents=True)
    room = COPIES_LIMIT_BYTES
    for path, source in prepared.copies.items():
        room -= _copy(Path(source), root / path, room)
    for path, text in texts.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)


def _copy(source: Path, target: Path, room: int) -> int:
    """Copy a folder's plain files; returns their bytes."""
    if not source.is_dir():
        raise ValueError(
            f"this image has no folder {source}, whose models its server is to run; set "
            "engine.image to one that has"
        )
    taken = 0
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            (target / path.relative_to(source)).mkdir(parents=True, exist_ok=True)
            continue
        if not path.is_file():
            raise ValueError(f"{path} is neither a file nor a folder of its own, and is not copied")
        taken += path.stat().st_size
        if taken > room:
            raise ValueError(f"{source} is larger than {COPIES_LIMIT_BYTES} bytes")
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    return taken
