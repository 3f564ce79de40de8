"""Engines: what `trtllm-build` leaves in a folder, and what loading refuses.

Layout as the real one's (Engine.save in tensorrt_llm/builder.py): `config.json` with version,
pretrained_config and build_config, and `rank{N}.engine`. Like there, config.json knows no GPU and
no TensorRT: both are inside the plan files, and loading finds out.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright_standin import identity
from shardwright_standin.gpu import GPU
from shardwright_standin.model import tensorfile
from shardwright_standin.model.shards import Place

MAGIC = b"STANDIN\x01"
_LENGTH = struct.Struct("<Q")


class EngineError(RuntimeError):
    """An engine that does not fit, in the words the real runtime has for it."""


class EngineMismatchError(ValueError):
    """Asked for another split than the engine has."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """An engine folder's config.json."""

    version: str
    pretrained: Mapping[str, Any]
    build: Mapping[str, Any]

    @property
    def tensor(self) -> int:
        """Tensor-parallel ranks."""
        return int(self.pretrained["mapping"]["tp_size"])

    @property
    def pipeline(self) -> int:
        """Pipeline stages."""
        return int(self.pretrained["mapping"]["pp_size"])


def is_engine(folder: Path) -> bool:
    """Whether the folder's config.json is an engine's (as get_model_format tells)."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"pretrained_config", "build_config"} <= set(found)


def read_config(folder: Path) -> EngineConfig:
    """The engine's config.json.

    Raises:
        EngineError: When it is none.
    """
    if not is_engine(folder):
        raise EngineError(f"{folder}/config.json is not of an engine")
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return EngineConfig(
        version=str(found["version"]),
        pretrained=found["pretrained_config"],
        build=found["build_config"],
    )


def write_config(folder: Path, pretrained: Mapping[str, Any], build: Mapping[str, Any]) -> None:
    """What rank 0 writes."""
    content = {
        "version": identity.version(),
        "pretrained_config": dict(pretrained),
        "build_config": dict(build),
    }
    (folder / "config.json").write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")


def write_rank(folder: Path, place: Place, payload: bytes, gpu: GPU) -> None:
    """One plan file, bound to this release's TensorRT, the GPU and the world."""
    release = identity.version()
    tensorrt = identity.tensorrt(release)
    header = json.dumps(
        {
            "tensorrt": tensorrt,
            "tag": identity.serialization_tag(tensorrt),
            "compute": gpu.compute,
            "device": gpu.name,
            "rank": place.rank,
            "world": place.world,
            "bytes": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
        }
    ).encode()
    data = b"".join((MAGIC, _LENGTH.pack(len(header)), header, payload))
    (folder / f"rank{place.rank}.engine").write_bytes(data)


def read_rank(folder: Path, place: Place, gpu: GPU) -> tuple[tensorfile.Tensors, list[str]]:
    """The tensors in a rank's plan file, and warnings.

    Raises:
        EngineError: For a missing, cut or damaged file, another TensorRT, another compute
            capability, or another rank's file.
    """
    path = folder / f"rank{place.rank}.engine"
    if not path.exists():
        raise EngineError(
            f"[TensorRT-LLM][ERROR] Assertion failed: Error opening engine file: {path}"
        )
    data = path.read_bytes()
    header, payload = _split(path, data)
    own = identity.serialization_tag(identity.tensorrt(identity.version()))
    if header["tag"] != own:
        raise _undeserializable(
            "Error Code 1: Serialization (Serialization assertion stdVersionRead == "
            "kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current Version: "
            f"{own}, Serialized Engine Version: {header['tag']})"
        )
    if header["compute"] != gpu.compute:
        raise _undeserializable(
            "Error Code 6: API Usage Error (The engine plan file is generated on an incompatible "
            f"device, expecting compute {gpu.compute} got compute {header['compute']}, please "
            "rebuild.)"
        )
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise _undeserializable("Error Code 1: Serialization (Core engine checksum mismatch)")
    if (header["rank"], header["world"]) != (place.rank, place.world):
        raise EngineError(
            f"{path.name} is of rank {header['rank']} of {header['world']}, loaded as rank "
            f"{place.rank} of {place.world}"
        )
    warnings = []
    if header["device"] != gpu.name:
        warnings.append(
            "[TRT] [W] Using an engine plan file across different models of devices is not "
            f"recommended and is likely to affect performance or even cause errors: built on "
            f"{header['device']}, loaded on {gpu.name}"
        )
    return tensorfile.decode(payload, path.name), warnings


def check_split(config: EngineConfig, tensor: int, pipeline: int) -> None:
    """Compare asked sizes with the engine's; a size of 1 takes the engine's, as the real one does.

    Raises:
        EngineMismatchError: When they differ.
    """
    asked = (("tp_size", tensor, config.tensor), ("pp_size", pipeline, config.pipeline))
    for name, given, built in asked:
        if given not in (1, built):
            raise EngineMismatchError(
                f"{name} {given} is not consistent with the engine's {name} {built}"
            )


def check_world(config: EngineConfig, ranks: int) -> None:
    """Whether as many ranks run as the engine was built for (worldConfig.cpp).

    Raises:
        EngineError: When not.
    """
    if ranks != config.tensor * config.pipeline:
        raise EngineError(
            f"[TensorRT-LLM][ERROR] Assertion failed: MPI size {ranks} != TP size {config.tensor} "
            f"* PP size {config.pipeline} * CP Size 1"
        )


def _split(path: Path, data: bytes) -> tuple[Mapping[str, Any], bytes]:
    start = len(MAGIC) + _LENGTH.size
    if len(data) < start or not data.startswith(MAGIC):
        raise _undeserializable(f"Error Code 1: Serialization (magicTag mismatch in {path.name})")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    try:
        header = json.loads(data[start : start + length])
        size = int(header["bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise _undeserializable(f"Error Code 1: Serialization ({path.name}: {error})") from error
    payload = data[start + length :]
    if len(payload) != size:
        raise _undeserializable(
            f"Error Code 1: Serialization (Serialization assertion bufferSize >= {size} failed: "
            f"{path.name} holds {len(payload)} bytes)"
        )
    return header, payload


def _undeserializable(cause: str) -> EngineError:
    return EngineError(
        f"[TRT] [E] IRuntime::deserializeCudaEngine: {cause}\n"
        "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine."
    )
