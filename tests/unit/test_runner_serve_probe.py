"""Asking the engine, and answering probes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from tests.support.serving import REQUEST

from shardwright.runner.contract import Command, Counters, Generation, Prepared
from shardwright.runner.serve.health import OPEN_LIMIT, HealthServer
from shardwright.runner.serve.places import Pace
from shardwright.runner.serve.probe import Answer, Prober, generation_problem, progress
from shardwright.runner.serve.view import View

GOOD = json.dumps({"choices": [{"text": " a"}], "usage": {"completion_tokens": 1}})


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (200, GOOD, ""),
        (200, json.dumps({"choices": [{"text": "a"}]}), ""),
        (
            200,
            json.dumps({"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}),
            "without",
        ),
        (200, json.dumps({"choices": []}), "no completion"),
        (200, "ok", "no completion"),
        (200, "[1]", "no completion"),
        (200, "[" * 100_000, "no completion"),
        (
            200,
            '{"choices": [{"text": ""}], "usage": {"completion_tokens": 1e999}}',
            "no completion",
        ),
        (200, json.dumps({"choices": ["x"]}), "without"),
        (503, "starting", "503 starting"),
        (0, "connection refused", "connection refused"),
    ],
)
def test_only_a_generated_token_counts(status: int, text: str, words: str) -> None:
    found = generation_problem(status, text)
    assert bool(found) is bool(words)
    assert words in found


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (200, '{"model_name": "m", "text_output": " a"}', ""),
        # A token may be part of a character, or a special one.
        (200, '{"text_output": ""}', ""),
        (200, '{"text_output":' * 100_000, "no JSON"),
        (200, '{"text_output": null}', "without text_output"),
        (200, '{"error": "queue is full"}', "queue is full"),
        (200, "[]", "without text_output"),
        (200, GOOD, "without text_output"),
        (200, "ok", "no JSON"),
        (400, '{"error": "unknown model"}', "400"),
    ],
)
def test_another_form_of_answer(status: int, text: str, words: str) -> None:
    found = generation_problem(status, text, "text_output")
    assert bool(found) is bool(words)
    assert words in found


TRITON = """\
# TYPE nv_trt_llm_general_metrics gauge
nv_trt_llm_general_metrics{general_type="iteration_counter",model="m",version="1"} 41
nv_trt_llm_general_metrics{general_type="timestamp",model="m",version="1"} 1700074049
nv_inference_request_success{model="m",version="1"} 7
nv_inference_pending_request_count{model="m",version="1"} 3
"""


def test_progress_by_the_series_that_a_request_names() -> None:
    series = ('nv_trt_llm_general_metrics{general_type="iteration_counter"', "nv_inference_request")
    assert progress(TRITON, series) == "41 7"
    assert progress(TRITON.replace("1700074049", "1700074050"), series) == "41 7"
    assert progress(TRITON.replace(" 41", " 42"), series) == "42 7"
    assert progress("", series) == ""
    # Without names only those of the known servers count.
    assert progress(TRITON) == ""


PROMETHEUS = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 10.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
process_cpu_seconds_total 12.5
"""


def test_progress_is_what_counts_tokens_and_not_what_counts_clients() -> None:
    mark = progress(PROMETHEUS)
    assert mark == "10.0"
    assert progress(PROMETHEUS.replace(" 3.0", " 9.0").replace("12.5", "13.5")) == mark
    assert progress(PROMETHEUS.replace(" 10.0", " 11.0")) != mark


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ('sglang:generation_tokens_total{a="b"} 5\n', "5"),
        ('trtllm_request_success_total{finished_reason="stop"} 7\n', "7"),
        ("trtllm_e2e_request_latency_seconds_count 7\n", "7"),
        ('[{"iter": 5}, {"iter": 6}]', "2 6"),
        ("[]", ""),
        ("[broken", ""),
        ("", ""),
        ("python_gc_objects_collected_total 5\n", ""),
    ],
)
def test_progress_of_several_engines(text: str, mark: str) -> None:
    assert progress(text) == mark


class Engine(BaseHTTPRequestHandler):
    """Answers as it is told to."""

    healthy: ClassVar[bool] = True
    generates: ClassVar[bool] = True
    metrics: ClassVar[str] = ""
    good: ClassVar[str] = GOOD
    asked: ClassVar[list[dict[str, Any]]] = []
    refused: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.answer(200, self.metrics)
        else:
            self.answer(200 if self.healthy else 503, "")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append({"path": self.path, **json.loads(body)})
        self.answer(200, self.good) if self.generates else self.answer(500, "dead")

    def answer(self, code: int, text: str) -> None:
        if code >= 500:
            self.refused.append(self.command)
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


ALONE = replace(
    REQUEST,
    stage=0,
    tensor=1,
    pipeline=1,
    served_name="llama",
    command=Command("trtllm-serve", ("x",)),
    peers=("a",),
)


@contextmanager
def engine(prepared: Prepared | None = None, **told: Any) -> Iterator[tuple[type[Engine], Prober]]:
    handler = type("Told", (Engine,), {"asked": [], "refused": [], **told})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked = replace(ALONE, http_port=server.server_address[1], prepared=prepared)
    prober = Prober(asked, Pace(look=0.05, canary=0.2, generation=2.0), lambda: None)
    try:
        yield handler, prober
    finally:
        prober.close()
        server.shutdown()
        server.server_close()


def until(what: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_engine_is_asked_for_one_token_of_the_served_model() -> None:
    with engine() as (handler, prober):
        until(lambda: prober.answer.generated_at)
        until(lambda: prober.answer.healthy_at)
        assert handler.asked[0]["model"] == "llama"
        assert handler.asked[0]["max_tokens"] == 1
        count = len(handler.asked)
        until(lambda: len(handler.asked) > count)


def test_a_server_of_another_form_is_asked_in_its_own() -> None:
    asked = Generation("/v2/models/m/generate", {"text_input": "1"}, "text_output")
    with engine(Prepared(generation=asked), good='{"text_output": "a"}') as (handler, prober):
        until(lambda: prober.answer.generated_at)
        assert handler.asked[0] == {"path": "/v2/models/m/generate", "text_input": "1"}
    with engine(Prepared(generation=asked)) as (handler, prober):
        until(lambda: "without text_output" in prober.answer.last_error)
        assert prober.answer.generated_at is None


def test_counters_of_another_port_are_a_sign_too() -> None:
    page = type("Page", (Engine,), {"metrics": 'nv_count{model="m"} 1\n'})
    with ThreadingHTTPServer(("127.0.0.1", 0), page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = Counters(server.server_address[1], "/metrics", ("nv_count{",))
        with engine(Prepared(counters=there), generates=False) as (_, prober):
            until(lambda: prober._mark == "1")
            page.metrics = 'nv_count{model="m"} 2\n'
            until(lambda: prober.answer.moved_at)
        server.shutdown()


def test_a_healthy_page_alone_is_no_generation() -> None:
    with engine(generates=False) as (_, prober):
        until(lambda: prober.answer.healthy_at)
        until(lambda: "500 dead" in prober.answer.last_error)
        assert prober.answer.generated_at is None


def test_an_engine_that_fails_is_not_healthy_any_more() -> None:
    with engine() as (handler, prober):
        until(lambda: prober.answer.healthy_at)
        handler.healthy = False
        handler.generates = False
        # The second refusal of a kind comes when what was under way before the first is noted.
        until(lambda: min(map(handler.refused.count, ("GET", "POST"))) >= 2)
        stale = prober.answer.healthy_at
        count = handler.refused.count("GET")
        until(lambda: handler.refused.count("GET") >= count + 3)
        assert prober.answer.healthy_at == stale
        assert prober.answer.last_error


def test_counters_that_move_are_a_sign_when_tokens_are_late() -> None:
    with engine(generates=False, metrics="vllm:generation_tokens_total 1\n") as (handler, prober):
        until(lambda: prober._mark == "1")
        assert prober.answer.moved_at is None
        handler.metrics = "vllm:generation_tokens_total 2\n"
        until(lambda: prober.answer.moved_at)


def test_a_closed_prober_asks_no_more() -> None:
    others = set(threading.enumerate())
    with engine() as (handler, prober):
        until(lambda: prober.answer.generated_at)
        prober.close()
        until(lambda: not asking(others))
        count = len(handler.asked)
        time.sleep(0.5)
        assert len(handler.asked) == count


def asking(others: AbstractSet[threading.Thread]) -> list[str]:
    """Threads that ask an engine, and are none of `others`."""
    own = set(threading.enumerate()) - others
    return [one.name for one in own if one.name in ("_watch_health", "_watch_generation")]


def test_nobody_there_is_told_and_not_raised() -> None:
    asked = replace(ALONE, http_port=1)
    prober = Prober(asked, Pace(look=0.05), lambda: None)
    until(lambda: prober.answer.last_error)
    prober.close()
    found = prober.answer
    assert found == Answer(last_error=found.last_error)


VIEW = View("m", 0, 1, 0, 1, 1, "Meeting", engine=True, detail="waiting for stages [1]")


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_liveness_is_shallow_readiness_says_why_not_and_status_is_json() -> None:
    views = [VIEW]
    metrics = "shardwright_engine_up 0\n"
    more = {"usage": {"busySeconds": 60}}
    server = HealthServer(0, lambda: views[-1], lambda: metrics, lambda: more)
    try:
        assert ask(server.port, "/healthz") == (200, "alive\n")
        code, text = ask(server.port, "/readyz")
        assert (code, text) == (503, "not ready: meeting: waiting for stages [1]\n")
        code, text = ask(server.port, "/status?full=1")
        assert code == 200
        assert json.loads(text)["phase"] == "Meeting"
        assert json.loads(text)["usage"] == {"busySeconds": 60}
        assert ask(server.port, "/metrics") == (200, "shardwright_engine_up 0\n")
        assert ask(server.port, "/else")[0] == 404
        views.append(replace(VIEW, phase="Ending"))
        assert ask(server.port, "/healthz")[0] == 200
    finally:
        server.close()


def test_a_caller_that_says_nothing_does_not_hold_probes_up() -> None:
    server = HealthServer(0, lambda: VIEW)
    try:
        silent = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(20)]
        for connection in silent:
            connection.connect()
        assert ask(server.port, "/healthz")[0] == 200
        for connection in silent:
            connection.close()
    finally:
        server.close()


def test_callers_that_send_a_byte_now_and_then_hold_no_threads() -> None:
    """Each would keep a thread and a descriptor for a day; thousands, and the runner had none."""
    server = HealthServer(0, lambda: VIEW)
    before = threading.active_count()
    dawdling = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3 * OPEN_LIMIT)]
    try:
        assert ask(server.port, "/healthz")[0] == 200
        ends = time.monotonic() + 60
        while threading.active_count() - before > OPEN_LIMIT and time.monotonic() < ends:
            time.sleep(0.05)
        assert threading.active_count() - before <= OPEN_LIMIT
        ends = time.monotonic() + 120
        while threading.active_count() > before and time.monotonic() < ends:
            for stream in dawdling:
                with contextlib.suppress(OSError):
                    stream.send(b"G")
            time.sleep(0.5)
        assert threading.active_count() <= before, "a byte now and then keeps a thread"
        assert ask(server.port, "/healthz")[0] == 200
    finally:
        for stream in dawdling:
            stream.close()
        server.close()


def test_a_page_that_is_nested_too_deep_shows_no_progress() -> None:
    assert progress("[" * 100_000) == ""
