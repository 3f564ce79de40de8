"""Requests and answers in OpenAI's form; decoding is greedy, so sampling options are refused."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_standin.front.engine import Limits
from shardwright_standin.model import tokenizer

_DEFAULT_BUDGET = 16
_COMMON = {"model", "max_tokens", "stream", "stream_options", "temperature", "top_p", "n", "seed"}
_KNOWN = {
    True: _COMMON | {"messages", "max_completion_tokens", "ignore_eos"},
    False: _COMMON | {"prompt", "ignore_eos", "logprobs", "repetition_penalty", "best_of"},
}
# What changes nothing: the benchmarks send all of them.
_NEUTRAL: Mapping[str, int | None] = {
    "temperature": 0,
    "top_p": 1,
    "n": 1,
    "best_of": 1,
    "repetition_penalty": 1,
    "logprobs": None,
}


class RequestError(ValueError):
    """A request that is refused; `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request."""

    chat: bool
    model: str
    prompt: list[int]
    budget: int
    stream: bool
    usage_at_end: bool
    ignore_eos: bool


def parse(
    body: Mapping[str, Any], *, chat: bool, limits: Limits, also: frozenset[str] = frozenset()
) -> Asked:
    """Check a request's body; `also` are keys that this server has beside the common ones.

    Raises:
        RequestError: For anything that would be ignored, does not fit, or has the wrong type.
    """
    if unknown := sorted(set(body) - _KNOWN[chat] - also):
        raise RequestError(f"{unknown[0]}: Extra inputs are not permitted")
    for name, only in _NEUTRAL.items():
        if body.get(name) not in (None, only):
            raise RequestError(f"{name} {body[name]!r}: the stand-in decodes greedily, send {only}")
    prompt = _chat_prompt(body) if chat else _plain_prompt(body)
    budget = _budget(body)
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
        stream=_flag(body, "stream"),
        usage_at_end=bool(options.get("include_usage")),
        ignore_eos=_flag(body, "ignore_eos"),
    )


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

    def whole(self, tokens: list[int], finish: str) -> dict[str, Any]:
        """The answer in one piece."""
        text = self._text(tokens)
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if self.asked.chat else "text_completion"
        return {**self._head(kind), "choices": [choice], "usage": self.usage(len(tokens))}

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
