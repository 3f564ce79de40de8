"""Container images as one file, from layers that are tar files already.

The layers stay uncompressed: no registry carries them, containerd unpacks them on this machine.
Source of the format: the OCI image specification 1.1.
"""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.rest import Json

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's digest (`sha256:…`) and size in bytes."""

    digest: str
    size: int

    @classmethod
    def of(cls, path: Path) -> "Layer":
        """The layer that a tar file is."""
        with path.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return cls(f"sha256:{digest}", path.stat().st_size)


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its full name, its layers from the bottom up, what its containers start with."""

    reference: str
    layers: tuple[Layer, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()


def write_archive(target: Path, images: Sequence[Image], layers: Sequence[Path]) -> None:
    """Write images to one OCI archive.

    Args:
        target: the file.
        images: what to write; they may share layers.
        layers: tar files of those layers that go into the archive. One that is left out must be
            where the archive is imported.
    """
    with tarfile.open(target, "w") as tar:
        for path in layers:
            tar.add(path, arcname=_blob(Layer.of(path).digest), filter=plain)
        entries = [_write_image(tar, image) for image in images]
        _write(tar, "oci-layout", {"imageLayoutVersion": "1.0.0"})
        _write(tar, "index.json", {"schemaVersion": 2, "mediaType": _INDEX, "manifests": entries})


def architecture() -> str:
    """This machine's architecture in the words of images.

    Raises:
        SandboxError: For one that is not known here.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise SandboxError(
            f"no images for {machine}: real nodes run on {' and '.join(_ARCHITECTURES)}"
        )
    return _ARCHITECTURES[machine]


def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out owner, time and this user's habits: the same files give the same layer."""
    info.uid = info.gid = 0
    info.mtime = 0
    info.uname = info.gname = ""
    info.mode |= 0o555 if info.isdir() else 0o444
    return info


def _write_image(tar: tarfile.TarFile, image: Image) -> Json:
    platform_ = {"os": "linux", "architecture": architecture()}
    config = {
        **platform_,
        "config": {
            "Env": [f"{name}={value}" for name, value in sorted(image.environment.items())],
            "Cmd": list(image.command),
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in image.layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _write(tar, "", config, _CONFIG),
        "layers": [
            {"mediaType": _LAYER, "digest": layer.digest, "size": layer.size}
            for layer in image.layers
        ],
    }
    return {
        **_write(tar, "", manifest, _MANIFEST),
        "platform": platform_,
        "annotations": {"io.containerd.image.name": image.reference},
    }


def _write(tar: tarfile.TarFile, name: str, document: Json, media_type: str = "") -> Json:
    """Write a document under its name, or as a blob; how others refer to it."""
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    info = tarfile.TarInfo(name or _blob(digest))
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
