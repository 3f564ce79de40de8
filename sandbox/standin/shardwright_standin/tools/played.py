"""What a tool does not play is refused, not ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shardwright_standin import commandline, contracts


class NotPlayedError(NotImplementedError):
    """A flag that the real tool has and the stand-in cannot carry out."""


def refuse_others(
    tool: str,
    values: Mapping[str, Any],
    played: Collection[str],
    flags: commandline.Flags | None = None,
) -> None:
    """Refuse every flag that was given another value than its default and is not in `played`.

    Args:
        tool: The contract's name.
        values: By flag name, as parsed.
        played: Names that are carried out, or concern GPU memory, kernels or logs, of which there
            are none here.
        flags: The contract's flags, when they are not the tool's only ones.

    Raises:
        NotPlayedError: Naming the first such flag.
    """
    recorded = contracts.load(tool)["flags"] if flags is None else flags
    for flag, entry in recorded.items():
        name = commandline.key(flag)
        value = values.get(name)
        if name not in played and value not in (None, (), entry.get("default")):
            raise NotPlayedError(f"{tool}: the stand-in does not play {flag} {value}")
