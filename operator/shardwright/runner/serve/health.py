"""The runner's own HTTP port: is it alive, does it serve, its group, and its metrics."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shardwright.runner.contract import LIVE_PATH, READY_PATH, STATUS_PATH
from shardwright.runner.measures import METRICS_PATH
from shardwright.runner.serve.measure.exposition import CONTENT_TYPE
from shardwright.runner.serve.view import View, told, unready

# A probe sends one line; whoever dawdles is let go: after so long between two bytes, and in all.
_REQUEST_SECONDS = 5
# Any pod of the cluster may connect. Beyond so many the one that is open longest goes: a probe is
# answered within milliseconds, so it is never that one.
OPEN_LIMIT = 64


class HealthServer:
    """Answers probes from the last view it was given; it never waits for anything."""

    def __init__(
        self,
        port: int,
        view: Callable[[], View],
        metrics: Callable[[], str] = str,
        more: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Answer from now on.

        Args:
            port: TCP port, on all addresses; 0 takes any free one.
            view: Gives the present view at once; called in other threads.
            metrics: Gives the metrics page at once; called in other threads.
            more: Gives what else the status page tells, likewise.

        Raises:
            OSError: The port is taken.
        """

        class Handler(_Handler):
            current = staticmethod(view)
            measured = staticmethod(metrics)
            besides = staticmethod(more)

        self._server = _Server(port, Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        dual = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual else socket.AF_INET
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        super().__init__(("", port), handler)

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Answer in a thread of its own, and see to it that these do not become many."""
        with self._lock:
            self._open[request] = time.monotonic()
            oldest = next(iter(self._open)) if len(self._open) > OPEN_LIMIT else None
        if oldest is not None:
            self._let_go(oldest)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Let go of whoever takes too long. Called twice a second."""
        until = time.monotonic() - _REQUEST_SECONDS
        with self._lock:
            late = [request for request, since in self._open.items() if since < until]
        for request in late:
            self._let_go(request)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """An answer is over."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _let_go(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Have its thread read the end of the connection."""
        with self._lock:
            self._open.pop(request, None)
        if isinstance(request, socket.socket):
            # Closed already is all that is asked for.
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        """A probe that broke off is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server_version = "shardwright"
    sys_version = ""
    current: Callable[[], View]
    measured: Callable[[], str]
    besides: Callable[[], dict[str, Any]]

    def do_GET(self) -> None:
        """Answer one of the paths."""
        now = time.monotonic()
        path = self.path.split("?", 1)[0]
        view = self.current()
        if path == LIVE_PATH:
            # That this runs is the answer: no engine, no peer, no disk is asked, so that a busy
            # engine is never ended for being busy.
            self._answer(200, "text/plain; charset=utf-8", "alive\n")
        elif path == READY_PATH:
            why = unready(view, now)
            text = f"not ready: {why}\n" if why else "ready\n"
            self._answer(503 if why else 200, "text/plain; charset=utf-8", text)
        elif path == STATUS_PATH:
            page = {**told(view, now), **self.besides()}
            self._answer(200, "application/json", json.dumps(page) + "\n")
        elif path == METRICS_PATH:
            self._answer(200, CONTENT_TYPE, self.measured())
        else:
            self._answer(404, "text/plain; charset=utf-8", "not found\n")

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Probes every few seconds would fill the pod's log."""
