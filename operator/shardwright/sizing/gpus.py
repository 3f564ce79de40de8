"""How much memory a GPU has as its driver reports it, and which class of GPUs it belongs to.

A catalogue's gigabytes are no measure: an "80 GB" H100 shows a process 79.19 GiB, a "24 GB" L4
22.03. The figures and their sources stand in data/gpu_memory.json.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from shardwright.observe.products import base_product
from shardwright.runtimes.gpu_memory import gpu_memory_bytes
from shardwright.sizing.shape import GPUMemory

GIB = 2**30
# What a driver keeps of a board that is not in the table: the worst case of those that are, ECC on
# GDDR memory left out.
_UNKNOWN_SHARE = 0.97
_NEAR_GIB = 0.015
_TOKEN = re.compile(r"[^A-Za-z0-9.]+")
_SLICE = re.compile(r"-MIG-[^-]*?([0-9]+)gb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GPUKind:
    """One row of the table.

    Attributes:
        name: What people call it.
        words: All of these stand in the product's name.
        gpu_class: Its architecture, which keys the engines' constants.
        total: Bytes that the driver reports.
        source: Where that was seen.
    """

    name: str
    words: frozenset[str]
    gpu_class: str
    total: int
    source: str


def _kind(row: Mapping[str, Any]) -> GPUKind:
    return GPUKind(
        name=row["name"],
        words=frozenset(row["words"]),
        gpu_class=row["class"],
        total=round(row["totalGiB"] * GIB),
        source=row["source"],
    )


@functools.cache
def gpu_kinds() -> tuple[GPUKind, ...]:
    """The table, the more particular names first."""
    text = resources.files(__package__).joinpath("data/gpu_memory.json").read_text("utf-8")
    return tuple(_kind(row) for row in json.loads(text)["gpus"])


@functools.lru_cache(maxsize=1024)
def gpu_kind(product: str) -> GPUKind | None:
    """The row of a product as GPU Feature Discovery labels it; None when it is not in the table."""
    words = {word.upper() for word in _TOKEN.split(base_product(product)) if word}
    return next((kind for kind in gpu_kinds() if kind.words <= words), None)


def gpu_of_total(total: int) -> GPUKind | None:
    """The only kind of GPU whose driver reports about so many bytes; None when several do."""
    near = [kind for kind in gpu_kinds() if abs(kind.total - total) <= _NEAR_GIB * GIB]
    return near[0] if len(near) == 1 else None


def gpu_memory(product: str) -> tuple[GPUMemory, tuple[str, ...]]:
    """Memory of a product, and what is not certain about it.

    A MIG slice has the size in its name; a product outside the table is taken by its data sheet,
    less what drivers keep.
    """
    found = _SLICE.search(product)
    if found:
        total = round(int(found.group(1)) * 10**9 * _UNKNOWN_SHARE)
        return GPUMemory(total, product), (
            f"{product}: a slice's memory is taken from its name, not from a driver's report",
        )
    kind = gpu_kind(product)
    if kind:
        return GPUMemory(kind.total, product), ()
    total = round(gpu_memory_bytes(product) * _UNKNOWN_SHARE)
    note = (
        f"{product}: no driver's report is known, taken as {total / GIB:.1f} GiB from its data "
        "sheet; give the memory that the engine's log shows"
    )
    return GPUMemory(total, product), (note,)


def gpu_class(product: str) -> str:
    """Architecture of a product; empty when it is not known."""
    kind = gpu_kind(product)
    return kind.gpu_class if kind else ""
