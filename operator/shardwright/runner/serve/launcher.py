"""What `trtllm-llmapi-launch` starts beside the ranks: the server, in the background of rank 0.

The launcher waits for the ranks, and only a server that ends well tells them to stop. One that
fails, at a flag it does not know or while it loads, leaves them waiting: no rank ends, `mpirun`
neither, and nothing moves. So the server itself is looked for, and its end is the group's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from shardwright.runner.processes import Process

_PROC = Path("/proc")
# An interpreter, perhaps an option of it, and the program.
_FIRST_WORDS = 3


class Server:
    """The launcher's server: not seen yet, seen, or gone."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Take the launcher's command line: its own name, then the server's command."""
        self._launcher, self._program = (PurePath(word).name for word in argv[:2])
        self._seen: tuple[int, int] | None = None
        self._looks_gone = 0

    def look(self, processes: Iterable[Process]) -> None:
        """Look at what lives below rank 0's program."""
        living = {(process.pid, process.started) for process in processes}
        if self._seen is None:
            self._seen = next((one for one in sorted(living) if self._runs(words(one[0]))), None)
        elif self._seen not in living:
            self._looks_gone += 1

    @property
    def gone(self) -> bool:
        """It was there and is not any more; told at the second look, when its last lines are in."""
        return self._looks_gone > 1

    def _runs(self, command: Sequence[str]) -> bool:
        """Whether a command line is the server's: a shell that will start it has the launcher's."""
        names = [PurePath(word).name for word in command[:_FIRST_WORDS]]
        return self._program in names and self._launcher not in names


def words(pid: int) -> list[str]:
    """Command line of a process; empty when it has ended."""
    try:
        text = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return text.decode("utf-8", "replace").split("\0")[:-1]
