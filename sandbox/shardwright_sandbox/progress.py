"""Progress lines on stderr: a cold build takes minutes and must not look hung."""

import sys
import time


class Progress:
    """Prints `[sandbox   12 s] what` lines; `quiet` drops them (tests)."""

    def __init__(self, *, quiet: bool = False, every: float = 5.0) -> None:
        self._start = time.monotonic()
        self._quiet = quiet
        self._every = every
        self._last = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since this progress began."""
        return time.monotonic() - self._start

    def say(self, what: str) -> None:
        """Print one line now."""
        self._last = time.monotonic()
        if not self._quiet:
            print(f"[sandbox {self.elapsed:5.1f} s] {what}", file=sys.stderr, flush=True)

    def tick(self, what: str) -> None:
        """Print one line, but not more often than every few seconds."""
        if time.monotonic() - self._last >= self._every:
            self.say(what)
