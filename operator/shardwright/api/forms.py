"""What a field of a model takes, in words: found by its path, from the model's JSON schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from shardwright.api.scalars import (
    LABEL_KEY_FORM,
    DNSLabel,
    LabelKey,
    LabelValue,
    ObjectName,
    OptionalLabelKey,
    OptionalObjectName,
)
from shardwright.api.serving import URI, URI_FORMS

Node = Mapping[str, Any]

_DNS = "a name of a-z, 0-9, '-' and '.' that begins and ends with a letter or digit, as in my-name"
_LABEL_VALUE = (
    "A-Z, a-z, 0-9, '-', '_' and '.' that begin and end with a letter or digit, as label values do"
)


def _pattern(kind: object) -> str:
    _, constraints, *_ = get_args(kind)
    return str(constraints.pattern)


# Every pattern of a model that people write for; a pattern is no sentence.
PATTERNS: Mapping[str, str] = {
    _pattern(DNSLabel): "a name of a-z, 0-9 and '-', as in my-name",
    _pattern(ObjectName): _DNS,
    _pattern(OptionalObjectName): _DNS,
    _pattern(LabelKey): LABEL_KEY_FORM,
    _pattern(OptionalLabelKey): LABEL_KEY_FORM,
    _pattern(LabelValue): _LABEL_VALUE,
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$": "a name of a-z, 0-9 and '-', as in my-name",
    r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$": (
        "a name of A-Z, a-z, 0-9, '.', '_' and '-' that begins and ends with a letter or digit"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._/-]*$": (
        "a path on the claim of A-Z, a-z, 0-9, '.', '_', '-' and '/', as in data/mmlu, or the "
        "name of a data set"
    ),
    r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$": (
        "an image's name, as in registry.example.com/name:tag, or with its digest, name@sha256:…"
    ),
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of A-Z, a-z, 0-9 and '_' that begins with no digit",
    r"^[0-9]+\.[0-9]+\.[0-9]+((rc|\.post|a|b)[0-9]+)*$": "a whole version, as in 1.2.0 or 1.3.0rc1",
    r"^(Measure|[0-9]{1,6}(\.[0-9]{1,6})?)$": 'Measure, or a score in quotes, as in "68.2"',
    r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$": "a quantity, as in 8, 500m or 64Gi",
    r"^[0-9]+\.[0-9]+$": 'a compute capability in quotes, as in "9.0"',
    r"^[0-9]{1,2}\.[0-9]$": 'a compute capability in quotes, as in "9.0"',
    r"^(RDMA|Ethernet)?$": "RDMA or Ethernet",
    r"^(DEBUG|INFO|WARNING|ERROR)$": "DEBUG, INFO, WARNING or ERROR",
    r"^(json|console)$": "json or console",
    r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$": "a reason in one word, as in FetchingModel",
    URI: URI_FORMS.removeprefix("write "),
}


@dataclass(frozen=True, slots=True)
class Form:
    """The JSON schema of a model, with ways to ask it for fields by their path."""

    root: Node

    def at(self, path: Sequence[int | str]) -> Node:
        """The node of a path; empty where the model says nothing of it."""
        node: Node = self._flat(self.root)
        for part in path:
            if isinstance(part, int):
                child = node.get("items", {})
            elif part in node.get("properties", {}):
                child = node["properties"][part]
            else:
                patterns = node.get("patternProperties") or {}
                child = next(iter(patterns.values()), node.get("additionalProperties"))
            node = self._flat(child) if isinstance(child, dict) else {}
        return node

    def words(self, node: Node) -> str:
        """What a node takes, to stand after `write`; empty where anything goes."""
        options = node.get("enum") or ([node["const"]] if "const" in node else [])
        if options:
            return _either([str(option) or '""' for option in options])
        if "pattern" in node:
            return PATTERNS.get(node["pattern"], f"what matches {node['pattern']}")
        match node.get("type"):
            case "integer":
                return f"a whole number{_range(node)}"
            case "number":
                return f"a number{_range(node)}"
            case "boolean":
                return "true or false, without quotes"
            case "string":
                return f"a text{_sized(node, 'Length', 'character')}"
            case "array":
                return f"a list{_sized(node, 'Items', 'item')}"
            case "object":
                return self._map(node)
        return ""

    def fields(self) -> Iterator[tuple[str, ...]]:
        """Paths of all fields that stand in no list and under no free key."""
        waiting: list[tuple[tuple[str, ...], Node]] = [((), self._flat(self.root))]
        while waiting:
            path, node = waiting.pop(0)
            for name, child in node.get("properties", {}).items():
                yield (*path, name)
                waiting.append(((*path, name), self._flat(child)))

    def _map(self, node: Node) -> str:
        required, known = node.get("required", ()), list(node.get("properties", {}))
        if required:
            return f"a map with {' and '.join(required)}"
        if known:
            return f"a map with any of the fields {', '.join(known)}"
        return f"a map{_sized(node, 'Properties', 'key')}"

    def _flat(self, node: Node) -> Node:
        """References put in place and the null branch of an Optional gone."""
        while "$ref" in node or "anyOf" in node:
            outer = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
            if "$ref" in node:
                found = self.root["$defs"][node["$ref"].rsplit("/", 1)[-1]]
            else:
                found = next(one for one in node["anyOf"] if one.get("type") != "null")
            node = {**found, **outer}
        return node


@cache
def form_of(model: type[BaseModel]) -> Form:
    """The form of a model; made once, since it is asked for at every error."""
    return Form(model.model_json_schema(by_alias=True))


def squeezed(name: str) -> str:
    """A field's name without what people write differently: case, `_`, `-`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def number(value: float) -> str:
    """A bound in words: 100.0 is 100."""
    return str(int(value)) if float(value).is_integer() else str(value)


def _either(options: Sequence[str]) -> str:
    head = ", ".join(options[:-1])
    return f"{head} or {options[-1]}" if head else options[-1]


def _range(node: Node) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" from {number(low)} to {number(high)}"
    parts = [
        f"{words} {number(node[key])}"
        for key, words in (
            ("minimum", "of at least"),
            ("exclusiveMinimum", "greater than"),
            ("maximum", "of at most"),
            ("exclusiveMaximum", "less than"),
        )
        if key in node
    ]
    return f" {' and '.join(parts)}" if parts else ""


def _sized(node: Node, what: str, noun: str) -> str:
    low, high = node.get(f"min{what}", 0), node.get(f"max{what}")
    if high is None:
        return f" of at least {low} {noun}{'s' * (low != 1)}" if low else ""
    return f" of {low} to {high} {noun}s" if low else f" of at most {high} {noun}s"
