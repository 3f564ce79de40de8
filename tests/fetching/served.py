"""Local servers for the tests of fetching: a thread with an event loop, ranges, and faults."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

_PIECE = 64 * 1024
_RANGE = re.compile(r"bytes=(\d+)-$")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one answer.

    Attributes:
        status: Answered instead; 0 answers as usual.
        headers: Beside it.
        cut: The connection breaks after so many bytes of the body; -1 never.
        flip: Byte whose bits are turned over; -1 for none.
        pause: Seconds between two pieces of 64 KiB.
        pause_from: Bytes of the body that come without pauses.
        until: The answer waits until this is so.
    """

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int = -1
    flip: int = -1
    pause: float = 0.0
    pause_from: int = 0
    until: Callable[[], bool] = lambda: True


class Faults:
    """Faults by path, each for one answer unless it stays, and what was sent."""

    def __init__(self) -> None:
        self._once: dict[str, list[Fault]] = defaultdict(list)
        self._always: dict[str, Fault] = {}
        self.sent: dict[str, int] = defaultdict(int)
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.ranges = True
        self.active = 0

    def once(self, path: str, *faults: Fault) -> None:
        """Put faults before the next answers for a path that ends so."""
        self._once[path].extend(faults)

    def always(self, path: str, fault: Fault | None) -> None:
        """A fault of every answer; None takes it back."""
        if fault is None:
            self._always.pop(path, None)
        else:
            self._always[path] = fault

    def take(self, request: web.Request) -> Fault:
        """Note the request; the fault of its answer."""
        self.requests.append((request.method, request.path, dict(request.headers)))
        for suffix, faults in self._once.items():
            if faults and request.path.endswith(suffix):
                return faults.pop(0)
        for suffix, fault in self._always.items():
            if request.path.endswith(suffix):
                return fault
        return Fault()

    def asked_ranges(self, suffix: str) -> list[str]:
        """The Range headers of GET requests for a path that ends so; empty for none."""
        return [
            headers.get("Range", "")
            for method, path, headers in self.requests
            if method == "GET" and path.endswith(suffix)
        ]

    def quiet(self) -> None:
        """Return when no file is being answered: not to somebody who is gone either."""
        deadline = time.monotonic() + 60
        while self.active:
            assert time.monotonic() < deadline, f"{self.active} answers do not end"
            time.sleep(0.02)


async def answer(
    request: web.Request, faults: Faults, fault: Fault, data: bytes, headers: Mapping[str, str]
) -> web.StreamResponse:
    """A file's bytes, whole or from the asked range on, with its fault."""
    faults.active += 1
    try:
        while not fault.until():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)
        return await _answer(request, faults, fault, data, headers)
    finally:
        faults.active -= 1


async def _answer(
    request: web.Request, faults: Faults, fault: Fault, data: bytes, headers: Mapping[str, str]
) -> web.StreamResponse:
    if fault.status:
        return web.Response(status=fault.status, headers=dict(fault.headers))
    start, status = 0, 200
    extra = {"Accept-Ranges": "bytes"} if faults.ranges else {}
    match = _RANGE.match(request.headers.get("Range", "")) if faults.ranges else None
    if match:
        start, status = int(match[1]), 206
        if start >= len(data):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
        extra["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
    response = web.StreamResponse(status=status, headers={**headers, **extra})
    body = bytearray(data[start:])
    response.content_length = len(body)
    if 0 <= fault.flip - start < len(body):
        body[fault.flip - start] ^= 0xFF
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    end = len(body) if fault.cut < 0 else min(fault.cut, len(body))
    for at in range(0, end, _PIECE):
        piece = bytes(body[at : min(at + _PIECE, end)])
        # Before it goes: whoever has it may look at the number.
        faults.sent[request.path] += len(piece)
        await response.write(piece)
        if fault.pause and at >= fault.pause_from:
            await asyncio.sleep(fault.pause)
    if end < len(body):
        # Let the bytes out before the connection breaks.
        await asyncio.sleep(0.2)
        if request.transport is not None:
            request.transport.close()
    return response


class Background:
    """An application served on a free port of this host until it is closed."""

    def __init__(self, app: web.Application) -> None:
        self._loop = asyncio.new_event_loop()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"

    def close(self) -> None:
        """End it."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _start(self) -> int:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return int(self._runner.addresses[0][1])
