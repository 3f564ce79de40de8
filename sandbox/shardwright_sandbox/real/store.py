"""A containerd store with the sandbox's base images, built once and shown to each node.

Unpacking 300 MB for each node at each start would take most of the start. Unpacked files are never
written to (containers write to a layer of their own above them), so nodes can share them: the large
parts of a node's store are read-only views of the shared one, in the node's own mount namespace.
"""

import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.real.host import Host
from shardwright_sandbox.real.machine import Machine

NAMESPACE = "k8s.io"
"""Where the kubelet looks for images."""

_SOCKET = "/run/containerd.sock"
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
_DATABASE = ".db"
# Where the overlayfs snapshotter keeps unpacked layers: snapshots/<number>/fs.
_LAYERS, _LAYER = "snapshots", "fs"
_SMALL_BYTES = 1 << 20
_START_SECONDS = 30.0


def fill(host: Host, folder: Path, archives: Sequence[Path]) -> None:
    """Import OCI archives into the containerd store `folder`, which is made if it is not there.

    A containerd runs for that in namespaces of its own, so its mounts end with it.

    Raises:
        SandboxError: If containerd does not start or refuses an archive.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-store-") as scratch:
        config, log = Path(scratch, "config.toml"), Path(scratch, "log")
        config.write_text(
            f'version = 2\nroot = "{folder}"\nstate = "/run/state"\n[grpc]\naddress = "{_SOCKET}"\n'
        )
        script = 'mount -t tmpfs tmpfs /run && exec "$0" --config "$1"'
        command = [*_NAMESPACES, "sh", "-c", script, host.containerd, str(config)]
        with (
            log.open("w") as output,
            subprocess.Popen(command, stdout=output, stderr=output) as server,
        ):
            enter = ["nsenter", f"--target={server.pid}", "--mount", "--"]
            ctr = [*enter, "ctr", "--address", _SOCKET, "--namespace", NAMESPACE]
            try:
                _until_it_answers([*ctr, "version"], server, log)
                for archive in archives:
                    _run([*ctr, "images", "import", str(archive)])
            finally:
                server.kill()


def give(shared: Path, target: Path, machine: Machine) -> None:
    """Make a node's store `target` from the shared one, for a containerd on `machine`.

    Layers and blobs are mounted there; the rest, containerd's databases above all, is copied.
    """
    views: list[tuple[Path, Path]] = []

    def copy(source: str, to: str) -> None:
        if Path(source).suffix != _DATABASE and Path(source).stat().st_size > _SMALL_BYTES:
            Path(to).touch()
            views.append((Path(source), Path(to)))
        else:
            shutil.copy2(source, to)

    def leave_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name == _LAYER and Path(folder).parent.name == _LAYERS]

    shutil.copytree(shared, target, ignore=leave_out, copy_function=copy)
    for layer in shared.glob(f"*/{_LAYERS}/*/{_LAYER}"):
        shown = target / layer.relative_to(shared)
        shown.mkdir()
        views.append((layer, shown))
    script = "".join(
        f"mount --bind -o ro {shlex.quote(str(source))} {shlex.quote(str(to))} || exit 1\n"
        for source, to in views
    )
    machine.run("sh", stdin=script)


def _until_it_answers(command: list[str], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while subprocess.run(command, capture_output=True, check=False).returncode != 0:
        if server.poll() is not None or time.monotonic() > deadline:
            raise SandboxError(f"containerd does not start; its log:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(
            f"`{' '.join(command)}` failed (exit {done.returncode}): {done.stderr.strip()[-1500:]}"
        )
