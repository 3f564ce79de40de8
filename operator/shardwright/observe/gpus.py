"""How much memory a GPU has, by its product's name: as its driver reports it, or as it is sold.

A catalogue's gigabytes are no measure of what fits: an "80 GB" H100 shows a process 79.19 GiB, a
"24 GB" L4 22.03. Both figures, and where the driver's were seen, stand in data/gpu_memory.json.
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

_GIB = 2**30
_GB = 10**9
# What a driver leaves of a board that is not in the table: the worst case of those that are, ECC on
# GDDR memory left out.
_UNKNOWN_SHARE = 0.97
_NEAR_GIB = 0.015
# Most data-centre GPUs served here have it.
_DEFAULT_GB = 80
_TOKEN = re.compile(r"[^A-Za-z0-9.]+")
_SLICE = re.compile(r"-MIG-[^-]*?([0-9]+)gb", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)GB")


@dataclass(frozen=True, slots=True)
class GPUKind:
    """One row of the table.

    Attributes:
        name: What people call it.
        words: All of these stand in the product's name.
        gpu_class: Its architecture, which keys the engines' constants.
        total: Bytes that the driver reports.
        catalogue: Bytes that the data sheet prints.
        source: Where the driver's figure was seen.
    """

    name: str
    words: frozenset[str]
    gpu_class: str
    total: int
    catalogue: int
    source: str


@dataclass(frozen=True, slots=True)
class DriverMemory:
    """Memory of one GPU as a process sees it.

    Attributes:
        total: Bytes.
        doubt: Why this is no driver's report; empty when it is one.
    """

    total: int
    doubt: str = ""


def _kind(row: Mapping[str, Any]) -> GPUKind:
    return GPUKind(
        name=row["name"],
        words=frozenset(row["words"]),
        gpu_class=row["class"],
        total=round(row["totalGiB"] * _GIB),
        catalogue=row["catalogueGB"] * _GB,
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
    near = [kind for kind in gpu_kinds() if abs(kind.total - total) <= _NEAR_GIB * _GIB]
    return near[0] if len(near) == 1 else None


def driver_memory(product: str) -> DriverMemory:
    """Memory of a product as its driver reports it.

    A MIG slice has the size in its name; a product outside the table is taken by what it is sold
    as, less what drivers keep. Both say so.
    """
    found = _SLICE.search(product)
    if found:
        return DriverMemory(
            round(int(found.group(1)) * _GB * _UNKNOWN_SHARE),
            f"{product}: a slice's memory is taken from its name, not from a driver's report",
        )
    kind = gpu_kind(product)
    if kind is not None:
        return DriverMemory(kind.total)
    total = round(catalogue_memory(product) * _UNKNOWN_SHARE)
    return DriverMemory(
        total,
        f"{product}: no driver's report is known, taken as {total / _GIB:.1f} GiB from its data "
        "sheet; give the memory that the engine's log shows",
    )


def catalogue_memory(product: str) -> int:
    """Memory of a product as it is sold, in bytes; 80·10⁹ where nothing tells.

    For boards with HBM some 6 % less than the driver's figure (an H100's 80·10⁹ against 85·10⁹
    bytes), for GDDR with ECC up to 2 % more. What fits on a GPU is asked of `driver_memory`.
    """
    name = base_product(product)
    size = _SIZE.search(name)
    if size:
        return int(size.group(1)) * _GB
    kind = gpu_kind(product)
    return kind.catalogue if kind is not None else _DEFAULT_GB * _GB
