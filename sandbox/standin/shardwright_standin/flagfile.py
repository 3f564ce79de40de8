"""A server's own configuration file, read as further flags in front of the command line's.

vLLM: `FlexibleArgumentParser.load_config_file`; SGLang: `ConfigArgumentMerger`. A key is a long
flag without dashes, and what stands on the command line as well wins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shardwright_standin import contracts

_FLAG = "--config"


def merged(tool: str, words: Sequence[str], leading: int = 0) -> list[str]:
    """The words with the file's flags in place of `--config FILE`.

    Args:
        tool: The recorded contract, which says which switches can be turned off.
        words: Arguments after the program's name.
        leading: So many words stay in front: vLLM's model.

    Raises:
        ValueError: The file is named badly or twice, or holds no mapping.
    """
    given = list(words)
    if _FLAG not in given:
        return given
    if given.count(_FLAG) > 1:
        raise ValueError("More than one config file specified!")
    at = given.index(_FLAG)
    path = Path(given[at + 1]) if at + 1 < len(given) else Path()
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be of a yaml/yml type. {path.suffix} supplied")
    found = yaml.safe_load(path.read_text("utf-8")) or {}
    if not isinstance(found, dict):
        raise ValueError("Config file must contain a dictionary at root level")  # noqa: TRY004
    own = list(_flags(found, contracts.load(tool)["flags"]))
    rest = [*given[:at], *given[at + 2 :]]
    return [*rest[:leading], *own, *rest[leading:]]


def _flags(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, bool):
            off = f"--no-{name}"
            if value:
                yield f"--{name}"
            elif off in recorded.get(f"--{name}", {}).get("negated", ()):
                yield off
            continue
        if value == []:
            continue
        yield f"--{name}"
        if isinstance(value, list):
            yield from (str(item) for item in value)
        else:
            yield json.dumps(value) if isinstance(value, dict) else str(value)
