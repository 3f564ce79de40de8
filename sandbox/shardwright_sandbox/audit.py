"""Counts requests in the audit log, for tests of how much an operator asks."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def entries(log: Path, *, offset: int = 0) -> Iterator[dict[str, object]]:
    """The log's entries from a byte offset (take `position` before what is to be counted)."""
    with log.open("rb") as handle:
        if offset:
            # A line that was being written at that moment had begun before it.
            handle.seek(offset - 1)
            handle.readline()
        for line in handle:
            if line.endswith(b"\n"):  # the last line may be in the making
                yield json.loads(line)


def position(log: Path) -> int:
    """The log's size now."""
    return log.stat().st_size if log.exists() else 0


def requests(log: Path, user: str, *, offset: int = 0) -> Counter[str]:
    """How often a user sent each kind of request, as `verb resource[/subresource]`.

    A watch counts once, when it ends: it is open all the time and costs nothing.
    """
    counted: Counter[str] = Counter()
    for entry in entries(log, offset=offset):
        sender = entry.get("user")
        if not isinstance(sender, dict) or sender.get("username") != user:
            continue
        reference = entry.get("objectRef")
        what = str(entry.get("requestURI", "")).partition("?")[0]
        if isinstance(reference, dict) and "resource" in reference:
            what = str(reference["resource"])
            if subresource := reference.get("subresource"):
                what += f"/{subresource}"
        counted[f"{entry['verb']} {what}"] += 1
    return counted
