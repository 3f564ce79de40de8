"""What a `down` in another process, or a test, must know of the real nodes of a sandbox."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shardwright_sandbox.config import Layout
from shardwright_sandbox.real.addresses import Addresses


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node: its index on the network and how its programs are started, by process name."""

    name: str
    index: int
    gpus: int
    commands: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """All real nodes of a sandbox and the slot of their network."""

    slot: int
    nodes: tuple[NodeRecord, ...] = ()

    @property
    def addresses(self) -> Addresses:
        """Their addresses."""
        return Addresses(self.slot)


def write(path: Path, record: Record) -> None:
    """Write the record; by rename, so that it is never half written."""
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(record)))
    scratch.rename(path)


def read(path: Path) -> Record | None:
    """The record, None when the sandbox has no real nodes."""
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    nodes = tuple(NodeRecord(**node) for node in content["nodes"])
    return Record(content["slot"], nodes)


def cgroup_name(layout: Layout) -> str:
    """Name of the cgroup that holds all containers of a sandbox: follows from its folder."""
    return f"shardwright-{hashlib.sha256(str(layout.root).encode()).hexdigest()[:12]}"
