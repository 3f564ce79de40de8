"""The last half hour of an engine: sums over the time with requests, bounded, and nothing older."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.runner.contract import USAGE_SECONDS, ContractError, Usage, usage_heard
from shardwright.runner.measures import Names
from shardwright.runner.serve.measure.harvest import adapters_at_work
from shardwright.runner.serve.measure.window import Seen, Window
from shardwright.runtimes.metrics import PAGES

DATA = Path(__file__).parents[1] / "data/metrics"
BUSY = Seen(running=4.0, waiting=1.0, kv_cache=0.9, adapters=("legal",))
QUIET = Seen(running=0.0, waiting=0.0, kv_cache=0.0, adapters=())


def window(*looks: tuple[float, Seen], longest: float = 15.0) -> Window:
    found = Window("llama-abc", longest)
    for at, seen in looks:
        found.add(at, seen)
    return found


def steady(seen: Seen, since: float, until: float, step: float = 5.0) -> list[tuple[float, Seen]]:
    count = int((until - since) / step)
    return [(since + step * index, seen) for index in range(count + 1)]


def test_means_are_over_the_time_with_requests_alone() -> None:
    looks = [
        *steady(BUSY, 0, 300),
        *steady(QUIET, 305, 900),
        *steady(replace(BUSY, running=2.0, kv_cache=0.3, adapters=("poems",)), 905, 1205),
    ]
    found = window(*looks).usage(1205)
    assert found.revision == "llama-abc"
    assert found.busy_seconds == pytest.approx(300 + 305)
    assert found.kv_cache == pytest.approx((300 * 0.9 + 305 * 0.3) / 605)
    assert found.kv_high == pytest.approx(300 / 605)
    assert found.running == pytest.approx((300 * 4 + 305 * 2) / 605)
    assert found.alone == {
        "legal": pytest.approx(300 / 605),
        "poems": pytest.approx(305 / 605),
    }


def test_an_idle_engine_has_no_means_and_tells_the_same_all_the_time() -> None:
    idle = window(*steady(QUIET, 0, 1200))
    assert idle.usage(1200) == Usage("llama-abc", 0.0)
    assert idle.usage(1200).told() == idle.usage(1500).told()


def test_what_is_older_than_half_an_hour_is_forgotten_and_minutes_stay_few() -> None:
    found = window(*steady(BUSY, 0, 600), *steady(replace(BUSY, kv_cache=0.2), 605, 7200))
    assert found.usage(7200).kv_cache == pytest.approx(0.2)
    assert found.usage(7200).busy_seconds <= USAGE_SECONDS
    assert len(found._minutes) <= USAGE_SECONDS // 60 + 1
    assert found.usage(7200 + USAGE_SECONDS + 60) == Usage("llama-abc", 0.0)


def test_a_look_after_a_long_gap_stands_for_no_more_than_a_look_can() -> None:
    """Pages that failed in between, a process that was stopped: nobody knows what was then."""
    assert window((0, BUSY), (600, BUSY)).usage(600).busy_seconds == 15.0


def test_counters_count_what_they_went_up_by_even_between_requests() -> None:
    def at(drafted: float, accepted: float) -> Seen:
        return Seen(running=0.0, drafted=drafted, accepted=accepted)

    found = window((0, at(900, 600)), (5, at(1000, 650)), (10, at(40, 10)), (15, at(100, 40)))
    # From 1000 to 40 the engine began anew.
    assert (found.usage(15).drafted, found.usage(15).accepted) == (160.0, 80.0)


def test_two_adapters_at_once_are_nobody_alone_and_the_base_model_s_time_counts() -> None:
    looks = [
        *steady(replace(BUSY, adapters=("legal",)), 0, 100),
        *steady(replace(BUSY, adapters=("legal", "poems")), 105, 200),
        *steady(replace(BUSY, adapters=()), 205, 400),
    ]
    assert window(*looks).usage(400).alone == {"legal": pytest.approx(0.25)}


def test_an_engine_that_does_not_tell_of_adapters_says_so() -> None:
    assert window(*steady(replace(BUSY, adapters=None), 0, 100)).usage(100).alone is None


def test_however_many_adapters_clients_load_no_more_than_64_are_told() -> None:
    looks = [(5.0 * at, replace(BUSY, adapters=(f"a{at}",))) for at in range(300)]
    told = window(*looks).usage(1500).alone
    assert told is not None
    assert len(told) == 64


def test_what_is_told_is_heard_and_a_page_of_an_older_runner_is_none() -> None:
    found = window(*steady(replace(BUSY, drafted=3.0, accepted=1.0, acceptance=2.512), 0, 1000))
    page = json.loads(json.dumps({"usage": found.usage(1000).told()}))
    assert usage_heard(page) == Usage("llama-abc", 960.0, 0.9, 1.0, 4.0, 0, 0, 2.51, {"legal": 1.0})
    for other in ({}, [], None, {"usage": None}, {"usage": {}}):
        with pytest.raises(ContractError, match="tells no usage"):
            usage_heard(other)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("busySeconds", 1801),
        ("busySeconds", -1),
        ("busySeconds", "60"),
        ("kvCache", 1.5),
        ("kvCache", float("nan")),
        ("kvHigh", None),
        ("running", float("inf")),
        ("running", 10**400),
        ("drafted", True),
        ("alone", ["legal"]),
        ("alone", {"x" * 201: 0.5}),
        ("alone", {"legal": 2}),
        ("alone", {str(number): 0.0 for number in range(65)}),
    ],
)
def test_numbers_that_cannot_be_are_refused(field: str, value: Any) -> None:
    """Whoever has the address of a leader's pod answers."""
    told = Usage("r", 600.0, 0.5, alone={"legal": 1.0}).told()
    with pytest.raises(ContractError, match="the status page tells"):
        usage_heard({"usage": {**told, field: value}})


def test_random_looks_never_make_numbers_that_the_other_side_refuses() -> None:
    draw = random.Random(7)  # noqa: S311 - no secret
    found, at = Window("r", 15.0), 0.0
    for _ in range(5000):
        at += draw.choice((0.1, 5.0, 5.0, 40.0))
        found.add(
            at,
            Seen(
                *(draw.choice((None, 0.0, draw.random())) for _ in range(3)),
                drafted=draw.choice((None, draw.random() * 1e6)),
                accepted=draw.choice((None, draw.random() * 1e6)),
                adapters=draw.choice((None, (), ("a",), ("a", "b"))),
            ),
        )
    assert usage_heard({"usage": found.usage(at).told()}).revision == "r"


def test_vllm_s_newest_list_of_adapters_counts() -> None:
    """Each list that there ever was stays on the page as a series of its own."""
    (page,) = PAGES["VLLM"]()
    lines = (
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",'
        'waiting_lora_adapters=""} 1.7395575657589855e+09\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="legal,poems",'
        'waiting_lora_adapters="poems"} 1.7395575723949368e+09\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="code",'
        'waiting_lora_adapters=""} 1.7395575717647147e+09\n'
    )
    assert adapters_at_work(page, lines) == {"legal", "poems"}
    assert adapters_at_work(page, lines.splitlines()[0]) == frozenset()
    assert adapters_at_work(page, (DATA / "vllm-0.33.0.txt").read_text(encoding="utf-8")) is None
    assert page.adapters == Names(
        "vllm:lora_requests_info", ("running_lora_adapters", "waiting_lora_adapters")
    )


@pytest.mark.parametrize("runtime", ["TensorRTLLM", "Triton", "SGLang", "NIM"])
def test_other_runtimes_do_not_tell_whose_requests_they_work_on(runtime: str) -> None:
    assert all(page.adapters is None for page in PAGES[runtime]())
