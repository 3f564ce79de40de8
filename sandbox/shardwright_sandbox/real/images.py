"""The images of real nodes, made from Debian packages: no registry, no container engine.

`tools` is busybox: the pause container, and what tests run. The stand-in images carry the names of
the vendors' images, so that pods rendered for those run here unchanged: Debian's Python, numpy,
mpi4py and Open MPI below, the programs of `sandbox/standin` on top.
"""

import hashlib
import json
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwright_sandbox.cache import produce
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.real import store
from shardwright_sandbox.real.archive import Image, Layer, architecture, write_archive
from shardwright_sandbox.real.host import Host

SUITE = "bookworm"
TOOLS = "sandbox.shardwright.dev/tools:1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What nobody reads in a container.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")


@dataclass(frozen=True, slots=True)
class _Root:
    name: str
    reference: str
    variant: str
    packages: tuple[str, ...]
    hooks: tuple[str, ...] = ()


_ROOTS = (
    _Root(
        name="tools",
        reference=TOOLS,
        # unpacked and no more: busybox makes its links itself
        variant="extract",
        packages=("busybox",),
        hooks=(
            'chroot "$1" /bin/busybox --install -s /bin',
            'mkdir -p "$1/etc" "$1/tmp" && chmod 1777 "$1/tmp"',
        ),
    ),
    _Root(
        name="standin",
        reference="sandbox.shardwright.dev/standin-base:1",
        variant="essential",
        # as sandbox/standin/README.md has them
        packages=(
            "openmpi-bin",
            "python3",
            "python3-click",
            "python3-mpi4py",
            "python3-numpy",
            "python3-prometheus-client",
            "python3-yaml",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class BaseImages:
    """A containerd store with the images that do not change with our sources."""

    store: Path
    standin: tuple[Layer, ...]


def base_images(host: Host, progress: Progress) -> BaseImages:
    """Tools and the stand-ins' base, built once (about a minute) and cached.

    Raises:
        SandboxError: If the Debian packages cannot be fetched, unpacked or imported.
    """

    def make(folder: Path) -> None:
        progress.say(f"building the base images of real nodes from Debian {SUITE}, once")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            archives, layers = [], {}
            for root in _ROOTS:
                tar, archive = Path(scratch, f"{root.name}.tar"), Path(scratch, f"{root.name}.oci")
                _debootstrap(root, tar)
                layers[root.name] = Layer.of(tar)
                write_archive(archive, [_image(root, layers[root.name])], [tar])
                archives.append(archive)
            store.fill(host, folder / "store", archives)
        known = {name: asdict(layer) for name, layer in layers.items()}
        (folder / "layers.json").write_text(json.dumps(known))

    parts = [SUITE, architecture(), host.version(), *(repr(root) for root in _ROOTS)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    folder = produce("images", digest, make, progress)
    layers = json.loads((folder / "layers.json").read_text())
    return BaseImages(folder / "store", (Layer(**layers["standin"]),))


def _image(root: _Root, layer: Layer) -> Image:
    return Image(
        reference=root.reference,
        layers=(layer,),
        environment={"PATH": PATH},
        command=("sleep", "infinity"),
    )


def _debootstrap(root: _Root, target: Path) -> None:
    """Write the root file system of these packages as a tar file."""
    command = [
        "mmdebstrap",
        "--quiet",
        f"--variant={root.variant}",
        f"--include={','.join(root.packages)}",
        *(f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT),
        *(f"--extract-hook={hook}" for hook in root.hooks),
        SUITE,
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(
            f"mmdebstrap of {', '.join(root.packages)} failed (exit {done.returncode}); it needs a "
            f"Debian mirror:\n{done.stderr.strip()[-1500:]}"
        )
