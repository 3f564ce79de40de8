"""Runs a benchmark's command lines one after the other; what a benchmark's pod runs.

It is passed to the image's `python3 -c`, so it is one file of the standard library (3.9 and later)
and imports nothing of ours. What it measured is its termination message, or why it could not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

ENVIRONMENT = "SHARDWRIGHT_BENCHMARK"
TERMINATION_LOG = "/dev/termination-log"
# The kubelet cuts a longer message without an error.
LIMIT_BYTES = 4096
_GAUGE = re.compile(r"^shardwright_kv_cache_utilization(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
_LOOK_SECONDS = 5.0


def say(text: str) -> None:
    """A line of the pod's log."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


class Usage:
    """Looks at the leader's metrics while a point is measured."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: list[float] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self._url and not self._closed.wait(_LOOK_SECONDS):
            try:
                with urllib.request.urlopen(self._url, timeout=_LOOK_SECONDS) as answer:  # noqa: S310
                    found = _GAUGE.search(answer.read().decode("utf-8", "replace"))
            except OSError as error:
                say(f"{self._url}: {error}")
                continue
            if found:
                self._seen.append(float(found.group(1)))

    def mean(self) -> float | None:
        """Mean share of the KV cache in use; None when nobody told."""
        self._closed.set()
        self._thread.join(2 * _LOOK_SECONDS)
        return round(sum(self._seen) / len(self._seen), 4) if self._seen else None


def last_result(text: str) -> dict[str, Any]:
    """The result in a file of JSON, or in the last of its lines.

    Raises:
        ValueError: It holds none.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = json.loads((text.strip().splitlines() or [""])[-1])
    if not isinstance(found, dict):
        raise ValueError("the result is no JSON object")  # noqa: TRY004 - one kind for its caller
    return found


def measure(request: dict[str, Any], point: dict[str, Any]) -> dict[str, Any]:
    """One point.

    Raises:
        RuntimeError: The tool failed, or its result lacks a number.
        OSError: The tool cannot be started, or wrote no file.
        ValueError: Its file is no result.
    """
    usage = Usage(request["metrics"])
    try:
        done = subprocess.run(point["argv"], check=False)  # noqa: S603
    finally:
        share = usage.mean()
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(point['argv'])}: exit status {done.returncode}")
    result = last_result(Path(point["result"]).read_text(encoding="utf-8"))
    told: dict[str, Any] = {"concurrency": point["concurrency"], "kv_cache": share}
    for name, key in request["keys"].items():
        if not isinstance(result.get(key), (int, float)):
            raise RuntimeError(f"the result has no number {key}")  # noqa: TRY004 - as above
        told[name] = round(float(result[key]), 3)
    told["failed"] = max(0, point["requests"] - int(result[request["completed"]]))
    return told


def report(points: list[dict[str, Any]], error: str = "") -> str:
    """What was measured as one table: names once, then numbers, so that 16 points fit."""
    names = sorted({name for point in points for name in point})
    rows = [[point.get(name) for name in names] for point in points]
    told = {"names": names, "rows": rows, "error": error}
    room = LIMIT_BYTES - len(json.dumps({**told, "error": ""}))
    return json.dumps({**told, "error": error.encode("ascii", "replace").decode()[: max(0, room)]})


def main(termination_log: str = TERMINATION_LOG) -> int:
    """Measure every point; 1 when one cannot be, with those before it told all the same."""
    request = json.loads(os.environ[ENVIRONMENT])
    points: list[dict[str, Any]] = []
    error = ""
    for point in request["points"]:
        try:
            points.append(measure(request, point))
        except (RuntimeError, OSError, ValueError, KeyError) as failure:
            error = f"{point['concurrency']} at once: {failure}"
            say(error)
            break
        say(json.dumps(points[-1]))
    Path(termination_log).write_text(report(points, error), encoding="utf-8")
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())
