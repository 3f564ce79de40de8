"""Asking the engine: cheaply whether it is healthy, and now and then for one generated token.

A server's health page may answer while its ranks hang, so before a pod is ready, and once a minute
afterwards, a token must really come out. That request waits in the engine's queue like any other;
under load it may take long, so a late answer alone condemns nobody: the engine's own counters are
looked at as well (`progress`).
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from shardwright.runner.contract import Counters, Generation, Prepared, ServeRequest
from shardwright.runner.serve.places import Pace

HEALTH_SECONDS = 3.0
METRICS_PATH = "/metrics"
_BODY_LIMIT_BYTES = 8 * 2**20
# What reading a completion out of any answer at all may end in: nested too deep (RuntimeError),
# a count that is infinite (ArithmeticError), and fields of other kinds.
_NO_COMPLETION = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
# Counters that go up only as tokens are made (vLLM, SGLang, TensorRT-LLM); gauges of what waits
# move when clients come, and prove nothing.
_COUNTERS = re.compile(
    r"^(?:vllm|sglang|trtllm)[:_]\w*(?:tokens|iteration|success|latency|time_per|time_to)\w*"
    r"_(?:total|count)(?:\{[^}]*\})? +(\S+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Answer:
    """What the engine has shown so far; times are of `time.monotonic`, None before the first."""

    healthy_at: float | None = None
    generated_at: float | None = None
    moved_at: float | None = None
    last_error: str = ""


class Prober:
    """Asks the engine in threads of its own, and keeps what it answered."""

    def __init__(
        self,
        request: ServeRequest,
        pace: Pace,
        changed: Callable[[], None],
        host: str = "127.0.0.1",
        mark: Callable[[], str] | None = None,
    ) -> None:
        """Ask from now on; `changed` is called, in another thread, when an answer is new.

        `mark` tells of the engine's progress where somebody reads its metrics already, and no
        counters are named: a page that is emptied by reading has room for one reader.
        """
        self._request, self._pace, self._changed, self._host = request, pace, changed, host
        prepared = request.prepared or Prepared()
        self._asked = prepared.generation or completion(request.served_name)
        self._counters = prepared.counters or Counters(request.http_port, METRICS_PATH, ())
        others = mark if prepared.counters is None else None
        self._progress = self._read_mark if others is None else others
        self._answer = Answer()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._urgent = threading.Event()
        self._mark = ""
        for target in (self._watch_health, self._watch_generation):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    @property
    def answer(self) -> Answer:
        """What is known now."""
        with self._lock:
            return self._answer

    def close(self) -> None:
        """Ask no more: a drained engine's connections are counted."""
        self._closed.set()
        self._urgent.set()

    def hurry(self) -> None:
        """Ask for a token now: something below has ended."""
        self._urgent.set()

    def _watch_health(self) -> None:
        while not self._closed.is_set():
            status, text = self._get(self._request.health_path, HEALTH_SECONDS)
            if status == HTTPStatus.OK:
                self._note(healthy=True)
            else:
                self._note(error=text or f"{self._request.health_path} answered {status}")
            self._closed.wait(self._pace.look)

    def _watch_generation(self) -> None:
        while not self._closed.is_set():
            problem = self._generate()
            if problem:
                self._note(error=problem)
                self._look_at_counters()
            else:
                self._note(generated=True)
            again = self._pace.canary if self.answer.generated_at and not problem else 1.0
            self._urgent.wait(again)
            if not self._closed.is_set():
                self._urgent.clear()

    def _generate(self) -> str:
        """Have one token generated; returns what is wrong, or nothing."""
        asked = self._asked
        status, text = self._get(asked.path, self._pace.generation, json.dumps(asked.body))
        return generation_problem(status, text, asked.answer)

    def _look_at_counters(self) -> None:
        mark = self._progress()
        if mark and mark != self._mark:
            first = not self._mark
            self._mark = mark
            self._note(moved=not first)

    def _read_mark(self) -> str:
        counters = self._counters
        status, text = self._get(counters.path, HEALTH_SECONDS, port=counters.port)
        return progress(text, counters.series) if status == HTTPStatus.OK else ""

    def _note(
        self,
        *,
        healthy: bool = False,
        generated: bool = False,
        moved: bool = False,
        error: str = "",
    ) -> None:
        now = time.monotonic()
        with self._lock:
            old = self._answer
            self._answer = Answer(
                healthy_at=now if healthy or generated else old.healthy_at,
                generated_at=now if generated else old.generated_at,
                moved_at=now if generated or moved else old.moved_at,
                last_error=error or ("" if generated else old.last_error),
            )
        self._changed()

    def _get(
        self, path: str, seconds: float, body: str | None = None, port: int = 0
    ) -> tuple[int, str]:
        """Status and text of an answer; status 0 and the reason when there is none."""
        connection = http.client.HTTPConnection(
            self._host, port or self._request.http_port, timeout=seconds
        )
        headers = {"Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_BODY_LIMIT_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{path}: {error or type(error).__name__}"
        finally:
            connection.close()


def completion(model: str) -> Generation:
    """OpenAI's way to ask for one token."""
    body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0, "stream": False}
    return Generation("/v1/completions", body, "")


def generation_problem(status: int, text: str, answer: str = "") -> str:
    """Whether an answer holds a generated token; empty if it does.

    Args:
        status: HTTP's; 0 when there was no answer.
        text: The body.
        answer: Key of the generated text in the answer; empty for OpenAI's completions.
    """
    if status != HTTPStatus.OK:
        return f"a generation of one token: {status} {text[:200]}".strip()
    if answer:
        return _text_problem(text, answer)
    try:
        found = json.loads(text)
        choice = found["choices"][0]
        tokens = int((found.get("usage") or {}).get("completion_tokens", 1))
    except _NO_COMPLETION as error:
        return f"a generation of one token: an answer that is no completion ({error!r})"
    if not isinstance(choice, dict) or "text" not in choice or tokens < 1:
        return "a generation of one token: an answer without a token"
    return ""


def _text_problem(text: str, answer: str) -> str:
    """Whether an object has text under a key; a token of its own may decode to none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"a generation of one token: an answer that is no JSON ({error})"
    if not isinstance(found, dict) or not isinstance(found.get(answer), str):
        return f"a generation of one token: an answer without {answer}: {text[:200]}"
    return ""


def progress(text: str, series: Sequence[str] = ()) -> str:
    """A mark that changes as the engine works, from its metrics page; empty if it shows none.

    TensorRT-LLM up to 1.2 gives a JSON list of the iterations since the last look, others
    Prometheus' text. It is looked at only when a generation is late, as looking empties that list.

    Args:
        text: The page.
        series: How the lines begin that count; empty for what the known servers have.
    """
    if series:
        lines = (line for line in text.splitlines() if line.startswith(tuple(series)))
        return " ".join(line.rpartition(" ")[2] for line in lines)
    stripped = text.lstrip()
    if stripped.startswith("["):
        try:
            rows = json.loads(stripped)
        except (ValueError, RecursionError):
            return ""
        return f"{len(rows)} {rows[-1].get('iter')}" if rows and isinstance(rows[-1], dict) else ""
    return " ".join(match.group(1) for match in _COUNTERS.finditer(text))
