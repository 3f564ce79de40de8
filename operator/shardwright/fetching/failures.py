"""How a fetch fails: what ends it for good, what its surroundings did, what is worth another try.

Only `FetchError` leaves this package. The other errors say what to do next: a `TransientError` is
tried again with a growing wait, a `CorruptError` discards one file, a `ChangedError` has the source
listed anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from shardwright.runner.contract import ENVIRONMENT, PERMANENT

# Reasons beside those of the contract; stable words that reach conditions.
REASON_CHECKSUM_MISMATCH = "ChecksumMismatch"
REASON_SOURCE_UNAVAILABLE = "SourceUnavailable"
REASON_SOURCE_CHANGED = "SourceChanged"
REASON_UNSAFE_WEIGHTS = "UnsafeWeights"
REASON_MODEL_INCOMPLETE = "ModelIncomplete"
REASON_ADAPTER_INVALID = "AdapterInvalid"

_TRANSIENT = frozenset({408, 425, 429})
_SERVER_ERRORS = range(500, 600)


class FetchError(Exception):
    """A fetch is over and has failed.

    Attributes:
        outcome: `Permanent` or `Environment`, as the contract has it.
        reason: A stable word.
    """

    def __init__(self, outcome: str, reason: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.reason = reason


class TransientError(Exception):
    """A request failed in a way that passes: a full server, a broken connection, a name not found.

    Attributes:
        retry_after: Seconds the server asked to wait; None when it did not say.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CorruptError(Exception):
    """A file's bytes are not those that the source promised."""


class ChangedError(Exception):
    """The source is not what it was when it was listed."""


def permanent(reason: str, message: str) -> FetchError:
    """A failure that another try would repeat."""
    return FetchError(PERMANENT, reason, message)


def environment(reason: str, message: str) -> FetchError:
    """A failure that may pass, elsewhere or later."""
    return FetchError(ENVIRONMENT, reason, message)


def is_transient(status: int) -> bool:
    """Whether an HTTP status says: not now."""
    return status in _TRANSIENT or status in _SERVER_ERRORS


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that an answer asks to wait: RFC 9110 section 10.2.3, seconds or a date.

    Args:
        headers: Of the answer; names in any case if the mapping takes them so.
        now: The time, with a zone; None takes the clock's.
    """
    text = headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
