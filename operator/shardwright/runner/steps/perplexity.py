"""Perplexity of a text, asked of a server that repeats its prompt with log probabilities.

Perplexity = exp(−Σ log p(tokenᵢ | tokens before it in its passage) / number of such tokens), as in
Jelinek et al. 1977 and in lm-evaluation-harness' `perplexity`. The text is cut into passages that
are looked at each by itself, so that any server of any context length gives the same number. The
first token of a passage has nothing before it and is not counted, nor is what the server adds.

The request is that of lm-evaluation-harness v0.4.9.2 (`lm_eval/models/openai_completions.py`):
POST /v1/completions with `echo: true`, `logprobs: 1`, `max_tokens: 1`, `temperature: 0`.
"""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.runner.steps.scores import NoScoreError, Score

# Bounded: the text is read at once, and a passage of it goes into one request.
TEXT_LIMIT_BYTES = 64 * 2**20
# Beyond, e to it is no number of 64 bits.
_MOST_NATS = 709.0
# A token that is certain may be told a little above 0.
_ROUNDING = 1e-3
_AT_ONCE = 8
_REQUEST_SECONDS = 300.0
_ANSWER_LIMIT_BYTES = 64 * 2**20
_SHOWN = 300


class ServerError(Exception):
    """The server does not answer, or not with what was asked for."""


@dataclass(frozen=True)
class Asked:
    """What is measured, on what.

    Attributes:
        url: Of the server, without a path.
        model: Its model's name.
        text: File with the text, UTF-8.
        passage_bytes: Bytes of a passage at most: no more tokens than that, whatever the tokenizer.
        passages: Of the text's beginning at most; 0 for all of it.
    """

    url: str
    model: str
    text: Path
    passage_bytes: int
    passages: int = 0

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Asked:
        """Read it from words: `--url U --model M --text T --passage_bytes N [--passages N]`.

        Raises:
            ValueError: A word is missing, unknown, or no number where one is due.
        """
        given = {argv[place]: argv[place + 1] for place in range(0, len(argv) - 1, 2)}
        known = {"--url", "--model", "--text", "--passage_bytes", "--passages"}
        if len(argv) % 2 or set(given) - known or not known - {"--passages"} <= set(given):
            raise ValueError(f"perplexity takes {', '.join(sorted(known))}; given {list(argv)}")
        return cls(
            given["--url"],
            given["--model"],
            Path(given["--text"]),
            int(given["--passage_bytes"]),
            int(given.get("--passages", 0)),
        )


def passages(text: str, size: int) -> Iterator[str]:
    """The text in passages of at most `size` bytes, cut at blanks where there is one."""
    words = text.split()
    passage: list[str] = []
    used = 0
    for word in words:
        for part in _parts(word, size):
            length = len(part.encode())
            if passage and used + 1 + length > size:
                yield " ".join(passage)
                passage, used = [], 0
            used += length + (1 if passage else 0)
            passage.append(part)
    if passage:
        yield " ".join(passage)


def _parts(word: str, size: int) -> Iterator[str]:
    """A word that is longer than a passage, as in scripts without blanks, in pieces."""
    while len(word.encode()) > size:
        # A character has four bytes at most.
        cut = max(1, size // 4)
        yield word[:cut]
        word = word[cut:]
    yield word


def measure(asked: Asked, between: Callable[[], None]) -> Score:
    """The perplexity of the text; `between` is called before each passage, and may raise.

    Raises:
        OSError: The text cannot be read.
        NoScoreError: The text is too short, too long or no UTF-8.
        ServerError: The server did not answer as asked.
    """
    with asked.text.open("rb") as file:
        data = file.read(TEXT_LIMIT_BYTES + 1)
    if len(data) > TEXT_LIMIT_BYTES:
        raise NoScoreError(f"{asked.text.name} has more than {TEXT_LIMIT_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NoScoreError(f"{asked.text.name} is no UTF-8: {error}") from error
    cut = list(passages(text, asked.passage_bytes))
    if asked.passages:
        cut = cut[: asked.passages]

    def one(passage: str) -> tuple[float, int]:
        between()
        return _surprise(_answer(asked, passage))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        sums = list(pool.map(one, cut))
    tokens = sum(count for _, count in sums)
    if not tokens:
        raise NoScoreError(f"{asked.text.name} has no passage of two tokens or more")
    return Score(perplexity_of(sum(total for total, _ in sums) / tokens), len(cut))


def perplexity_of(mean: float) -> float:
    """Perplexity by the mean of −log p over tokens, in nats: e to its power.

    Raises:
        NoScoreError: That is no number: the model gives some token no probability at all. Or it is
            below 1, which would be better than to know the text by heart.
    """
    if mean < -_ROUNDING:
        raise NoScoreError(
            f"the log probabilities have a mean of {-mean}: above 0 there is none, so the server "
            "answers with something else"
        )
    found = math.exp(max(mean, 0.0)) if mean < _MOST_NATS else math.inf
    if not math.isfinite(found):
        raise NoScoreError(
            f"the log probabilities have no perplexity (their mean is {-mean}): the model gives "
            "tokens of the text no probability, or answers with what is no number"
        )
    return found


def _answer(asked: Asked, passage: str) -> Any:  # noqa: ANN401 - any JSON
    body = {
        "model": asked.model,
        "prompt": passage,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 1,
        "echo": True,
    }
    request = urllib.request.Request(  # noqa: S310 - the scheme is ours
        f"{asked.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:  # noqa: S310
            return json.loads(answer.read(_ANSWER_LIMIT_BYTES))
    except urllib.error.HTTPError as error:
        told = error.read(_SHOWN).decode("utf-8", "replace")
        raise ServerError(f"{asked.url} answers {error.code}: {told}") from error
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        raise ServerError(f"{asked.url} does not answer: {error}") from error


def _surprise(answer: Any) -> tuple[float, int]:  # noqa: ANN401 - any JSON
    """Σ −log p over a passage's tokens but the first, and how many they are."""
    try:
        logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
        prompt = int(answer["usage"]["prompt_tokens"])
        own = [float(value) for value in logprobs[1:prompt]]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ServerError(
            f"the server's answer has no log probabilities of the prompt: {error!r}"
        ) from error
    if len(own) != prompt - 1:
        raise ServerError(
            f"the server told {len(logprobs)} log probabilities for a prompt of {prompt} tokens"
        )
    return -sum(own), len(own)
