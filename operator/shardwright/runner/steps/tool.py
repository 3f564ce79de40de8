"""Running one of the vendor's tools: its log passed on, ended when it must be, nothing left over.

What a tool leaves running when it exits is ended too, before anyone looks at its result: it could
write into it still.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.runner.children import Children, Exit
from shardwright.runner.log import say

# From SIGTERM to SIGKILL. A pod has 30 s between the two by default, and needs some to clean up.
TERM_SECONDS = 10.0
# How long what got SIGKILL is waited for: a write that is under way is still carried out.
GONE_SECONDS = 5.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Ending:
    """How a tool ended.

    Attributes:
        code: Exit status; negative is the number of the signal that killed it, as `subprocess` has
            it.
        tail: Last lines of its log.
        stopped: Why the runner ended it; empty if it ended by itself.
        seconds: From start to end.
    """

    code: int
    tail: tuple[str, ...]
    stopped: str = ""
    seconds: float = 0.0


def run_tool(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    why_stop: Callable[[], str],
    echo: Callable[[bytes], None] | None = None,
    term_seconds: float = TERM_SECONDS,
) -> Ending:
    """Run a command line to its end; stdout and stderr go to the log together.

    Args:
        argv: The command line; no shell is involved.
        env: The whole environment of the tool.
        cwd: A folder that can be written to.
        why_stop: Asked a few times a second; a reason ends the tool, an empty string goes on.
        echo: Takes each line of the log, in a thread of its own; standard output by default.
        term_seconds: How long the tool may take to end when it is told to.

    Raises:
        OSError: The tool cannot be started: it is not there, or may not be run.
    """
    started = time.monotonic()
    children = Children()
    stopped = ""
    ended: Exit | None = None
    try:
        children.start(argv[0], argv, env, echo or to_stdout, cwd)
        while (ended := _exit(children)) is None and not (stopped := why_stop()):
            time.sleep(_POLL_SECONDS)
    finally:
        left = children.end(term_seconds if stopped else 0.0, GONE_SECONDS)
        ended = ended or _exit(children)
        children.close()
    if left:
        say("processes are stuck in the kernel; the container's end waits for them", pids=left)
    if ended is None:
        raise OSError(f"{argv[0]} got SIGKILL and has not ended in {GONE_SECONDS:.0f} s")
    tail = tuple(ended.tail.split("\n")) if ended.tail else ()
    return Ending(ended.code, tail, stopped, time.monotonic() - started)


def _exit(children: Children) -> Exit | None:
    return next(iter(children.reap()), None)


def to_stdout(line: bytes) -> None:
    """Pass one line of a tool's log on."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
