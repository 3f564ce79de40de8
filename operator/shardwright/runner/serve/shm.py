"""Shared memory that dead ranks leave behind.

A pod's /dev/shm is a volume of its own, so leftovers hurt nobody after the pod; they are removed so
that its memory is free at once, and where an administrator shares the folder after all.
"""

from __future__ import annotations

import stat
from pathlib import Path

# Who writes them: NCCL, Python's multiprocessing, POSIX semaphores, Open MPI 4 and 5, UCX, PyTorch.
PREFIXES = (
    "nccl-",
    "psm_",
    "sem.",
    "vader_segment.",
    "sm_segment.",
    "ucx_shm_",
    "torch_",
    "__KMP_REGISTERED_LIB_",
)


def remove_leftovers(folder: Path, owner: int) -> list[str]:
    """Remove files of a known kind that belong to `owner`; returns their names.

    Others stay: what is not known may be meant to stay.
    """
    removed = []
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return []  # no such volume here
    for name in names:
        if not name.startswith(PREFIXES):
            continue
        path = folder / name
        try:
            status = path.lstat()
            if status.st_uid == owner and stat.S_ISREG(status.st_mode):
                path.unlink()
                removed.append(name)
        except FileNotFoundError:
            continue  # somebody else was faster
        except PermissionError:
            continue  # not ours to remove, whatever its owner
    return removed
