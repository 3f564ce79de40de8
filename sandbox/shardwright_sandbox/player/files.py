"""Files of artifacts: writing small ones under the real names, and checking what is there."""

import hashlib
import json
from pathlib import Path
from typing import Any

from shardwright.runner.contract import (
    MANIFEST,
    ContractError,
    FileEntry,
    Manifest,
    StepRequest,
    decode,
    manifest_problem,
)

_SHARDS = 2


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in a folder; None if there is none that can be read."""
    try:
        return decode(Manifest, (folder / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError, ContractError):
        return None


def folder_problem(folder: Path, manifest: Manifest, step: str, key: str, world: int) -> str:
    """Why a folder is not the artifact asked for: its manifest, or its files."""
    if problem := manifest_problem(manifest, step, key, world):
        return problem
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            return f"the manifest names {name}, the folder has no such file"
        if path.stat().st_size != entry.size:
            return f"{name} has {path.stat().st_size} bytes, the manifest says {entry.size}"
    return ""


def tool_flags(request: StepRequest) -> dict[str, str]:
    """`--name value` and `--name` of all commands, without the dashes."""
    flags: dict[str, str] = {}
    for command in request.commands:
        for position, word in enumerate(command.argv):
            if not word.startswith("--"):
                continue
            name, equals, value = word[2:].partition("=")
            following = command.argv[position + 1 : position + 2]
            if equals:
                flags[name] = value
            elif following and not following[0].startswith("--"):
                flags[name] = following[0]
            else:
                flags[name] = "true"
    return flags


def write_json(path: Path, content: Any) -> None:  # noqa: ANN401 - any JSON
    """Write JSON as the tools do, readable."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def write_small(path: Path, seed: str) -> None:
    """Write a small file whose bytes follow from its name and a seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(hashlib.sha256(f"{seed}/{path.name}".encode()).digest() * 8)


def entries(folder: Path) -> dict[str, FileEntry]:
    """What a manifest says of the files in a folder."""
    return {
        str(path.relative_to(folder)): FileEntry(
            size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_weights(work: Path, seed: str) -> None:
    """Write weights as a hub has them: shards and their index."""
    names = [f"model-{n:05d}-of-{_SHARDS:05d}.safetensors" for n in range(1, _SHARDS + 1)]
    for name in names:
        write_small(work / name, seed)
    weight_map = {f"sandbox.{number}": name for number, name in enumerate(names)}
    write_json(work / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
