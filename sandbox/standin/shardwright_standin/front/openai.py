"""Requests and answers in OpenAI's form; decoding is greedy, so sampling options are refused."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_standin.front import logprobs
from shardwright_standin.front.engine import Generation, Limits, Scoring
from shardwright_standin.model import tokenizer

_DEFAULT_BUDGET = 16
_COMMON = {"model", "max_tokens", "stream", "stream_options", "temperature", "top_p", "n", "seed"}
_KNOWN = {
    True: _COMMON | {"messages", "max_completion_tokens", "ignore_eos"},
    False: _COMMON | {"prompt", "ignore_eos", "echo", "logprobs", "repetition_penalty", "best_of"},
}
# What changes nothing: the benchmarks send all of them.
_NEUTRAL: Mapping[str, int | None] = {
    "temperature": 0,
    "top_p": 1,
    "n": 1,
    "best_of": 1,
    "repetition_penalty": 1,
}
# The same for servers that tell no log probabilities of a prompt (see `logprobs`).
_UNTOLD: Mapping[str, bool | None] = {"echo": False, "logprobs": None}


class RequestError(ValueError):
    """A request that is refused; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request.

    `lead` is what the answer's text begins with, `shown` false hides what is produced, `scoring` is
    None where no log probabilities are told.
    """

    chat: bool
    model: str
    prompt: list[int]
    budget: int
    stream: bool
    usage_at_end: bool
    ignore_eos: bool
    lead: str = ""
    shown: bool = True
    scoring: Scoring | None = None


def parse(
    body: Mapping[str, Any],
    *,
    chat: bool,
    limits: Limits,
    also: frozenset[str] = frozenset(),
    form: logprobs.Form | None = None,
) -> Asked:
    """Check a request's body.

    Args:
        body: As it came.
        chat: Whether it is a chat's.
        limits: The engine's.
        also: Keys that this server has beside the common ones.
        form: How this server tells log probabilities, None when it is not played.

    Raises:
        RequestError: For anything that would be ignored, does not fit, or has the wrong type.
    """
    if unknown := sorted(set(body) - _KNOWN[chat] - also):
        raise RequestError(f"{unknown[0]}: Extra inputs are not permitted")
    for name, only in _NEUTRAL.items():
        if body.get(name) not in (None, only):
            raise RequestError(f"{name} {body[name]!r}: the stand-in decodes greedily, send {only}")
    if form is None:
        for name, only in _UNTOLD.items():
            if body.get(name) not in (None, only):
                raise RequestError(
                    f"{name} {body[name]!r}: the stand-in does not play it for this server, which "
                    "tells no log probabilities of a prompt"
                )
    prompt = _chat_prompt(body) if chat else _plain_prompt(body)
    echo, stream = _flag(body, "echo"), _flag(body, "stream")
    scoring = _scoring(body, form, echo=echo) if form is not None else None
    if stream and (echo or scoring is not None):
        raise RequestError(
            "stream true: the stand-in plays echo and logprobs in whole answers only"
        )
    nothing = type(body.get("max_tokens")) is int and body["max_tokens"] == 0
    shown = not (nothing and echo and form is not None and form.empty)
    budget = _budget(body) if shown else 1
    if len(prompt) > min(limits.max_input_len, limits.max_num_tokens):
        raise RequestError(
            f"prompt length {len(prompt)} exceeds max_input_len {limits.max_input_len} or "
            f"max_num_tokens {limits.max_num_tokens}"
        )
    if len(prompt) + budget > limits.max_seq_len:
        raise RequestError(
            f"prompt length {len(prompt)} + max_tokens {budget} exceeds max_seq_len "
            f"{limits.max_seq_len}"
        )
    options = body.get("stream_options") or {}
    return Asked(
        chat=chat,
        model=str(body.get("model", "")),
        prompt=prompt,
        budget=budget,
        stream=stream,
        usage_at_end=bool(options.get("include_usage")),
        ignore_eos=_flag(body, "ignore_eos"),
        lead=logprobs.repeated(body["prompt"], prompt, form) if echo and form else "",
        shown=shown,
        scoring=scoring,
    )


def _scoring(body: Mapping[str, Any], form: logprobs.Form, *, echo: bool) -> Scoring | None:
    top = body.get("logprobs")
    if top is None:
        return None
    if isinstance(top, bool) or not isinstance(top, int) or top < 0:
        raise RequestError(f"logprobs {top!r} is no number of at least 0")
    if form.most is not None and top > form.most:
        raise RequestError(
            f"Requested sample logprobs of {top}, which is greater than max allowed: {form.most}"
        )
    return Scoring(top, prompt=echo and (top > 0 or form.zero_echoes))


def _budget(body: Mapping[str, Any]) -> int:
    asked = body.get("max_completion_tokens", body.get("max_tokens"))
    budget = _DEFAULT_BUDGET if asked is None else asked
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise RequestError(f"max_tokens {budget!r} is no number of at least 1")
    return budget


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name) or False
    if not isinstance(value, bool):
        raise RequestError(f"{name} {value!r} is neither true nor false")
    return value


def _chat_prompt(body: Mapping[str, Any]) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise RequestError("messages is no list of objects")
    try:
        return tokenizer.encode_chat(messages)
    except tokenizer.TokenizerError as error:
        raise RequestError(str(error)) from error


def _plain_prompt(body: Mapping[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return list(prompt)
    raise RequestError("prompt is neither text nor a list of token ids")


@dataclass(frozen=True, slots=True)
class Answer:
    """Shapes the answer to one request."""

    asked: Asked
    served: str
    number: str
    created: int

    @classmethod
    def to(cls, asked: Asked, served: str) -> Answer:
        """A new answer to a request."""
        prefix = "chatcmpl" if asked.chat else "cmpl"
        return cls(asked, served, f"{prefix}-{uuid.uuid4().hex}", int(time.time()))

    def whole(self, generation: Generation, form: logprobs.Form | None) -> dict[str, Any]:
        """The answer in one piece, of a generation that has come to its end."""
        asked, tokens = self.asked, generation.tokens
        text = asked.lead + self._text(tokens if asked.shown else [])
        choice: dict[str, Any] = {"index": 0, "finish_reason": generation.finish, "logprobs": None}
        if asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if form is not None and asked.scoring is not None:
            choice["logprobs"] = self._logprobs(generation, form, asked.scoring)
        kind = "chat.completion" if asked.chat else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": self.usage(len(tokens))}

    def _logprobs(
        self, generation: Generation, form: logprobs.Form, scoring: Scoring
    ) -> dict[str, Any]:
        prompt = self.asked.prompt if scoring.prompt else []
        tokens = prompt + generation.tokens
        scores = [*([None] if prompt else []), *generation.scores]
        count = len(tokens) if self.asked.shown else len(prompt)
        return logprobs.told(form, tokens[:count], scores[:count], scoring.top)

    def piece(self, token: int, finish: str) -> dict[str, Any]:
        """One token of a streamed answer."""
        text = self._text([token])
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish or None}
        if self.asked.chat:
            choice["delta"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return {**self._head(kind), "choices": [choice]}

    def last(self, count: int) -> dict[str, Any]:
        """The piece that holds the usage, when it was asked for."""
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return {**self._head(kind), "choices": [], "usage": self.usage(count)}

    def usage(self, produced: int) -> dict[str, int]:
        """Tokens in and out."""
        prompt = len(self.asked.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": produced,
            "total_tokens": prompt + produced,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.number, "object": kind, "created": self.created, "model": self.served}

    def _text(self, tokens: list[int]) -> str:
        return tokenizer.decode(token for token in tokens if token != tokenizer.EOS)
