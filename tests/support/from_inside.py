"""What the operator's container looks like from inside: run there as a script, printed as JSON.

Standard library only; the operator is process 1.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

PROBES_PORT = 8080
_LISTENS = "0A"  # linux/include/net/tcp_states.h
_SHOWN = ("Uid", "Gid", "CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")


def process() -> dict[str, list[str]]:
    """Users and rights of process 1."""
    lines = Path("/proc/1/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: fields[name].split() for name in _SHOWN}


def refusal(folder: str) -> str:
    """Why nothing can be written to a folder; empty if it can."""
    try:
        Path(folder, "probe").write_text("", encoding="ascii")
    except OSError as error:
        return str(error.strerror)
    return ""


def resolved(name: str) -> str:
    """An address of a name, or the resolver's words."""
    try:
        return socket.gethostbyname(name)
    except socket.gaierror as error:
        return str(error.strerror)


def peers() -> list[str]:
    """Whom process 1 has connections to, but for those who ask for probes and metrics."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/1/net", table).read_text(encoding="ascii").splitlines()[1:]:
            local, remote, state = line.split()[1:4]
            if state != _LISTENS and _port(local) != PROBES_PORT:
                found.add(f"{_ipv4(remote)}:{_port(remote)}")
    return sorted(found)


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)


def _ipv4(end: str) -> str:
    # the last four bytes, in the machine's order; of IPv6 those of a mapped address
    return socket.inet_ntoa(bytes.fromhex(end.rpartition(":")[0][-8:])[::-1])


if __name__ == "__main__":
    told = {
        "process": process(),
        "refusals": {one: refusal(one) for one in ("/", "/etc", "/opt/app", "/usr/lib", "/tmp")},  # noqa: S108
        "names": {one: resolved(one) for one in ("kubernetes.default.svc", "huggingface.co")},
        "service": os.environ["KUBERNETES_SERVICE_HOST"],
        "peers": peers(),
    }
    sys.stdout.write(json.dumps(told))
