"""Strict parsers made from the recorded contracts: what is not recorded is refused.

The real tools use two libraries, whose refusals differ: argparse (the build tools, vLLM, SGLang)
and click (server, evaluation, benchmark). Both end with exit code 2. Stricter than the real ones
on purpose: argparse's abbreviations of flags are off.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import click

from shardwright_standin import contracts

Flags = Mapping[str, Mapping[str, Any]]

# By tensorrt_llm/commands/{serve,eval,bench}.py.
CLICK_TOOLS = frozenset({"trtllm-serve", "trtllm-eval", "trtllm-bench"})
# What the real program is called where that is not the contract's name.
PROGRAMS: Mapping[str, str] = {
    "quantize": "quantize.py",
    "convert_checkpoint": "convert_checkpoint.py",
    "trtllm-serve": "trtllm-serve serve",
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """An accepted command line: values by flag name (underscores), positional words by name."""

    values: Mapping[str, Any]
    positional: Mapping[str, Any]
    command: str = ""
    inner: Mapping[str, Any] = field(default_factory=dict)


def parse(tool: str, arguments: Sequence[str], family: str = "") -> Parsed:
    """Parse the arguments after the program's name.

    Args:
        tool: Name of the recorded contract.
        arguments: The words.
        family: Which of the contract's parsers, for a tool that has one a model family.

    Raises:
        SystemExit: With the tool's usage error on stderr and code 2, or code 0 after its help.
    """
    recorded = contracts.load(tool)
    if tool in CLICK_TOOLS:
        return _parse_click(PROGRAMS.get(tool, tool), recorded, arguments)
    parser = argument_parser(tool, family)
    values, words = _split(vars(parser.parse_args(list(arguments))), recorded["positional"])
    return Parsed(values, words)


def key(flag: str) -> str:
    """The name under which a flag's value is found."""
    return flag.lstrip("-").replace("-", "_")


def _split(
    values: Mapping[str, Any], positional: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    words = {name.rstrip("?") for name in positional}
    return (
        {name: value for name, value in values.items() if name not in words},
        {name: value for name, value in values.items() if name in words},
    )


# --- argparse ---


@cache
def argument_parser(tool: str, family: str) -> argparse.ArgumentParser:
    """The argparse parser of a contract; SGLang's has five hundred flags, so it is made once."""
    recorded = contracts.load(tool)
    program = str(recorded.get("prog") or PROGRAMS.get(tool, tool))
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    for name in recorded["positional"]:
        parser.add_argument(name.rstrip("?"), nargs="?" if name.endswith("?") else None)
    for flag, entry in _flags(recorded, family).items():
        _add(parser, flag, entry)
    return parser


def _flags(recorded: Mapping[str, Any], family: str) -> Flags:
    flags: Flags = recorded["families"][family]["flags"] if family else recorded["flags"]
    return flags


def _add(parser: argparse.ArgumentParser, flag: str, entry: Mapping[str, Any]) -> None:
    names = [flag, *entry.get("aliases", ())]
    known: dict[str, Any] = {"dest": key(flag), "default": entry.get("default")}
    if entry.get("required"):
        known["required"] = True
    if entry["type"] == "switch":
        parser.add_argument(*names, action="store_true", **{**known, "default": None})
        for negated in entry.get("negated", ()):
            parser.add_argument(negated, action="store_false", dest=known["dest"], default=None)
        return
    known["type"] = _reader(entry)
    if "choices" in entry:
        known["choices"] = entry["choices"]
    elif entry["type"] == "enable|disable":
        known["choices"] = ["enable", "disable"]
    if entry["type"] == "list":
        known["nargs"] = "+"
    elif entry.get("optional_value"):
        known.update(nargs="?", const=True)
    elif "nargs" in entry:
        known["nargs"] = entry["nargs"]
    if entry.get("repeatable"):
        known["action"] = "append"
    parser.add_argument(*names, **known)


def _reader(entry: Mapping[str, Any]) -> Callable[[str], Any]:
    if "pattern" in entry:
        return _matching(re.compile(entry["pattern"]))
    readers: Mapping[str, Callable[[str], Any]] = {
        "integer": int,
        "number": float,
        "json": json.loads,
        "boolean": _truth,
    }
    return readers.get(entry.get("of", entry["type"]), str)


def _truth(text: str) -> bool:
    words = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return words[text.lower()]


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not pattern.match(text):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form {pattern.pattern}")
        return text

    return read


# --- click ---


class _Json(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2 only
    name = "text"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> object:
        try:
            return json.loads(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _option(flag: str, entry: Mapping[str, Any]) -> click.Option:
    names = [flag, *entry.get("aliases", ()), key(flag)]
    required = bool(entry.get("required"))
    if entry["type"] == "switch":
        if entry.get("negated"):
            names[0] = f"{flag}/{entry['negated'][0]}"
        return click.Option(names, is_flag=True, default=None, required=required)
    known: dict[str, Any] = {"type": _kind(entry), "required": required}
    if entry["type"] == "list" or entry.get("repeatable"):
        known["multiple"] = True
    elif "default" in entry:
        known["default"] = entry["default"]
    return click.Option(names, **known)


def _kind(entry: Mapping[str, Any]) -> click.ParamType[Any]:
    if "choices" in entry:
        return click.Choice([str(choice) for choice in entry["choices"]])
    if "minimum" in entry:
        return click.IntRange(min=entry["minimum"])
    if entry.get("exists"):
        return click.Path(exists=True)
    kinds: Mapping[str, click.ParamType[Any]] = {
        "integer": click.INT,
        "number": click.FLOAT,
        "boolean": click.BOOL,
        "json": _Json(),
    }
    return kinds.get(entry["type"], click.STRING)


def _parse_click(program: str, recorded: Mapping[str, Any], arguments: Sequence[str]) -> Parsed:
    """Let click parse; its callbacks run only for an accepted line."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def command(name: str, flags: Flags, words: Sequence[str], kind: type) -> Any:  # noqa: ANN401
        params: list[click.Parameter] = [click.Argument([word]) for word in words]
        params += [_option(flag, entry) for flag, entry in flags.items()]
        return kind(name, params=params, callback=lambda **values: seen.append((name, values)))

    group = "commands" in recorded
    words = recorded["positional"]
    top = command("", recorded["flags"], words, click.Group if group else click.Command)
    for name, entry in recorded.get("commands", {}).items():
        top.add_command(command(name, entry["flags"], (), click.Command), name)
    try:
        top.main(args=list(arguments), prog_name=program, standalone_mode=False)
    except click.ClickException as refused:
        refused.show()
        sys.exit(refused.exit_code)
    if len(seen) != 1 + group:  # only --help ends without its callbacks
        sys.exit(0)
    values, positional = _split(seen[0][1], words)
    if not group:
        return Parsed(values, positional)
    return Parsed(values, positional, *seen[1])
