"""Values that are passed on as they are: of what JSON can say anywhere, and not without end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

MOST_LEVELS = 16
"""Objects and lists in each other. What reads them later does it level by level, and has an end."""

_WHOLE = 2**63


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """The value, if every system that it goes through can carry it.

    Raises:
        ValueError: It is nested deeper than `MOST_LEVELS`, holds a number that is none, is not
            finite, or has more than 64 bits, a key that is no text, or what YAML has beyond JSON, a
            date for one; the message names the place.
    """
    for wrong in _wrong(value, ()):
        raise ValueError(wrong)
    return value


def _wrong(value: object, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, Mapping | list):
        if len(path) >= MOST_LEVELS:
            yield (
                f"{'.'.join(path[:3])}… is nested more than {MOST_LEVELS} levels deep: no option "
                "of a runtime is; write it flatter"
            )
            return
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, item in items:
            if isinstance(value, Mapping) and not isinstance(name, str):
                yield f"{'.'.join((*path, str(name)))}: this key is no text: write it in quotes"
            yield from _wrong(item, (*path, str(name)))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{'.'.join(path)} is {value}: write a finite number"
    elif isinstance(value, int) and not -_WHOLE <= value < _WHOLE:
        yield f"{'.'.join(path)} has more than 64 bits: write a number between -2^63 and 2^63 - 1"
    elif isinstance(value, date):
        yield f"{'.'.join(path)} is a date: write it in quotes, {str(value)!r}"
    elif value is not None and not isinstance(value, str | bool | int | float):
        kind = type(value).__name__
        yield f"{'.'.join(path)} is {kind}, which JSON has not: write a text or a list"
