"""The stand-ins' images: the programs of `sandbox/standin` above a base of Debian packages.

They carry the names of the vendors' images that the operator renders, one a release; what differs
between them is which release they say they are, to their users and in their package metadata, and
where Triton's images have their tools.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shardwright.api.engines import DEFAULT_VERSIONS
from shardwright.runtimes import sglang, tensorrt_versions, triton_versions, vllm
from shardwright.runtimes.direct import known_image as project_image
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.real.archive import Image, Layer, plain, write_archive
from shardwright_sandbox.real.images import PATH, BaseImages

SOURCES = Path(__file__).resolve().parents[2] / "standin"
# The operator assumes no image of NIM: this is the one that its example names.
NIM_IMAGE = "nvcr.io/nim/nvidia/vllm-model-free-nim:2.1.5"
# Images of the other runtimes' recorded versions.
OTHERS = (
    *(
        project_image(engine, version)
        for engine in (vllm.ENGINE, sglang.ENGINE)
        for version in engine.versions
    ),
    NIM_IMAGE,
)
DEFAULT_IMAGE = tensorrt_versions.known_image(DEFAULT_VERSIONS["TensorRTLLM"])


def write_images(target: Path, base: BaseImages) -> Path:
    """Write the archive of all stand-in images; the base is left out, nodes have it already.

    Raises:
        SandboxError: If the stand-ins' own installer fails.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-standin-") as scratch:
        made = {
            reference: _layer(Path(scratch, str(number)), version, triton=triton)
            for number, (reference, version, triton) in enumerate(_known())
        }
        layers: dict[str | None, tuple[Layer, ...]] = {
            name: (*base.standin, Layer.of(layer)) for name, layer in made.items()
        }
        images = [
            *(_image(reference, found) for reference, found in layers.items()),
            # every layer has all programs: which release of TensorRT-LLM is of no meaning here
            *(_image(reference, layers[DEFAULT_IMAGE]) for reference in OTHERS),
        ]
        write_archive(target, images, list(made.values()))
    return target


def _known() -> Iterator[tuple[str, str, bool]]:
    """Each image's name, its release of TensorRT-LLM, and whether it is Triton's."""
    for version in tensorrt_versions.KNOWN_VERSIONS:
        if reference := tensorrt_versions.known_image(version):
            yield reference, version, False
    for version in triton_versions.KNOWN_VERSIONS:
        if reference := triton_versions.known_image(version):
            yield reference, version, True


def _image(reference: str | None, layers: tuple[Layer, ...]) -> Image:
    assert reference is not None  # noqa: S101 - the callers have left the others out
    return Image(reference, layers, {"PATH": PATH}, ("sleep", "infinity"))


def _layer(folder: Path, version: str, *, triton: bool) -> Path:
    """One release's programs and package metadata, as a tar file beside its root."""
    root = folder / "root"
    # the installer adds to the folders of Debian's Python where it finds them
    (root / "usr/lib/python3/dist-packages").mkdir(parents=True)
    installer = [sys.executable, "-m", "shardwright_standin.install"]
    installer += [f"--root={root}", f"--version={version}", *(["--triton"] if triton else [])]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(installer, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(
            f"the installer of {SOURCES} failed (exit {done.returncode}): "
            f"{done.stderr.strip()[-1500:]}"
        )
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        for path in sorted(root.rglob("*")):
            # folders as well: those of the base keep their modes only if these agree
            tar.add(path, str(path.relative_to(root)), recursive=False, filter=plain)
    return layer
