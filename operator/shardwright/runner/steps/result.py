"""Whether the tools have made what was asked for: all files, for this shape, by this version.

An exit status of 0 proves little: a builder that failed has been seen to save its config.json all
the same (NVIDIA/TensorRT-LLM#346), a quantizer to save something else (#1964), and an engine
folder's config.json alone proves nothing.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.runner.contract import STEP_CHECKPOINT, STEP_ENGINE, ranks_of
from shardwright.runner.jsonfile import JsonFileError, read_object

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_SAFETENSORS = ".safetensors"
# The safetensors format: eight bytes with the header's length, the header, then the data that its
# offsets describe; the header has at most 100 MB (github.com/huggingface/safetensors).
_HEADER_LENGTH_BYTES = 8
_HEADER_LIMIT_BYTES = 100_000_000
# What reading any JSON at all as a header may end in: among them an offset of 1e999.
_NO_HEADER = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
# "1.2.1.post2" and "1.2.1+cu130" are builds of 1.2.1, "1.2.1rc4" is not.
_SAME_VERSION = re.compile(r"(\.post\d+)?(\+\S*)?")


class ResultError(Exception):
    """The tools did not make what was asked for; names the exact difference."""


class IncompleteError(ResultError):
    """Files are missing, empty or cut off: the tool may have failed and not said so."""


@dataclass(frozen=True)
class Shape:
    """Tensor-parallel ranks × pipeline-parallel stages."""

    tensor: int
    pipeline: int

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.tensor * self.pipeline


def verify(
    out: Path,
    step: str,
    expected_files: tuple[str, ...],
    shape: Shape | None,
    version: str = "",
) -> None:
    """Do nothing if a folder holds what a step was asked for.

    Args:
        out: What the tools have left.
        step: Checkpoint or engine.
        expected_files: Paths relative to `out` that must be there.
        shape: The asked shape; None for a checkpoint that is not split.
        version: The runtime's version that an engine must have been built with; empty for any.

    Raises:
        IncompleteError: Something is missing or cut off.
        ResultError: It was made for something else.
        OSError: The storage failed.
    """
    missing = [name for name in expected_files if not _is_full(out / name)]
    if missing:
        raise IncompleteError(
            f"{len(missing)} of {len(expected_files)} files are missing or empty, first "
            f"{missing[0]}"
        )
    there = [path.name for path in out.iterdir()]
    strays = sorted(set(ranks_of(there)) - set(ranks_of(list(expected_files))))
    if strays:
        raise ResultError(
            f"files of rank {strays[0]} are there, {len(ranks_of(list(expected_files)))} ranks "
            "were asked for"
        )
    config = _object(out / _CONFIG)
    if shape is not None:
        problem = shape_problem(config, step, shape)
        if problem:
            raise ResultError(problem)
    if step == STEP_ENGINE and version:
        problem = version_problem(config, version)
        if problem:
            raise ResultError(problem)
    if step == STEP_CHECKPOINT:
        _check_weights(out, there, split=shape is not None)


def shape_problem(config: Mapping[str, Any], step: str, shape: Shape) -> str:
    """How the mapping in a TensorRT-LLM config.json differs from the asked shape, or nothing.

    An engine has it below `pretrained_config`, a checkpoint at the top
    (tensorrt_llm/builder.py, EngineConfig; mapping.py, Mapping).
    """
    where = "mapping"
    holder: object = config
    if step == STEP_ENGINE:
        holder, where = config.get("pretrained_config"), "pretrained_config.mapping"
    mapping = holder.get("mapping") if isinstance(holder, Mapping) else None
    if not isinstance(mapping, Mapping):
        return f"config.json has no {where}"
    asked = {
        "tp_size": shape.tensor,
        "pp_size": shape.pipeline,
        "world_size": shape.world_size,
    }
    found = {name: mapping.get(name) for name in asked}
    # Context parallelism multiplies the world, and nothing here asks for it.
    asked["cp_size"], found["cp_size"] = 1, mapping.get("cp_size", 1)
    wrong = [
        f"{where}.{name} is {found[name]!r}, asked for {value}"
        for name, value in asked.items()
        if found[name] != value
    ]
    return "; ".join(wrong)


def version_problem(config: Mapping[str, Any], version: str) -> str:
    """How the version in an engine's config.json differs from the asked one, or nothing."""
    found = config.get("version")
    if not isinstance(found, str) or not found:
        return "config.json names no version of the tool that built it"
    if found.startswith(version) and _SAME_VERSION.fullmatch(found[len(version) :]):
        return ""
    return (
        f"config.json says it was built by version {found}, engine.version asks for {version}; "
        "set engine.image to an image of that version, or engine.version to the image's"
    )


def safetensors_problem(path: Path) -> str:
    """What is wrong with a safetensors file as a container, or nothing; its data are not read.

    Raises:
        OSError: The storage failed.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
        if not 0 < length <= min(_HEADER_LIMIT_BYTES, size - _HEADER_LENGTH_BYTES):
            return f"{path.name} ({size} bytes) is no safetensors file: no header"
        try:
            header = json.loads(file.read(length))
            ends = [
                int(entry["data_offsets"][1])
                for name, entry in header.items()
                if name != "__metadata__"
            ]
        except _NO_HEADER:
            return f"{path.name} is no safetensors file: its header cannot be read"
    wanted = _HEADER_LENGTH_BYTES + length + max(ends, default=0)
    if size != wanted:
        return f"{path.name} has {size} bytes, its header describes {wanted}: it is cut off"
    return ""


def _check_weights(out: Path, there: list[str], *, split: bool) -> None:
    """All weight files are whole; of a checkpoint in Hugging Face form, all shards are there."""
    weights = sorted(name for name in there if name.endswith(_SAFETENSORS))
    if not weights:
        raise IncompleteError("there is no *.safetensors: the checkpoint has no weights")
    if not split and _INDEX in there:
        table = _object(out / _INDEX).get("weight_map")
        if not isinstance(table, Mapping):
            raise ResultError(f"{_INDEX} has no weight_map")
        lacking = sorted({str(name) for name in table.values()} - set(weights))
        if lacking:
            raise IncompleteError(f"{_INDEX} names {lacking[0]}, which is not there")
    for name in weights:
        problem = safetensors_problem(out / name)
        if problem:
            raise IncompleteError(problem)


def _is_full(path: Path) -> bool:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except JsonFileError as error:
        raise ResultError(str(error)) from error
