"""Being told to end: SIGTERM and SIGINT as a flag that the work looks at between its parts."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StoppedError(Exception):
    """The pod was told to end."""


class Stop:
    """Set once by the first signal; never taken back."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal = 0

    def listen(self) -> None:
        """Take SIGTERM and SIGINT from now on.

        As process 1 of a container, which this is in a pod, it gets none without a handler.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def set(self, number: int = signal.SIGTERM) -> None:
        """What a signal does."""
        if not self._event.is_set():
            self.signal = number
            self._event.set()

    def is_set(self) -> bool:
        """Whether the pod was told to end."""
        return self._event.is_set()

    def check(self) -> None:
        """Do nothing unless the pod was told to end.

        Raises:
            StoppedError: It was.
        """
        if self._event.is_set():
            raise StoppedError(f"the pod was told to end ({signal.Signals(self.signal).name})")

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.set(number)
