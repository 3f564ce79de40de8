"""Placeholders in command lines and files."""

from __future__ import annotations

from collections.abc import Mapping


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with its placeholders replaced; other braces, as in JSON, stay."""
    for name, value in values.items():
        text = text.replace(name, value)
    return text
