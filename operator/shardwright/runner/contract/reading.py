"""Reads what the other side wrote, of this version or the one before."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from shardwright.runner.contract.adapters import Adapter, AdapterFacts, AdapterServing, AdapterTable
from shardwright.runner.contract.artifacts import FileEntry, Manifest, ModelFacts
from shardwright.runner.contract.folders import ContractError
from shardwright.runner.contract.reports import FirstCause, Report
from shardwright.runner.contract.requests import (
    Also,
    Beside,
    Command,
    Counters,
    Generation,
    Prepared,
    ServeRequest,
    StepRequest,
    SweepRequest,
)
from shardwright.runner.contract.words import READABLE_VERSIONS
from shardwright.runner.measures import Page

Message = TypeVar(
    "Message", StepRequest, SweepRequest, ServeRequest, Manifest, Report, AdapterTable
)


def read_json(text: str | bytes) -> Any:
    """JSON that a stranger may have written, as it can be written out again.

    Half characters (lone surrogates: of a name that is no UTF-8, or malice) become question marks;
    no server would take them.

    Raises:
        ValueError: It is no JSON, or nested too deep to be read.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    return found


def decode(kind: type[Message], text: str) -> Message:
    """Read a message of the other side.

    Raises:
        ContractError: When the text is not JSON, the version is unknown or a field is missing.
    """
    try:
        raw = read_json(text) if kind is Report else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{kind.__name__} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ContractError(f"{kind.__name__} is not a JSON object")
    version = raw.get("contract")
    if version not in READABLE_VERSIONS:
        raise ContractError(
            f"{kind.__name__} has contract version {version!r}; this side reads {READABLE_VERSIONS}"
        )
    known = {item.name for item in fields(kind)}
    values = {name: value for name, value in raw.items() if name in known}
    try:
        if kind is Report:
            _plain(Report, values)
            _plain(FirstCause, values.get("first") or {})
        return kind(**_shaped(kind, values))
    except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
        raise ContractError(f"{kind.__name__} cannot be read: {error}") from error


_PLAIN = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
}


def _plain(kind: type[Any], values: Mapping[str, Any]) -> None:
    """Make sure that plain fields have their types: any container may leave what looks like one.

    Raises:
        TypeError: One has not.
    """
    for item in fields(kind):
        wanted = _PLAIN.get(str(item.type))
        value = values.get(item.name)
        if item.name not in values or wanted is None:
            continue
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise TypeError(f"{item.name} is {type(value).__name__}, not {item.type}")
        if isinstance(value, float) and not math.isfinite(value):
            raise TypeError(f"{item.name} is {value}, not a number")


def _shaped(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Turn decoded lists and objects back into the tuples and dataclasses of `kind`."""
    shaped = dict(values)
    if "command" in shaped:
        shaped["command"] = _command(shaped["command"])
    if "commands" in shaped:
        shaped["commands"] = tuple(_command(item) for item in shaped["commands"])
    for name in ("expected_files", "peers"):
        if name in shaped:
            shaped[name] = tuple(shaped[name])
    if "metrics" in shaped:
        shaped["metrics"] = tuple(Page.read(item) for item in shaped["metrics"])
    if kind is Manifest:
        shaped["files"] = {name: FileEntry(**entry) for name, entry in values["files"].items()}
    if shaped.get("facts") is not None:
        shaped["facts"] = ModelFacts.read(shaped["facts"])
    if shaped.get("adapter") is not None:
        shaped["adapter"] = AdapterFacts.read(shaped["adapter"])
    if shaped.get("first") is not None:
        shaped["first"] = FirstCause(**shaped["first"])
    if kind is AdapterTable:
        shaped["adapters"] = tuple(_adapter(item) for item in values.get("adapters", ()))
    elif shaped.get("adapters") is not None:
        raw = shaped["adapters"]
        shaped["adapters"] = AdapterServing(**{**raw, "modules": tuple(raw["modules"])})
    if "also" in shaped:
        shaped["also"] = tuple(Also(**item) for item in shaped["also"])
    if shaped.get("beside") is not None:
        raw = shaped["beside"]
        shaped["beside"] = Beside(**{**raw, "command": _command(raw["command"])})
    if shaped.get("prepared") is not None:
        shaped["prepared"] = _prepared(shaped["prepared"])
    return shaped


def _adapter(raw: Mapping[str, Any]) -> Adapter:
    known = {item.name for item in fields(Adapter)}
    values = {name: value for name, value in raw.items() if name in known}
    return Adapter(**{**values, "modules": tuple(raw["modules"])})


def _prepared(raw: Mapping[str, Any]) -> Prepared:
    generation, counters = raw.get("generation"), raw.get("counters")
    return Prepared(
        files=dict(raw.get("files", {})),
        copies=dict(raw.get("copies", {})),
        followers=tuple(raw.get("followers", ())),
        generation=(
            Generation(generation["path"], dict(generation["body"]), generation["answer"])
            if generation
            else None
        ),
        counters=(
            Counters(int(counters["port"]), counters["path"], tuple(counters["series"]))
            if counters
            else None
        ),
    )


def _command(raw: Mapping[str, Any]) -> Command:
    return Command(tool=raw["tool"], argv=tuple(raw["argv"]), env=dict(raw.get("env", {})))
