"""Whether speculative decoding pays: the published formula, and what it makes us say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.benchmark.advice import advice, speculation_advice
from shardwright.benchmark.results import Point, Run
from shardwright.sizing.speculation import (
    Drafting,
    alpha_of,
    best_length,
    ridge_of,
    speedup,
    tokens_a_pass,
)

H100 = "NVIDIA-H100-80GB-HBM3"


def run_of(accepted: float | None, length: int, cost: float | None, at: int = 1) -> Run:
    points = (Point(at, 100.0, 1.0, 20.0, 50.0, 9.5, 12.0, kv_cache=0.6, acceptance=accepted),)
    return Run(
        name="m",
        revision="r",
        date="d",
        tool="t",
        input_len=1024,
        output_len=512,
        runtime="VLLM",
        weights="FP8",
        product=H100,
        tensor=4,
        pipeline=1,
        points=points,
        draft_len=length,
        draft_cost=cost,
    )


def said(run: Run) -> str:
    return " ".join(speculation_advice(run, run.points[-1]))


@pytest.mark.parametrize(
    ("alpha", "length", "speed"),
    # Leviathan, Kalman, Matias 2023, table 1: speed at a draft that costs nothing.
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_the_published_table_is_met(alpha: float, length: int, speed: float) -> None:
    assert round(speedup(alpha, Drafting(length, 0.0), 1), 2) == speed


@given(st.floats(0.01, 0.99), st.integers(1, 64))
def test_the_probability_is_found_again_from_the_tokens_a_pass_gives(
    alpha: float, length: int
) -> None:
    tokens = tokens_a_pass(alpha, length)
    assert tokens_a_pass(alpha_of(tokens, length), length) == pytest.approx(tokens, abs=1e-6)


def test_a_pass_gives_what_drawing_gives() -> None:
    draw = random.Random(7)  # noqa: S311 - noise, no secret
    total = 0
    for _ in range(20000):
        total += 1
        for _ in range(4):
            if draw.random() >= 0.7:
                break
            total += 1
    assert total / 20000 == pytest.approx(tokens_a_pass(0.7, 4), rel=0.02)


@given(st.floats(0, 0.99), st.floats(0, 1), st.integers(1, 8), st.integers(1, 512))
def test_the_best_length_is_beaten_by_none(alpha: float, cost: float, length: int, at: int) -> None:
    drafting = Drafting(length, cost, 295.0)
    best = best_length(alpha, drafting, at)
    gains = [speedup(alpha, Drafting(one, cost, 295.0), at) for one in range(1, 9)]
    if best:
        assert speedup(alpha, Drafting(best, cost, 295.0), at) == max(gains) > 1
    else:
        assert max(gains) <= 1


def test_a_ridge_is_operations_over_bytes_of_the_data_sheet() -> None:
    assert ridge_of(H100, "None") == pytest.approx(295, rel=0.01)
    assert ridge_of(H100, "FP8") == pytest.approx(295, rel=0.01)
    # A quarter of the bytes, the same operations.
    assert ridge_of(H100, "INT4AWQ") == pytest.approx(ridge_of(H100, "None") / 4)
    assert ridge_of("NVIDIA-Unheard-Of", "None") == ridge_of(H100, "?") == 0.0


@given(st.floats(0, 0.95), st.floats(0, 0.5), st.integers(1, 8))
def test_drafts_pay_less_the_more_is_asked_at_once(alpha: float, cost: float, length: int) -> None:
    gains = [speedup(alpha, Drafting(length, cost, 295.0), at) for at in (1, 16, 64, 256)]
    assert gains == sorted(gains, reverse=True)


def test_drafts_that_pay_are_left_alone() -> None:
    assert said(run_of(2.77, 4, 0.1)) == ""
    assert advice(run_of(2.77, 4, 0.1)) == advice(run_of(None, 0, None))


def test_drafts_that_are_thrown_away_are_told() -> None:
    words = said(run_of(1.1, 4, 0.15))
    assert "costs more than it saves" in words
    assert "a pass gives 1.10 tokens with speculative.maxDraftLen 4" in words
    assert "0.69 times the speed" in words
    assert "Leave speculative out" in words
    assert words in advice(run_of(1.1, 4, 0.15))


def test_drafts_that_are_too_long_are_told_a_length_that_pays() -> None:
    words = said(run_of(1.9, 8, 0.15))
    assert "costs more than it saves" in words
    assert "Set speculative.maxDraftLen to 2: 1." in words


def test_drafts_cost_more_than_they_save_where_arithmetic_is_what_passes_wait_for() -> None:
    assert said(run_of(2.77, 4, 0.1, at=32)) == ""
    assert "costs more than it saves" in said(run_of(2.77, 4, 0.1, at=512))


@pytest.mark.parametrize("run", [run_of(None, 4, 0.1), run_of(1.0, 4, None), run_of(1.0, 0, 0.1)])
def test_nothing_is_said_of_what_is_not_known(run: Run) -> None:
    assert said(run) == ""
