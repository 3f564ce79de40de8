"""Removes what real nodes leave when all their processes have ended: mounts, cgroups, links."""

import time
from pathlib import Path

from shardwright_sandbox.config import Layout
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.real import network, record, volumes

_CGROUPS = Path("/sys/fs/cgroup")
_SECONDS = 10.0


def clear(layout: Layout) -> None:
    """Remove what is outside the state folder, and unmount what is in it.

    Raises:
        SandboxError: With what does not go.
    """
    # also without real nodes: a claim with a size limit is a mount
    volumes.unmount_below(layout.root)
    known = record.read(layout.real_record)
    if known is None:
        return
    _remove_cgroups(record.cgroup_name(layout))
    network.wait_gone(known.addresses)


def _remove_cgroups(name: str) -> None:
    """Remove the sandbox's cgroup in every hierarchy (one under version 2, a dozen under 1)."""
    deadline = time.monotonic() + _SECONDS
    for top in [_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")]:
        folders = [*top.rglob("*/"), top] if top.is_dir() else []
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            while not _removed(folder):
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"the cgroup {folder} cannot be removed: do processes run in it "
                        f"(`cat {folder}/cgroup.procs`)?"
                    )
                time.sleep(0.05)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # busy: the kernel lets go of ended processes a moment later
        return False
    return True
