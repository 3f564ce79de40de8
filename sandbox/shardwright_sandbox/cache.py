"""A cache outside the source tree, keyed by content.

Outside, because a clean clone must not rebuild for six minutes what another
clone on the same machine has built from the same sources. By content, because
then nothing in it can ever be stale and nothing has to be invalidated.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from shardwright_sandbox.progress import Progress


def cache_root() -> Path:
    """The folder of the cache: `SHARDWRIGHT_CACHE`, or the place XDG gives."""
    if chosen := os.environ.get("SHARDWRIGHT_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "shardwright"


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold an exclusive lock on `path`.

    The kernel drops it when the holder dies, so a killed build blocks nobody.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another process works on {path.stem}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def produce(kind: str, key: str, make: Callable[[Path], None], progress: Progress) -> Path:
    """Return the folder `<cache>/<kind>/<key>`, made by `make` if it is not there.

    `make` fills a temporary folder that is then renamed, so a folder under its
    final name is always complete, whatever was killed when.
    """
    target = cache_root() / kind / key
    if target.is_dir():
        return target
    with locked(target.parent / f"{key}.lock", progress):
        if target.is_dir():  # the process we waited for has made it
            return target
        scratch = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=target.parent))
        try:
            make(scratch)
            scratch.chmod(0o755)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target
