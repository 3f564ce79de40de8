"""Protobuf's text form, read by the recorded messages: an unknown field or another type is refused.

https://protobuf.dev/reference/protobuf/textformat-spec, as far as configurations need it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_standin import contracts

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>-?[0-9][0-9A-Za-z.+-]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<mark>[{}\[\]:,;])""",
    re.VERBOSE,
)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


class TextError(ValueError):
    """The text is no message of its kind; the words name line and field."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number, string or mark, and the line it stands on."""

    kind: str
    text: str
    line: int


def parse(text: str, message: str = "ModelConfig") -> dict[str, Any]:
    """The fields of a message: repeated ones as lists, maps as dicts; what is not given is absent.

    Raises:
        TextError: For anything that is not recorded.
    """
    reader = _Reader(list(_tokens(text)))
    found = reader.message(message, "")
    reader.end()
    return found


def _tokens(text: str) -> Iterator[Token]:
    position = 0
    while position < len(text):
        line = text.count("\n", 0, position) + 1
        match = _TOKEN.match(text, position)
        if match is None:
            raise TextError(f"line {line}: {text[position : position + 20]!r} is no token")
        position = match.end()
        if match.lastgroup != "skip":
            yield Token(str(match.lastgroup), match[0], line)


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        recorded = contracts.load("triton-model-config")
        self._messages, self._enums = recorded["messages"], recorded["enums"]
        self._tokens, self._at = tokens, 0

    def end(self) -> None:
        if self._at < len(self._tokens):
            self._refuse(self._tokens[self._at], "nothing more is expected")

    def message(self, kind: str, closing: str) -> dict[str, Any]:
        """Fields up to the closing mark, or to the end."""
        fields = self._messages[kind]
        found: dict[str, Any] = {}
        while (token := self._next(closing)) is not None:
            if token.kind != "word" or token.text not in fields:
                self._refuse(token, f"{kind} has no field of this name")
            self._field(kind, token, fields[token.text], found)
            if self._peek() in (",", ";"):
                self._at += 1
        return found

    def _field(
        self, kind: str, name: Token, entry: Mapping[str, Any], found: dict[str, Any]
    ) -> None:
        several = bool(entry.get("repeated") or "map" in entry)
        colon = self._peek() == ":"
        self._at += colon
        if not several and name.text in found:
            self._refuse(name, f"{kind} has it twice")
        if self._peek() == "[":
            if not entry.get("repeated"):
                self._refuse(name, "it is one value, and no list")
            self._at += 1
            found.setdefault(name.text, []).extend(self._list(entry["type"], colon=colon))
        elif "map" in entry:
            key, value = self._entry(entry)
            if key in found.setdefault(name.text, {}):
                self._refuse(name, f"the key {key!r} is there twice")
            found[name.text][key] = value
        else:
            value = self._value(entry["type"], colon=colon)
            if several:
                found.setdefault(name.text, []).append(value)
            else:
                found[name.text] = value

    def _list(self, kind: str, *, colon: bool) -> Iterator[Any]:
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            yield self._value(kind, colon=colon)
            token = self._take()
            if token.text == "]":
                return
            if token.text != ",":
                self._refuse(token, "a comma or the end of the list is expected")

    def _entry(self, entry: Mapping[str, Any]) -> tuple[str, Any]:
        token = self._take()
        if token.text != "{":
            self._refuse(token, "an entry of a map is expected")
        found: dict[str, Any] = {}
        while (name := self._next("}")) is not None:
            if name.text not in ("key", "value") or name.text in found:
                self._refuse(name, "an entry has one key and one value")
            colon = self._peek() == ":"
            self._at += colon
            kind = entry["map"] if name.text == "key" else entry["type"]
            found[name.text] = self._value(kind, colon=colon)
            if self._peek() in (",", ";"):
                self._at += 1
        if set(found) != {"key", "value"}:
            self._refuse(token, "an entry has one key and one value")
        return str(found["key"]), found["value"]

    def _value(self, kind: str, *, colon: bool) -> Any:  # noqa: ANN401
        token = self._take()
        if kind in self._messages:
            if token.text != "{":
                self._refuse(token, f"a {kind} is expected")
            return self.message(kind, "}")
        if not colon:
            self._refuse(token, "a colon is expected before a value")
        if kind in self._enums:
            if token.text not in self._enums[kind]:
                self._refuse(token, f"{kind} has no such value")
            return token.text
        return self._scalar(kind, token)

    def _scalar(self, kind: str, token: Token) -> Any:  # noqa: ANN401
        if kind == "string" and token.kind == "text":
            return json.loads(token.text)
        if kind == "bool" and token.text in ("true", "false"):
            return token.text == "true"
        if kind in _BOUNDS and _WHOLE.fullmatch(token.text):
            lowest, highest = _BOUNDS[kind]
            if lowest <= int(token.text) <= highest:
                return int(token.text)
        return self._refuse(token, f"a {kind} is expected")

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _next(self, closing: str) -> Token | None:
        """The next token; None when the message ends here."""
        if not closing and self._at == len(self._tokens):
            return None
        token = self._take()
        return None if closing and token.text == closing else token

    def _take(self) -> Token:
        if self._at == len(self._tokens):
            raise TextError("the text ends inside a message")
        self._at += 1
        return self._tokens[self._at - 1]

    def _refuse(self, token: Token, why: str) -> Any:  # noqa: ANN401
        raise TextError(f"line {token.line}: {token.text}: {why}")
