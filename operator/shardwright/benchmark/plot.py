"""Runs as a picture: throughput over concurrency with the knee marked, and both latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from shardwright.api.spec import WeightPrecision
from shardwright.benchmark.advice import curve_of, knee_of
from shardwright.benchmark.knee import Curve
from shardwright.benchmark.results import Point, Run
from shardwright.picture.drawing import (
    SVG,
    element,
    line,
    rect,
    shortened,
    text,
    text_width,
    tooltip,
)

# Okabe and Ito's colours, told apart by the colour-blind too (2008, jfly.uni-koeln.de/color); each
# run has a marker of its own besides.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MOST_RUNS = len(COLOURS)
_WIDTH, _PANEL, _GAP, _LEFT, _RIGHT = 860.0, 230.0, 76.0, 84.0, 28.0
_HEAD, _LEGEND_ROW, _SIZE, _TITLE = 62.0, 20.0, 13.0, 18.0
_TICKS = 5
_MARK = 4.5
# Less is nothing: an axis needs a length.
_LEAST_HEIGHT = 1e-9

_STYLE = """
.b-page{fill:#ffffff}.b-ink{fill:#1b1f24}.b-quiet{fill:#57606a}
.b-grid{stroke:#d8dee4;stroke-width:1}.b-axis{stroke:#57606a;stroke-width:1.2}
text{font-family:"DejaVu Sans",Verdana,Helvetica,Arial,sans-serif}.b-bold{font-weight:bold}
"""


@dataclass(frozen=True, slots=True)
class _Panel:
    """One diagram: its title with the unit, and what it shows of a point."""

    title: str
    value: Callable[[Point], float]
    knees: bool = False


_PANELS = (
    _Panel("Output tokens per second (one replica)", lambda p: p.tokens_per_second, knees=True),
    _Panel("Time to first token, 99th percentile (ms)", lambda p: p.ttft_p99_ms),
    _Panel("Time per output token, median (ms)", lambda p: p.tpot_ms),
)


def plot(runs: Sequence[Run]) -> str:
    """An SVG file of one to six runs.

    Raises:
        ValueError: There are none, or more than can be told apart.
    """
    if not 0 < len(runs) <= _MOST_RUNS:
        raise ValueError(f"a plot shows 1 to {_MOST_RUNS} runs, not {len(runs)}")
    top = _HEAD + _LEGEND_ROW * len(runs) + 34
    height = top + len(_PANELS) * (_PANEL + _GAP)
    root = ET.Element("svg", {"xmlns": SVG, "role": "img"})
    root.set("viewBox", f"0 0 {_WIDTH:g} {height:g}")
    root.set("width", f"{_WIDTH:g}")
    root.set("height", f"{height:g}")
    element(root, "title").text = _title(runs)
    element(root, "style").text = _STYLE
    rect(root, "b-page", (0, 0, _WIDTH, height))
    room = _WIDTH - _LEFT - _RIGHT
    text(root, "b-ink b-bold", (_LEFT, 30), _title(runs, room), size=_TITLE)
    lengths = sorted({(run.input_len, run.output_len) for run in runs})
    asked = ", ".join(f"{given} tokens in, {out} out" for given, out in lengths)
    text(root, "b-quiet", (_LEFT, 50), shortened(asked, room, _SIZE), size=_SIZE)
    for number, run in enumerate(runs):
        y = _HEAD + _LEGEND_ROW * number + 12
        _marker(root, number, (_LEFT + 6, y - 4), COLOURS[number])
        text(root, "b-ink", (_LEFT + 20, y), shortened(legend(run), room - 20, _SIZE), size=_SIZE)
    for number, panel in enumerate(_PANELS):
        _draw(root, panel, runs, top + number * (_PANEL + _GAP))
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _title(runs: Sequence[Run], room: float = math.inf) -> str:
    """What is measured of which deployments: by their number where their names find no room."""
    names = tuple(dict.fromkeys(run.name for run in runs))
    what = ": throughput and latency by concurrency"
    whole = ", ".join(names) + what
    if text_width(whole, _TITLE, bold=True) <= room:
        return whole
    if len(names) > 1:
        return f"{len(names)} deployments{what}"
    return shortened(names[0], room - text_width(what, _TITLE, bold=True), _TITLE, bold=True) + what


def legend(run: Run) -> str:
    """A run in one line."""
    curve, found = curve_of(run)
    words = {Curve.RISING: "knee not reached", Curve.FLAT: "flat, no knee"}
    bend = f"knee at {found.concurrency}" if found else words.get(curve, str(curve))
    split = f"TP {run.tensor}" + (f" × PP {run.pipeline}" if run.pipeline > 1 else "")
    bits = "16 bits" if run.weights == WeightPrecision.NONE else run.weights
    return f"{run.name}: {run.runtime}, {bits}, {split} on {run.product}; {bend}"


def _draw(root: ET.Element, panel: _Panel, runs: Sequence[Run], top: float) -> None:
    points = [point for run in runs for point in run.points]
    scale = _x_scale([point.concurrency for point in points])
    highest, step = _round_up(max(panel.value(point) for point in points))

    def at(point: Point) -> tuple[float, float]:
        return scale(point.concurrency), top + _PANEL * (1 - panel.value(point) / highest)

    text(root, "b-ink b-bold", (_LEFT, top - 10), panel.title, size=_SIZE)
    for tick in range(round(highest / step) + 1):
        y = top + _PANEL * (1 - tick * step / highest)
        line(root, "b-grid", (_LEFT, y), (_WIDTH - _RIGHT, y))
        told = f"{tick * step:,.10g}"
        text(root, "b-quiet", (_LEFT - 8, y + 4), told, size=_SIZE, anchor="end")
    for concurrency in _shown(sorted({point.concurrency for point in points}), scale):
        x = scale(concurrency)
        line(root, "b-axis", (x, top + _PANEL), (x, top + _PANEL + 5))
        at_tick = (x, top + _PANEL + 19)
        text(root, "b-quiet", at_tick, str(concurrency), size=_SIZE, anchor="middle")
    line(root, "b-axis", (_LEFT, top + _PANEL), (_WIDTH - _RIGHT, top + _PANEL))
    words = "Requests at once (log scale)"
    middle = (_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2, top + _PANEL + 38)
    text(root, "b-quiet", middle, words, size=_SIZE, anchor="middle")
    for number, run in enumerate(runs):
        colour = COLOURS[number]
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in map(at, run.points))
        element(root, "polyline", points=path, fill="none", stroke=colour, stroke_width=2)
        for point in run.points:
            mark = _marker(root, number, at(point), colour)
            tooltip(mark, f"{run.name}, {point.concurrency} at once: {panel.value(point):.4g}")
        found = knee_of(run) if panel.knees else None
        if found is not None:
            _knee(root, at(found), colour, top)
            # Of several runs the legend tells it: labels would lie on the other lines.
            if len(runs) == 1:
                _label(root, at(found), found, top)


def _knee(root: ET.Element, at: tuple[float, float], colour: str, top: float) -> None:
    x, y = at
    element(root, "circle", cx=x, cy=y, r=9, fill="none", stroke=colour, stroke_width=2)
    drop = line(root, "", (x, y + 9), (x, top + _PANEL))
    drop.set("stroke", colour)
    drop.set("stroke-dasharray", "4 4")


def _label(root: ET.Element, at: tuple[float, float], found: Point, top: float) -> None:
    x, y = at
    words = f"knee: {found.concurrency} at once"
    left = x > _WIDTH - 180
    # A curve comes from below on its knee's left, and goes on above it on its right.
    place = (x - 14, y - 10) if left else (x + 14, min(y + 24, top + _PANEL - 8))
    text(root, "b-ink", place, words, size=_SIZE, anchor="end" if left else "start")


def _x_scale(concurrencies: Sequence[int]) -> Callable[[float], float]:
    low, high = math.log2(min(concurrencies)), math.log2(max(concurrencies))
    width = _WIDTH - _LEFT - _RIGHT - 40

    def scale(value: float) -> float:
        share = (math.log2(value) - low) / (high - low) if high > low else 0.5
        return _LEFT + 20 + width * share

    return scale


def _shown(values: Sequence[int], scale: Callable[[float], float]) -> list[int]:
    """Those whose numbers do not touch each other."""
    kept: list[int] = []
    for value in values:
        if not kept or scale(value) - scale(kept[-1]) >= 12 + 9 * len(str(value)):
            kept.append(value)
    return kept


def _round_up(value: float) -> tuple[float, float]:
    """A round end of an axis at or above the value, and the distance of its ticks."""
    if value < _LEAST_HEIGHT:
        return 1.0, 1.0
    raw = value / _TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    return step * math.ceil(value / step), step


def _marker(root: ET.Element, number: int, at: tuple[float, float], colour: str) -> ET.Element:
    """A shape of each run's own."""
    x, y = at
    m = _MARK
    if number % 3 == 0:
        return element(root, "circle", cx=x, cy=y, r=m, fill=colour)
    if number % 3 == 1:
        made = rect(root, "", (x - m, y - m, 2 * m, 2 * m))
        made.set("fill", colour)
        return made
    corners = f"{x:.2f},{y - m - 1:.2f} {x - m - 1:.2f},{y + m:.2f} {x + m + 1:.2f},{y + m:.2f}"
    return element(root, "polygon", points=corners, fill=colour)
