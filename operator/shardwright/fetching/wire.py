"""HTTP as all sources need it: one pool of connections, ranges, redirects, and what errors mean.

urllib3 rather than the hub's own client: with the same loop it took a tenth of the processor time a
byte, and at the rates of a data centre the processor is what a fetch waits for. Certificates come
from OpenSSL's defaults (`SSL_CERT_FILE`, `SSL_CERT_DIR`), proxies from the usual variables.
A redirect to another host is followed without the credentials.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError

from shardwright.fetching.failures import (
    ChangedError,
    TransientError,
    is_transient,
    retry_after,
)

_REDIRECTS = 5
# Manifests of registries and pages of listings; nothing that is larger is read into memory.
_ANSWER_LIMIT_BYTES = 16 * 2**20
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_REFUSAL_LIMIT_BYTES = 65536
_FORBIDDEN = frozenset({401, 403})
_OK = 200
_PARTIAL = 206
_UNSATISFIABLE = 416
_POOL = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status, headers (names in any case), body."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class StatusError(Exception):
    """The answer is a refusal that its source must explain."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.answer = answer


class HTTPBody:
    """The bytes of an answer from `start` on."""

    def __init__(self, response: urllib3.BaseHTTPResponse, start: int, where: str) -> None:
        self.start = start
        self._response = response
        self._where = where

    def read(self, size: int) -> bytes:
        """At most `size` bytes; empty at the end.

        Raises:
            TransientError: The connection broke, or brought fewer bytes than announced.
        """
        try:
            return self._response.read(size, decode_content=False)
        except (HTTPError, OSError) as error:
            raise TransientError(f"{self._where}: {_told(error)}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closed, not given back: after a break or a stop there are bytes in it that nobody wants.
        self._response.close()


class Wire:
    """A pool of connections."""

    def __init__(self, silence_seconds: float) -> None:
        """Make the pool; nothing is connected yet.

        Args:
            silence_seconds: Longest wait for a connection, and between two pieces of an answer.
        """
        self._timeout = urllib3.Timeout(connect=silence_seconds, read=silence_seconds)
        self._direct = urllib3.PoolManager(maxsize=_POOL)
        self._proxies: dict[str, urllib3.ProxyManager] = {}

    def ask(self, url: str, headers: Mapping[str, str], *, method: str = "GET") -> Answer:
        """A whole answer of any status that is not transient; redirects are not followed.

        Raises:
            TransientError: Not now, or the answer is larger than 16 MiB.
        """
        where = shown(url)
        response = self._request(method, url, headers, redirects=0)
        with HTTPBody(response, 0, where) as body:
            data = body.read(_ANSWER_LIMIT_BYTES + 1)
        if len(data) > _ANSWER_LIMIT_BYTES:
            raise TransientError(f"{where}: an answer of more than {_ANSWER_LIMIT_BYTES} bytes")
        return Answer(response.status, response.headers, data)

    def open(self, url: str, headers: Mapping[str, str], offset: int, size: int) -> HTTPBody:
        """The bytes of a file of `size` bytes, from `offset` on if the server knows ranges.

        Raises:
            StatusError: A refusal.
            ChangedError: The file has another size.
            TransientError: Not now.
        """
        where = shown(url)
        # A compressed answer would have neither the size nor the ranges of the file.
        asked = {**headers, "Accept-Encoding": "identity"}
        if offset:
            asked["Range"] = f"bytes={offset}-"
        response = self._request("GET", url, asked, redirects=_REDIRECTS)
        if response.status in (_OK, _PARTIAL, _UNSATISFIABLE):
            try:
                return HTTPBody(response, _start(response, offset, size, where), where)
            except (ChangedError, TransientError):
                response.close()
                raise
        with HTTPBody(response, 0, where) as body:
            data = body.read(_REFUSAL_LIMIT_BYTES)
        redirected = response.retries is not None and bool(response.retries.history)
        if redirected and response.status in _FORBIDDEN:
            # A signed address that has run out; asking again brings a new one.
            raise TransientError(f"{where}: redirected, refused there with HTTP {response.status}")
        raise StatusError(Answer(response.status, response.headers, data))

    def close(self) -> None:
        """Close all idle connections."""
        for pool in (self._direct, *self._proxies.values()):
            pool.clear()

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], *, redirects: int
    ) -> urllib3.BaseHTTPResponse:
        where = shown(url)
        retries = urllib3.Retry(
            total=None, connect=0, read=0, status=0, other=0, redirect=redirects
        )
        try:
            response = self._pool(url).request(
                method,
                url,
                headers=dict(headers),
                preload_content=False,
                decode_content=False,
                redirect=redirects > 0,
                retries=retries,
                timeout=self._timeout,
            )
        except (HTTPError, OSError) as error:
            raise TransientError(f"{where}: {_told(error)}") from error
        if is_transient(response.status):
            wait = retry_after(response.headers)
            response.close()
            raise TransientError(f"{where}: HTTP {response.status}", wait)
        return response

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = getproxies().get(parts.scheme)
        if not proxy or proxy_bypass(parts.netloc):
            return self._direct
        if proxy not in self._proxies:
            self._proxies[proxy] = urllib3.ProxyManager(proxy, maxsize=_POOL)
        return self._proxies[proxy]


def shown(url: str) -> str:
    """An address without its query, which may hold a signature, and without credentials."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _start(response: urllib3.BaseHTTPResponse, offset: int, size: int, where: str) -> int:
    """Where in the file an answer starts."""
    if response.status == _OK:
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != size:
            raise ChangedError(f"{where}: has {length} bytes, it was listed with {size}")
        return 0
    if response.status == _PARTIAL:
        match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if match is None or int(match[1]) != offset:
            raise TransientError(
                f"{where}: asked from byte {offset}, got the range "
                f"{response.headers.get('Content-Range')!r}"
            )
        if match[3] not in ("*", str(size)):
            raise ChangedError(f"{where}: has {match[3]} bytes, it was listed with {size}")
        return offset
    raise ChangedError(f"{where}: has no byte {offset}, it was listed with {size} bytes")


def _told(error: BaseException) -> str:
    """What a client's error says, without the address: its query may hold a signature."""
    inner = getattr(error, "reason", None)
    cause = inner if isinstance(inner, BaseException) else error
    text = str(cause).rpartition(": ")[2] if isinstance(cause, HTTPError) else str(cause)
    return f"{type(cause).__name__}: {text}"
