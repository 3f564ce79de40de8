"""What a step knows of its container beyond the words of its tools: memory kills, limits, room."""

from __future__ import annotations

import os
import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
# Limits of cgroup v1 that mean none are near 2^63.
_NO_LIMIT = 2**60
_V2_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_FILES_LIMIT = 2**16


class MemoryWatch:
    """Counts the processes of this container that the kernel killed for want of memory.

    cgroup v2 counts in `memory.events`, v1 in `memory.oom_control`
    (docs.kernel.org/admin-guide/cgroup-v2.html, Documentation/admin-guide/cgroup-v1/memory.rst).
    Both count kills by the container's limit and by the node's own shortage.
    """

    def __init__(self, root: Path = CGROUP) -> None:
        """Begin to count at what the kernel has counted so far."""
        self._root = root
        self._before = self._count()

    def kills(self) -> int | None:
        """Kills since the beginning; None where the kernel does not tell."""
        now = self._count()
        if now is None or self._before is None:
            return None
        return max(0, now - self._before)

    def limit_bytes(self) -> int:
        """The container's memory limit; 0 when it has none or it is not told."""
        for name in ("memory.max", "memory/memory.limit_in_bytes"):
            text = _text(self._root / name).strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                return int(text)
        return 0

    def _count(self) -> int | None:
        for name in ("memory.events", "memory/memory.oom_control"):
            found = _V2_KILLS.search(_text(self._root / name))
            if found:
                return int(found.group(1))
        return None


def free_bytes(path: Path) -> int:
    """Bytes that a process without privileges may still write below `path`.

    Raises:
        OSError: The volume cannot be asked.
    """
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def _text(path: Path) -> str:
    """A small file of the kernel's; empty where there is none, as outside of a container."""
    try:
        with path.open(encoding="ascii") as file:
            return file.read(_FILES_LIMIT)
    except OSError:
        return ""
