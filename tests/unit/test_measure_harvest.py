"""From each engine's own pages to one set of names."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from shardwright_standin.front.metrics import NAMES

from shardwright.api.spec import Runtime
from shardwright.runner.measures import (
    COUNTER,
    FAMILIES,
    FORMS,
    HISTOGRAM,
    ITERATIONS,
    MAX,
    PROMETHEUS,
    Page,
    Source,
)
from shardwright.runner.serve.measure import exposition
from shardwright.runner.serve.measure.exposition import ExpositionError
from shardwright.runner.serve.measure.harvest import (
    HarvestError,
    Value,
    from_iterations,
    from_prometheus,
    mark,
    rows_of,
)
from shardwright.runtimes.metrics import PAGES

DATA = Path(__file__).parents[1] / "data/metrics"
RECORDED = {
    "vllm-0.33.0.txt": ("VLLM", "/metrics"),
    "sglang-0.5.23.txt": ("SGLang", "/metrics"),
    "trtllm-1.2.txt": ("TensorRTLLM", "/prometheus/metrics"),
    "trtllm-1.3.txt": ("TensorRTLLM", "/prometheus/metrics"),
    "triton-26.07.txt": ("Triton", "/metrics"),
    "nim.txt": ("NIM", "/v1/metrics"),
}
WANTED: dict[str, dict[str, float]] = {
    "vllm-0.33.0.txt": {
        "requests_running": 19,
        "requests_waiting": 4,
        "kv_cache_utilization": 0.875,
        "prompt_tokens_total": 205824,
        "generation_tokens_total": 51712,
        "requests_total": 100,
        "preemptions_total": 3,
        "draft_tokens_total": 300,
        "accepted_tokens_total": 210,
    },
    "sglang-0.5.23.txt": {
        "requests_running": 8,
        "requests_waiting": 4,
        "kv_cache_utilization": 0.55,
        "prompt_tokens_total": 9216,
        "generation_tokens_total": 2304,
        "requests_total": 33,
        "preemptions_total": 3,
        "acceptance_length": 2.4,
    },
    "trtllm-1.2.txt": {"requests_total": 42},
    "trtllm-1.3.txt": {
        "requests_total": 42,
        "requests_running": 5,
        "requests_waiting": 2,
        "prompt_tokens_total": 4096,
        "generation_tokens_total": 1234,
    },
    "triton-26.07.txt": {
        "requests_running": 7,
        "requests_waiting": 3,
        "kv_cache_utilization": 0.4875,
        "requests_total": 20,
    },
    "nim.txt": {
        "requests_running": 4,
        "requests_waiting": 0,
        "kv_cache_utilization": 0.31,
        "prompt_tokens_total": 900,
        "generation_tokens_total": 300,
        "requests_total": 6,
    },
}
COUNTS = {
    "vllm-0.33.0.txt": {
        "time_to_first_token_seconds": 4,
        "time_per_output_token_seconds": 4,
        "request_duration_seconds": 4,
        "queue_time_seconds": 4,
    },
    "sglang-0.5.23.txt": {
        "time_to_first_token_seconds": 3,
        "time_per_output_token_seconds": 2,
        "request_duration_seconds": 2,
        "queue_time_seconds": 2,
    },
    "trtllm-1.2.txt": {
        "time_to_first_token_seconds": 2,
        "time_per_output_token_seconds": 2,
        "request_duration_seconds": 2,
        "queue_time_seconds": 2,
    },
    "trtllm-1.3.txt": {
        "time_to_first_token_seconds": 2,
        "time_per_output_token_seconds": 2,
        "request_duration_seconds": 2,
        "queue_time_seconds": 2,
    },
    "triton-26.07.txt": {"time_to_first_token_seconds": 37},
    "nim.txt": {
        "time_to_first_token_seconds": 2,
        "time_per_output_token_seconds": 1,
        "request_duration_seconds": 1,
    },
}


def page_of(runtime: str, path: str) -> Page:
    return next(page for page in PAGES[runtime]() if page.path == path)


def iterations() -> Page:
    return page_of("TensorRTLLM", "/metrics")


def split(found: dict[str, Value]) -> tuple[dict[str, float], dict[str, exposition.Histogram]]:
    plain = {k.removeprefix("shardwright_"): v for k, v in found.items() if isinstance(v, float)}
    histograms = {
        k.removeprefix("shardwright_"): v
        for k, v in found.items()
        if isinstance(v, exposition.Histogram)
    }
    return plain, histograms


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_page_gives_exactly_these_values(name: str) -> None:
    page = page_of(*RECORDED[name])
    plain, histograms = split(from_prometheus(page, (DATA / name).read_text(encoding="utf-8")))
    assert plain == pytest.approx(WANTED[name])
    assert {key: value.count for key, value in histograms.items()} == COUNTS[name]
    for value in histograms.values():
        counts = [count for _, count in value.buckets]
        assert value.buckets[-1][0] == "+Inf"
        assert counts == sorted(counts)
        assert counts[-1] == value.count


def test_behind_nims_proxy_vllms_page_gives_what_it_gives_with_vllm() -> None:
    text = (DATA / "vllm-0.33.0.txt").read_text(encoding="utf-8")
    with_nim = from_prometheus(page_of(*RECORDED["nim.txt"]), text)
    assert with_nim == from_prometheus(page_of(*RECORDED["vllm-0.33.0.txt"]), text)


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "trtllm-1.2.txt"])
def test_every_source_of_a_page_is_on_its_recorded_page(name: str) -> None:
    """A name that is spelt otherwise than the engine's would be absent for ever."""
    # NIM's proxy passes on the page of the vLLM inside, or of 1.x has names of its own.
    files = (name, "vllm-0.33.0.txt") if name == "nim.txt" else (name,)
    text = "".join((DATA / file).read_text(encoding="utf-8") for file in files)
    there = set(re.findall(r"^([a-zA-Z_:][\w:]*)\{", text, re.MULTILINE))
    optional = {
        "trtllm_spec_decode_num_draft_tokens_total",
        "trtllm_spec_decode_num_accepted_tokens_total",
    }
    for source in page_of(*RECORDED[name]).sources:
        for own in source.names:
            suffix = "_bucket" if FAMILIES[source.family].kind == HISTOGRAM else ""
            assert own + suffix in there or own in optional, own


def test_every_runtime_has_pages_and_every_page_is_sound() -> None:
    assert {member.value for member in Runtime} <= set(PAGES)
    for pages in (make() for make in PAGES.values()):
        for page in pages:
            assert page.form in FORMS
            assert page.path.startswith("/")
            for source in page.sources:
                assert source.family in FAMILIES
                assert source.names
                assert page.form == ITERATIONS or not source.per


def test_the_loads_that_scaling_needs_come_from_every_runtime() -> None:
    for name, make in PAGES.items():
        told = {source.family for page in make() for source in page.sources}
        assert {
            "shardwright_requests_running",
            "shardwright_requests_waiting",
            "shardwright_kv_cache_utilization",
            "shardwright_time_to_first_token_seconds",
        } <= told, name


def test_milliseconds_become_seconds_in_sum_and_limits() -> None:
    text = (DATA / "triton-26.07.txt").read_text(encoding="utf-8")
    found = from_prometheus(page_of("Triton", "/metrics"), text)
    seen = found["shardwright_time_to_first_token_seconds"]
    assert isinstance(seen, exposition.Histogram)
    assert [limit for limit, _ in seen.buckets] == ["0.1", "0.5", "2.0", "5.0", "+Inf"]
    assert seen.total == pytest.approx(10.771)


def test_priorities_of_sglang_are_not_counted_beside_their_total() -> None:
    text = (
        'sglang:num_queue_reqs{priority="",tp_rank="0",pp_rank="0"} 5\n'
        'sglang:num_queue_reqs{priority="1",tp_rank="0",pp_rank="0"} 2\n'
    )
    found = from_prometheus(page_of("SGLang", "/metrics"), text)
    assert found == {"shardwright_requests_waiting": 5.0}


def test_every_attention_group_of_sglang_counts() -> None:
    queues, used = (0, 9, 7, 5), (0.2, 0.95, 0.9, 0.9)
    text = "".join(
        f'sglang:num_queue_reqs{{dp_rank="{group}",pp_rank="0",tp_rank="{2 * group}"}} {waiting}\n'
        f'sglang:token_usage{{dp_rank="{group}",pp_rank="0",tp_rank="{2 * group}"}} {share}\n'
        for group, (waiting, share) in enumerate(zip(queues, used, strict=True))
    )
    found = from_prometheus(page_of("SGLang", "/metrics"), text)
    assert found["shardwright_requests_waiting"] == sum(queues)
    assert found["shardwright_kv_cache_utilization"] == max(used)


@pytest.mark.parametrize(
    ("flavour", "runtime"), [("trtllm", "TensorRTLLM"), ("vllm", "VLLM"), ("sglang", "SGLang")]
)
def test_what_the_stand_ins_show_is_read(flavour: str, runtime: str) -> None:
    told = {
        name + ("_total" if kind in ("success", "prompt", "produced") else "")
        for kind, name in NAMES[flavour].items()
        if (flavour, kind) != ("trtllm", "cache")  # 1.2 may leave it at 0: the other page has it
    }
    read = {name for page in PAGES[runtime]() for source in page.sources for name in source.names}
    assert told <= read


def rows() -> list[Any]:
    return rows_of((DATA / "trtllm-iterations-1.2.json").read_text(encoding="utf-8"))


def test_iterations_give_the_last_load_and_count_tokens_on() -> None:
    counted = {"shardwright_generation_tokens_total": 100.0}
    plain, _ = split(from_iterations(iterations(), rows(), counted, idle=False))
    assert plain == pytest.approx(
        {
            "requests_running": 6,
            "requests_waiting": 3,
            "kv_cache_utilization": 0.25,
            "prompt_tokens_total": 4096,
            # 4 and 6 requests in generation, one completed, 9 drafts accepted
            "generation_tokens_total": 120,
            "draft_tokens_total": 18,
            "accepted_tokens_total": 9,
            "acceptance_length": 2.5,
        }
    )


def test_an_idle_engine_rests_at_zero_and_a_busy_one_without_iterations_says_nothing() -> None:
    counted = {"shardwright_generation_tokens_total": 7.0}
    idle = from_iterations(iterations(), [], counted, idle=True)
    assert idle == {
        "shardwright_requests_running": 0.0,
        "shardwright_requests_waiting": 0.0,
        "shardwright_kv_cache_utilization": 0.0,
        "shardwright_generation_tokens_total": 7.0,
    }
    busy = from_iterations(iterations(), [], counted, idle=False)
    assert busy == {"shardwright_generation_tokens_total": 7.0}


@pytest.mark.parametrize("text", ["", "{}", "[1]", '"x"', "[{]", "[" * 100_000])
def test_a_page_that_is_no_list_of_iterations_is_named(text: str) -> None:
    with pytest.raises(HarvestError, match="page is"):
        rows_of(text)


def test_a_number_that_is_none_is_named() -> None:
    with pytest.raises(HarvestError, match="numActiveRequests is 'many'"):
        from_iterations(iterations(), [{"numActiveRequests": "many"}], {}, idle=False)


@pytest.mark.parametrize("text", ["NaN", "1e999", "-1e999", "9" * 400])
def test_what_is_no_number_of_an_iteration_is_not_told(text: str) -> None:
    rows = rows_of(f'[{{"numActiveRequests": {text}, "numQueuedRequests": 2}}]')
    found = from_iterations(iterations(), rows, {}, idle=False)
    assert found == {"shardwright_requests_waiting": 2.0}


def test_a_share_that_no_float_holds_is_not_told() -> None:
    row = {"kvCacheStats": {"usedNumBlocks": 1e300, "maxNumBlocks": 1e-300}}
    assert from_iterations(iterations(), [row], {}, idle=False) == {}


@pytest.mark.parametrize("values", [["NaN"], ["+Inf"], ["1e999"], ["+Inf", "-Inf"], ["1e308"] * 2])
def test_a_load_that_is_no_number_is_not_told(values: list[str]) -> None:
    lines = [
        f'vllm:num_requests_running{{engine="{at}"}} {value}' for at, value in enumerate(values)
    ]
    text = "\n".join([*lines, "vllm:num_requests_waiting 1", ""])
    found = from_prometheus(page_of("VLLM", "/metrics"), text)
    assert found == {"shardwright_requests_waiting": 1.0}


@pytest.mark.parametrize("broken", ["_count NaN", "_sum 1e999", '_bucket{le="1"} NaN'])
def test_a_histogram_that_counts_what_is_no_number_is_refused(broken: str) -> None:
    name = "vllm:time_to_first_token_seconds"
    text = f'{name}_bucket{{le="+Inf"}} 3\n{name}{broken}\n'
    with pytest.raises(HarvestError, match=f"{name} has what is no number"):
        from_prometheus(page_of("VLLM", "/metrics"), text)


def test_a_bucket_whose_limit_is_no_number_is_named() -> None:
    text = 'vllm:time_to_first_token_seconds_bucket{le="soon"} 3\n'
    with pytest.raises(HarvestError, match="time_to_first_token_seconds has no limit"):
        from_prometheus(page_of("VLLM", "/metrics"), text)


def test_a_line_of_very_many_labels_is_read_in_one_go() -> None:
    # By copying the rest for each label this takes minutes of the runner's one interpreter.
    labels = ",".join(f'l{number}="x"' for number in range(300_000))
    page = page_of("VLLM", "/metrics")
    begun = time.process_time()
    found = from_prometheus(page, f"vllm:num_requests_running{{{labels}}} 3\n")
    assert found == {"shardwright_requests_running": 3.0}
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running",
        "vllm:num_requests_running many",
        'vllm:num_requests_running{engine="0} 3',
        "vllm:num_requests_running{engine=0} 3",
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ExpositionError, match="num_requests_running"):
        from_prometheus(page_of("VLLM", "/metrics"), line + "\n")


def test_lines_of_other_names_are_not_looked_at() -> None:
    assert from_prometheus(page_of("VLLM", "/metrics"), "other{broken 3\n<html>\n\n") == {}


def test_a_histogram_without_its_last_bucket_is_refused() -> None:
    text = 'vllm:time_to_first_token_seconds_bucket{le="0.1"} 3\n'
    with pytest.raises(HarvestError, match=r"has no bucket \+Inf"):
        from_prometheus(page_of("VLLM", "/metrics"), text)


def test_the_mark_moves_with_work_and_not_with_clients() -> None:
    page = page_of("VLLM", "/metrics")
    text = (DATA / "vllm-0.33.0.txt").read_text(encoding="utf-8")
    before = mark(from_prometheus(page, text))
    assert before
    waits = text.replace('num_requests_waiting{engine="0",model_name="llama-70b"} 3.0', "")
    assert waits != text
    assert mark(from_prometheus(page, waits)) == before
    assert mark(from_prometheus(page, text.replace(" 51200.0", " 51201.0"))) != before
    assert mark({}) == ""
    assert mark({"shardwright_generation_tokens_total": 0.0}) == ""


LABEL_VALUES = st.text(
    st.characters(exclude_categories=("Cs", "Cc")), max_size=12
) | st.sampled_from(['a"b', "a\\b", "a\nb", "{x}", "a, b", "} 5", "\\n"])


@given(
    st.lists(LABEL_VALUES, min_size=1, max_size=4, unique=True),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
def test_what_the_usual_client_writes_is_read_alike(labels: list[str], value: float) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", "help", ["who"], registry=registry)
    for label in labels:
        gauge.labels(label).set(value)
    text = generate_latest(registry).decode()
    found = {
        sample.labels["who"]: sample.value for sample in exposition.read(text, frozenset({"g"}))
    }
    assert found == dict.fromkeys(labels, value)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), LABEL_VALUES)
def test_a_histogram_goes_through_unchanged(values: list[float], label: str) -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h", "help", ["who"], buckets=(0.1, 1, 10), registry=registry)
    for value in values:
        histogram.labels(label).observe(value)
    text = generate_latest(registry).decode()
    page = Page("/", (Source("shardwright_queue_time_seconds", ("h",)),))
    seen = from_prometheus(page, text)["shardwright_queue_time_seconds"]
    assert isinstance(seen, exposition.Histogram)
    written = "\n".join(exposition.histogram_lines("h", {"who": label}, seen)) + "\n"

    def samples(told: str) -> set[tuple[str, float]]:
        return {
            (f"{sample.name} {json.dumps(sample.labels, sort_keys=True)}", round(sample.value, 9))
            for family in text_string_to_metric_families(told)
            for sample in family.samples
            if "_created" not in sample.name
        }

    assert samples("# TYPE h histogram\n" + written) == samples(text)


def test_of_several_series_loads_add_up_and_of_caches_the_fullest_counts() -> None:
    text = 'a{r="0"} 1\na{r="1"} 2\n'
    for merge, wanted in (("sum", 3.0), (MAX, 2.0)):
        source = Source("shardwright_requests_running", ("a",), merge=merge)
        assert from_prometheus(Page("/", (source,), PROMETHEUS), text) == {
            "shardwright_requests_running": wanted
        }
    assert FAMILIES["shardwright_requests_total"].kind == COUNTER
