"""Build the operator's image without Docker: `dist/image/` (OCI layout) and `dist/image.tar`.

The same image as the Dockerfile's: Debian 12's Python with the libraries it needs, below it the
locked requirements and this package in /opt/app; no shell, no package manager. The rootfs comes
from Debian packages that are unpacked, not installed. Two builds from the same Debian packages
have the same digest. What is packed is then unpacked again and run under a user id that no file
names, as OpenShift does.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from hack.oci import ImageError, Layer, Layout
from shardwright import __version__

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "ghcr.io/shardwright/operator"
SUITE = "bookworm"
PYTHON = "3.11"
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
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",  # noqa: S108 - a folder inside the image
    # A user id without a name in passwd is no reason to die.
    "LOGNAME": "shardwright",
    "PYTHONPATH": "/opt/app",
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


def config(created: str = "1970-01-01T00:00:00Z") -> dict[str, Any]:
    """The image's configuration, without its layers."""
    return {
        "created": created,
        "os": "linux",
        "architecture": architecture(),
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


def architecture() -> str:
    """This machine's architecture in Go's words, as images name it."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise ImageError(
            f"no image for {machine}: build on {' or '.join(_ARCHITECTURES)}, or use the Dockerfile"
        )
    return _ARCHITECTURES[machine]


def build(target: Path) -> None:
    """Build, check and report the image; `target` becomes the layout, `target`.tar the archive."""
    began = time.monotonic()
    os.umask(0o022)  # modes reach the image; this machine's habits must not
    with tempfile.TemporaryDirectory(prefix="shardwright-image-") as scratch:
        rootfs, app = Path(scratch, "rootfs"), Path(scratch, "app")
        make_rootfs(rootfs)
        make_app(app, Path(scratch))
        certificates(rootfs, app)
        compile_bytecode(rootfs, app)
        shutil.rmtree(target, ignore_errors=True)
        layout = Layout(target)
        layers = [layout.add_layer(rootfs), layout.add_layer(app)]
        reference = f"{REPOSITORY}:{__version__}"
        manifest = layout.finish(layers, config(), reference)
        archive = target.with_suffix(".tar")
        layout.archive(archive)
        smoke(target, layers, Path(scratch, "check"))
    packed = sum(layer.blob.size for layer in layers) / 1e6
    unpacked = sum(layer.unpacked for layer in layers) / 1e6
    _say(f"{reference}@{manifest.digest}")
    _say(f"{packed:.1f} MB packed, {unpacked:.1f} MB unpacked, {time.monotonic() - began:.0f} s")
    _say(f"OCI layout in {target}; load it with: docker load --input {archive}")


def make_rootfs(rootfs: Path) -> None:
    """Debian's files, and the few that its packages make when they are installed."""
    tool = _mmdebstrap()
    _say(f"unpacking {len(PACKAGES)} Debian packages")
    full = rootfs.with_name("debian")
    _run(
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


def make_app(app: Path, scratch: Path) -> None:
    """The locked requirements and this package in `app`/opt/app."""
    target = app / "opt" / "app"
    _say("installing the locked requirements")
    tag = platform.machine()
    _pip(
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
        f"--requirement={ROOT / 'requirements' / 'runtime.txt'}",
    )
    # console scripts name the interpreter of this machine
    shutil.rmtree(target / "bin", ignore_errors=True)
    _say("building the wheel of this package")
    _pip("wheel", "--quiet", "--no-deps", f"--wheel-dir={scratch / 'wheel'}", ROOT)
    (wheel,) = (scratch / "wheel").glob("shardwright-*.whl")
    # a wheel of Python files only is complete when it is unpacked; pip would note our paths
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)  # noqa: S202 - built from this folder just now


def certificates(rootfs: Path, app: Path) -> None:
    """The certificate authorities of the locked certifi, where OpenSSL is told to look."""
    source = app / "opt/app/certifi/cacert.pem"
    shutil.copyfile(source, rootfs / "etc/ssl/certs/ca-certificates.crt")


def compile_bytecode(rootfs: Path, app: Path) -> None:
    """Bytecode for both trees, written by the image's own Python.

    A read-only container could not keep it and would compile at every start. It is checked by
    nothing at run time (`unchecked-hash`): files of an image do not change, and times are zero.
    """
    _say("compiling bytecode")
    for folder in (rootfs, app):
        for cache in [*folder.rglob("__pycache__")]:
            shutil.rmtree(cache)
    mounted = rootfs / "opt"
    shutil.move(app / "opt", mounted)
    try:
        python = (f"/usr/bin/python{PYTHON}", "-m", "compileall", "-q", "-j1")
        trees = (f"/usr/lib/python{PYTHON}", "/opt/app")
        _run(*_chroot(rootfs), *python, "--invalidation-mode=unchecked-hash", *trees)
    finally:
        shutil.move(mounted, app / "opt")


def smoke(layout: Path, layers: list[Layer], folder: Path) -> None:
    """Unpack what was written and run it as a stranger."""
    folder.mkdir()
    for layer in layers:
        blob = layout / "blobs" / layer.blob.digest.replace(":", "/")
        with tarfile.open(blob, "r:gz") as tar:
            tar.extractall(folder, filter="tar")
    user = (f"--userspec={FOREIGN_UID}:{FOREIGN_UID}",) if os.geteuid() == 0 else ()
    if not user:
        _say("not root: the check runs the image under one user id only")
    script = (
        "import getpass, os, ssl, sys, aiohttp, kopf, kubernetes, pydantic, yaml, shardwright; "
        "assert ssl.create_default_context().get_ca_certs(), 'no certificate authorities'; "
        "assert '' not in sys.path, sys.path; "
        "print(f'uid {os.getuid()} as {getpass.getuser()}: '"
        "      f'shardwright {shardwright.__version__}, Python {sys.version.split()[0]}')"
    )
    told = _run(*_chroot(folder, *user), "/usr/bin/python3", "-c", script, env=ENVIRONMENT)
    _say(f"checked: {told.strip()}")
    if (folder / "opt/app/shardwright/__main__.py").exists():
        _run(*_chroot(folder, *user), *ENTRYPOINT, "--help", env=ENVIRONMENT)
        _say(f"checked: {' '.join(ENTRYPOINT)} --help")


def _chroot(folder: Path, *options: str) -> tuple[str, ...]:
    chroot = shutil.which("chroot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if chroot is None:
        raise ImageError("there is no chroot here (Debian: coreutils); use the Dockerfile")
    unprivileged = () if os.geteuid() == 0 else ("unshare", "--map-root-user")
    return (*unprivileged, chroot, *options, str(folder))


def _mmdebstrap() -> str:
    if found := shutil.which("mmdebstrap"):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ImageError(
            "mmdebstrap is not installed and only root on a Debian system can add it: install it "
            "(apt-get install mmdebstrap), or build with the Dockerfile"
        )
    _say("installing the Debian package mmdebstrap")
    _run("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "mmdebstrap")
    found = shutil.which("mmdebstrap")
    if found is None:
        raise ImageError("apt-get installed mmdebstrap, but it is not on PATH")
    return found


def _pip(*arguments: object) -> str:
    return _run(sys.executable, "-m", "pip", *arguments)


def _run(*command: object, env: dict[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(  # noqa: S603 - programs of this file
        words, capture_output=True, text=True, check=False, env=env
    )
    if done.returncode != 0:
        raise ImageError(
            f"`{' '.join(words)[:300]}` failed (exit {done.returncode}):\n"
            f"{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def _say(text: str) -> None:
    sys.stderr.write(f"image: {text}\n")


def main() -> int:
    """Build `dist/image`."""
    try:
        build(ROOT / "dist" / "image")
    except ImageError as error:
        sys.stderr.write(f"image: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
