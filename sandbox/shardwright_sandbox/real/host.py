"""What a machine needs for real nodes, what it lacks, and how that is installed."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.progress import Progress

PACKAGES = (
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "mmdebstrap",
    "runc",
    "util-linux",
)
"""Debian's names; Ubuntu has the same."""

_PROGRAMS = (
    "conntrack",
    "containerd",
    "ctr",
    "ip",
    "iptables",
    "mmdebstrap",
    "mount",
    "nsenter",
    "runc",
    "unshare",
)
# linux/capability.h
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
_CNI_PLUGINS = ("host-local", "loopback", "portmap", "ptp")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Host:
    """Where this machine's programs for nodes are."""

    containerd: str
    cni: Path

    def version(self) -> str:
        """Containerd's version, as it prints it."""
        done = subprocess.run(
            [self.containerd, "--version"], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()


def unfit() -> str:
    """Why no real node can ever run here, or an empty string. Programs are another matter."""
    if not sys.platform.startswith("linux"):
        return f"real nodes need Linux (this is {sys.platform})"
    if os.geteuid() != 0:
        return "real nodes need root: kubelet and containerd mount and make namespaces"
    held = int(_status("CapEff"), 16)
    missing = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    if missing:
        return f"real nodes need {' and '.join(missing)}, which this container does not have"
    return ""


def _status(field: str) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


def lacking() -> tuple[str, ...]:
    """Programs and CNI plugins that are not installed."""
    programs = tuple(name for name in _PROGRAMS if not _found(name))
    return programs if _cni() else (*programs, f"the CNI plugins {', '.join(_CNI_PLUGINS)}")


def missing_here() -> str:
    """Why real nodes cannot start here now, or an empty string."""
    if reason := unfit():
        return reason
    if missing := lacking():
        return (
            f"real nodes need {', '.join(missing)}, which is not installed: run "
            "`python -m shardwright_sandbox tools` as root on Debian or Ubuntu, which is "
            f"`apt-get install --no-install-recommends {' '.join(PACKAGES)}`"
        )
    return ""


def require() -> Host:
    """The machine's programs.

    Raises:
        SandboxError: With what is missing and the command that installs it.
    """
    if reason := missing_here():
        raise SandboxError(f"{reason}; `make sandbox-up` without REAL starts simulated nodes only")
    containerd, cni = _found("containerd"), _cni()
    assert containerd is not None  # noqa: S101 - nothing is lacking
    assert cni is not None  # noqa: S101 - as above
    return Host(containerd, cni)


def install(progress: Progress) -> None:
    """Install what is lacking with apt.

    Raises:
        SandboxError: If this machine cannot run real nodes, has no apt, or apt fails.
    """
    if reason := unfit():
        raise SandboxError(reason)
    missing = lacking()
    if not missing:
        progress.say("all that real nodes need is installed")
        return
    if not shutil.which("apt-get"):
        raise SandboxError(
            f"real nodes need {', '.join(missing)}, and there is no apt-get here: install them "
            "by hand"
        )
    progress.say(f"installing {', '.join(PACKAGES)}")
    _apt("update", "--quiet")
    _apt("install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES)
    if still := lacking():
        raise SandboxError(f"apt-get has installed the packages, yet {', '.join(still)} is missing")


# Another apt-get may run on the same machine; it is waited for.
_APT_LOCK_SECONDS = 300


def _apt(*arguments: str) -> None:
    command = ["apt-get", "-o", f"DPkg::Lock::Timeout={_APT_LOCK_SECONDS}", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SandboxError(
            f"`{' '.join(command)}` failed (exit {done.returncode}):\n"
            f"{(done.stdout + done.stderr)[-2000:]}"
        )


def _found(name: str) -> str | None:
    # sbin is not on everybody's PATH, not even on root's after `su`
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")


def _cni() -> Path | None:
    for folder in map(Path, _CNI_FOLDERS):
        if all((folder / plugin).exists() for plugin in _CNI_PLUGINS):
            return folder
    return None
