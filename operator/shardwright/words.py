"""How numbers stand in sentences, the same everywhere."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 replica`, `2 replicas`, `1,000 nodes`; `plural` where it is not the noun and an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
