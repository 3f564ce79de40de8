"""How far a fetch is, said now and then as a JSON log line."""

from __future__ import annotations

import threading
import time

from shardwright.runner.log import say

INTERVAL_SECONDS = 10.0


class Progress:
    """Bytes and files of one fetch; counted from any thread."""

    def __init__(self, total_bytes: int, files: int) -> None:
        """Begin to count.

        Args:
            total_bytes: Of all files.
            files: Their number.
        """
        self._lock = threading.Lock()
        self._total = total_bytes
        self._files = files
        self._bytes = 0
        self._done = 0
        self._received = 0
        self._said = (time.monotonic(), 0)

    @property
    def received(self) -> int:
        """Bytes that came over the network, those that were thrown away included."""
        return self._received

    def have(self, size: int) -> None:
        """Bytes that were on the volume already; negative for some that were discarded."""
        with self._lock:
            self._bytes += size

    def receive(self, size: int) -> None:
        """Bytes that came over the network."""
        with self._lock:
            self._bytes += size
            self._received += size

    def finish(self) -> None:
        """One more file is whole and published."""
        with self._lock:
            self._done += 1

    def say(self) -> None:
        """Write a line: bytes and files so far and in all, bytes a second since the last line."""
        now = time.monotonic()
        with self._lock:
            then, before = self._said
            self._said = (now, self._received)
            rate = (self._received - before) / max(now - then, 1e-3)
            fields = {
                "bytes": self._bytes,
                "total_bytes": self._total,
                "files": self._done,
                "total_files": self._files,
            }
        say("fetching", **fields, bytes_per_second=round(rate))
