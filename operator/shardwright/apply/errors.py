"""What the API server answers when it does not do as asked, one exception a meaning.

Callers decide by class, people read the message: it is the server's own, with the verb and object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_CREATED_TWICE = "AlreadyExists"
_PATCH_REJECTED = "the server rejected our request due to an error in our request"
# how server-side apply refuses an unknown field: as an internal error (seen on 1.37)
_UNKNOWN_FIELD = "failed to create typed patch object"
_MESSAGE_LIMIT = 2000


class ClusterError(Exception):
    """A call did not succeed.

    Attributes:
        status: HTTP status, 0 when there was no answer at all.
        reason: Kubernetes' machine-readable reason, for example `Conflict`.
        message: The server's own words.
    """

    def __init__(self, call: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {message or reason or status}")
        self.call = call
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ClusterError):  # noqa: N818 - named as the API server names it
    """404: the object, or its kind, does not exist."""


class AlreadyExists(ClusterError):  # noqa: N818
    """409 on a create: an object of this name is there."""


class Conflict(ClusterError):  # noqa: N818
    """409: another resourceVersion, uid or field owner than the call said."""


class Gone(ClusterError):  # noqa: N818
    """410: the resourceVersion or continue token is too old; list anew."""


class PatchRejected(ClusterError):  # noqa: N818
    """422 of a JSON patch that does not fit: a `test` failed or a path is gone.

    The object is another, or in another state, than the one that was read. The API server answers
    both with the same general words and no causes (seen on 1.37).
    """


class Invalid(ClusterError):  # noqa: N818
    """400, 413, 415 or 422: the server refuses the content. Trying again cannot help."""


class Unauthorized(ClusterError):  # noqa: N818
    """401: the token is not accepted (any more)."""


class Forbidden(ClusterError):  # noqa: N818
    """403: not allowed. `quota` when a ResourceQuota says so, which another time may not."""

    def __init__(self, call: str, status: int, reason: str, message: str) -> None:
        super().__init__(call, status, reason, message)
        self.quota = "exceeded quota" in message or "must specify" in message


class TooManyRequests(ClusterError):  # noqa: N818
    """429: the server, or an admission step, asks to wait `retry_after` seconds."""

    def __init__(
        self, call: str, status: int, reason: str, message: str, retry_after: float
    ) -> None:
        super().__init__(call, status, reason, message)
        self.retry_after = retry_after


class Unavailable(ClusterError):  # noqa: N818
    """5xx, no connection, or no answer in time. A write may or may not have happened."""


class LeaseLost(ClusterError):  # noqa: N818
    """The Lease is not ours (any more): nothing may be written."""


_BY_STATUS: Mapping[int, type[ClusterError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
}


def from_response(call: str, status: int, body: bytes, headers: Mapping[str, str]) -> ClusterError:
    """The exception for an answer that is not 2xx.

    Args:
        call: Verb, kind and name, for the message.
        status: HTTP status of the answer.
        body: Usually a `metav1.Status` as JSON; proxies send other text.
        headers: Of the answer; `Retry-After` counts in seconds.
    """
    reason, message = _words(body)
    if status == 429:  # noqa: PLR2004 - HTTP
        return TooManyRequests(call, status, reason, message, _seconds(headers))
    if status == 409 and reason == _CREATED_TWICE:  # noqa: PLR2004 - HTTP
        return AlreadyExists(call, status, reason, message)
    if status == 422 and message == _PATCH_REJECTED:  # noqa: PLR2004 - HTTP
        return PatchRejected(call, status, reason, message)
    if status == 500 and message.startswith(_UNKNOWN_FIELD):  # noqa: PLR2004 - HTTP
        return Invalid(call, status, reason, message)
    return _BY_STATUS.get(status, Unavailable)(call, status, reason, message)


def _words(body: bytes) -> tuple[str, str]:
    text = body.decode(errors="replace")
    try:
        answer: Any = json.loads(text)
    except ValueError:
        return "", text[:_MESSAGE_LIMIT].strip()
    if not isinstance(answer, dict):
        return "", text[:_MESSAGE_LIMIT]
    return str(answer.get("reason", "")), str(answer.get("message", ""))[:_MESSAGE_LIMIT]


def _seconds(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "1")))
    except ValueError:
        # the header's other form is a date, which the API server does not send
        return 1.0
