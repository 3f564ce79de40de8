"""An image for the fetch step on real nodes: this package and its clients, above Debian's Python.

The operator's own image takes minutes and a package index to build (`make image`). This one holds
the same code and, of the locked requirements, what fetching imports, as they are installed here.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

import shardwright
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.real.archive import Image, Layer, plain, write_archive
from shardwright_sandbox.real.host import require
from shardwright_sandbox.real.images import PATH, base_images

REFERENCE = "sandbox.shardwright.dev/fetch:1"
# Debian bookworm's, which the base has: the clients bring compiled modules.
PYTHON = (3, 11)
_ROOT = "opt/app"
# What shardwright.fetching imports.
_CLIENTS = ("awscrt", "httpx2", "huggingface_hub", "tenacity", "urllib3")


def write_fetch_image(target: Path) -> Path:
    """Write the image's archive; its base is left out, real nodes have it already.

    Raises:
        SandboxError: When this Python's compiled modules would not load in the image.
    """
    if sys.version_info[:2] != PYTHON:
        raise SandboxError(
            f"the image for fetching takes compiled modules from this Python "
            f"{sys.version_info.major}.{sys.version_info.minor}, its base has "
            f"{'.'.join(map(str, PYTHON))}: run the tests with that"
        )
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for path, name in sorted(_files(), key=lambda entry: entry[1]):
            tar.add(path, f"{_ROOT}/{name}", recursive=False, filter=plain)
    base = base_images(require(), Progress(quiet=True))
    image = Image(
        REFERENCE,
        (*base.standin, Layer.of(layer)),
        {"PATH": PATH, "PYTHONPATH": f"/{_ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        ("sleep", "infinity"),
    )
    write_archive(target, [image], [layer])
    layer.unlink()
    return target


def _files() -> Iterator[tuple[Path, str]]:
    """Every file of the image's layer, and where it goes below the root."""
    package = Path(shardwright.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path, str(path.relative_to(package.parent))
    for name in _with_dependencies(*_CLIENTS):
        for file in distribution(name).files or ():
            # Console scripts lie outside of the packages' folder.
            if file.suffix != ".pyc" and ".." not in file.parts:
                yield Path(str(file.locate())), str(file)


def _with_dependencies(*names: str) -> set[str]:
    found: set[str] = set()
    open_ = list(names)
    while open_:
        name = open_.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        for text in distribution(name).requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                open_.append(wanted.name)
    return found
