"""Volumes that can be full: a size limit, filling up, making room again."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shardwright_sandbox.errors import SandboxError

_SIZE = ".sandbox-size"
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Volume:
    """A file system in memory.

    Attributes:
        folder: where it is, seen from here.
        point: where it is mounted, in its own mount namespace.
        enter: the start of a command line that runs a command in that namespace.
    """

    folder: Path
    point: str
    enter: tuple[str, ...] = ()

    def fill(self) -> int:
        """Leave no room; how many bytes were free, 0 if it is full already.

        The size is lowered to what is used: that takes neither time nor memory.

        Raises:
            SandboxError: If it is not a file system of its own, but a part of the machine's disk.
        """
        if not self.folder.is_mount() or self._kind() != "tmpfs":
            raise SandboxError(
                f"{self.folder} has no limit of its own, filling it would fill the machine's disk: "
                "make the claim with a limit (`make_claim(..., limit_bytes=...)`)"
            )
        before = self.folder / _SIZE
        if before.exists():
            return 0
        before.write_text(str(shutil.disk_usage(self.folder).total))
        state = os.statvfs(self.folder)
        self._resize((state.f_blocks - state.f_bfree) * state.f_frsize)
        return state.f_bfree * state.f_frsize

    def free(self) -> None:
        """Give it the size back that it had."""
        before = self.folder / _SIZE
        if before.exists():
            self._resize(int(before.read_text()))
            before.unlink()

    def _kind(self) -> str:
        command = [*self.enter, "stat", "--file-system", "--format=%T", self.point]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def _resize(self, size_bytes: int) -> None:
        _mount("-o", f"remount,size={size_bytes}", self.point, enter=self.enter)


def volume(folder: Path) -> Volume:
    """The volume of a claim that was made with a limit."""
    return Volume(folder, str(folder))


def limit(folder: Path, size_bytes: int) -> None:
    """Make `folder`, which must be empty, a file system of this size.

    Raises:
        SandboxError: If it cannot be mounted (it needs root).
    """
    _mount("-t", "tmpfs", "-o", f"size={size_bytes},mode=0777", "tmpfs", str(folder))


def share(folder: Path) -> None:
    """Let mounts below `folder` be seen on nodes that start after this."""
    _mount("--bind", str(folder), str(folder))
    _mount("--make-shared", str(folder))


def unmount_below(folder: Path) -> None:
    """Unmount every file system at or below `folder`, the innermost first."""
    if not _MOUNTS.exists():
        return  # not Linux: nothing was mounted
    points = [line.split()[4] for line in _MOUNTS.read_text().splitlines()]
    ours = [point for point in map(_plain, points) if Path(point).is_relative_to(folder)]
    for point in reversed(ours):
        done = subprocess.run(
            ["umount", "--lazy", point], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SandboxError(f"cannot unmount {point}: {done.stderr.strip()}")


def _plain(point: str) -> str:
    r"""A path of mountinfo, where a blank is written as `\040`."""
    return point.replace(r"\040", " ")


def _mount(*arguments: str, enter: tuple[str, ...] = ()) -> None:
    command = [*enter, "mount", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
