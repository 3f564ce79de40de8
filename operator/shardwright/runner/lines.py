"""A tool's output on its way to the pod's log: cut into lines, and its end kept."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

# What is kept for the report and for telling why a tool failed. A report has room for a few
# kilobytes; a traceback of a deep call with the banner of an aborted MPI job has some ten.
TAIL_CHARACTERS = 128 * 1024
# A longer line is passed on in pieces: memory stays bounded whatever a tool prints.
LINE_BYTES = 8 * 1024
# Progress bars rewrite their line many times a second; the log gets one of them a second.
PROGRESS_SECONDS = 1.0
# A carriage return that comes last may be the first half of an end of line in two characters.
_END = re.compile(rb"\r?\n|\r(?=[\s\S])")


class Lines:
    """Cuts bytes into lines, passes them on and keeps the last ones.

    A carriage return ends a line that the next one replaces, as on a terminal, so that a progress
    bar of a thousand steps does not push the traceback out of what is kept.
    """

    def __init__(
        self, passed: Callable[[bytes], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with nothing.

        Args:
            passed: Takes each line for the log, newline included.
            clock: In seconds; paces progress lines.
        """
        self._passed = passed
        self._clock = clock
        self._open = b""
        # One thread reads a program's output, another asks for its end.
        self._lock = threading.Lock()
        self._kept: deque[str] = deque()
        self._size = 0
        self._replaceable = False
        self._shown = float("-inf")

    def feed(self, data: bytes) -> None:
        """Take what a tool has printed."""
        for line, end in _cut(self._open + data):
            if end:
                self._take(line, progress=end == b"\r")
            else:
                self._open = line
        while len(self._open) > LINE_BYTES:
            self._take(self._open[:LINE_BYTES], progress=False)
            self._open = self._open[LINE_BYTES:]

    def end(self) -> None:
        """The tool has ended: an unfinished line is a line."""
        if self._open:
            self._take(self._open.rstrip(b"\r"), progress=False)
            self._open = b""

    def tail(self) -> list[str]:
        """The last lines, oldest first, of at most `TAIL_CHARACTERS` in all."""
        with self._lock:
            return list(self._kept)

    def _take(self, line: bytes, *, progress: bool) -> None:
        now = self._clock()
        if not progress or now - self._shown >= PROGRESS_SECONDS:
            self._passed(line + b"\n")
            if progress:
                self._shown = now
        with self._lock:
            self._keep(line[:LINE_BYTES].decode("utf-8", "replace"), progress=progress)

    def _keep(self, text: str, *, progress: bool) -> None:
        if self._replaceable:
            self._size -= len(self._kept.pop())
        self._replaceable = progress
        self._kept.append(text)
        self._size += len(text)
        while self._size > TAIL_CHARACTERS:
            self._size -= len(self._kept.popleft())


def _cut(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Pairs of line and what ended it; the last pair has no end and may be empty."""
    start = 0
    for found in _END.finditer(data):
        yield data[start : found.start()], found.group()
        start = found.end()
    yield data[start:], b""
