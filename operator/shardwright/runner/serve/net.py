"""Which network interface an address of this pod belongs to."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IF_INET6 = Path("/proc/net/if_inet6")


def resolve(name: str) -> str:
    """The first address of a name, IPv4 before IPv6.

    Raises:
        OSError: It has none yet.
    """
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda item: item[0] != socket.AF_INET)
    return str(found[0][4][0])


def interface_of(address: str) -> str:
    """The interface that has this address, empty if none has."""
    wanted = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
    if isinstance(wanted, ipaddress.IPv6Address):
        return _interface_of_ipv6(wanted.packed.hex())
    for _, name in socket.if_nameindex():
        if _ipv4(name) == str(wanted):
            return name
    return ""


def _ipv4(name: str) -> str:
    """The first IPv4 address of an interface, empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        asked = struct.pack("256s", name.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
        except OSError:
            return ""  # an interface without an IPv4 address
    return socket.inet_ntoa(answer[20:24])


def _interface_of_ipv6(digits: str) -> str:
    try:
        lines = _IF_INET6.read_text(encoding="ascii").splitlines()
    except OSError:
        return ""  # a kernel without IPv6
    rows = (line.split() for line in lines)
    return next((row[-1] for row in rows if row and row[0] == digits), "")
