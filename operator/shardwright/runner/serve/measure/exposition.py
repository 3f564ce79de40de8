"""Prometheus' text format, read and written: as much of it as metrics of an engine need.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, 0.0.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SAMPLE = re.compile(r"(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SHOWN = 120


class ExpositionError(ValueError):
    """A line is none of the format."""


@dataclass(frozen=True)
class Sample:
    """One line: a value of a series."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts by upper limit (as text, `+Inf` among them), sum of values, their count."""

    buckets: tuple[tuple[str, float], ...]
    total: float
    count: float


def read(text: str, wanted: frozenset[str]) -> Iterator[Sample]:
    """The samples of these names; other lines are passed over unread.

    Raises:
        ExpositionError: A line of a wanted name cannot be read.
    """
    for line in text.splitlines():
        found = _NAME.match(line)
        if found is None or found.group() not in wanted:
            continue
        rest = _SAMPLE.fullmatch(line, found.end())
        if rest is None:
            raise ExpositionError(f"{line[:_SHOWN]!r} is no sample")
        try:
            value = float(rest.group("value"))
        except ValueError:
            raise ExpositionError(f"{line[:_SHOWN]!r} has no number") from None
        yield Sample(found.group(), _labels(rest.group("labels") or "", line), value)


def _labels(text: str, line: str) -> dict[str, str]:
    found: dict[str, str] = {}
    # The end is cut once: a page is a stranger's, and may have a label for each of its bytes.
    at, end = 0, len(text.rstrip())
    while at < end:
        one = _LABEL.match(text, at)
        if one is None:
            raise ExpositionError(f"{line[:_SHOWN]!r} has labels that cannot be read")
        found[one.group(1)] = _ESCAPED.sub(_unescaped, one.group(2))
        at = one.end()
    return found


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found.group(1) == "n" else found.group(1)


def number(value: float) -> str:
    """A value as the format writes it."""
    if value != value:  # noqa: PLR0124 - the one value that differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def head(name: str, kind: str, words: str) -> list[str]:
    """The two lines before a family's samples."""
    escaped = words.replace("\\", "\\\\").replace("\n", "\\n")
    return [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    """One sample."""
    told = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{told}}} {number(value)}" if told else f"{name} {number(value)}"


def histogram_lines(name: str, labels: Mapping[str, str], seen: Histogram) -> Iterable[str]:
    """The samples of a histogram, its buckets as they are."""
    for limit, count in seen.buckets:
        yield line(f"{name}_bucket", {**labels, "le": limit}, count)
    yield line(f"{name}_sum", labels, seen.total)
    yield line(f"{name}_count", labels, seen.count)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
