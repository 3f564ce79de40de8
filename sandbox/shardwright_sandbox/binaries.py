"""The programs of control plane and nodes: found, or built once and cached."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright_sandbox.cache import produce
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.golang import find_go, go_environment, go_version
from shardwright_sandbox.patches import PATCHES, patched
from shardwright_sandbox.progress import Progress

KUBERNETES = "1.37.2"
SOURCES = Path(__file__).resolve().parents[1] / "controlplane"
_DNS_SOURCES = SOURCES.with_name("dns")

_MULTICALL = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_ON_NODES = ("kubelet", "kube-proxy")
_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.split(".")
# Without the stamp the API server calls itself v0.0.0-master, and Helm refuses
# every chart that has a kubeVersion.
_LDFLAGS = (
    f"-s -w -X {_VERSION_PACKAGE}.gitVersion=v{KUBERNETES}"
    f" -X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}"
)
_FLAGS = ("-trimpath", "-buildvcs=false", "-ldflags", _LDFLAGS)
_PACKAGES = {
    "controlplane": ".",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    "deviceplugin": "./deviceplugin",
    "dns": ".",
}


@dataclass(frozen=True)
class Binaries:
    """Where each program is."""

    etcd: Path
    apiserver: Path
    controller_manager: Path
    scheduler: Path
    kwok: Path


@dataclass(frozen=True)
class NodeBinaries:
    """Where each program of real nodes is that no package of the system brings."""

    kubelet: Path
    kube_proxy: Path
    device_plugin: Path
    dns: Path


def control_plane(progress: Progress) -> Binaries:
    """Every program of the control plane, built only where none is given.

    `KUBEBUILDER_ASSETS` is envtest's convention: a folder with etcd and
    kube-apiserver, and perhaps more.
    """
    given = _given()
    missing = [name for name in _MULTICALL if name not in given]
    wanted = (["controlplane"] if missing else []) + ([] if "kwok" in given else ["kwok"])
    if wanted:
        folder = _built(SOURCES, wanted, progress)
        for name in (*_MULTICALL, "kwok"):
            given.setdefault(name, folder / name)
    return Binaries(
        etcd=given["etcd"],
        apiserver=given["kube-apiserver"],
        controller_manager=given["kube-controller-manager"],
        scheduler=given["kube-scheduler"],
        kwok=given["kwok"],
    )


def node_programs(progress: Progress) -> NodeBinaries:
    """Kubelet and kube-proxy out of the control plane's file, the device plugin, and CoreDNS."""
    # the same two as without real nodes: one build serves both
    multicall = _built(SOURCES, ["controlplane", "kwok"], progress)
    return NodeBinaries(
        kubelet=multicall / "kubelet",
        kube_proxy=multicall / "kube-proxy",
        device_plugin=_built(SOURCES, ["deviceplugin"], progress) / "deviceplugin",
        dns=_built(_DNS_SOURCES, ["dns"], progress) / "dns",
    )


def _given() -> dict[str, Path]:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return {}
    folder = Path(assets).expanduser()
    if not folder.is_dir():
        raise SandboxError(
            f"KUBEBUILDER_ASSETS={assets} is not a folder; it must hold etcd and kube-apiserver, "
            "or be unset so that the sandbox builds its own"
        )
    found = {name: folder / name for name in (*_MULTICALL, "kwok") if (folder / name).exists()}
    for needed in ("etcd", "kube-apiserver"):
        if needed not in found:
            raise SandboxError(
                f"KUBEBUILDER_ASSETS={assets} holds no {needed}; add it, or unset the variable so "
                "that the sandbox builds its own"
            )
    return found


def _key(go: Path, sources: Path, wanted: list[str]) -> str:
    """Hash of all that decides the bytes of the build."""
    digest = hashlib.sha256()
    for path in sorted([*sources.rglob("*.go"), sources / "go.mod", sources / "go.sum"]):
        name = path.relative_to(sources).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    patches = map(repr, PATCHES) if "kwok" in wanted else ()
    for part in (go_version(go), *os.uname()[::4], *_FLAGS, *wanted, *patches):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:20]


def _built(sources: Path, wanted: list[str], progress: Progress) -> Path:
    go = find_go(progress)

    def make(folder: Path) -> None:
        progress.say(
            f"building {' and '.join(wanted)} (Kubernetes {KUBERNETES}, {go_version(go)}); "
            "minutes on two cores the first time, cached afterwards"
        )
        packages = [_PACKAGES[name] for name in wanted]
        with tempfile.TemporaryDirectory() as scratch:
            flags = patched(go, sources, Path(scratch)) if "kwok" in wanted else ()
            _go_build(go, sources, flags, packages, folder, progress)
        if "controlplane" in wanted:
            for name in (*_MULTICALL, *_ON_NODES):
                (folder / name).symlink_to("controlplane")
        progress.say("built")

    return produce(sources.name, _key(go, sources, wanted), make, progress)


def _go_build(
    go: Path,
    sources: Path,
    flags: Sequence[str],
    packages: list[str],
    folder: Path,
    progress: Progress,
) -> None:
    """Build `packages` into `folder`, with `-v` turned into a count of what is compiled."""
    _enough_room(folder)
    command = [str(go), "build", "-v", *_FLAGS, *flags, "-o", f"{folder}{os.sep}", *packages]
    compiled = fetched = 0
    tail: deque[str] = deque(maxlen=30)
    with subprocess.Popen(
        command,
        cwd=sources,
        env=go_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None  # noqa: S101 - PIPE was asked for
        for line in process.stdout:
            tail.append(line.rstrip())
            if line.startswith("go: downloading"):
                fetched += 1
                progress.tick(f"fetched {fetched} Go modules")
            else:
                compiled += 1
                progress.tick(f"compiled {compiled} packages, now {line.strip()}")
    if process.returncode != 0:
        raise SandboxError(
            f"`go build` of {', '.join(packages)} in {sources} failed (exit {process.returncode}); "
            "it needs Go >= 1.26, a Go module proxy and 5 GB of disk:\n" + "\n".join(tail)
        )


_NEEDED_GB = 5


def _enough_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free / 1e9
    if free < _NEEDED_GB:
        raise SandboxError(
            f"{folder} has {free:.1f} GB free, the build needs {_NEEDED_GB}; free some, or set "
            "SHARDWRIGHT_CACHE to a folder on another disk"
        )
