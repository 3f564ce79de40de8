"""What NCCL's INFO lines say of the ways it has chosen.

Lines look like `host:pid:tid [device] NCCL INFO …`; these are read (forms of NCCL 2.4 to 2.27):

    Using network IB
    Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
    Channel 01 : 8[20000] -> 15[cf000] via SHM/direct/direct
    Channel 03/0 : 15[7] -> 6[6] [send] via NET/IB/0/GDRDMA

P2P and SHM stay inside a machine, NET leaves it. P2P goes over NVLink or PCIe: NCCL does not say
which, the topology does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"\[(\d+)\] NCCL INFO (.*)")
_NETWORK = re.compile(r"Using network (\S+)")
_CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : (\d+)\[([0-9a-f]+)\] -> (\d+)\[([0-9a-f]+)\]"
    r"(?: \[(?:send|receive)\])? via (\S+)"
)
# Enough for every pair of a node and every peer of a stage; more is no log of one pod.
_WAYS_LIMIT = 4096


@dataclass(frozen=True)
class Way:
    """One connection: communicator ranks, and how the bytes go (`P2P`, `SHM`, or the network)."""

    one: int
    other: int
    transport: str
    gdr: bool = False


class Ways:
    """Collects what the ranks of one pod print. Used by several threads, one a rank."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._found: dict[Way, None] = {}
        self._networks: dict[str, None] = {}

    def take(self, line: str) -> None:
        """Look at one line of any kind."""
        if "NCCL INFO" not in line:
            return
        match = _LINE.search(line)
        if not match:
            return
        way = read_way(match.group(2))
        if way is not None and len(self._found) < _WAYS_LIMIT:
            self._found[way] = None
        network = _NETWORK.search(match.group(2))
        if network and len(self._networks) < _WAYS_LIMIT:
            self._networks[network.group(1)] = None

    def found(self) -> tuple[Way, ...]:
        """The ways so far."""
        return tuple(self._found)

    def networks(self) -> tuple[str, ...]:
        """Names of the networks that NCCL has chosen, such as IB or Socket."""
        return tuple(self._networks)


def read_way(text: str) -> Way | None:
    """The connection that a `Channel` line tells of."""
    match = _CHANNEL.match(text.strip())
    if not match:
        return None
    kind, *rest = match.group(5).split("/")
    transport = rest[0] if kind == "NET" and rest else kind
    return Way(int(match.group(1)), int(match.group(3)), transport, gdr="GDRDMA" in rest)


def read_ways(lines: Iterable[str]) -> Ways:
    """All ways of a log."""
    ways = Ways()
    for line in lines:
        ways.take(line)
    return ways
