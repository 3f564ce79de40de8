"""Runs a benchmark's command lines one after the other; what a benchmark's pod runs.

It is passed to the image's `python3 -c`, so it is one file of the standard library (3.9 and later)
and imports nothing of ours. What it measured is its termination message, and why it could not
measure more.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any

ENVIRONMENT = "SHARDWRIGHT_BENCHMARK"
TERMINATION_LOG = "/dev/termination-log"
# The kubelet cuts a longer message without an error.
LIMIT_BYTES = 4096
# Lines of the log that are ours begin so; the tool's own do not.
MARK = "[benchmark] "
_SERIES = r"^%s(?:\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})? ([-+.\w]+)$"
# What is no answer of HTTP is none either: a server that starts or ends may send half of one.
_NO_ANSWER = (OSError, http.client.HTTPException)
_LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
# A server that answers nothing for so long has gone.
_PATIENCE_SECONDS = 120.0
_TAIL_LINES, _TAIL_LENGTH = 4, 400


def say(text: str) -> None:
    """A line of the pod's log."""
    sys.stderr.write(MARK + text + "\n")
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


def _values(page: str, name: str) -> list[float]:
    found = []
    for text in re.findall(_SERIES % name, page, re.MULTILINE):
        with contextlib.suppress(ValueError):  # no number: nobody told
            found.append(float(text))
    return found


def _total(page: str, name: str) -> float:
    return sum(_values(page, name))


def held(page: str, concurrency: int) -> float | None:
    """The share of the KV cache in use, if the point's requests are there; None otherwise.

    A tool starts, draws its prompts and asks once to try; at its end requests run out. Such looks
    say nothing of the point, so at least half its requests must run or wait.
    """
    found = list(filter(math.isfinite, _values(page, "shardwright_kv_cache_utilization")))
    asked = [_values(page, f"shardwright_requests_{what}") for what in ("running", "waiting")]
    if not found or not asked[0] or 2 * sum(map(sum, asked)) < concurrency:
        return None
    return max(found)


class Usage:
    """Looks at the leader's metrics while a point is measured."""

    def __init__(self, url: str, concurrency: int) -> None:
        self._url = url
        self._concurrency = concurrency
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
            share = held(page, self._concurrency)
            if share is not None:
                self._seen.append(share)

    def _look(self) -> str:
        if not self._url:
            return ""
        try:
            with urllib.request.urlopen(self._url, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310
                return str(answer.read().decode("utf-8", "replace"))
        except _NO_ANSWER as error:
            say(f"{self._url}: {error}")
            return ""

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        self._thread.join(2 * _ANSWER_SECONDS)

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
        try:
            found = json.loads(text)
        except ValueError:
            found = json.loads((text.strip().splitlines() or [""])[-1])
    except RecursionError:
        raise ValueError("the result is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("the result is no JSON object")  # noqa: TRY004 - one kind for its caller
    return found


def number(result: dict[str, Any], path: str) -> float:
    """A number of a result; dots lead into objects.

    Raises:
        RuntimeError: There is none, or it is not finite.
    """
    found: Any = result
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    counts = isinstance(found, (int, float)) and not isinstance(found, bool)
    try:
        value = float(found) if counts else math.nan
    except OverflowError:  # a whole number that no float holds
        value = math.nan
    if not math.isfinite(value):
        raise RuntimeError(f"the result has no number {path}")
    return value


def code_in(folder: str) -> str:
    """The file of a tokenizer's folder that names code to run, or nothing."""
    for name in ("tokenizer_config.json", "config.json"):
        try:
            found = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and found.get("auto_map"):
            return name
    return ""


def await_server(url: str) -> None:
    """Wait until the server says that it is well.

    Raises:
        RuntimeError: It does not for two minutes.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    told = ""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):  # noqa: S310 - the leader's address
                return
        except _NO_ANSWER as error:
            why = str(error)
        if why != told:
            told = why
            say(f"waits for {url}: {why}")
        if time.monotonic() >= deadline:
            raise RuntimeError(f"the server is not ready: {url}: {why}")
        time.sleep(min(1.0, _PATIENCE_SECONDS / 4))


def run(argv: list[str], seconds: float) -> None:
    """Run the tool, its output into the log.

    Raises:
        RuntimeError: It failed, with the end of what it said, or takes too long.
        OSError: It cannot be started.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    tool = subprocess.Popen(  # noqa: S603 - the command line is the operator's
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def relay() -> None:
        for line in tool.stdout or ():
            sys.stdout.write(line)
            if line.strip():
                tail.append(line.strip())
        sys.stdout.flush()

    reader = threading.Thread(target=relay, daemon=True)
    reader.start()
    try:
        code = tool.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"not done within {seconds:.0f} s, all that was left") from late
    finally:
        # Whatever the tool started ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGKILL)
        tool.wait()
        reader.join(5)
    if code != 0:
        said = " / ".join(tail)[-_TAIL_LENGTH:]
        raise RuntimeError(f"exit status {code}" + (f": {said}" if said else ""))


def measure(request: dict[str, Any], point: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One point, within so many seconds.

    Raises:
        RuntimeError: The server is not ready, the tool failed, or its result lacks a number.
        OSError: The tool cannot be started, or wrote no file.
        ValueError: Its file is no result.
    """
    Path(point["result"]).parent.mkdir(parents=True, exist_ok=True)
    await_server(request["health"])
    usage = Usage(request["metrics"], point["concurrency"])
    try:
        run(point["argv"], seconds)
    finally:
        usage.close()
    result = last_result(Path(point["result"]).read_text(encoding="utf-8"))
    told: dict[str, Any] = {"concurrency": point["concurrency"], "kv_cache": usage.mean()}
    accepted = usage.acceptance(request.get("draft_len", 0))
    if accepted is not None:
        told["acceptance"] = accepted
    answered = int(number(result, request["completed"]))
    if not answered:
        raise RuntimeError(f"none of its {point['requests']} requests was answered")
    for name, path in request["keys"].items():
        told[name] = round(number(result, path), 3)
    told["failed"] = max(0, point["requests"] - answered)
    return told


def report(points: list[dict[str, Any]], error: str = "") -> str:
    """What was measured as one table: names once, then numbers, so that 16 points fit."""
    names = sorted({name for point in points for name in point})
    rows = [[point.get(name) for name in names] for point in points]
    told = {"names": names, "rows": rows, "error": ""}
    room = LIMIT_BYTES - len(json.dumps(told))
    words = error.encode("ascii", "replace").decode()
    # Quotes and backslashes take two bytes each.
    while len(json.dumps(words)) - 2 > max(0, room):
        words = words[: len(words) - max(1, (len(json.dumps(words)) - 2 - max(0, room)) // 2)]
    return json.dumps({**told, "error": words})


class Ended(RuntimeError):  # noqa: N818 - no error: somebody ends the pod
    """The pod was told to end."""


def _end(_number: int, _frame: object) -> None:
    raise Ended("the pod was told to end")


def main(termination_log: str = TERMINATION_LOG) -> int:
    """Measure every point; 1 when one cannot be, with those before it told all the same."""
    signal.signal(signal.SIGTERM, _end)
    request = json.loads(os.environ[ENVIRONMENT])
    points: list[dict[str, Any]] = []
    error = _untrusted(request)
    ends = time.monotonic() + request["seconds"]
    asked = [] if error else request["points"]
    try:
        for at, point in enumerate(asked):
            now = point["concurrency"]
            say(f"{at + 1} of {len(asked)}: {now} at once, {point['requests']} requests")
            told = measure(request, point, ends - time.monotonic())
            points.append(told)
            say(
                f"{now} at once: {told['tokens_per_second']:.1f} tokens/s, TTFT "
                f"{told['ttft_ms']:.0f} ms, TPOT {told['tpot_ms']:.1f} ms"
            )
    except (RuntimeError, OSError, ValueError) as failure:
        # What the report takes is all that is left to do.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        failed, *left = [str(one["concurrency"]) for one in asked[len(points) :]] or ["the end"]
        untried = f" ({', '.join(left)} not tried)" if left else ""
        error = f"{failed} at once{untried}: {failure}"
    if error:
        say(error)
    Path(termination_log).write_text(report(points, error), encoding="utf-8")
    return 1 if error else 0


def _untrusted(request: dict[str, Any]) -> str:
    """Why the tool must not see the model's folder, or nothing."""
    folder = request.get("must_hold_no_code", "")
    found = code_in(folder) if folder else ""
    if not found:
        return ""
    return (
        f"{found} of the model names code of its own (auto_map), and this tool would run it "
        "unasked: set spec.model.trustRemoteCode if you trust it"
    )


if __name__ == "__main__":
    sys.exit(main())
