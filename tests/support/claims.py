"""What lies on a test's claim: files, records, and what was published there."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.kube import Kube

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.rest import Json


def published_lines(publishes: Path) -> list[Json]:
    """What the player has noted, in order; the last line may be in the making."""
    text = publishes.read_text(encoding="utf-8") if publishes.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Claim:
    """The claim `models` of a test: its files, its records, and what was published on it."""

    def __init__(self, sandbox: Sandbox, kube: Kube) -> None:
        assert sandbox.layout is not None
        self.kube = kube
        self.root = sandbox.claims / kube.namespace / "models" / "shardwright"
        self._publishes = sandbox.layout.publishes

    def published(self, step: str = "") -> list[str]:
        """Keys in the order in which they were published."""
        return [
            line["key"]
            for line in published_lines(self._publishes)
            if line["namespace"] == self.kube.namespace and step in ("", line["step"])
        ]

    def there(self, step: str) -> set[str]:
        """Keys whose folder is in its place."""
        folder = self.root / step
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def trash(self) -> set[str]:
        """Keys whose folder is in the trash."""
        folder = self.root / "trash"
        return {path.name.split("-")[1] for path in folder.iterdir()} if folder.is_dir() else set()

    def records(self) -> dict[str, Json]:
        """Data of the records by key."""
        items = self.kube.raw(
            f"/api/v1/namespaces/{self.kube.namespace}/configmaps",
            labelSelector="shardwright.dev/record=true",
        )["items"]
        return {item["data"]["key"]: item["data"] for item in items}

    def state(self, key: str) -> str:
        """State and reason of a record, empty without one."""
        data = self.records().get(key, {})
        return f"{data.get('state', '')} {data.get('reason', '')}".strip()
