"""Triton's HTTP server: health, models, the generate extension, and metrics on a port of their own.

Paths and answers by docs/protocol of triton-inference-server/server (extension_generate.md, the
KServe protocol's health and metadata) and src/http_server.cc at r26.04; metrics by the names in the
README of triton-inference-server/tensorrtllm_backend.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shardwright_standin.front.engine import Engine, EngineFailedError, Generation
from shardwright_standin.model import tokenizer

_BODY_LIMIT = 10_000_000
_LOOK_SECONDS = 0.05
_MODEL = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/(generate|generate_stream|ready))?"
)
# Decoding is greedy here, so these ask for nothing else.
_GREEDY: Mapping[str, tuple[object, ...]] = {
    "temperature": (0, 0.0, 1, 1.0),
    "top_k": (0, 1),
    "top_p": (0, 0.0, 1, 1.0),
    "beam_width": (1,),
    "num_return_sequences": (1,),
    "bad_words": ("", []),
    "stop_words": ("", []),
    "return_log_probs": (False,),
}


class InputError(ValueError):
    """A request that is refused, with status 400."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the served model calls its tensors.

    `echo` is the input that says whether the answer leaves the prompt out, `answer_only` what it
    is when a request says nothing, `prefix` that of sampling parameters.
    """

    budget: str
    stream: str
    echo: str
    prefix: str
    answer_only: bool
    budget_needed: bool


@dataclass(slots=True)
class Served:
    """The model that answers, and what handlers share."""

    name: str
    config: Mapping[str, Any]
    names: Names
    decoupled: bool
    engine: Engine
    others: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    active: int = 0
    answered: int = 0
    draining: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, *, active: int = 0, answered: int = 0) -> None:
        """A request began, was answered, or ended."""
        with self.lock:
            self.active += active
            self.answered += answered


class Server(ThreadingHTTPServer):
    """Listens; threads of open connections do not keep it from ending."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2048

    def __init__(self, address: tuple[str, int], served: Served, kind: type[Handler]) -> None:
        self.served = served
        super().__init__(address, kind)


class Handler(BaseHTTPRequestHandler):
    """One connection, which stays open between requests as libevhtp's do."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Triton logs no requests."""

    def reply(self, status: HTTPStatus, content: object = None) -> None:
        """Send JSON, or nothing."""
        if content is None:
            self.send(status, b"", "text/plain")
        else:
            self.send(status, json.dumps(content).encode(), "application/json")

    def send(self, status: HTTPStatus, data: bytes, kind: str) -> None:
        """Send bytes."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Inference(Handler):
    """The HTTP port."""

    def do_GET(self) -> None:
        """Health and metadata."""
        served, path = self.server.served, self.path.partition("?")[0]
        if path in ("/v2/health/live", "/v2/health/ready"):
            ill = served.draining or served.engine.dead.is_set()
            self.reply(HTTPStatus.BAD_REQUEST if ill else HTTPStatus.OK)
            return
        if path == "/v2":
            self.reply(HTTPStatus.OK, {"name": "triton", "extensions": ["generate"]})
            return
        match = _MODEL.fullmatch(path)
        if match is None or match[3] in ("generate", "generate_stream"):
            self.reply(HTTPStatus.NOT_FOUND, {"error": "Not Found"})
        elif match[1] not in {served.name, *served.others}:
            self._unknown(match[1])
        elif match[3] == "ready":
            self.reply(HTTPStatus.OK)
        else:
            config = served.others.get(match[1], served.config)
            self.reply(HTTPStatus.OK, _metadata(match[1], config))

    def do_POST(self) -> None:
        """The generate extension."""
        served = self.server.served
        match = _MODEL.fullmatch(self.path.partition("?")[0])
        served.count(active=1)
        try:
            if match is None or match[3] not in ("generate", "generate_stream"):
                self.reply(HTTPStatus.NOT_FOUND, {"error": "Not Found"})
            elif match[1] != served.name:
                self._unknown(match[1])
            else:
                self._generate(stream=match[3] == "generate_stream")
        except InputError as error:
            self.reply(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except EngineFailedError as error:
            self.reply(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            served.count(active=-1)

    def _unknown(self, name: str) -> None:
        message = f"Request for unknown model: '{name}' is not found"
        self.reply(HTTPStatus.BAD_REQUEST, {"error": message})

    def _generate(self, *, stream: bool) -> None:
        served = self.server.served
        asked = _asked(self._body(), served)
        if (stream or asked.stream) and not served.decoupled:
            raise InputError("streaming needs a model in decoupled mode")
        if asked.stream and not stream:
            raise InputError(
                "generate expects model to produce exactly 1 response, use generate stream for "
                "model that generates various number of responses"
            )
        generation = served.engine.submit(asked.prompt, asked.budget, served.engine.stop_token)
        if stream:
            self._stream(asked, generation)
            return
        tokens = list(generation.stream())
        # Before the answer goes: whoever has it may look at the metrics.
        served.count(answered=1)
        self.reply(HTTPStatus.OK, self._answer(asked.lead + _text(tokens)))

    def _answer(self, text: str) -> dict[str, Any]:
        return {"model_name": self.server.served.name, "model_version": "1", "text_output": text}

    def _stream(self, asked: Asked, generation: Generation) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = [] if asked.stream else [asked.lead]
        try:
            for token in generation.stream():
                if asked.stream:
                    self._event(_text([token]))
                else:
                    pieces.append(_text([token]))
            if not asked.stream:
                self._event("".join(pieces))
            self.server.served.count(answered=1)
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError, EngineFailedError):
            # The answer has begun, so the only honest end is a cut connection.
            self.server.served.engine.cancel(generation)
            self.close_connection = True

    def _event(self, text: str) -> None:
        data = f"data: {json.dumps(self._answer(text))}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _BODY_LIMIT:
            self.close_connection = True
            raise InputError(f"Content-Length {length!r} is no number up to {_BODY_LIMIT}")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise InputError(f"failed to parse the request JSON buffer: {error}") from error
        if not isinstance(body, dict):
            raise InputError("the request is no JSON object")
        return body


def _metadata(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's metadata, as the KServe protocol has it."""
    batch = [-1] if config["max_batch_size"] else []

    def told(tensor: Mapping[str, Any]) -> dict[str, Any]:
        kind = tensor["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
        return {"name": tensor["name"], "datatype": kind, "shape": [*batch, *tensor["dims"]]}

    return {
        "name": name,
        "versions": ["1"],
        "platform": config.get("platform") or config.get("backend"),
        "inputs": [told(tensor) for tensor in config["input"]],
        "outputs": [told(tensor) for tensor in config["output"]],
    }


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request; `lead` is what the answer begins with."""

    prompt: list[int]
    budget: int
    stream: bool
    lead: str


def _asked(body: Mapping[str, Any], served: Served) -> Asked:
    """Check a request; keys that are no tensors of the model become parameters, which it ignores.

    Raises:
        InputError: A tensor is missing, of another type, or asks for more than the engine takes.
    """
    nested = body.get("parameters", {})
    given = {**body, **(nested if isinstance(nested, dict) else {})}
    names, limits = served.names, served.engine.limits
    tensors = {tensor["name"] for tensor in served.config["input"]}
    for name in sorted(tensors & set(given)):
        plain = name.removeprefix(names.prefix)
        played = {"text_input", names.budget, names.stream, names.echo, "seed", "end_id", "pad_id"}
        if name in played or plain in ("seed", "best_of"):
            continue
        if given[name] not in _GREEDY.get(plain, ()):
            raise InputError(f"the stand-in does not play {name} {given[name]!r}")
    text = given.get("text_input")
    if not isinstance(text, str):
        raise InputError("attempt to access non-existing object member 'text_input', or no string")
    budget = given.get(names.budget, None if names.budget_needed else 32)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise InputError(f"input '{names.budget}' must be a number of at least 1, is {budget!r}")
    prompt = tokenizer.encode(text)
    if len(prompt) > min(limits.max_input_len, limits.max_num_tokens):
        raise InputError(
            f"Prompt length ({len(prompt)}) exceeds maximum input length ({limits.max_input_len})"
        )
    if len(prompt) + budget > limits.max_seq_len:
        raise InputError(
            f"Prompt length ({len(prompt)}) + {names.budget} ({budget}) exceeds the maximum "
            f"sequence length ({limits.max_seq_len})"
        )
    stream, bare = given.get(names.stream, False), given.get(names.echo, names.answer_only)
    if not isinstance(stream, bool) or not isinstance(bare, bool):
        raise InputError(f"inputs {names.stream} and {names.echo} are true or false")
    return Asked(prompt, budget, stream, "" if bare else text)


def _text(tokens: list[int]) -> str:
    return tokenizer.decode(token for token in tokens if token != tokenizer.EOS)


class Metrics(Handler):
    """The metrics port."""

    def do_GET(self) -> None:
        """Prometheus' text."""
        if self.path != "/metrics":
            self.reply(HTTPStatus.NOT_FOUND)
            return
        text = metrics_text(self.server.served)
        self.send(HTTPStatus.OK, text.encode(), "text/plain; charset=utf-8")


def metrics_text(served: Served) -> str:
    """Metrics of Triton and of the backend, with the labels that they have."""
    last, limits = served.engine.last, served.engine.limits
    model = f'model="{served.name}",version="1"'
    own = 'model="tensorrt_llm",version="1"'
    block = 32
    most = limits.max_batch_size * -(-limits.max_seq_len // block)
    used = -(-last["kvTokens"] // block) if served.engine.in_flight else 0
    requests = {
        "waiting": last["numQueuedRequests"],
        "active": last["numActiveRequests"],
        "scheduled": last["numActiveRequests"],
        "max": limits.max_batch_size,
    }
    blocks = {
        "fraction": used / most,
        "tokens_per": block,
        "used": used,
        "free": most - used,
        "max": most,
    }
    lines = [f"nv_inference_request_success{{{model}}} {served.answered}"]
    lines.append(f"nv_inference_pending_request_count{{{model}}} {served.active}")
    for kind, value in requests.items():
        lines.append(f'nv_trt_llm_request_metrics{{request_type="{kind}",{own}}} {value}')
    for kind, value in blocks.items():
        label = f'kv_cache_block_type="{kind}"'
        lines.append(f"nv_trt_llm_kv_cache_block_metrics{{{label},{own}}} {value}")
    iteration = f'general_type="iteration_counter",{own}'
    lines.append(f"nv_trt_llm_general_metrics{{{iteration}}} {last.get('iter', 0)}")
    return "\n".join((*lines, ""))


def serve(
    ports: tuple[int, int], served: Served, exit_seconds: int, end: Callable[[], None]
) -> int:
    """Serve until a signal or the ranks' end.

    Args:
        ports: Of HTTP and of metrics.
        served: The model.
        exit_seconds: How long requests under way may take after the signal.
        end: Lets the ranks go.

    Returns:
        The exit status.
    """
    caught: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: caught.append(got))
    servers = (Server(("", ports[0]), served, Inference), Server(("", ports[1]), served, Metrics))
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), daemon=True).start()
    print(f"Started HTTPService at 0.0.0.0:{ports[0]}", file=sys.stderr, flush=True)
    print(f"Started Metrics Service at 0.0.0.0:{ports[1]}", file=sys.stderr, flush=True)
    while not caught and not served.engine.dead.is_set():
        time.sleep(_LOOK_SECONDS)
    if not caught:
        print("[standin] the ranks are gone", file=sys.stderr, flush=True)
        end()
        return 1
    print(f"Signal ({caught[0]}) received.", file=sys.stderr, flush=True)
    served.draining = True
    deadline = time.monotonic() + exit_seconds
    while served.active and time.monotonic() < deadline and not served.engine.dead.is_set():
        time.sleep(_LOOK_SECONDS)
    for server in servers:
        server.shutdown()
        server.server_close()
    end()
    return 0
