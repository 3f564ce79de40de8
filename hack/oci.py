"""Write a container image without a container engine: the OCI image layout, in pure Python.

Only names, modes and bytes of the files reach the image: owners become 0:0, times become `epoch`,
and names are sorted, so that the same files give the same digest on every machine.

Source of the format: the OCI image specification 1.1 (image-layout, manifest, config and layer).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
import tarfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_BLOCK = 1 << 20


class ImageError(RuntimeError):
    """An image cannot be made from what there is."""


@dataclass(frozen=True)
class Blob:
    """One file of the layout, named by its digest; `size` in bytes."""

    media_type: str
    digest: str
    size: int

    def descriptor(self) -> dict[str, Any]:
        """As manifests and indexes refer to it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class Layer:
    """A packed layer: its blob, and the digest and size in bytes of the tar inside."""

    blob: Blob
    diff_id: str
    unpacked: int


class Layout:
    """An image layout being written to `folder`, which must be empty or absent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def add_layer(self, root: Path, *, epoch: int = 0) -> Layer:
        """Pack all files below `root` as one layer.

        Raises:
            ImageError: If there is a socket, pipe or device, which no layer of ours needs.
        """
        packed = self._blobs / f".{uuid.uuid4().hex}"  # several may be in the making
        with (
            packed.open("wb") as raw,
            # level 6 takes two thirds longer for 5 % fewer bytes
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=4) as gz,
        ):
            counting = _Hashing(gz)
            with tarfile.open(
                fileobj=cast("IO[bytes]", counting),
                mode="w|",
                format=tarfile.PAX_FORMAT,
                bufsize=_BLOCK,
            ) as tar:
                for path in _sorted(root):
                    _add(tar, path, path.relative_to(root).as_posix(), epoch)
        blob = self._named(packed, _LAYER)
        return Layer(blob, f"sha256:{counting.sha.hexdigest()}", counting.size)

    def take(self, layer: Layer, other: Path) -> None:
        """Add a layer that the layout in `other` has."""
        name = _blob_path(layer.blob)
        shutil.copyfile(other / name, self.folder / name)

    def path(self, layer: Layer) -> Path:
        """The file of a layer."""
        return self.folder / _blob_path(layer.blob)

    def finish(self, layers: list[Layer], config: dict[str, Any], reference: str) -> Blob:
        """Write config, manifest and index; returns the manifest's blob.

        `config` is the image configuration without `rootfs`, which follows from the layers.
        """
        config = {**config, "rootfs": {"type": "layers", "diff_ids": [x.diff_id for x in layers]}}
        config_blob = self._json(config, _CONFIG)
        manifest = self._json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": config_blob.descriptor(),
                "layers": [layer.blob.descriptor() for layer in layers],
            },
            _MANIFEST,
        )
        entry = manifest.descriptor() | {
            "annotations": {
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
            },
            "platform": {"os": config["os"], "architecture": config["architecture"]},
        }
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}
        (self.folder / "index.json").write_bytes(_bytes(index))
        # What `docker load` looks for; containerd, podman and skopeo read index.json.
        docker = [
            {
                "Config": _blob_path(config_blob),
                "RepoTags": [reference],
                "Layers": [_blob_path(layer.blob) for layer in layers],
            }
        ]
        (self.folder / "manifest.json").write_bytes(_bytes(docker))
        return manifest

    def archive(self, target: Path) -> None:
        """The whole layout as one tar file, for `docker load` or `ctr images import`."""
        with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
            for path in _sorted(self.folder):
                _add(tar, path, path.relative_to(self.folder).as_posix(), 0)

    def _json(self, document: object, media_type: str) -> Blob:
        path = self._blobs / ".json"
        path.write_bytes(_bytes(document))
        return self._named(path, media_type)

    def _named(self, path: Path, media_type: str) -> Blob:
        with path.open("rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
        size = path.stat().st_size
        path.rename(self._blobs / digest)
        return Blob(media_type, f"sha256:{digest}", size)


class _Hashing:
    """Passes writes on and hashes them."""

    def __init__(self, target: gzip.GzipFile) -> None:
        self._target = target
        self.sha = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.sha.update(data)
        self.size += len(data)
        return self._target.write(data)


def _bytes(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _blob_path(blob: Blob) -> str:
    return f"blobs/{blob.digest.replace(':', '/')}"


def _sorted(root: Path) -> list[Path]:
    """Everything below `root`, folders before what is in them, links not followed."""
    found = []
    for folder, folders, files in os.walk(root):
        found += [Path(folder, name) for name in (*folders, *files)]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _add(tar: tarfile.TarFile, path: Path, name: str, epoch: int) -> None:
    status = path.lstat()
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = epoch
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        # the mode of a link means nothing and differs between systems
        info.mode = 0o777
        tar.addfile(info)
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        info.size = status.st_size
        with path.open("rb") as handle:
            tar.addfile(info, handle)
    else:
        raise ImageError(
            f"/{name} is neither file, folder nor link (mode {status.st_mode:o}): remove it before "
            "packing; a container gets its devices from the runtime"
        )
