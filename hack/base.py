"""What lies below this package in the operator's image: Debian's Python, locked requirements.

Two layers that change rarely, apart from the third with this package, so that an upgrade of the
operator brings a small one. The files come from Debian packages that are unpacked, not installed,
and from wheels of the locked versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from hack.oci import Blob, ImageError, Layer, Layout
from hack.programs import chroot, pip, plain_modes, run, say

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements" / "runtime.txt"
SUITE = "bookworm"
PYTHON = "3.11"
APP = "opt/app"
"""Where requirements and this package are, seen from the root."""
UID = 65532
# Python, what its standard library links to, and what wheels with C++ parts need.
PACKAGES = (
    "base-files",
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-stdlib",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    "netbase",
    "python3.11-minimal",
    "tzdata",
    "zlib1g",
)

_LAYERS = "layers.json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# What the operator needs of Debian; the rest (dpkg, tar, awk, man pages, the building machine's
# resolv.conf) came along with the packages and only widens what an intruder finds.
_KEPT = (
    "etc/debian_version",
    "etc/ethertypes",
    "etc/ld.so.conf.d",
    "etc/mime.types",
    "etc/os-release",
    "etc/protocols",
    "etc/python3.11",
    "etc/rpc",
    "etc/services",
    "lib",
    "lib64",
    "usr/bin/python3.11",
    "usr/lib",
    "usr/share/common-licenses",
    "usr/share/doc",
    "usr/share/zoneinfo",
    "var/lib/dpkg/status.d",
)
# Debian's image scanners read the packages of an image without dpkg from here.
_INVENTORY = (
    'mkdir -p "$1/var/lib/dpkg/status.d"; for deb in "$1"/var/cache/apt/archives/*.deb; do '
    'dpkg-deb --field "$deb" Package Version Architecture Maintainer Source '
    '> "$1/var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"; done'
)


def architecture() -> str:
    """This machine's architecture in Go's words, as images name it."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise ImageError(
            f"no image for {machine}: build on {' or '.join(_ARCHITECTURES)}, or use the Dockerfile"
        )
    return _ARCHITECTURES[machine]


def key() -> str:
    """Equal for equal base layers, but for newer versions of the Debian packages."""
    sources = (
        Path(__file__),
        ROOT / "hack" / "oci.py",
        ROOT / "hack" / "programs.py",
        REQUIREMENTS,
    )
    digest = hashlib.sha256(architecture().encode())
    for path in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:20]


def make_base(layout: Layout) -> list[Layer]:
    """Add both layers to a layout; needs a Debian mirror and an index with the locked wheels.

    Raises:
        ImageError: If packages or wheels cannot be fetched, or hold not what they used to.
    """
    with (
        plain_modes(),
        tempfile.TemporaryDirectory(prefix="shardwright-base-") as scratch,
        # both wait for the network first
        ThreadPoolExecutor(2) as workers,
    ):
        rootfs, app = Path(scratch, "rootfs"), Path(scratch, "app")
        both = (workers.submit(_make_rootfs, rootfs), workers.submit(_install, app / APP))
        for one in both:
            one.result()
        _add_certificates(rootfs, app)
        say("compiling bytecode")
        shutil.move(app / "opt", rootfs / "opt")
        compile_bytecode(rootfs, [f"/usr/lib/python{PYTHON}", f"/{APP}"])
        shutil.move(rootfs / "opt", app / "opt")
        say("packing")
        return list(workers.map(layout.add_layer, (rootfs, app)))


def write(folder: Path) -> None:
    """Make a layout in `folder` that holds the base's layers, for `read`."""
    layers = make_base(Layout(folder))
    (folder / _LAYERS).write_text(json.dumps([asdict(layer) for layer in layers]))


def read(folder: Path) -> list[Layer]:
    """The layers of a layout that `write` has made, from the bottom up."""
    known = json.loads((folder / _LAYERS).read_text())
    return [Layer(**{**layer, "blob": Blob(**layer["blob"])}) for layer in known]


def compile_bytecode(rootfs: Path, folders: Iterable[str]) -> None:
    """Bytecode for what is below `folders` of `rootfs`, written by the image's own Python.

    A read-only container could not keep it and would compile at every start. It is checked by
    nothing at run time (`unchecked-hash`): files of an image do not change, and times are zero.
    """
    sources: list[str] = []
    for folder in folders:
        tree = rootfs / folder.lstrip("/")
        for cache in [*tree.rglob("__pycache__")]:
            shutil.rmtree(cache)
        sources += [f"/{path.relative_to(rootfs)}" for path in tree.rglob("*.py")]
    python = (f"/usr/bin/python{PYTHON}", "-m", "compileall", "-q", "-i", "-")
    command = (*chroot(rootfs), *python, "--invalidation-mode=unchecked-hash")
    # compileall's own workers need shared memory, which a bare root has not
    count = os.cpu_count() or 1
    with ThreadPoolExecutor(count) as workers:
        parts = ["\n".join(sources[first::count]) for first in range(count)]
        list(workers.map(lambda part: run(*command, stdin=part), parts))


def _make_rootfs(rootfs: Path) -> None:
    """Debian's files, and the few that its packages make when they are installed."""
    tool = _mmdebstrap()
    say(f"unpacking {len(PACKAGES)} Debian packages")
    full = rootfs.with_name("debian")
    run(
        tool,
        "--quiet",
        "--variant=extract",
        f"--include={','.join(PACKAGES)}",
        f"--extract-hook={_INVENTORY}",
        SUITE,
        full,
    )
    for pattern in _KEPT:
        found = sorted(full.glob(pattern))
        if not found:
            raise ImageError(f"Debian's packages hold no {pattern} as they used to; see _KEPT")
        for source in found:
            target = rootfs / source.relative_to(full)
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
    shutil.rmtree(full)
    for path in (rootfs / "usr/share/doc").rglob("*"):
        if path.is_file() and path.name != "copyright":
            path.unlink()
    for folder in ("dev", "proc", "sys", "run", "tmp", "etc/ssl/certs"):
        (rootfs / folder).mkdir(parents=True, exist_ok=True)
    (rootfs / "tmp").chmod(0o1777)
    (rootfs / "usr/bin/python3").symlink_to(f"python{PYTHON}")
    etc = rootfs / "etc"
    (etc / "passwd").write_text(
        "root:x:0:0:root:/root:/sbin/nologin\n"
        f"shardwright:x:{UID}:{UID}:shardwright:/tmp:/sbin/nologin\n"
    )
    (etc / "group").write_text(f"root:x:0:\nshardwright:x:{UID}:\n")
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")


def _install(target: Path) -> None:
    """The locked requirements, for the image's Python whichever runs here."""
    say("installing the locked requirements")
    tag = platform.machine()
    pip(
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--require-hashes",
        "--only-binary=:all:",
        f"--platform=manylinux_2_28_{tag}",
        f"--platform=manylinux_2_17_{tag}",
        f"--platform=manylinux2014_{tag}",
        f"--python-version={PYTHON}",
        "--implementation=cp",
        f"--target={target}",
        f"--requirement={REQUIREMENTS}",
    )
    # console scripts name the interpreter of this machine
    shutil.rmtree(target / "bin", ignore_errors=True)


def _add_certificates(rootfs: Path, app: Path) -> None:
    """The certificate authorities of the locked certifi, where OpenSSL is told to look."""
    source = app / APP / "certifi/cacert.pem"
    shutil.copyfile(source, rootfs / "etc/ssl/certs/ca-certificates.crt")


def _mmdebstrap() -> str:
    if found := shutil.which("mmdebstrap"):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ImageError(
            "mmdebstrap is not installed and only root on a Debian system can add it: install it "
            "(apt-get install mmdebstrap), or build with the Dockerfile"
        )
    say("installing the Debian package mmdebstrap")
    run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "mmdebstrap")
    found = shutil.which("mmdebstrap")
    if found is None:
        raise ImageError("apt-get installed mmdebstrap, but it is not on PATH")
    return found
