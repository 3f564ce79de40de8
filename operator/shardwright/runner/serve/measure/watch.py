"""Looks at engine and GPUs now and then, and shows the last look as long as it is fresh."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from shardwright.runner.contract import ServeRequest, Usage
from shardwright.runner.gpus import GPUError
from shardwright.runner.log import say
from shardwright.runner.measures import COUNTER, FAMILIES, ITERATIONS, Page
from shardwright.runner.serve import inflight
from shardwright.runner.serve.measure.gpu_use import GPUUse, gpus_in_use
from shardwright.runner.serve.measure.harvest import (
    Value,
    adapters_at_work,
    from_iterations,
    from_prometheus,
    mark,
    rows_of,
)
from shardwright.runner.serve.measure.window import Seen, Window
from shardwright.runner.serve.places import Pace
from shardwright.runner.serve.view import SERVING, View

# TensorRT-LLM waits up to two seconds for an iteration before it answers.
_PAGE_SECONDS = 5.0
_BODY_LIMIT_BYTES = 16 * 2**20
GPUS = "gpus"
# TensorRT-LLM keeps its last 1000 iterations for whoever looks next (`max_stats_len`); a look comes
# when about so many of them are there.
_WANTED_ROWS = 400
_SHORTEST_SECONDS = 0.2


@dataclass(frozen=True)
class Look:
    """What was seen at a time (of `time.monotonic`), by our names; `up` is each page's fate."""

    at: float = 0.0
    values: dict[str, Value] = field(default_factory=dict)
    up: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class GPULook:
    """What nvidia-smi told at one time."""

    at: float = 0.0
    gpus: tuple[GPUUse, ...] = ()


class PageError(Exception):
    """A page did not answer, or not with what it should."""


class Watch:
    """Two threads of its own: one reads the engine's pages while the group serves, one the GPUs."""

    def __init__(
        self,
        request: ServeRequest,
        pace: Pace,
        view: Callable[[], View],
        host: str = "127.0.0.1",
        gpus: Callable[[], tuple[GPUUse, ...] | None] = gpus_in_use,
    ) -> None:
        """Look from now on; `view` gives the pod's present view, from another thread."""
        self.request, self._pace, self._view, self._host = request, pace, view, host
        self._gpus = gpus
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._look, self._gpu_look = Look(), GPULook()
        self._window = Window(request.revision, 3 * pace.sample)
        self._adapters: frozenset[str] | None = None
        self._rows, self._rows_at = 0, time.monotonic()
        self._counted: dict[str, float] = {}
        self._errors: dict[str, int] = {page.path: 0 for page in request.metrics}
        self._mark = ""
        self._told: set[str] = set()
        targets = [self._watch_gpus]
        if request.stage == 0 and request.metrics:
            targets.append(self._watch_engine)
        for target in targets:
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def mark(self) -> str:
        """Changes as the engine makes progress; empty as long as it has shown none."""
        with self._lock:
            return self._mark

    def look(self, now: float) -> Look:
        """The last look at the engine; nothing but failed pages where it is none of now."""
        with self._lock:
            seen = self._look
        fresh = now - seen.at <= self._fresh and self._view().phase == SERVING
        if seen.at and fresh:
            return seen
        return Look(now, {}, {page.path: False for page in self.request.metrics})

    def gpu_look(self, now: float) -> GPULook:
        """The last look at the GPUs, empty where it is none of now."""
        with self._lock:
            seen = self._gpu_look
        return seen if now - seen.at <= 2 * self._pace.gpus + _PAGE_SECONDS else GPULook()

    def usage(self, now: float) -> Usage | None:
        """How the engine was used of late; None in a pod that does not ask it."""
        if self.request.stage or not self.request.metrics:
            return None
        with self._lock:
            return self._window.usage(now)

    def errors(self) -> dict[str, int]:
        """Failed looks by page, and of the GPUs."""
        with self._lock:
            return dict(self._errors)

    @property
    def _fresh(self) -> float:
        return 2 * self._pace.sample + _PAGE_SECONDS * max(1, len(self.request.metrics))

    def _watch_engine(self) -> None:
        wait = self._pace.sample
        while not self._closed.wait(wait):
            self._rows = 0
            # Before the first generation pages are not there yet; while it drains, connections of
            # the port are counted, and ours would be among them.
            if self._view().phase == SERVING:
                self._look_at_engine()
            wait = next_look(self._pace.sample, self._rows, time.monotonic() - self._rows_at)
            self._rows_at = time.monotonic()

    def _look_at_engine(self) -> None:
        values: dict[str, Value] = {}
        up: dict[str, bool] = {}
        self._adapters = None
        for page in self.request.metrics:
            try:
                found = self._read(page)
            except (PageError, ValueError) as error:
                if self._view().phase == SERVING:
                    self._failed(page.path, str(error))
                up[page.path] = False
                continue
            if found is None:
                continue
            up[page.path] = True
            self._told.discard(page.path)
            for family, value in found.items():
                values.setdefault(family, value)
        now = time.monotonic()
        with self._lock:
            self._look = Look(now, values, up)
            self._mark = mark(values) or self._mark
            self._window.add(now, _seen(values, self._adapters))

    def _read(self, page: Page) -> dict[str, Value] | None:
        """What a page tells; None where an optional one is not there.

        Raises:
            PageError: It does not answer.
            ValueError: It is not what its form says.
        """
        status, text = self._get(page)
        if page.optional and status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise PageError(f"{page.path} answered {status} {text[:200]}".strip())
        if page.form != ITERATIONS:
            if self._adapters is None:
                self._adapters = adapters_at_work(page, text)
            return from_prometheus(page, text)
        rows = rows_of(text)
        self._rows = max(self._rows, len(rows))
        idle = not rows and inflight.look(self.request.http_port) == 0
        found = from_iterations(page, rows, self._counted, idle=idle)
        # Only this thread touches what was counted.
        for family, value in found.items():
            if FAMILIES[family].kind == COUNTER and isinstance(value, float):
                self._counted[family] = value
        return found

    def _get(self, page: Page) -> tuple[int, str]:
        port = page.port or self.request.http_port
        connection = http.client.HTTPConnection(self._host, port, timeout=_PAGE_SECONDS)
        try:
            connection.request("GET", page.path, headers={"Connection": "close"})
            answer = connection.getresponse()
            body = answer.read(_BODY_LIMIT_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PageError(f"{page.path}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if len(body) > _BODY_LIMIT_BYTES:
            raise PageError(f"{page.path} is longer than {_BODY_LIMIT_BYTES} bytes")
        return answer.status, body.decode("utf-8", "replace")

    def _failed(self, what: str, why: str) -> None:
        with self._lock:
            self._errors[what] = self._errors.get(what, 0) + 1
        if what not in self._told:
            self._told.add(what)
            say("metrics cannot be read", page=what, why=why)

    def _watch_gpus(self) -> None:
        while not self._closed.is_set():
            try:
                found = self._gpus()
            except GPUError as error:
                self._failed(GPUS, str(error))
            else:
                if found is None:
                    return
                self._told.discard(GPUS)
                with self._lock:
                    self._gpu_look = GPULook(time.monotonic(), found)
            self._closed.wait(self._pace.gpus)


def next_look(sample: float, rows: int, passed: float) -> float:
    """Seconds until the next look at an engine that keeps its last iterations, and no more.

    Args:
        sample: The usual time.
        rows: Iterations that the last look has found.
        passed: Seconds since the look before it.
    """
    if not rows:
        return sample
    return min(sample, max(_SHORTEST_SECONDS, _WANTED_ROWS * passed / rows))


def _seen(values: dict[str, Value], adapters: frozenset[str] | None) -> Seen:
    def of(family: str) -> float | None:
        value = values.get(f"shardwright_{family}")
        return value if isinstance(value, float) else None

    return Seen(
        running=of("requests_running"),
        waiting=of("requests_waiting"),
        kv_cache=of("kv_cache_utilization"),
        drafted=of("draft_tokens_total"),
        accepted=of("accepted_tokens_total"),
        acceptance=of("acceptance_length"),
        adapters=adapters,
    )
