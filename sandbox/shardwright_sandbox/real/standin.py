"""The stand-ins' images: the programs of `sandbox/standin` above a base of Debian packages.

They carry the names of the vendors' images that the operator renders, one a release; what differs
between them is only which release they say they are.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardwright.runtimes.tensorrt_versions import KNOWN_VERSIONS, known_image
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.real.archive import Image, Layer, plain, write_archive
from shardwright_sandbox.real.images import PATH, BaseImages

SOURCES = Path(__file__).resolve().parents[2] / "standin"


def write_images(target: Path, base: BaseImages) -> Path:
    """Write the archive of all stand-in images; the base is left out, nodes have it already.

    Raises:
        SandboxError: If the stand-ins' own installer fails.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-standin-") as scratch:
        layer = Path(scratch, "layer.tar")
        _write_layer(layer, Path(scratch, "root"))
        images = [*_images((*base.standin, Layer.of(layer)))]
        write_archive(target, images, [layer])
    return target


def _images(layers: tuple[Layer, ...]) -> Iterator[Image]:
    for version in KNOWN_VERSIONS:
        reference = known_image(version)
        if reference is not None:
            environment = {"PATH": PATH, "SHARDWRIGHT_STANDIN_VERSION": version}
            yield Image(reference, layers, environment, ("sleep", "infinity"))


def _write_layer(target: Path, root: Path) -> None:
    # the installer adds to the folders of Debian's Python where it finds them
    (root / "usr/lib/python3/dist-packages").mkdir(parents=True)
    installer = [sys.executable, "-m", "shardwright_standin.install", "--root", str(root)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(installer, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(
            f"the installer of {SOURCES} failed (exit {done.returncode}): "
            f"{done.stderr.strip()[-1500:]}"
        )
    with tarfile.open(target, "w") as tar:
        for path in sorted(root.rglob("*")):
            # folders as well: those of the base keep their modes only if these agree
            tar.add(path, str(path.relative_to(root)), recursive=False, filter=plain)
