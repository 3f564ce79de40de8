"""The token of an incarnation, and what is computed with it. It is never shown."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from shardwright.runner.contract import TOKEN_MIN_CHARS

PROOF_BYTES = hashlib.sha256().digest_size


class TokenError(Exception):
    """The mounted token cannot be used."""


class Token:
    """A secret shared by the pods of one incarnation; printing it shows nothing of it."""

    def __init__(self, value: bytes) -> None:
        """Keep a token.

        Raises:
            TokenError: It is too short to be one.
        """
        if len(value) < TOKEN_MIN_CHARS:
            raise TokenError(
                f"the incarnation's token has {len(value)} characters, at least {TOKEN_MIN_CHARS} "
                "are needed: draw it anew, at random"
            )
        self._value = value

    def __repr__(self) -> str:
        return "Token(…)"

    __str__ = __repr__

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a token is never written out")

    def proof(self, label: str, *parts: bytes) -> bytes:
        """HMAC-SHA256 (RFC 2104) over a label and parts, each behind its length."""
        digest = hmac.new(self._value, digestmod=hashlib.sha256)
        for part in (label.encode(), *parts):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def derived(self, label: str, *parts: bytes) -> Token:
        """A token for one purpose; it tells nothing of this one."""
        return Token(self.proof(label, *parts))


def same(one: bytes, other: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one, other)


def read_token(path: Path) -> Token:
    """The token from its mounted file; blanks and newlines around it do not count.

    Raises:
        TokenError: There is no such file, it cannot be read, or its content is too short.
    """
    try:
        value = path.read_bytes().strip()
    except OSError as error:
        reason = error.strerror or "no reason given"
        raise TokenError(
            f"the incarnation's token cannot be read from {path}: {reason}; its Secret must be "
            "mounted there"
        ) from error
    return Token(value)
