"""Runs one action a key at its time, on a few threads."""

import heapq
import threading
import time
from collections.abc import Callable

import structlog

_log = structlog.get_logger()
_RETRY_SECONDS = 1.0


class Timer:
    """Keys with the time they are due. A key runs on one thread at a time.

    Setting a key again replaces its time; setting it while it runs makes it run
    once more afterwards.
    """

    def __init__(self, run: Callable[[str], None], *, workers: int = 6) -> None:
        self._run = run
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._running: set[str] = set()
        self._changed = threading.Condition()
        for number in range(workers):
            threading.Thread(target=self._work, name=f"player-{number}", daemon=True).start()

    def set(self, key: str, due: float) -> None:
        """Run this key at `due` (of the monotonic clock), or earlier if it was due earlier."""
        with self._changed:
            known = self._due.get(key)
            if known is not None and known <= due:
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._changed.notify()

    def _take(self) -> str:
        with self._changed:
            while True:
                wait: float | None = None
                while self._heap:
                    due, key = self._heap[0]
                    if self._due.get(key) != due:
                        heapq.heappop(self._heap)  # replaced or done
                        continue
                    if (wait := due - time.monotonic()) > 0:
                        break
                    heapq.heappop(self._heap)
                    if key in self._running:
                        # not twice at once: look again shortly
                        self._due[key] = time.monotonic() + 0.01
                        heapq.heappush(self._heap, (self._due[key], key))
                        continue
                    del self._due[key]
                    self._running.add(key)
                    return key
                self._changed.wait(wait)

    def _work(self) -> None:
        while True:
            key = self._take()
            try:
                self._run(key)
            except Exception:  # noqa: BLE001 - a thread's last line of defence
                # one pod must not stop the others; the log has it, and it is tried again
                _log.exception("player failed", key=key)
                with self._changed:
                    self._due.setdefault(key, time.monotonic() + _RETRY_SECONDS)
                    heapq.heappush(self._heap, (self._due[key], key))
                    self._changed.notify()
            finally:
                with self._changed:
                    self._running.discard(key)
