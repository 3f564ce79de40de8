"""What pydantic finds wrong, in sentences of ours: field, value, limit, and what to write instead.

pydantic's own messages name neither the field's other bounds nor a way out. Errors of our own
validators are sentences already and stay as they are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shardwright.api.forms import Form, Node, form_of, number, squeezed

MOST = 50
"""So many problems are told; a file that is wholly another thing has thousands."""

_SHOWN = 80
_KEY = "[key]"
_ELSEWHERE = 3
_ALIKE = 0.75
# Digits from which Python refuses to write a whole number out.
_LONG_BITS = 2048


@dataclass(frozen=True, slots=True)
class _Case:
    """An error, and the field that it is about."""

    found: ErrorDetails
    form: Form
    node: Node

    @property
    def value(self) -> Any:  # noqa: ANN401 - what was given may be anything
        return self.found["input"]

    @property
    def limits(self) -> Mapping[str, Any]:
        return self.found["ctx"]

    @property
    def write(self) -> str:
        """What to write, to stand behind what is wrong."""
        wanted = self.form.words(self.node)
        return f": write {wanted}" if wanted else ""


Sentence = Callable[[_Case], str]


def problems(error: ValidationError, model: type[BaseModel], root: str = "") -> tuple[str, ...]:
    """All that is wrong, one sentence each, in the order of their paths.

    Args:
        error: What reading `model` raised.
        model: The model that was read.
        root: Path of what was read in the whole file, as in `spec`; empty for all of it.

    Returns:
        Sentences such as `spec.replicas: -1 is less than 0: write a whole number from 0 to 1000`;
        beyond `MOST` the last one says how many more there are.
    """
    form = form_of(model)
    found = sorted(error.errors(include_url=False), key=_order)
    told = [_line(one, form, root) for one in found[:MOST]]
    left = len(found) - len(told)
    return (*told, *([f"and {left} more problems"] if left else []))


def _order(found: ErrorDetails) -> list[tuple[bool, int, str]]:
    """Paths as people sort them: index 10 after 9."""
    return [
        (True, part, "") if isinstance(part, int) else (False, 0, part) for part in found["loc"]
    ]


def _line(found: ErrorDetails, form: Form, root: str) -> str:
    loc = found["loc"]
    path = path_of([part for part in loc if part != _KEY], root)
    said = _sentence(found, form, root)
    return f"{path}: {said}" if path else said


def _sentence(found: ErrorDetails, form: Form, root: str) -> str:
    if found["type"] == "extra_forbidden":
        return _unknown(found["loc"], form, root)
    made = SENTENCES.get(found["type"])
    if made is None:
        return _clean(found["msg"].removeprefix("Value error, "))
    if found["loc"][-1:] == (_KEY,):
        keys = form.at(found["loc"][:-2])
        wanted = keys.get("x-key-form") or form.words({"type": "string", **_key_node(keys)})
        return f"the key {shown(found['input'])} has not the form of one: write {wanted}"
    return made(_Case(found, form, form.at(found["loc"])))


def _key_node(node: Node) -> Node:
    names: Node = node.get("propertyNames", {})
    return names


def path_of(parts: Sequence[int | str], root: str = "") -> str:
    """A path as the API server writes it: `spec.pod.env[0].name`."""
    made = root
    for part in parts:
        if isinstance(part, int):
            made += f"[{part}]"
        else:
            made += f".{_printable(part)}" if made else _printable(part)
    return made


def _printable(text: str) -> str:
    """Without what a terminal would act on, and not endless."""
    return _clean(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def _clean(text: str) -> str:
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def shown(value: object) -> str:
    """A value as a manifest writes it, cut and free of control characters."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if isinstance(value, int) and value.bit_length() > _LONG_BITS:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]
    if isinstance(value, bool | int | float | str) or value is None:
        return _printable(json.dumps(value, ensure_ascii=False))
    return _printable(str(value))


# Sentences


def _missing(case: _Case) -> str:
    """With what the field is for: who left it out may not know it."""
    described = str(case.node.get("description", "")).partition(". ")[0].removesuffix(".")
    return f"is missing{case.write}" + (f" ({described})" if described else "")


def _unknown(loc: Sequence[int | str], form: Form, root: str) -> str:
    """The nearest field here, the place where it belongs, or what is known here."""
    asked, known = squeezed(str(loc[-1])), list(form.at(loc[:-1]).get("properties", {}))
    near = get_close_matches(asked, [squeezed(name) for name in known], n=1, cutoff=_ALIKE)
    if near:
        name = next(name for name in known if squeezed(name) == near[0])
        return f"is no field: did you mean {path_of([*loc[:-1], name], root)}?"
    there = [path_of(path, root) for path in form.fields() if squeezed(path[-1]) == asked]
    if 0 < len(there) <= _ELSEWHERE:
        return f"is no field here: write {' or '.join(there)}"
    return f"is no field: known here are {', '.join(known)}"


def _wrong_type(case: _Case) -> str:
    """What is there, what it is, and what it should be."""
    value, wanted = case.value, str(case.node.get("type"))
    kind = _kind(value)
    head = f"is {kind}" if shown(value) in (kind, "null") else f"{shown(value)} is {kind}"
    if wanted == "string" and isinstance(value, bool | int | float | date):
        text = shown(value)
        if "pattern" in case.node and not re.search(case.node["pattern"], text):
            return f"{head}, not a text: write {case.form.words(case.node)}, in quotes"
        return f'{head}, not a text: write it in quotes, "{text}"'
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        return f"{shown(value)} is no whole number: write {value:.0f}"
    if isinstance(value, str) and _plain(value, wanted):
        return f"{head}: write it without quotes, {value}"
    return f"{head}{case.write}"


def _plain(text: str, wanted: str) -> bool:
    """Whether a text would be right without its quotes."""
    if wanted == "boolean":
        return text in ("true", "false")
    number = {"integer": r"-?[0-9]{1,18}", "number": r"-?[0-9]{1,18}(\.[0-9]{1,18})?"}.get(wanted)
    return number is not None and re.fullmatch(number, text) is not None


def _kind(value: object) -> str:
    """What a value is, to people who write YAML."""
    match value:
        case None:
            return "empty"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case dict():
            return "a map"
        case list() | tuple() | set() | frozenset():
            return "a list"
    return "a date" if isinstance(value, date) else f"of type {type(value).__name__}"


def _beyond(words: str, limit: str) -> Sentence:
    def say(case: _Case) -> str:
        value = case.value
        if isinstance(value, float) and math.isnan(value):
            return f".nan is no number{case.write}"
        return f"{shown(value)} {words} {number(case.limits[limit])}{case.write}"

    return say


def _too_many(case: _Case) -> str:
    noun = "keys" if case.node.get("type") == "object" else "items"
    has, most = case.limits["actual_length"] or len(case.value), case.limits["max_length"]
    return f"has {has} {noun}, the limit is {most}: leave {has - most} out"


def _too_few(case: _Case) -> str:
    return f"has {case.limits['actual_length']} items{case.write}"


def _too_long(case: _Case) -> str:
    has, most = len(case.value), case.limits["max_length"]
    return f"{shown(case.value)} has {has} characters, the limit is {most}: shorten it"


def _too_short(case: _Case) -> str:
    return f"{shown(case.value)} is too short{case.write}"


def _no_match(case: _Case) -> str:
    return f"{shown(case.value)} has not the form asked{case.write}"


def _not_known(case: _Case) -> str:
    options = case.node.get("enum") or [case.node.get("const")]
    value, near = case.value, None
    if isinstance(value, str):
        same = {squeezed(str(option)): str(option) for option in options}
        close = get_close_matches(squeezed(value), list(same), n=1, cutoff=_ALIKE)
        near = same[close[0]] if close else None
    hint = f"did you mean {near}? Write" if near else "write"
    return f"{shown(value)} is not known: {hint} {case.form.words(case.node)}"


def _always(words: str) -> Sentence:
    def say(_: _Case) -> str:
        return words

    return say


def _not_whole(case: _Case) -> str:
    return f"{shown(case.value)} is no whole number{case.write}"


SENTENCES: Mapping[str, Sentence] = {
    "missing": _missing,
    "model_type": _wrong_type,
    "dict_type": _wrong_type,
    "list_type": _wrong_type,
    "string_type": _wrong_type,
    "int_type": _wrong_type,
    "int_parsing": _wrong_type,
    "int_parsing_size": _wrong_type,
    "int_from_float": _not_whole,
    "float_type": _wrong_type,
    "float_parsing": _wrong_type,
    "bool_type": _wrong_type,
    "bool_parsing": _wrong_type,
    "greater_than_equal": _beyond("is less than", "ge"),
    "greater_than": _beyond("is not more than", "gt"),
    "less_than_equal": _beyond("is more than", "le"),
    "less_than": _beyond("is not less than", "lt"),
    "enum": _not_known,
    "literal_error": _not_known,
    "string_too_long": _too_long,
    "string_too_short": _too_short,
    "string_pattern_mismatch": _no_match,
    "string_unicode": _always("holds half of a surrogate pair, which no UTF-8 text can: remove it"),
    "too_long": _too_many,
    "too_short": _too_few,
    "invalid_key": _always("this key is no text: write it in quotes, or remove it"),
}
"""By pydantic's type of error; `extra_forbidden` needs the whole path and stands apart."""
