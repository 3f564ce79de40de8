"""How long a fetch bears with its source: bounded tries, growing waits, and when it must stop.

A connection that broke after it had brought something costs nothing: one that breaks every gigabyte
still ends in a model. What ends a fetch is a number of failures in a row without progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from shardwright.fetching.failures import (
    REASON_SOURCE_UNAVAILABLE,
    TransientError,
    environment,
)
from shardwright.runner.contract import REASON_TIMEOUT
from shardwright.runner.log import say
from shardwright.runner.steps.stop import Stop

Result = TypeVar("Result")
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds of trying again.

    Attributes:
        tries: Failures in a row, without progress, that end the fetch.
        corrupt_tries: Times that one file is fetched from its start for a wrong checksum.
        first_wait_seconds: Upper bound of the first wait; doubles with each failure in a row.
        longest_wait_seconds: Upper bound of a wait that the server did not ask for.
        longest_asked_seconds: A server that asks for a longer wait than this ends the fetch; the
            next attempt is the operator's.
        silence_seconds: A connection that brings nothing for so long is broken.
    """

    tries: int = 8
    corrupt_tries: int = 3
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 60.0
    longest_asked_seconds: float = 600.0
    silence_seconds: float = 60.0


class AbandonedError(Exception):
    """Another file has failed for good; this one is left as it is."""


class Halt:
    """Everything that ends work under way: a signal, the deadline, the failure of another file."""

    def __init__(self, stop: Stop, timeout_seconds: float = 0.0) -> None:
        """Begin to count.

        Args:
            stop: Set by a signal.
            timeout_seconds: From now; 0 is no deadline.
        """
        self._stop = stop
        self._abandoned = threading.Event()
        self._timeout = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds if timeout_seconds else None

    def abandon(self) -> None:
        """End the work on all other files."""
        self._abandoned.set()

    def resume(self) -> None:
        """Let work begin anew, once all that was abandoned has ended."""
        self._abandoned.clear()

    def check(self) -> None:
        """Do nothing unless work must end.

        Raises:
            StoppedError: The pod was told to end.
            AbandonedError: Another file failed for good.
            FetchError: The deadline has passed.
        """
        self._stop.check()
        if self._abandoned.is_set():
            raise AbandonedError
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise environment(
                REASON_TIMEOUT,
                f"the fetch did not end within {self._timeout:.0f} s (timeouts.stepSeconds); what "
                "has come so far is kept, and the next attempt goes on from there",
            )

    def sleep(self, seconds: float) -> None:
        """Wait, unless work must end.

        Raises:
            StoppedError, AbandonedError, FetchError: As `check`.
        """
        until = time.monotonic() + seconds
        while True:
            self.check()
            left = until - time.monotonic()
            if left <= 0:
                return
            self._abandoned.wait(min(left, _LOOK_SECONDS))


class Retrier:
    """Tries one piece of work again while it fails in ways that pass."""

    def __init__(self, what: str, patience: Patience, halt: Halt) -> None:
        """Name the work, as messages will."""
        self._what = what
        self._longest_asked = patience.longest_asked_seconds
        self._backoff = wait_random_exponential(
            multiplier=patience.first_wait_seconds, max=patience.longest_wait_seconds
        )
        self._last_try = stop_after_attempt(patience.tries)
        self._halt = halt

    def call(self, work: Callable[[], Result]) -> Result:
        """The result of the work, after as many tries as it takes and the bounds allow.

        Raises:
            FetchError: The bounds are reached; or what the work raised.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(TransientError),
            wait=self._wait,
            stop=self._enough,
            before_sleep=self._tell,
            sleep=self._halt.sleep,
            reraise=True,
        )
        try:
            return retrying(work)
        except TransientError as error:
            tried = int(retrying.statistics["attempt_number"])
            why = (
                f"the source asks to wait {error.retry_after:.0f} s"
                if self._asks_too_much(error) and error.retry_after is not None
                else f"{tried} tries in a row failed"
            )
            raise environment(
                REASON_SOURCE_UNAVAILABLE,
                f"{self._what}: {why}: {error}; what has come so far is kept",
            ) from error

    def _asks_too_much(self, error: TransientError) -> bool:
        return (error.retry_after or 0) > self._longest_asked

    def _wait(self, state: RetryCallState) -> float:
        asked = _error(state).retry_after
        return self._backoff(state) if asked is None else asked

    def _enough(self, state: RetryCallState) -> bool:
        return self._last_try(state) or self._asks_too_much(_error(state))

    def _tell(self, state: RetryCallState) -> None:
        say(
            "trying again",
            what=self._what,
            failures=state.attempt_number,
            wait_seconds=round(state.upcoming_sleep, 1),
            error=str(_error(state)),
        )


def _error(state: RetryCallState) -> TransientError:
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, TransientError):
        raise TypeError(f"retried after {error!r}")
    return error
