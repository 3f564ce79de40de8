"""What `nvidia-smi topo -m` says of the links between this pod's GPUs.

The matrix has a row and a column for each GPU the pod sees, then network devices. Its words, from
its own legend: X self; NV# that many NVLinks; PIX one PCIe bridge; PXB several; PHB through the
host bridge; NODE between host bridges of one NUMA node; SYS between NUMA nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_GPU = re.compile(r"GPU(\d+)")
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class TopologyError(ValueError):
    """The text is no matrix of links."""


@dataclass(frozen=True)
class Topology:
    """Links between GPUs, by their indices as the pod counts them, both ways alike."""

    gpus: tuple[int, ...]
    links: Mapping[tuple[int, int], str]

    def link(self, one: int, other: int) -> str:
        """The link between two GPUs, empty if the matrix does not say."""
        return self.links.get((min(one, other), max(one, other)), "")


def read_topology(text: str) -> Topology:
    """The matrix in the output of `nvidia-smi topo -m`.

    Raises:
        TopologyError: There is none, or a row has other cells than its header.
    """
    lines = _ESCAPES.sub("", text).splitlines()
    header: list[str] = []
    links: dict[tuple[int, int], str] = {}
    rows: list[int] = []
    for line in lines:
        words = line.split()
        if not header:
            if words and _GPU.fullmatch(words[0]):
                header = words
            continue
        match = _GPU.fullmatch(words[0]) if words else None
        if match:
            row = int(match.group(1))
            rows.append(row)
            _take(row, words[1:], header, links)
    if not rows:
        raise TopologyError(f"no matrix of GPUs in {text.strip()[:80]!r}")
    return Topology(tuple(rows), links)


def _take(row: int, cells: list[str], header: list[str], links: dict[tuple[int, int], str]) -> None:
    columns = [_GPU.fullmatch(name) for name in header]
    for column, cell in zip(columns, cells):  # noqa: B905 - affinities follow; Python 3.9
        if column is None:
            return
        if not _LINK.fullmatch(cell):
            raise TopologyError(f"GPU{row} has the unknown link {cell!r}")
        other = int(column.group(1))
        if other != row:
            links[min(row, other), max(row, other)] = cell
