"""`shardwright status --watch`: every turn once, one line each."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from shardwright.api.status import BenchmarkStatus, Condition, LLMDeploymentStatus
from shardwright.cli.status import _table, benchmark_line, turns
from shardwright.observe.projections import deployment_view

BODY = {"metadata": {"namespace": "llm", "name": "m", "uid": "u", "generation": 3}}


def state(*conditions: tuple[str, str, str, str]) -> LLMDeploymentStatus:
    return LLMDeploymentStatus(
        conditions=[
            Condition.model_validate(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            )
            for kind, status, reason, message in conditions
        ]
    )


def plain(found: LLMDeploymentStatus, shown: set[tuple[str, str, str, str]]) -> list[str]:
    written = io.StringIO()
    console = Console(file=written, width=40, no_color=True)
    for line in turns(found, shown):
        console.print(line, highlight=False, soft_wrap=True)
    return written.getvalue().splitlines()


def test_a_turn_is_one_line_and_its_brackets_are_no_markup() -> None:
    message = "pods [red]a[/red] and [b] wait for a place that all of them fit into, long words"
    found = state(("Placed", "False", "Queued", message), ("Reconciling", "True", "Queued", "x"))
    assert plain(found, set()) == [f"Placed=False Queued: {message}"]


def test_the_same_words_are_written_out_once_and_a_turn_is_not_repeated() -> None:
    shown: set[tuple[str, str, str, str]] = set()
    pulled = "the image is not there"
    found = state(
        ("ModelReady", "False", "ImagePullFailed", pulled),
        ("Ready", "False", "ImagePullFailed", pulled),
        ("Stalled", "False", "Progressing", pulled),
    )
    assert plain(found, shown) == [
        f"ModelReady=False ImagePullFailed: {pulled}",
        "Ready=False ImagePullFailed",
    ]
    assert plain(found, shown) == []
    later = state(("Ready", "False", "ImagePullFailed", "another one"))
    assert plain(later, shown) == ["Ready=False ImagePullFailed: another one"]


POINT = {
    "concurrency": 8,
    "tokensPerSecond": 1234.5,
    "requestsPerSecond": 2,
    "ttftMs": 1,
    "ttftP99Ms": 2,
    "tpotMs": 3,
    "tpotP99Ms": 4,
}
RUN = {
    "revision": "m-0123",
    "date": "2026-11-30T10:00:00Z",
    "tool": "vllm-bench-serve of vllm:v1",
    "inputLen": 2048,
    "outputLen": 512,
    "points": [POINT],
    "knee": 8,
}
SAID = (
    "benchmark of 2026-11-30T10:00:00Z: at most 1,234 output tokens a second of a replica, knee at "
    "8 requests at once (2048 tokens in, 512 out, vllm-bench-serve of vllm:v1)"
)


@pytest.mark.parametrize(
    ("serving", "more"),
    [
        ("m-0123", ""),
        ("m-4567", "; it is of revision m-0123, m-4567 serves now: measure again"),
        ("", "; it is of revision m-0123, none serves now: measure again"),
    ],
)
def test_a_benchmark_is_shown_with_the_revision_it_is_of(serving: str, more: str) -> None:
    assert benchmark_line(BenchmarkStatus.model_validate(RUN), serving) == SAID + more


def test_a_benchmark_s_words_move_no_terminal() -> None:
    run = BenchmarkStatus.model_validate({**RUN, "knee": 0, "points": [], "tool": "\x1b[2J\nx"})
    line = benchmark_line(run, "m-0123")
    assert line.endswith("no knee seen (2048 tokens in, 512 out, \ufffd[2J\ufffdx)")


@pytest.mark.parametrize(
    "told",
    [
        "text",
        [],
        {},
        {**RUN, "points": [POINT] * 17},
        {**RUN, "points": [{**POINT, "concurrency": "many"}]},
        {**RUN, "tool": "x" * 1025},
        {**RUN, "revision": "x" * 254},
        {**RUN, "advice": ["x"] * 9},
        {**RUN, "advice": ["x" * 1025]},
        {**RUN, "inputLen": None},
    ],
)
def test_a_benchmark_that_cannot_be_read_is_passed_over_and_stops_nothing(told: object) -> None:
    found = LLMDeploymentStatus.model_validate({"replicas": 3, "benchmark": told})
    assert found.benchmark is None
    assert found.replicas == 3


def table(status: dict[str, object], **spec: object) -> str:
    view = replace(deployment_view(BODY), spec=spec)
    written = io.StringIO()
    _table(
        Console(file=written, width=100, no_color=True),
        view,
        LLMDeploymentStatus.model_validate(status),
    )
    return written.getvalue()


def condition(kind: str, message: str) -> dict[str, str]:
    at = "2026-01-01T00:00:00Z"
    return {
        "type": kind,
        "status": "False",
        "reason": "ModelNotFound",
        "message": message,
        "lastTransitionTime": at,
    }


def test_the_table_counts_what_was_asked_for_and_says_nothing_twice() -> None:
    lacking = "hf://a/b: no [such] model"
    found = table({"conditions": [condition("ModelReady", lacking), condition("Ready", lacking)]})
    assert "llm/m  generation 3, observed -1  ready 0 of 1" in found
    assert found.count(lacking) == 1
    assert "as ModelReady" in found
    assert "incarnation" not in found, "there is no replica to list"
    assert "ready 0 of 4" in table({}, replicas=4)
    assert "ready 0 of 0" in table({}, replicas=0)


def test_the_table_tells_what_serves_what_comes_and_every_adapter() -> None:
    found = table(
        {
            "engine": {
                "serving": {"key": "aa", "revision": "m-1"},
                "next": {
                    "key": "bb",
                    "revision": "m-2",
                    "step": "Building",
                    "reason": "engine.limits.maxBatchSize 128 → 96",
                },
            },
            "adapters": [
                {"name": "legal", "state": "Ready", "loadedOn": "2 of 2"},
                {"name": "big", "state": "Invalid", "loadedOn": "0 of 2", "message": "its rank 64"},
            ],
        }
    )
    assert found.splitlines()[-4:] == [
        "serves: aa, revision m-1",
        "comes: bb, revision m-2 (Building, for engine.limits.maxBatchSize 128 → 96)",
        "adapter legal: Ready, loaded on 2 of 2 leaders",
        "adapter big: Invalid, loaded on 0 of 2 leaders: its rank 64",
    ]
