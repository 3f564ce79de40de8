"""The placement annotation: every pod of a replica carries the whole of it.

So a successor can finish a placement that another life of the operator began, or release it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placed:
    """The placement annotation: the whole replica's nodes by stage, and when it was decided."""

    nodes: tuple[str, ...]
    at: float

    def dump(self) -> str:
        """As the annotation holds it."""
        return json.dumps({"nodes": list(self.nodes), "at": round(self.at, 3)})

    @staticmethod
    def load(text: str) -> Placed | None:
        """Read the annotation; None when there is none or it is not ours to read."""
        if not text:
            return None
        try:
            raw = json.loads(text)
            return Placed(tuple(str(node) for node in raw["nodes"]), float(raw["at"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
