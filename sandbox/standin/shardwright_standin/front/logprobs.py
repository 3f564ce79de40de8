"""Completions that repeat their prompt and tell log probabilities, as each server gives them.

vLLM (and NIM, whose endpoint is vLLM's): vllm/entrypoints/openai/completion/protocol.py (002032ee)
and serving.py (030ea52e) of vllm-project/vllm: `echo` with `logprobs` asks for the prompt's too;
the first token has none; an entry of `top_logprobs` names the token itself, then the likeliest;
offsets count the tokens' texts; `max_tokens: 0` produces one token, counts it and does not show it.
The most is `--max-logprobs`, by default 20. The choice's own `prompt_logprobs`, the same by token
id, and −1 for the whole vocabulary are not played.

SGLang: srt/entrypoints/openai/{protocol,serving_completions,utils}.py of the wheel (0.5.23): the
prompt's are told with `logprobs` of at least 1, `top_logprobs` names the likeliest alone, every
offset is −1, `max_tokens` is at least 1.

TensorRT-LLM's server repeats the prompt's text too, but its `CompletionRequest` has no word for the
prompt's log probabilities and asks the engine for none (tensorrt_llm/serve/openai_protocol.py and
postprocess_handlers.py of NVIDIA/TensorRT-LLM, 0076e939): there the stand-in plays neither key.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright_standin.model import tokenizer
from shardwright_standin.model.likelihood import Score

_FLOOR = -9999.0


@dataclass(frozen=True, slots=True)
class Form:
    """How a server tells log probabilities.

    Attributes:
        most: `logprobs` at most, None for no limit.
        empty: Whether `max_tokens: 0` is taken beside `echo`.
        special: Whether a prompt of token ids is repeated with its special tokens.
        zero_echoes: Whether `logprobs: 0` tells the prompt's too.
        own_first: Whether an entry of `top_logprobs` begins with the token itself.
        offsets: Whether offsets are told, else −1.
    """

    most: int | None
    empty: bool
    special: bool
    zero_echoes: bool
    own_first: bool
    offsets: bool


# By the name of a server's flavour.
FORMS: Mapping[str, Form] = {
    "vllm": Form(20, empty=True, special=True, zero_echoes=True, own_first=True, offsets=True),
    "sglang": Form(
        None, empty=False, special=False, zero_echoes=False, own_first=False, offsets=False
    ),
}


def repeated(prompt: object, tokens: Sequence[int], form: Form) -> str:
    """The prompt's text as an answer repeats it."""
    if isinstance(prompt, str):
        return prompt
    special = tokenizer.SPECIAL
    return tokenizer.decode(token for token in tokens if form.special or token not in special)


def told(
    form: Form, tokens: Sequence[int], scores: Sequence[Score | None], top: int
) -> dict[str, Any]:
    """`logprobs` of a choice; a token without a score has nothing before it."""
    texts = [tokenizer.decode([token]) for token in tokens]
    offsets = list(itertools.accumulate((len(text) for text in texts), initial=0))[:-1]
    entries = zip(texts, scores, strict=True)
    return {
        "text_offset": offsets if form.offsets else [-1] * len(texts),
        "token_logprobs": [None if score is None else max(score[0], _FLOOR) for score in scores],
        "tokens": texts,
        # SGLang's engine has no lists of likeliest tokens unless some are asked for.
        "top_logprobs": [_likeliest(form, text, score, top) for text, score in entries]
        if top or form.own_first
        else [],
    }


def _likeliest(form: Form, text: str, score: Score | None, top: int) -> dict[str, float] | None:
    if score is None:
        return None
    own, likeliest = score
    named = {tokenizer.decode([token]): max(value, _FLOOR) for token, value in likeliest[:top]}
    return {text: max(own, _FLOOR)} | named if form.own_first else named
