"""From a page of an engine to values under our names. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Union

from shardwright.runner.measures import COUNTER, FAMILIES, HISTOGRAM, MAX, Page, Source
from shardwright.runner.serve.measure.exposition import Histogram, Sample, number, read

Value = Union[float, Histogram]  # noqa: UP007 - evaluated, by the oldest Python too
_INFINITE = "+Inf"
_SUFFIXES = ("_bucket", "_sum", "_count")


class HarvestError(ValueError):
    """A page is not what its form says, or contradicts itself."""


def from_prometheus(page: Page, text: str) -> dict[str, Value]:
    """What a page in Prometheus' text format tells, by our names; what it has not is absent.

    Raises:
        HarvestError: A histogram is incomplete, or has what is no number.
        ExpositionError: A line cannot be read.
    """
    wanted = frozenset(name for source in page.sources for name in _samples_of(source))
    by_name: dict[str, list[Sample]] = {}
    for sample in read(text, wanted):
        by_name.setdefault(sample.name, []).append(sample)
    found: dict[str, Value] = {}
    for source in page.sources:
        value = _one(source, by_name)
        if value is not None:
            found.setdefault(source.family, value)
    return found


def adapters_at_work(page: Page, text: str) -> frozenset[str] | None:
    """The adapters that have requests by a page in Prometheus' text; None where it does not tell.

    Raises:
        ExpositionError: A line cannot be read.
    """
    names = page.adapters
    if names is None:
        return None
    found = [one for one in read(text, frozenset({names.series})) if math.isfinite(one.value)]
    if not found:
        return None
    latest = max(found, key=lambda sample: sample.value)
    listed = (name for label in names.labels for name in latest.labels.get(label, "").split(","))
    return frozenset(name.strip() for name in listed if name.strip())


def _samples_of(source: Source) -> tuple[str, ...]:
    if FAMILIES[source.family].kind != HISTOGRAM:
        return source.names
    return tuple(name + suffix for name in source.names for suffix in _SUFFIXES)


def _one(source: Source, by_name: Mapping[str, Sequence[Sample]]) -> Value | None:
    def of(name: str) -> list[Sample]:
        return [sample for sample in by_name.get(name, ()) if _fits(source, sample)]

    if FAMILIES[source.family].kind == HISTOGRAM:
        return _histogram(source, of)
    values = [sample.value for name in source.names for sample in of(name)]
    # prometheus_client shows gauges that nobody has set as NaN in places: they say nothing.
    values = [value for value in values if value == value]  # noqa: PLR0124
    if not values:
        return None
    return _finite((max(values) if source.merge == MAX else sum(values)) * source.scale)


def _finite(value: float) -> float | None:
    """A load that is no number says nothing, and would spoil every mean that it enters."""
    return value if math.isfinite(value) else None


def _fits(source: Source, sample: Sample) -> bool:
    return all(sample.labels.get(name, value) == value for name, value in source.labels.items())


def _histogram(source: Source, of: Any) -> Histogram | None:  # noqa: ANN401 - a closure
    buckets: dict[float, float] = {}
    total = count = 0.0
    seen = False
    for name in source.names:
        for sample in of(name + "_bucket"):
            seen = True
            limit = _bound(sample)
            if limit is None:
                raise HarvestError(f"a bucket of {name} has no limit")
            buckets[limit] = buckets.get(limit, 0.0) + sample.value
        total += sum(sample.value for sample in of(name + "_sum"))
        count += sum(sample.value for sample in of(name + "_count"))
    if not seen:
        return None
    if float("inf") not in buckets:
        raise HarvestError(f"{source.names[0]} has no bucket {_INFINITE}")
    if not all(map(math.isfinite, (*buckets.values(), total, count))):
        raise HarvestError(f"{source.names[0]} has what is no number")
    scaled = tuple((_limit(at * source.scale), buckets[at]) for at in sorted(buckets))
    return Histogram(scaled, total * source.scale, count)


def _bound(sample: Sample) -> float | None:
    try:
        limit = float(sample.labels.get("le", ""))
    except ValueError:
        return None
    return None if math.isnan(limit) else limit


def _limit(value: float) -> str:
    """A bucket's limit as Prometheus' own clients write it."""
    return _INFINITE if value == float("inf") else str(float(f"{value:.12g}"))


def rows_of(text: str) -> list[Mapping[str, Any]]:
    """The iterations on a page.

    Raises:
        HarvestError: It is no JSON list of objects.
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HarvestError(f"the page is not JSON: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise HarvestError("the page is no list of iterations")
    return rows


def from_iterations(
    page: Page, rows: Sequence[Mapping[str, Any]], counted: Mapping[str, float], *, idle: bool
) -> dict[str, Value]:
    """What iterations tell, by our names.

    Gauges are those of the last iteration. An engine iterates as long as it has a request, so one
    that did not since the last look and whose port is quiet (`idle`) has none: its load is 0.
    One that did not although clients wait says nothing: its gauges are absent, not old.

    Args:
        page: Which numbers of an iteration are which of ours.
        rows: Iterations since the last look, in order.
        counted: The counters' values before these rows, by our names.
        idle: Whether nothing is under way at the engine's port.

    Raises:
        HarvestError: A number is none.
    """
    found: dict[str, Value] = {}
    for source in page.sources:
        if source.family in found:
            continue
        if FAMILIES[source.family].kind == COUNTER:
            added = [value for row in rows if (value := _of_row(source, row)) is not None]
            if added or source.family in counted:
                found[source.family] = counted.get(source.family, 0.0) + sum(added)
        elif rows:
            last = _of_row(source, rows[-1])
            if last is not None:
                found[source.family] = last
        elif idle and FAMILIES[source.family].rests:
            found[source.family] = 0.0
    return found


def _of_row(source: Source, row: Mapping[str, Any]) -> float | None:
    values = [value for name in source.names if (value := _at(row, name)) is not None]
    if not values:
        return None
    if not source.per:
        return _finite(sum(values) * source.scale)
    whole = _at(row, source.per)
    return _finite(sum(values) / whole * source.scale) if whole else None


def _at(row: Mapping[str, Any], path: str) -> float | None:
    found: Any = row
    for part in path.split("."):
        if not isinstance(found, dict) or found.get(part) is None:
            return None
        found = found[part]
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise HarvestError(f"{path} is {found!r}, no number")
    try:
        return _finite(float(found))
    except OverflowError:  # a whole number that no float holds
        return None


def mark(values: Mapping[str, Value]) -> str:
    """A text that changes as the engine makes progress: its counters, and how much was observed."""
    told = []
    for family in sorted(values):
        value = values[family]
        if isinstance(value, Histogram):
            told.append(number(value.count))
        elif FAMILIES[family].kind == COUNTER:
            told.append(number(value))
    return " ".join(told) if any(word != "0" for word in told) else ""
