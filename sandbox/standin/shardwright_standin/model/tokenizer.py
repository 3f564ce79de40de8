"""Bytes as tokens, and the tokens that mark turns of a chat.

Text out of the model maps bytes to the first 256 code points, not through UTF-8: so two texts are
equal exactly when their tokens are, and a test may compare either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

BYTES = 256
BOS, EOS, SYSTEM, USER, ASSISTANT, END = range(BYTES, BYTES + 6)
SPECIAL: Mapping[int, str] = {
    BOS: "<|bos|>",
    EOS: "<|eos|>",
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
    END: "<|end|>",
}
_ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}


class TokenizerError(ValueError):
    """A request's prompt or messages cannot be turned into tokens."""


def encode(text: str) -> list[int]:
    """The prompt's tokens: the start token, then its UTF-8 bytes."""
    return [BOS, *text.encode()]


def encode_chat(messages: Sequence[Mapping[str, object]]) -> list[int]:
    """The tokens of a chat, ending where the assistant's answer begins.

    Raises:
        TokenizerError: For no messages, an unknown role, or content that is no text.
    """
    if not messages:
        raise TokenizerError("messages is empty; at least one is needed")
    tokens = [BOS]
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES:
            raise TokenizerError(f"messages: role {role!r} is none of {', '.join(_ROLES)}")
        if not isinstance(content, str):
            raise TokenizerError(f"messages: content {content!r} of role {role} is no text")
        tokens += [_ROLES[str(role)], *content.encode(), END]
    return [*tokens, ASSISTANT]


def decode(tokens: Iterable[int]) -> str:
    """The text of tokens; padding of the vocabulary shows as `<|n|>`."""
    return "".join(
        chr(token) if token < BYTES else SPECIAL.get(token, f"<|{token}|>") for token in tokens
    )
