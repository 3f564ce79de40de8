"""The HTTP server of all three engines, and how each ends on SIGTERM.

Like the real ones it listens only once the engine is loaded. What differs between them stands in
`Flavour`.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shardwright_standin.front import logprobs, openai
from shardwright_standin.front.adapters import Adapters
from shardwright_standin.front.engine import Engine, EngineFailedError, Generation
from shardwright_standin.front.metrics import Metrics

_BODY_LIMIT = 10_000_000
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Flavour:
    """How one of the engines behaves over HTTP.

    `drain_seconds` None waits for running requests without end. `dies_by_signal`: the process ends
    by the signal it got (uvicorn raises it again), else with status 0.
    """

    name: str
    drain_seconds: float | None = None
    dies_by_signal: bool = True
    unhealthy_while_draining: bool = False
    checks_engine: bool = False
    metrics_path: str = "/metrics"
    version: str = ""
    iteration_stats: bool = True
    # Behind NIM's proxy, which has paths of its own.
    proxied: bool = False


@dataclass(slots=True)
class App:
    """What the handlers share."""

    flavour: Flavour
    engine: Engine
    model: str
    metrics: Metrics | None
    adapters: Adapters
    draining: bool = False
    active: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self) -> None:
        """A request began."""
        with self._lock:
            self.active += 1

    def leave(self) -> None:
        """A request ended."""
        with self._lock:
            self.active -= 1

    def submit(self, asked: openai.Asked, adapter: str) -> Generation:
        """Hand a request to the ranks."""
        stop = self.engine.stop_token if not asked.ignore_eos else -1
        return self.engine.submit(asked.prompt, asked.budget, stop, adapter, asked.scoring)


class Server(ThreadingHTTPServer):
    """Listens with uvicorn's backlog; threads of open connections do not keep it from ending."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2048

    def __init__(self, address: tuple[str, int], app: App) -> None:
        self.app = app
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        """Health, models, metrics."""
        self._answer(
            {
                "/health": self._health,
                "/health_generate": self._health_generate,
                "/version": lambda: self._json({"version": self.server.app.flavour.version}),
                "/v1/models": self._models,
                "/metrics": self._metrics,
                "/prometheus/metrics": self._metrics,
                **(self._proxied() if self.server.app.flavour.proxied else {}),
            }
        )

    def do_POST(self) -> None:
        """Completions."""
        self._answer(
            {
                "/v1/completions": lambda: self._complete(chat=False),
                "/v1/chat/completions": lambda: self._complete(chat=True),
                **{
                    path: lambda name=name: self._adapt(name)  # type: ignore[misc]
                    for path, name in self.server.app.adapters.paths.items()
                },
            }
        )

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """In the manner of uvicorn, on stdout."""
        sys.stdout.write(f"INFO:     {self.address_string()} - {format % args}\n")
        sys.stdout.flush()

    def _answer(self, routes: dict[str, Callable[[], None]]) -> None:
        app = self.server.app
        if app.draining:
            self.close_connection = True
        app.enter()
        try:
            routes.get(self.path.partition("?")[0], self._unknown)()
        except openai.RequestError as error:
            self._error(HTTPStatus(error.status), str(error))
        except EngineFailedError as error:
            self._error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            app.leave()

    def _unknown(self) -> None:
        self._error(HTTPStatus.NOT_FOUND, "Not Found")

    def _health(self) -> None:
        app = self.server.app
        ill = (app.flavour.checks_engine and app.engine.dead.is_set()) or (
            app.flavour.unhealthy_while_draining and app.draining
        )
        self._send(HTTPStatus.SERVICE_UNAVAILABLE if ill else HTTPStatus.OK, b"")

    def _proxied(self) -> dict[str, Callable[[], None]]:
        return {
            "/v1/health/live": lambda: self._send(HTTPStatus.OK, b""),
            "/v1/health/ready": self._health,
            "/v1/metrics": self._metrics,
        }

    def _health_generate(self) -> None:
        app = self.server.app
        if app.flavour.name == "vllm":
            self._unknown()
            return
        generation = app.engine.submit([0], 1, -1)
        list(generation.stream())
        self._send(HTTPStatus.OK, b"")

    def _models(self) -> None:
        app = self.server.app
        model = {"id": app.model, "object": "model", "owned_by": "shardwright-standin"}
        cards = [{**model, "root": app.model, "parent": None}, *app.adapters.cards()]
        self._json({"object": "list", "data": cards})

    def _adapt(self, name: str) -> None:
        """Load or unload an adapter."""
        adapters = self.server.app.adapters
        status, content = getattr(adapters, name)(self._body())
        if isinstance(content, str):
            self._send(status, content.encode())
        else:
            self._send(status, json.dumps(content).encode(), "application/json")

    def _metrics(self) -> None:
        app = self.server.app
        path = self.path.partition("?")[0]
        if app.metrics is not None and path == app.flavour.metrics_path:
            self._send(HTTPStatus.OK, app.metrics.text(), "text/plain; version=0.0.4")
        elif app.flavour.name == "trtllm" and path == "/metrics":
            drained = [app.engine.iterations.popleft() for _ in range(len(app.engine.iterations))]
            kept = drained if app.flavour.iteration_stats else []
            self._json([_iteration(app.engine, raw) for raw in kept])
        else:
            self._unknown()

    def _complete(self, *, chat: bool) -> None:
        app = self.server.app
        body, adapters = self._body(), app.adapters
        limits = app.engine.limits
        form = logprobs.FORMS.get(app.flavour.name)
        asked = openai.parse(body, chat=chat, limits=limits, also=adapters.request_keys, form=form)
        answer = openai.Answer.to(asked, app.model)
        adapter = adapters.begin(asked.model, body)
        try:
            generation = app.submit(asked, adapter)
            if asked.stream:
                self._stream(asked, answer, generation)
            else:
                list(generation.stream())
                self._finished(asked, generation)
                self._json(answer.whole(generation, form))
        finally:
            adapters.end(adapter)

    def _finished(self, asked: openai.Asked, generation: Generation) -> None:
        """Count a request before its answer ends: whoever has it may look at the metrics."""
        metrics = self.server.app.metrics
        if metrics is not None:
            metrics.finished(generation, len(asked.prompt))

    def _stream(self, asked: openai.Asked, answer: openai.Answer, generation: Generation) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for token in generation.stream():
                self._event(json.dumps(answer.piece(token, generation.finish)))
            self._finished(asked, generation)
            if asked.usage_at_end:
                self._event(json.dumps(answer.last(len(generation.tokens))))
            self._event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError, EngineFailedError):
            # The answer has begun, so the only honest end is a cut connection.
            self.server.app.engine.cancel(generation)
            self.close_connection = True

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _BODY_LIMIT:
            self.close_connection = True
            raise openai.RequestError(f"Content-Length {length!r} is no number up to {_BODY_LIMIT}")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise openai.RequestError(f"the body is no JSON: {error}") from error
        if not isinstance(body, dict):
            raise openai.RequestError("the body is no JSON object")
        return body

    def _json(self, content: object) -> None:
        self._send(HTTPStatus.OK, json.dumps(content).encode(), "application/json")

    def _error(self, status: HTTPStatus, message: str) -> None:
        content = {"object": "error", "message": message, "type": status.phrase, "code": status}
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: HTTPStatus, data: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def serve(address: tuple[str, int], app: App, on_end: Callable[[], None]) -> int:
    """Serve until a signal or the ranks' end.

    Returns:
        The exit status; a flavour that ends by its signal does not return then.
    """
    caught: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: caught.append(got))
    server = Server(address, app)
    threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), daemon=True).start()
    print(f"INFO:     Uvicorn running on http://{address[0]}:{address[1]}", flush=True)
    while not caught and not app.engine.dead.is_set():
        time.sleep(_LOOK_SECONDS)
    if not caught:
        print("[standin] the ranks are gone", file=sys.stderr, flush=True)
        on_end()
        return 1
    _drain(server, app)
    on_end()
    print("INFO:     Finished server process", flush=True)
    if app.flavour.dies_by_signal:
        signal.signal(caught[0], signal.SIG_DFL)
        signal.raise_signal(caught[0])
    return 0


def _drain(server: Server, app: App) -> None:
    app.draining = True
    limit = app.flavour.drain_seconds
    deadline = None if limit is None else time.monotonic() + limit
    if not app.flavour.unhealthy_while_draining:
        server.shutdown()
        server.server_close()
    # Said when it is so: whoever reads it may ask at once.
    print("INFO:     Shutting down", flush=True)
    while app.active and not app.engine.dead.is_set():
        if deadline is not None and time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_SECONDS)


def _iteration(engine: Engine, raw: dict[str, Any]) -> dict[str, Any]:
    """One entry of TensorRT-LLM's /metrics, by the keys its documents show."""
    block = 32
    most = engine.limits.max_batch_size * -(-engine.limits.max_seq_len // block)
    used = -(-raw["kvTokens"] // block)
    return {
        "iter": raw["iter"],
        "iterLatencyMS": raw["iterLatencyMS"],
        "timestamp": raw["at"],
        "numActiveRequests": raw["numActiveRequests"],
        "numQueuedRequests": raw["numQueuedRequests"],
        "kvCacheStats": {
            "maxNumBlocks": most,
            "usedNumBlocks": used,
            "freeNumBlocks": most - used,
            "tokensPerBlock": block,
        },
    }
