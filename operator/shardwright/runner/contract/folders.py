"""Keys of artifacts, and where their files lie on the claim and in a pod."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from shardwright.runner.contract.words import ROOT, TRASH

_KEY = re.compile(r"[0-9a-f]{16}")
_STAMP = re.compile(r"[0-9]{1,20}")
_PATH = re.compile(r"[A-Za-z0-9._/-]{1,256}")


class ContractError(ValueError):
    """A message of the other side cannot be read: wrong version, shape or type."""


def canonical(value: Any) -> str:
    """JSON with sorted keys and no blanks: the one byte form that hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def artifact_key(step: str, inputs: Mapping[str, Any]) -> str:
    """The key of an artifact: 16 hex digits of SHA-256 over step and inputs.

    Inputs that are None are left out, so that a new input at its neutral value leaves old keys as
    they were. 64 bits are ample: a claim holds thousands of artifacts at most, and the manifest is
    compared input by input before anything is loaded.
    """
    kept = {name: value for name, value in inputs.items() if value is not None}
    return hashlib.sha256(canonical([step, kept]).encode()).hexdigest()[:16]


def artifact_folder(step: str, key: str) -> str:
    """Folder of a finished artifact, relative to the claim's root."""
    return f"{ROOT}/{step}/{key}"


def temporary_folder(step: str, key: str, pod_uid: str) -> str:
    """Folder a pod works in before it publishes by rename, relative to the claim's root."""
    return f"{ROOT}/{step}/.tmp-{key}-{pod_uid}"


def trash_folder(step: str, key: str, stamp: str) -> str:
    """Where a withdrawn artifact waits for its grace time, relative to the claim's root."""
    return f"{ROOT}/{TRASH}/{step}-{key}-{stamp}"


def purged_folder(step: str, key: str, stamp: str) -> str:
    """What a folder in the trash is called while it is deleted, relative to the claim's root."""
    return f"{ROOT}/{TRASH}/.purge-{step}-{key}-{stamp}"


def served_model(served_name: str) -> str:
    """Link to the artifact that a serving pod's runner makes before it starts the server.

    Servers name a model after the last part of the path they are given.
    """
    return f"{{scratch}}/served/{served_name}"


def inside(path: str) -> bool:
    """Whether a relative path names something below the folder that it is put into."""
    parts = path.split("/")
    return bool(_PATH.fullmatch(path)) and not {"", ".", ".."} & set(parts)


def engine_files(world_size: int) -> tuple[str, ...]:
    """Files that make a TensorRT-LLM engine folder complete: config.json alone proves nothing."""
    return ("config.json", *(f"rank{rank}.engine" for rank in range(world_size)))


def checkpoint_files(world_size: int) -> tuple[str, ...]:
    """Files that make a TensorRT-LLM checkpoint folder complete."""
    return ("config.json", *(f"rank{rank}.safetensors" for rank in range(world_size)))


_RANK = re.compile(r"^rank(\d+)\.(engine|safetensors)$")


def ranks_of(names: list[str]) -> list[int]:
    """Ranks whose files are among `names`, sorted."""
    found = (_RANK.match(name) for name in names)
    return sorted(int(match.group(1)) for match in found if match)
