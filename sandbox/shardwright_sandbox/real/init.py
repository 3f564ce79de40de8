"""The first process of a real node: furnishes it, then reaps what is left over.

Runs as process 1 of fresh mount, process and network namespaces, standard library only, started by
path. Kubelet, containerd and their plugins write to places that cannot be configured (the kubelet's
device-plugin socket, `/run/netns`, the lock of iptables, the shims' sockets), so two nodes on one
machine need separate views of them. And they read in `/proc` and `/sys` how large the machine is:
here they find the size that the fleet file gives the node, or no pod of a real deployment would fit
on a laptop. Nothing is changed for the machine: the mounts are seen in here only, and the kernel
drops them with the last process.
"""

import argparse
import ctypes
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_SHARED = 2, 4, 4096, 16384, 1 << 20
_MNT_DETACH = 2
_LIBC = ctypes.CDLL(None, use_errno=True)

# What this machine may have in these folders for itself and no node may see or touch.
_SHADOWED: Mapping[str, frozenset[str]] = {
    "/run": frozenset({"containerd", "netns", "xtables.lock"}),
    "/var/lib": frozenset({"cni", "containerd", "kubelet"}),
    "/var/log": frozenset({"containers", "pods"}),
}


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount, as the system call of that name.

    Raises:
        OSError: With both paths.
    """
    words = [word.encode() for word in (source, target, kind)]
    if _LIBC.mount(*words, ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), source, None, target)


def unmount(target: str) -> None:
    """Unmount, at once or when nobody uses it any more.

    Raises:
        OSError: With the path.
    """
    if _LIBC.umount2(target.encode(), _MNT_DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def shadow(folder: str, hidden: frozenset[str]) -> None:
    """Put an empty file system over `folder` and show what was in it again, but for `hidden`."""
    below = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
    # the descriptor still leads to what now lies under the new file system
    covered = Path(f"/proc/self/fd/{below}")
    for entry in sorted(covered.iterdir()):
        if entry.name not in hidden:
            _show(entry, Path(folder, entry.name))
    os.close(below)


def _show(source: Path, target: Path) -> None:
    mode = source.lstat().st_mode
    if stat.S_ISLNK(mode):
        target.symlink_to(source.readlink())
        return
    if stat.S_ISDIR(mode):
        target.mkdir()
    else:
        target.touch()
    mount(str(source), str(target), flags=_MS_BIND | _MS_REC)


def furnish(volume_bytes: int) -> None:
    """Make this node's folders; the kubelet's is a file system of its own, so it can be full."""
    # containers ask for mounts that follow the node's, which only shared ones can be
    mount("", "/", flags=_MS_SHARED | _MS_REC)
    for folder, hidden in _SHADOWED.items():
        shadow(folder, hidden)
    for folder in ("/run/containerd", "/run/netns", "/var/lib/kubelet", "/var/log/containers"):
        Path(folder).mkdir()
    mount("tmpfs", "/var/lib/kubelet", "tmpfs", 0, f"size={volume_bytes},mode=755")
    mount("", "/var/lib/kubelet", flags=_MS_SHARED | _MS_REC)


def resize(cpus: int, memory_bytes: int) -> None:
    """Let the kubelet find `cpus` cores and `memory_bytes` of memory.

    It reads them where cAdvisor does (google/cadvisor, machine and utils/sysinfo): the cores of
    `/sys/devices/system/cpu` when there are no memory nodes, and the line `MemTotal`. Containers
    get their own `/proc` and `/sys` and see the machine as it is.
    """
    mount("tmpfs", "/sys/devices/system/node", "tmpfs", _MS_NOSUID, "mode=755")
    cores = Path("/sys/devices/system/cpu")
    mount("tmpfs", str(cores), "tmpfs", _MS_NOSUID, "mode=755")
    for core in range(cpus):
        topology = cores / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{core}\n")
        (topology / "physical_package_id").write_text("0\n")
    (cores / "online").write_text(f"0-{cpus - 1}\n")
    real = Path("/proc/meminfo").read_text()
    told = re.sub(r"(?m)^MemTotal:.*$", f"MemTotal: {memory_bytes // 1024} kB", real)
    meminfo = Path("/run/meminfo")
    meminfo.write_text(told)
    mount(str(meminfo), "/proc/meminfo", flags=_MS_BIND)


def confine(cgroup: str) -> None:
    """Show the node `cgroup` as the top of each hierarchy, so that its containers are below it.

    Without cgroups of its own for pods the kubelet names no parent, and containers of all nodes
    would lie together at the machine's top (`/k8s.io`), where nobody could tell whose they are.
    """
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():  # version 2: one hierarchy
        _confine(top, cgroup)
        return
    for hierarchy in sorted(top.iterdir()):
        if hierarchy.is_dir() and not hierarchy.is_symlink():
            _confine(hierarchy, cgroup)


def _confine(hierarchy: Path, cgroup: str) -> None:
    folder = hierarchy
    for part in Path(cgroup).parts:
        parent, folder = folder, folder / part
        if (controllers := parent / "cgroup.subtree_control").exists():
            offered = (parent / "cgroup.controllers").read_text().split()
            controllers.write_text(" ".join(f"+{name}" for name in offered))
        folder.mkdir(exist_ok=True)
        # version 1: a fresh one is empty, and nothing may run in it
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (parent / setting).exists() and not (folder / setting).read_text().strip():
                (folder / setting).write_text((parent / setting).read_text())
    # in place of the whole, not over it: runc takes the first mount of a hierarchy that it finds
    stage = Path("/run/cgroup")
    stage.mkdir(exist_ok=True)
    mount(str(folder), str(stage), flags=_MS_BIND)
    unmount(str(hierarchy))
    mount(str(stage), str(hierarchy), flags=_MS_BIND)
    unmount(str(stage))


def reap() -> None:
    """Collect, for ever, the processes whose parents have gone."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            # none there yet: sleep until a signal says that one may be
            signal.sigwait({signal.SIGCHLD})


def main() -> int:
    """Furnish, say so in the file `--ready`, reap."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--ready", required=True, type=Path)
    parser.add_argument("--cgroup", required=True)
    parser.add_argument("--cpus", required=True, type=int)
    parser.add_argument("--memory-bytes", required=True, type=int)
    parser.add_argument("--volume-bytes", required=True, type=int)
    given = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    socket.sethostname(given.name)
    furnish(given.volume_bytes)
    resize(given.cpus, given.memory_bytes)
    confine(given.cgroup)
    given.ready.touch()
    reap()
    return 0


if __name__ == "__main__":
    sys.exit(main())
