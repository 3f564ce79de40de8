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


def acceptance(before: str, after: str, draft_len: int) -> float | None:
    """Tokens that a pass of the model gave a request between two looks; None: nobody told.

    From counters where they moved: a pass gives one token, and the share of its `draft_len` drafts
    that was accepted. Else the gauge of the later look, which some engines have instead.
    """
    drafted, accepted = (
        _total(after, f"shardwright_{name}_tokens_total")
        - _total(before, f"shardwright_{name}_tokens_total")
        for name in ("draft", "accepted")
    )
    if drafted > 0:
        length = 1 + draft_len * accepted / drafted
    else:
        length = _total(after, "shardwright_acceptance_length")
    return round(length, 3) if 1 <= length <= draft_len + 1 else None


def _total(page: str, name: str) -> float:
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


class Usage:
    """Looks at the leader's metrics while a point is measured."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._seen: list[float] = []
        self._first = self._look()
        self._last = self._first
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self._url and not self._closed.wait(_LOOK_SECONDS):
            page = self._look()
            self._last = page or self._last
            found = _GAUGE.search(page)
            if found:
                self._seen.append(float(found.group(1)))

    def _look(self) -> str:
        if not self._url:
            return ""
        try:
            with urllib.request.urlopen(self._url, timeout=_LOOK_SECONDS) as answer:  # noqa: S310
                return str(answer.read().decode("utf-8", "replace"))
        except OSError as error:
            say(f"{self._url}: {error}")
            return ""

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._thread.join(2 * _LOOK_SECONDS)

    def acceptance(self, draft_len: int) -> float | None:
        """Tokens a pass meanwhile; None without speculative decoding, or when nobody told."""
        if not (draft_len and self._first):
            return None
        return acceptance(self._first, self._look() or self._last, draft_len)

    def mean(self) -> float | None:
        """Mean share of the KV cache in use; None when nobody told."""
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
        usage.close()
    share = usage.mean()
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(point['argv'])}: exit status {done.returncode}")
    result = last_result(Path(point["result"]).read_text(encoding="utf-8"))
    told: dict[str, Any] = {"concurrency": point["concurrency"], "kv_cache": share}
    accepted = usage.acceptance(request.get("draft_len", 0))
    if accepted is not None:
        told["acceptance"] = accepted
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
