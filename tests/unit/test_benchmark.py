"""The knee of a measured curve, what it suggests, and how it is drawn."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.benchmark.advice import advice, batch_above, knee_of, kv_advice
from shardwright.benchmark.knee import Curve, bend, knee, rising
from shardwright.benchmark.plot import COLOURS, legend, plot
from shardwright.benchmark.results import MOST_POINTS, Point, ResultsError, Run, read_run
from shardwright.picture.drawing import text_width

DOUBLING = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def piecewise(at: float) -> Callable[[float], float]:
    """Rises in proportion up to the knee, flat afterwards."""
    return lambda x: 100 * min(x, at)


def saturating(half: float) -> Callable[[float], float]:
    """Half of the limit at `half` requests at once; its bend by Kneedle's definition is known."""
    return lambda x: 5000 * x / (x + half)


def bends_at(half: float, low: float, high: float) -> float:
    """Where x / (x + half), over the logarithm of x, has the slope of its chord from low to high.

    x · half / (x + half)² = slope is a quadratic equation; its larger root is the bend.
    """
    slope = (high / (high + half) - low / (low + half)) / math.log(high / low)
    middle = half * (1 - 2 * slope)
    return (middle + math.sqrt(middle**2 - (2 * slope * half) ** 2)) / (2 * slope)


def run_of(points: list[tuple[int, float]], **changes: object) -> Run:
    made = tuple(
        Point(c, t, t / 512, 30.0 + c, 60.0 + 2 * c, 10 + c / 10, 12 + c / 8) for c, t in points
    )
    base = Run(
        "llama-70b",
        "abc",
        "2026-11-30T00:00:00Z",
        "vllm bench serve 0.33.0",
        2048,
        512,
        "VLLM",
        "FP8",
        "NVIDIA-H100-80GB-HBM3",
        4,
        1,
        made,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def curve(shape: Callable[[float], float]) -> list[tuple[int, float]]:
    return [(x, shape(x)) for x in DOUBLING]


@pytest.mark.parametrize("at", DOUBLING[1:-1])
def test_a_known_knee_is_found_exactly(at: int) -> None:
    found = knee(DOUBLING, [piecewise(at)(x) for x in DOUBLING])
    assert found is not None
    assert DOUBLING[found] == at


@given(
    st.integers(1, len(DOUBLING) - 2),
    st.floats(0, 0.03),
    st.integers(0, 2**32),
)
@settings(max_examples=300)
def test_noise_moves_a_known_knee_by_one_step_at_most(at: int, noise: float, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - noise, no secret
    values = [piecewise(DOUBLING[at])(x) * (1 + draw.uniform(-noise, noise)) for x in DOUBLING]
    found = knee(DOUBLING, values)
    assert found is not None
    assert abs(found - at) <= 1


@given(st.floats(1, 40))
def test_a_smooth_curve_bends_within_a_step_of_where_its_slope_is_its_chord_s(half: float) -> None:
    values = [saturating(half)(x) for x in DOUBLING]
    found = knee(DOUBLING, values)
    assert found is not None
    wanted = bends_at(half, DOUBLING[0], DOUBLING[-1])
    assert abs(math.log2(DOUBLING[found]) - math.log2(wanted)) <= 1


@given(st.integers(1, len(DOUBLING) - 3), st.floats(0.01, 1000), st.floats(0.7, 1.0))
def test_units_and_a_fall_after_the_knee_change_nothing(at: int, unit: float, falls: float) -> None:
    shape = piecewise(DOUBLING[at])
    values = [shape(x) * (falls if x > 2 * DOUBLING[at] else 1) * unit for x in DOUBLING]
    found = knee(DOUBLING, values)
    assert found == at


@pytest.mark.parametrize(
    ("values", "curve"),
    [
        ([10.0 * x for x in DOUBLING], Curve.RISING),
        ([saturating(400)(x) for x in DOUBLING], Curve.RISING),
        ([1000.0 + x / 100 for x in DOUBLING], Curve.FLAT),
        ([1000.0 - x for x in DOUBLING], Curve.FLAT),
        ([0.0] * len(DOUBLING), Curve.FLAT),
        ([1.0, 2.0], Curve.TOO_FEW),
        ([0.0], Curve.TOO_FEW),
    ],
)
def test_a_curve_without_a_knee_is_called_what_it_is(values: list[float], curve: Curve) -> None:
    assert bend(DOUBLING[: len(values)], values) == (curve, None)
    assert knee(DOUBLING[: len(values)], values) is None


@pytest.mark.parametrize(
    ("x", "y"),
    [((1, 2), (1.0,)), ((1, 1, 2), (1.0, 2.0, 3.0)), ((2, 1), (1, 2)), ((0, 1, 2), (0, 1, 2))],
)
def test_what_is_no_curve_is_refused(x: tuple[float, ...], y: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="concurrenc"):
        knee(x, y)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=16))
def test_smoothing_rises_and_leaves_what_rises_alone(values: list[float]) -> None:
    smooth = rising(values)
    assert len(smooth) == len(values)
    assert all(b >= a - 1e-6 for a, b in pairwise(smooth))
    assert rising(sorted(values)) == pytest.approx(sorted(values))


@given(st.integers(1, 4096))
def test_the_batch_stands_20_to_30_percent_above_the_knee(concurrency: int) -> None:
    batch = batch_above(concurrency)
    assert batch > concurrency
    assert batch >= concurrency * 1.2
    assert batch <= max(math.ceil(concurrency * 1.2), concurrency * 1.3)


def test_a_run_is_told_its_knee_its_batch_and_its_cache() -> None:
    run = run_of(curve(piecewise(64)))
    (said,) = advice(run)
    assert said == (
        "the knee is at 64 requests at once (6400 output tokens a second): set "
        "engine.limits.maxBatchSize to 80, 20 to 30 % above it"
    )
    assert "from 256 to 80" in advice(replace(run, max_batch_size=256))[0]
    assert "maxBatchSize 80 suits it" in advice(replace(run, max_batch_size=80))[0]
    assert "raise it to 80 and measure again" in advice(replace(run, max_batch_size=64))[0]
    failed = replace(run, points=(*run.points[:-1], replace(run.points[-1], failed=3)))
    assert advice(failed)[-1].startswith("3 requests failed")


@pytest.mark.parametrize(
    ("points", "said", "legend_says"),
    [
        (
            [(x, 10.0 * x) for x in DOUBLING],
            (
                "throughput still rises at 512 requests at once: measure further, the knee is not "
                "reached"
            ),
            "knee not reached",
        ),
        (
            [(1, 100.0), (8, 700.0)],
            (
                "too few points to see a knee: 2 measured, 3 are the least; measure more numbers "
                "of requests at once"
            ),
            "too few points",
        ),
        (
            [(16, 900.0), (32, 910.0), (64, 905.0)],
            (
                "throughput is flat from 16 to 64 requests at once (900 and 905 output tokens a "
                "second): no knee is among these points; measure fewer at once"
            ),
            "flat, no knee",
        ),
        (
            [(1, 90.0), (2, 91.0), (4, 92.0)],
            (
                "throughput is flat from 1 to 4 requests at once (90 and 92 output tokens a "
                "second): no knee is among these points; requests seem to be served one after the "
                "other: look at what the server logs"
            ),
            "flat, no knee",
        ),
    ],
)
def test_a_run_without_a_knee_says_why_and_suggests_no_batch(
    points: list[tuple[int, float]], said: str, legend_says: str
) -> None:
    run = run_of(points, max_batch_size=64)
    assert advice(run) == [said]
    assert legend(run).endswith(f"; {legend_says}")


def test_a_batch_is_of_one_attention_group_and_the_knee_of_all() -> None:
    run = run_of(curve(piecewise(64)), attention_groups=4, max_batch_size=64)
    assert advice(run) == [
        (
            "the knee is at 64 requests at once (6400 output tokens a second), 16 in each of 4 "
            "attention groups: set engine.limits.maxBatchSize from 64 to 20, 20 to 30 % above it"
        )
    ]
    assert "maxBatchSize 20 suits it" in advice(replace(run, max_batch_size=20))[0]
    assert (
        "the limit engine.limits.maxBatchSize 16 itself"
        in advice(replace(run, max_batch_size=16))[0]
    )


def test_what_limits_the_figures_is_said_first_and_kept_in_the_file() -> None:
    run = run_of(curve(piecewise(64)), remarks=("not all was measured: x",))
    assert advice(run)[0] == "not all was measured: x"
    assert read_run(run.dump()) == run


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (None, ""),
        (0.5, ""),
        (0.8, ""),
        (0.81, "Raise the token budget"),
        (1.0, "lower engine.limits.maxBatchSize"),
        (0.49, "give its memory back for larger batches"),
        (0.0, "larger batches"),
    ],
)
def test_the_cache_s_use_is_judged_at_80_and_50_percent(share: float | None, words: str) -> None:
    found = kv_advice(share)
    assert bool(found) is bool(words)
    assert words in " ".join(found)


def test_the_cache_is_judged_at_the_knee() -> None:
    run = run_of(curve(piecewise(16)))
    points = tuple(replace(p, kv_cache=0.9 if p.concurrency > 16 else 0.6) for p in run.points)
    assert len(advice(replace(run, points=points))) == 1


def test_results_are_read_as_they_were_written() -> None:
    run = run_of(curve(saturating(20)))
    assert read_run(run.dump()) == run
    later = run.dump().replace('"name"', '"added": 1,\n "name"')
    assert read_run(later) == run
    for broken in (
        "",
        "[]",
        "{}",
        replace(run, points=()).dump(),
        replace(run, tensor=0).dump(),
        replace(run, attention_groups=0).dump(),
        run.dump().replace('"concurrency": 1,', '"concurrency": "1",'),
        replace(run, points=run.points[::-1]).dump(),
        run_of([(x, 1.0) for x in range(1, MOST_POINTS + 2)]).dump(),
    ):
        with pytest.raises(ResultsError):
            read_run(broken)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("points.0.tokens_per_second", '"fast"', "Input should be a valid number"),
        ("points.0.ttft_ms", "NaN", "Input should be a finite number"),
        ("points.0.ttft_ms", "1e999", "Input should be a finite number"),
        ("points.0.tpot_ms", "-1", "greater than or equal to 0"),
        ("points.0.tpot_p99_ms", "null", "Input should be a valid number"),
        ("points.0.kv_cache", '"full"', "Input should be a valid number"),
        ("points.0.failed", '"x"', "Input should be a valid integer"),
        ("points.0.concurrency", "true", "Input should be a valid integer"),
        ("tensor", "9" * 400, "Input should be"),
        ("max_batch_size", '"x"', "Input should be a valid integer"),
        ("draft_len", '"x"', "Input should be a valid integer"),
        ("name", "[1]", "Input should be a valid string"),
        ("remarks", '"all"', "Input should be a valid array"),
    ],
)
def test_what_is_no_number_of_a_run_is_named_with_its_field(
    field: str, value: str, said: str
) -> None:
    raw = json.loads(run_of(curve(saturating(20))).dump())
    holder = raw["points"][0] if field.startswith("points") else raw
    holder[field.rpartition(".")[2]] = "HERE"
    with pytest.raises(ResultsError) as told:
        read_run(json.dumps(raw).replace('"HERE"', value))
    assert str(told.value).startswith(f"not the results of a run: {field}: ")
    assert said in str(told.value)


def test_a_file_that_is_nested_too_deep_is_no_run() -> None:
    with pytest.raises(ResultsError, match="not the results of a run"):
        read_run("[" * 100_000)


def words_of(root: ET.Element) -> list[str]:
    return [node.text or "" for node in root.iter() if node.tag.endswith("text")]


def test_the_plot_names_axes_units_runs_and_the_knee() -> None:
    runs = [run_of(curve(piecewise(64))), run_of(curve(saturating(20)), name="other <&>")]
    root = ET.fromstring(plot(runs))  # noqa: S314 - our own text
    words = words_of(root)
    assert [word for word in words if "log scale" in word] == ["Requests at once (log scale)"] * 3
    assert "Output tokens per second (one replica)" in words
    assert "Time to first token, 99th percentile (ms)" in words
    assert any(word.endswith("knee at 64") for word in words), "the legend tells it"
    alone = words_of(ET.fromstring(plot(runs[:1])))  # noqa: S314 - our own text
    assert "knee: 64 at once" in alone
    assert "2048 tokens in, 512 out" in words
    assert sum("other <&>" in word for word in words) == 2
    knees = [node for node in root.iter() if node.tag.endswith("circle") and node.get("r") == "9"]
    assert len(knees) == 2


@pytest.mark.parametrize(("at", "last"), [(64, 512), (256, 512), (128, 256), (4, 512)])
def test_the_word_at_the_knee_is_not_on_the_curve(at: int, last: int) -> None:
    run = run_of([point for point in curve(piecewise(at)) if point[0] <= last])
    root = ET.fromstring(plot([run]))  # noqa: S314 - our own text
    (label,) = (node for node in root.iter() if (node.text or "").startswith("knee: "))
    x, y = float(label.get("x", "")), float(label.get("y", ""))
    wide = text_width(label.text or "", 13)
    low, high = (x - wide, x) if label.get("text-anchor") == "end" else (x, x + wide)
    drawn = next(node for node in root.iter() if node.tag.endswith("polyline"))
    points = [tuple(map(float, pair.split(","))) for pair in drawn.get("points", "").split()]
    for (left, before), (right, after) in pairwise(points):
        for step in range(21):
            along = left + (right - left) * step / 20
            if low <= along <= high:
                height = before + (after - before) * step / 20
                assert not y - 10 <= height <= y + 3, "letters reach from 10 above to 3 below"


def test_the_title_stays_on_the_page_whatever_the_names() -> None:
    long = "llama-70b-a-rather-long-deployment-name"
    named = [run_of(curve(piecewise(64)), name=name) for name in (long, "llama-70b", "llama-8b")]
    what = ": throughput and latency by concurrency"
    first = words_of(ET.fromstring(plot(named)))[0]  # noqa: S314 - our own text
    assert first == "3 deployments" + what
    alone = words_of(ET.fromstring(plot(named[:1])))[0]  # noqa: S314 - our own text
    assert alone.startswith("llama-70b-a-")
    assert alone.endswith(what)
    assert text_width(alone, 18, bold=True) <= 860 - 84 - 28
    assert words_of(ET.fromstring(plot(named[1:])))[0] == "llama-70b, llama-8b" + what  # noqa: S314


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e5)), min_size=1, max_size=16))
def test_whatever_was_measured_stays_inside_the_picture(values: list[tuple[float, float]]) -> None:
    points = tuple(
        Point(2**at, tokens, 1.0, late, late, late, late)
        for at, (tokens, late) in enumerate(values)
    )
    root = ET.fromstring(plot([replace(run_of([(1, 1.0)]), points=points)]))  # noqa: S314 - ours
    height, width = float(root.get("height", "0")), float(root.get("width", "0"))
    for node in root.iter():
        if node.tag.endswith("polyline"):
            for pair in node.get("points", "").split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


def test_more_runs_than_can_be_told_apart_are_refused() -> None:
    run = run_of(curve(piecewise(64)))
    with pytest.raises(ValueError, match="1 to 6 runs, not 7"):
        plot([run] * (len(COLOURS) + 1))
    with pytest.raises(ValueError, match="not 0"):
        plot([])
    assert "knee at 64" in legend(run)
    assert knee_of(run) == run.points[6]
