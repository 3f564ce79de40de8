"""What a finished artifact says of itself: the facts of a model, and the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from shardwright.runner.contract.adapters import AdapterFacts
from shardwright.runner.contract.folders import (
    artifact_key,
    canonical,
    checkpoint_files,
    engine_files,
)
from shardwright.runner.contract.words import CONTRACT_VERSION, STEP_CHECKPOINT, STEP_ENGINE


@dataclass(frozen=True)
class ModelFacts:
    """What a model's own config.json says; the operator's refusals and plans rest on it.

    Sizes are counts; `bytes` is the size of the fetched weights on disk, 0 when unknown.
    `quantization` is the method of a checkpoint that comes quantized ("gptq", "awq", "fp8", …) or
    empty. `experts` is 0 for dense models. `remote_code`: the folder brings Python code that its
    config, or its tokenizer's, asks to be executed (`auto_map`). `config` is the part of
    config.json that sizes follow from (`config_keys.pack_config`); empty when an earlier version
    fetched it or it is too long.
    """

    architecture: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    dtype: str
    quantization: str = ""
    experts: int = 0
    bytes: int = 0
    remote_code: bool = False
    config: str = ""

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> ModelFacts:
        """Facts as another version wrote them: what it knows and we do not is passed over.

        Raises:
            TypeError: A field without a default is missing.
        """
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in raw.items() if name in known})


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 of one file of an artifact."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Written last into a finished artifact's folder: what it is, from what, made by what."""

    step: str
    key: str
    inputs: dict[str, Any]
    files: dict[str, FileEntry]
    tools: dict[str, str] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)
    facts: ModelFacts | None = None
    commit: str = ""
    adapter: AdapterFacts | None = None
    contract: int = CONTRACT_VERSION

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())


def manifest_problem(manifest: Manifest, step: str, key: str, world_size: int) -> str:
    """Why this manifest is not the artifact asked for, or an empty string.

    `world_size` 0 skips the count of rank files (models, and checkpoints that are not split).
    """
    if (manifest.step, manifest.key) != (step, key):
        return f"manifest is of {manifest.step} {manifest.key}, asked for {step} {key}"
    if artifact_key(step, manifest.inputs) != key:
        return f"manifest's inputs hash to {artifact_key(step, manifest.inputs)}, not to {key}"
    if world_size and step in (STEP_CHECKPOINT, STEP_ENGINE):
        wanted = engine_files(world_size) if step == STEP_ENGINE else checkpoint_files(world_size)
        missing = sorted(set(wanted) - set(manifest.files))
        if missing:
            return f"{len(missing)} of {len(wanted)} files are missing, first {missing[0]}"
    return ""


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Each input that differs, with both values: those that a spec names before other keys."""

    def flat(inputs: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in inputs.items():
            if isinstance(value, Mapping):
                values.update(flat(value, f"{prefix}{name}."))
            elif value is not None:
                values[prefix + name] = value
        return values

    have, want = flat(found), flat(wanted)
    differ = [
        name for name in {**want, **have} if canonical(have.get(name)) != canonical(want.get(name))
    ]
    differ.sort(key=lambda name: (_SPOKEN.index(name) if name in _SPOKEN else len(_SPOKEN), name))
    return [f"{name} is {have.get(name)!r}, asked for {want.get(name)!r}" for name in differ]


# What a person compares first.
_SPOKEN = ("tensor", "pipeline", "product", "version")
