"""The runner's own metrics page: whose it is, what is on it, and that nothing old stays there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.serving import REQUEST

from shardwright.runner.contract import ContractError, ServeRequest, Usage, decode, encode
from shardwright.runner.gpus import GPUError
from shardwright.runner.measures import FAMILIES, ITERATIONS, OWN_FAMILIES, Page, Source
from shardwright.runner.serve.measure.gpu_use import GPUUse, read_use
from shardwright.runner.serve.measure.harvest import Value
from shardwright.runner.serve.measure.page import page
from shardwright.runner.serve.measure.watch import GPULook, Look, Watch, next_look
from shardwright.runner.serve.places import Pace
from shardwright.runner.serve.view import DRAINING, SERVING, STARTING, View
from shardwright.runtimes.metrics import PAGES

DATA = Path(__file__).parents[1] / "data/metrics"
LEADER = replace(REQUEST, stage=0, revision="abc", served_name="llama", metrics=PAGES["VLLM"]())
T = TypeVar("T")
VIEW = View("m", 0, 1, 0, 2, 2, SERVING, engine=True)
PACE = Pace(sample=0.05, gpus=0.05)
USE = (GPUUse(0, 0.5, 3 * 2**30, 80 * 2**30), GPUUse(1, None, None, None))


def series(text: str) -> dict[str, dict[str, str]]:
    """Labels of each sample by name, read by the usual client."""
    return {
        sample.name: sample.labels
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float | None:
    return next(
        (
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ),
        None,
    )


@dataclass
class Server:
    """An engine's pages: status and text of each."""

    pages: dict[str, tuple[int, str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    port: int = 0

    def wait(self, count: int) -> None:
        """Wait until `/metrics` is asked for so many times more: all but the last are looked at."""
        before = self.asked.count("/metrics")
        eventually(lambda: self.asked.count("/metrics") >= before + count)


@contextmanager
def serving(pages: dict[str, tuple[int, str]]) -> Iterator[Server]:
    told = Server(dict(pages))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append(self.path)
            status, text = told.pages.get(self.path, (404, "Not Found"))
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told.port = server.server_address[1]
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()


def eventually(what: Callable[[], T | None]) -> T:
    """What it is, as soon as it is anything."""
    end = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < end, "it never was so"
        time.sleep(0.01)
    return found


def values(watch: Watch) -> Callable[[], dict[str, Value]]:
    """What the engine shows now."""
    return lambda: watch.look(time.monotonic()).values


@contextmanager
def watching(request: ServeRequest, view: Callable[[], View] = lambda: VIEW) -> Iterator[Watch]:
    watch = Watch(request, PACE, view, gpus=lambda: USE)
    try:
        yield watch
    finally:
        watch.close()


def fresh(watch: Watch) -> Look | None:
    """The last look, if it saw something and is one of now."""
    look = watch.look(time.monotonic())
    return look if look.values else None


def shown(watch: Watch) -> str:
    now = time.monotonic()
    return page(watch.request, watch.look(now), watch.gpu_look(now), watch.errors(), 3)


def shown_with(watch: Watch, *names: str) -> str:
    """The page as soon as it has these series, and they a value."""

    def there() -> str:
        text = shown(watch)
        return text if all(value(text, name) is not None for name in names) else ""

    return eventually(there)


VLLM = (DATA / "vllm-0.33.0.txt").read_text(encoding="utf-8")
ITERATION = (DATA / "trtllm-iterations-1.2.json").read_text(encoding="utf-8")


def test_an_engine_s_metrics_are_shown_under_our_names_with_whose_they_are() -> None:
    with serving({"/metrics": (200, VLLM)}) as server:
        asked = replace(LEADER, http_port=server.port)
        with watching(asked) as watch:
            text = shown_with(
                watch, "shardwright_requests_waiting", "shardwright_gpu_memory_used_bytes"
            )
    who = {"deployment": "m", "replica": "0", "model": "llama", "revision": "abc"}
    assert value(text, "shardwright_requests_waiting", **who) == 4
    assert value(text, "shardwright_engine_up", page="/metrics", **who) == 1
    assert value(text, "shardwright_scrape_errors_total", page="/metrics") == 0
    assert value(text, "shardwright_requests_in_flight", **who) == 3
    assert value(text, "shardwright_time_to_first_token_seconds_count", **who) == 4
    assert value(text, "shardwright_gpu_utilization", gpu="0", stage="0") == 0.5
    assert value(text, "shardwright_gpu_memory_used_bytes", gpu="0") == 3 * 2**30
    assert value(text, "shardwright_gpu_utilization", gpu="1") is None
    own = {"deployment", "replica", "model", "revision", "le", "page", "stage", "gpu"}
    for name, labels in series(text).items():
        assert name.startswith("shardwright_")
        assert set(labels) <= own, name


def test_names_follow_the_conventions_of_prometheus() -> None:
    for name, family in {**FAMILIES, **OWN_FAMILIES}.items():
        assert (family.kind == "counter") is name.endswith("_total"), name
        assert not any(unit in name for unit in ("_ms", "_mib", "percent")), name
        assert family.help.endswith(".")
        if family.kind == "histogram":
            assert name.endswith("_seconds")


@pytest.mark.parametrize(
    ("status", "text"), [(500, "dead"), (200, "vllm:num_requests_running broken\n"), (404, "")]
)
def test_a_page_that_fails_takes_its_series_away_and_is_counted(status: int, text: str) -> None:
    with (
        serving({"/metrics": (200, VLLM)}) as server,
        watching(replace(LEADER, http_port=server.port)) as watch,
    ):
        eventually(values(watch))
        server.pages["/metrics"] = (status, text)
        eventually(lambda: watch.errors()["/metrics"] > 0)
        eventually(lambda: not values(watch)())
        gone = shown(watch)
        assert value(gone, "shardwright_requests_waiting") is None
        assert value(gone, "shardwright_engine_up", page="/metrics") == 0
        assert value(gone, "shardwright_scrape_errors_total", page="/metrics") != 0
        server.pages["/metrics"] = (200, VLLM)
        text = shown_with(watch, "shardwright_requests_waiting")
        assert value(text, "shardwright_engine_up", page="/metrics") == 1


def test_nobody_is_asked_and_nothing_told_before_it_serves_or_while_it_drains() -> None:
    views, asked_by = [replace(VIEW, phase=STARTING)], list[str]()

    def view() -> View:
        asked_by.append(threading.current_thread().name)
        return views[-1]

    def looks(count: int) -> None:
        """The thread that asks the engine comes to its question so many times more."""
        before = asked_by.count("_watch_engine")
        eventually(lambda: asked_by.count("_watch_engine") >= before + count)

    with (
        serving({"/metrics": (200, VLLM)}) as server,
        watching(replace(LEADER, http_port=server.port), view) as watch,
    ):
        looks(3)
        assert server.asked == []
        assert watch.errors() == {"/metrics": 0}
        assert value(shown(watch), "shardwright_engine_up", page="/metrics") == 0
        views.append(VIEW)
        eventually(values(watch))
        views.append(replace(VIEW, phase=DRAINING))
        assert watch.look(time.monotonic()).values == {}
        assert value(shown(watch), "shardwright_requests_running") is None
        looks(2)  # what was under way
        seen = len(server.asked)
        looks(3)
        assert len(server.asked) == seen


def test_values_that_are_old_are_not_shown() -> None:
    with (
        serving({"/metrics": (200, VLLM)}) as server,
        watching(replace(LEADER, http_port=server.port)) as watch,
    ):
        eventually(values(watch))
        later = time.monotonic() + 60
        assert watch.look(later).values == {}
        assert watch.look(later).up == {"/metrics": False}
        assert watch.gpu_look(later) == GPULook()


def test_a_drained_list_of_iterations_counts_on_and_its_mark_moves() -> None:
    pages = PAGES["TensorRTLLM"]()
    with serving({"/metrics": (200, ITERATION)}) as server:
        asked = replace(LEADER, http_port=server.port, metrics=pages)
        with watching(asked) as watch:
            eventually(values(watch))
            first = watch.mark()
            eventually(lambda: watch.mark() != first)
            server.pages["/metrics"] = (200, "[]")
            server.wait(3)  # what was under way
            kept = eventually(values(watch))["shardwright_generation_tokens_total"]
            server.wait(3)
            look = eventually(lambda: fresh(watch))
            assert look.values["shardwright_generation_tokens_total"] == kept
            # The other page is not there in this version, which is no failure.
            assert look.up == {"/metrics": True}
            assert watch.errors() == {"/prometheus/metrics": 0, "/metrics": 0}


def test_one_page_that_fails_leaves_the_other_s_series() -> None:
    pages = PAGES["TensorRTLLM"]()
    prometheus = (DATA / "trtllm-1.3.txt").read_text(encoding="utf-8")
    with (
        serving({"/prometheus/metrics": (200, prometheus), "/metrics": (500, "")}) as server,
        watching(replace(LEADER, http_port=server.port, metrics=pages)) as watch,
    ):
        look = eventually(lambda: fresh(watch))
    assert look.values["shardwright_requests_waiting"] == 2
    assert look.up == {"/prometheus/metrics": True, "/metrics": False}


@pytest.mark.parametrize(
    ("a_second", "kept"), [(0, 1000), (20, 1000), (79, 1000), (300, 1000), (1500, 1000)]
)
def test_looks_come_often_enough_to_lose_no_iteration(a_second: int, kept: int) -> None:
    wait, lost = 5.0, []
    for _ in range(30):
        there = round(a_second * wait)
        lost.append(max(0, there - kept))
        wait = next_look(5.0, min(there, kept), wait)
    # The first looks find out how fast it is.
    assert not any(lost[6:])
    assert wait == (5.0 if a_second < 80 else pytest.approx(400 / a_second, rel=0.01))


def test_the_next_look_is_bounded_both_ways() -> None:
    assert next_look(0.05, 0, 0.05) == 0.05
    assert next_look(5.0, 1000, 5.0) == 2.0
    assert next_look(5.0, 1000, 0.01) == 0.2
    assert next_look(0.05, 1000, 5.0) == 0.05


def used(watch: Watch) -> Usage | None:
    """How the engine was used, once it was for any time."""
    found = watch.usage(time.monotonic())
    return found if found is not None and found.busy_seconds else None


def test_what_was_seen_is_summed_up_for_the_status_page() -> None:
    lora = (
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="legal",'
        'waiting_lora_adapters="legal"} 1.8e+09\n'
    )
    with serving({"/metrics": (200, VLLM + lora)}) as server:
        asked = replace(LEADER, http_port=server.port)
        with watching(asked) as watch:
            found = eventually(lambda: used(watch))
    assert (found.revision, found.kv_cache, found.kv_high) == ("abc", 0.875, 1.0)
    assert (found.running, found.alone) == (19.0, {"legal": 1.0})
    with watching(replace(LEADER, stage=1)) as worker:
        assert worker.usage(time.monotonic()) is None
    with watching(replace(LEADER, metrics=())) as silent:
        assert silent.usage(time.monotonic()) is None


def test_a_worker_tells_of_its_gpus_alone() -> None:
    with watching(replace(LEADER, stage=1, metrics=())) as watch:
        text = shown_with(watch, "shardwright_gpu_memory_used_bytes")
    assert set(series(text)) == {
        "shardwright_gpu_utilization",
        "shardwright_gpu_memory_used_bytes",
        "shardwright_gpu_memory_total_bytes",
    }
    assert value(text, "shardwright_gpu_utilization", stage="1", gpu="0") == 0.5


def test_a_driver_that_does_not_tell_is_counted_and_an_image_without_nvidia_smi_is_not() -> None:
    def broken() -> tuple[GPUUse, ...]:
        raise GPUError("nvidia-smi failed with exit status 9")

    watch = Watch(replace(LEADER, stage=1, metrics=()), PACE, lambda: VIEW, gpus=broken)
    eventually(lambda: watch.errors().get("gpus", 0) > 1)
    watch.close()
    text = page(watch.request, Look(), GPULook(), watch.errors(), None)
    assert (value(text, "shardwright_scrape_errors_total", page="gpus") or 0) > 1
    silent = Watch(replace(LEADER, stage=1, metrics=()), PACE, lambda: VIEW, gpus=lambda: None)
    time.sleep(0.1)
    assert silent.errors() == {}


def test_nvidia_smi_s_lines_become_ratios_and_bytes() -> None:
    assert read_use("0, 37, 1024, 81559\n1, [N/A], 5, [Not Supported]\n\n") == (
        GPUUse(0, 0.37, 2**30, 81559 * 2**20),
        GPUUse(1, None, 5 * 2**20, None),
    )
    for broken in ("0, 37", "x, 1, 2, 3", "0, busy, 2, 3"):
        with pytest.raises(GPUError, match="nvidia-smi answered"):
            read_use(broken)


def test_pages_travel_in_a_request_and_an_older_request_has_none() -> None:
    for make in PAGES.values():
        asked = replace(LEADER, metrics=make())
        assert decode(ServeRequest, encode(asked)) == asked
    old = encode(replace(LEADER, metrics=(), revision="")).replace('"metrics":[],', "")
    assert "metrics" not in old
    assert decode(ServeRequest, old).metrics == ()
    broken = encode(LEADER).replace('"scale":1.0', '"scale":"much"', 1)
    with pytest.raises(ContractError, match="cannot be read"):
        decode(ServeRequest, broken)
    made = Page(
        "/x", (Source("shardwright_requests_total", ("n",)),), ITERATIONS, 8002, optional=True
    )
    assert decode(ServeRequest, encode(replace(LEADER, metrics=(made,)))).metrics == (made,)
