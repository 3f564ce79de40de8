"""A client that asks on and on, and notes every answer: run as a program on a node.

`client_loop.py URL`: reads one line of JSON with `model`, `answers` (text by prompt), `others`
(texts that are right as well, by prompt), `tokens` (of an answer at most), `pause` (seconds between
two), `seconds` (that an answer may take) and `at_once` (so many clients), asks until its standard
input ends, and prints a line of JSON for each request: when it began and ended (Unix time), and
what was wrong with the answer, if anything. Every request has a connection of its own. Standard
library only.
"""

# ruff: noqa: S310 - the address is that of the test's own Service

from __future__ import annotations

import http.client
import itertools
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

TIMEOUT_SECONDS = 20


def problem(
    url: str,
    model: str,
    prompt: str,
    expected: str,
    tokens: int,
    seconds: float = TIMEOUT_SECONDS,
    other: str | None = None,
    more: Mapping[str, object] | None = None,
) -> str:
    """Ask once; what is wrong with the answer, or that it did not come in so many seconds.

    Right is what is expected, or the other text; `more` is what else the request says.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        **(more or {}),
    }
    headers = {"Content-Type": "application/json", "Connection": "close"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            found = json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}: {error.read()[:200]!r}"
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        return f"{type(error).__name__}: {error}"
    if found in (expected, other):
        return ""
    either = repr(expected) if other is None else f"{expected!r} or {other!r}"
    return f"{prompt!r}: {found!r} instead of {either}"


def main() -> None:
    """Ask until standard input ends."""
    (url,) = sys.argv[1:]
    asked = json.loads(sys.stdin.readline())
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()

    def ask() -> None:
        for prompt, expected in itertools.cycle(asked["answers"].items()):
            began = time.time()
            wrong = problem(
                url,
                asked["model"],
                prompt,
                expected,
                asked["tokens"],
                asked["seconds"],
                asked["others"].get(prompt),
            )
            # One write: lines of several clients must not mix.
            sys.stdout.write(json.dumps([began, time.time(), wrong]) + "\n")
            sys.stdout.flush()
            if over.wait(asked["pause"]):
                return

    clients = [threading.Thread(target=ask) for _ in range(asked["at_once"])]
    for client in clients:
        client.start()
    for client in clients:
        client.join()


if __name__ == "__main__":
    main()
