"""The runner's own log lines: one JSON object a line on stdout, between the lines of the tools."""

from __future__ import annotations

import json
import sys
import threading
from datetime import datetime, timezone

_LOCK = threading.Lock()


def say(message: str, **fields: object) -> None:
    """Write one log line at once: `time` (RFC 3339, UTC), `message`, then `fields` as given."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")  # noqa: UP017 - Python 3.9
    line = json.dumps({"time": now, "message": message, **fields}, default=str) + "\n"
    with _LOCK:
        sys.stdout.write(line)
        sys.stdout.flush()
