"""Build the operator's image without Docker: `dist/image/` (OCI layout) and `dist/image.tar`.

The same image as the Dockerfile's: Debian 12's Python with the libraries it needs, above it the
locked requirements and this package in /opt/app; no shell, no package manager. Two builds from the
same Debian packages have the same digest. What is packed is then unpacked again and run under a
user id that no file names, as OpenShift does.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from hack import base
from hack.base import APP, REQUIREMENTS, ROOT, UID
from hack.oci import ImageError, Layout
from hack.programs import chroot, pip, plain_modes, run, say
from shardwright import __version__

REPOSITORY = "ghcr.io/shardwright/operator"
REFERENCE = f"{REPOSITORY}:{__version__}"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",  # noqa: S108 - a folder inside the image
    # A user id without a name in passwd is no reason to die.
    "LOGNAME": "shardwright",
    "PYTHONPATH": f"/{APP}",
    # The current folder is never searched for modules.
    "PYTHONSAFEPATH": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}
ENTRYPOINT = ("python3", "-m", "shardwright")
COMMAND = ("run",)
PORT = 8080
FOREIGN_UID = 12345

_INSIDE = Path(__file__).with_name("inside.py")


def config(created: str = "1970-01-01T00:00:00Z") -> dict[str, Any]:
    """The image's configuration, without its layers."""
    return {
        "created": created,
        "os": "linux",
        "architecture": base.architecture(),
        "config": {
            "User": f"{UID}:{UID}",
            "WorkingDir": "/",
            "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
            "Entrypoint": list(ENTRYPOINT),
            "Cmd": list(COMMAND),
            "ExposedPorts": {f"{PORT}/tcp": {}},
            "Labels": {
                "org.opencontainers.image.title": "shardwright",
                "org.opencontainers.image.description": "Operator that serves LLMs split over GPUs",
                "org.opencontainers.image.version": __version__,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
    }


def build(target: Path, kept: Path | None = None) -> Path:
    """Build, check and report the image; `target` becomes the layout.

    Args:
        target: The layout's folder; it is replaced. The archive is beside it, with `.tar`.
        kept: Where `base.write` has left the layers below this package; None makes them anew.

    Returns:
        The archive.

    Raises:
        ImageError: If something cannot be fetched, or the finished image does not run.
    """
    began = time.monotonic()
    shutil.rmtree(target, ignore_errors=True)
    layout = Layout(target)
    layers = base.make_base(layout) if kept is None else base.read(kept)
    if kept is not None:
        for layer in layers:
            layout.take(layer, kept)
    with plain_modes(), tempfile.TemporaryDirectory(prefix="shardwright-image-") as scratch:
        root, own = Path(scratch, "root"), Path(scratch, "own")
        for layer in layers:
            _unpack(layout.path(layer), root)
        _make_package(root, own, Path(scratch, "wheel"))
        layers.append(layout.add_layer(own))
        _unpack(layout.path(layers[-1]), root)
        check(root)
    manifest = layout.finish(layers, config(), REFERENCE)
    archive = target.with_suffix(".tar")
    layout.archive(archive)
    packed = sum(layer.blob.size for layer in layers) / 1e6
    unpacked = sum(layer.unpacked for layer in layers) / 1e6
    say(f"{REFERENCE}@{manifest.digest}")
    say(f"{packed:.1f} MB packed, {unpacked:.1f} MB unpacked, {time.monotonic() - began:.0f} s")
    return archive


def check(root: Path) -> None:
    """Run a finished image's files as a stranger.

    Raises:
        ImageError: With what is wrong with them.
    """
    user = (f"--userspec={FOREIGN_UID}:{FOREIGN_UID}",) if os.geteuid() == 0 else ()
    if not user:
        say("not root: the check runs the image under one user id only")
    inside = chroot(root, *user)
    script = ("/usr/bin/python3", "-c", _INSIDE.read_text())
    told = run(*inside, *script, env=ENVIRONMENT, stdin=REQUIREMENTS.read_text())
    say(f"checked: {told.strip()}")
    run(*inside, *ENTRYPOINT, "--help", env=ENVIRONMENT)
    say(f"checked: {' '.join(ENTRYPOINT)} --help")


def _make_package(root: Path, own: Path, wheels: Path) -> None:
    """This package below `own`, with bytecode by the Python of `root`."""
    say("building the wheel of this package")
    # with what the environment has locked: isolated, pip would fetch a build backend of its choice
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", ROOT)
    (wheel,) = wheels.glob("shardwright-*.whl")
    (own / APP).mkdir(parents=True)
    # a wheel of Python files only is complete when it is unpacked; pip would note our paths
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(own / APP)
    parts = sorted((own / APP).iterdir())
    for part in parts:
        part.rename(root / APP / part.name)
    base.compile_bytecode(root, [f"/{APP}/shardwright"])
    for part in parts:
        (root / APP / part.name).rename(part)


def _unpack(layer: Path, folder: Path) -> None:
    # tarfile takes several times as long for so many files
    folder.mkdir(exist_ok=True)
    run("tar", "--extract", "--gzip", "--file", layer, "--directory", folder)


def main() -> int:
    """Build `dist/image`."""
    try:
        archive = build(ROOT / "dist" / "image")
    except ImageError as error:
        say(str(error))
        return 1
    say(f"OCI layout in {archive.with_suffix('')}; load it with: docker load --input {archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
