"""The configuration file that vLLM and SGLang read as further flags: which keys, which values.

Both turn each key into a flag of their command line before they parse it (vLLM:
`FlexibleArgumentParser.load_config_file`; SGLang: `ConfigArgumentMerger`), so a key is a long flag
without its dashes. What they take is recorded in tests/contracts and kept beside this module in a
short form (hack/engine_flags.py). A flag that another field of the spec decides is refused by
name: the command line would win over the file, and the key would be ignored.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from shardwright.runtimes.base import Refusal
from shardwright.runtimes.unknown_keys import Keys, instead_of

REASON_UNKNOWN = "UnknownEngineConfig"
REASON_RESERVED = "ReservedEngineConfig"
_SHOWN = 60


@functools.cache
def flags(record: str) -> Mapping[str, Mapping[str, Any]]:
    """The flags of a record such as `vllm-serve-0.33.0`, by long name without dashes."""
    text = resources.files(__package__).joinpath(f"data/{record}.json").read_text("utf-8")
    found: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return found


def refuse_config(
    config: Mapping[str, Any],
    record: str,
    owned: Mapping[str, str],
    *,
    tool: str,
    switches_off: bool,
) -> Refusal | None:
    """Why these keys cannot stand in the tool's configuration file.

    Args:
        config: The user's own options.
        record: Name of the recorded command line.
        owned: Flags that the operator sets, and where the user asks for them.
        tool: The runtime's name and version, for messages.
        switches_off: Whether the file can turn off a switch that is on by default.
    """
    known = flags(record)
    for name, value in config.items():
        entry = known.get(name)
        if entry is None:
            keys = _keys(known, owned, switches_off=switches_off)
            return Refusal(REASON_UNKNOWN, _unknown(name, keys, tool))
        instead = owned.get(entry.get("flag", name))
        if instead is not None:
            return Refusal(
                REASON_RESERVED,
                f"engine.config.{name} is set by the operator; use {instead} instead",
            )
        if entry.get("deprecated"):
            return Refusal(
                REASON_UNKNOWN, f"engine.config.{name} is deprecated in {tool}; leave it out"
            )
        if entry.get("negated") and not switches_off:
            return Refusal(
                REASON_UNKNOWN,
                f"engine.config.{name}: {tool} takes this switch on the command line only; leave "
                "it at its default",
            )
        problem = _wrong(entry, value)
        if problem:
            return Refusal(
                REASON_UNKNOWN, f"engine.config.{name} is {_shown(value)}, {tool} takes {problem}"
            )
    return None


def _unknown(name: str, keys: Keys, tool: str) -> str:
    plain = name.lstrip("-").removeprefix("no-").removeprefix("no_")
    off = "; a switch is turned off by false" if plain != name.lstrip("-") else ""
    return (
        f"engine.config.{name} is no long flag of {tool} without its dashes{off}; "
        f"{instead_of(plain, keys)}"
    )


def _keys(
    known: Mapping[str, Mapping[str, Any]], owned: Mapping[str, str], *, switches_off: bool
) -> Keys:
    """What may be offered: no key that would be refused in its turn."""
    fields = {name: owned.get(entry.get("flag", name), "") for name, entry in known.items()}
    free = [
        name
        for name, entry in known.items()
        if not fields[name]
        and not entry.get("deprecated")
        and (switches_off or not entry.get("negated"))
    ]
    return Keys(free, {name: there for name, there in fields.items() if there})


def _wrong(entry: Mapping[str, Any], value: object) -> str:
    """What should stand there instead; empty when the value is one that the flag takes."""
    kind = entry["type"]
    if kind == "switch":
        return "" if isinstance(value, bool) else "true or false"
    if kind == "list":
        items = value if isinstance(value, list) else [value]
        return "" if items and all(_scalar(item, entry) for item in items) else "a list"
    if kind == "json" and isinstance(value, Mapping):
        return ""
    if not _scalar(value, entry):
        return _expected(entry)
    return ""


def _scalar(value: object, entry: Mapping[str, Any]) -> bool:
    """Whether this one word would be taken for the flag's value, and not for another flag."""
    if value is None or isinstance(value, bool | list | Mapping):
        return False
    text = str(value)
    kind = entry.get("of", entry["type"])
    if "choices" in entry and text not in [str(choice) for choice in entry["choices"]]:
        return False
    if kind in ("integer", "number"):
        return isinstance(value, int) or (kind == "number" and isinstance(value, float))
    # argparse takes a word with a leading dash for a flag: it could name one that is owned.
    if text.startswith("-"):
        return False
    return "pattern" not in entry or re.match(entry["pattern"], text) is not None


def _expected(entry: Mapping[str, Any]) -> str:
    if "choices" in entry:
        return f"one of {', '.join(str(choice) for choice in entry['choices'])}"
    names = {"integer": "a whole number", "number": "a number", "json": "an object"}
    return names.get(entry["type"], "a text without a leading dash")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def owned_by(*groups: tuple[str, Sequence[str]]) -> dict[str, str]:
    """A table of owned flags from (field, flags) pairs."""
    return {flag: field for field, names in groups for flag in names}
