"""What a GPU product can do: FLOPs, bytes a second, links, from the vendor's data sheets.

The figures stand in `data/hardware.json`, each with its source. Products are told apart by the
parts of their name, as node labels spell it. Capacity is not here: drivers report less than data
sheets print, so `observe.gpus` keeps what they report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from types import MappingProxyType

from shardwright.observe.products import base_product


class NumberType(StrEnum):
    """What tensor cores multiply."""

    FP16 = "FP16"
    BF16 = "BF16"
    FP8 = "FP8"
    INT8 = "INT8"
    FP4 = "FP4"


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU of a product.

    Attributes:
        name: The vendor's name.
        compute: CUDA compute capability.
        tflops: Dense tensor-core 10¹² operations a second; types without tensor cores are absent.
        memory_gbps: Memory bandwidth in 10⁹ bytes a second.
        nvlink_gbps: NVLink in 10⁹ bytes a second, one way; 0 for none.
        pcie_gbps: PCIe in 10⁹ bytes a second, one way.
        source: The publication.
        note: What to know of these figures.
    """

    name: str
    compute: tuple[int, int]
    tflops: Mapping[NumberType, float]
    memory_gbps: float
    nvlink_gbps: float
    pcie_gbps: float
    source: str
    note: str = ""

    def flops(self, kind: NumberType) -> float | None:
        """Dense operations a second in this type; None where the tensor cores lack it."""
        tera = self.tflops.get(kind)
        return None if tera is None else tera * 1e12


class UnknownHardwareError(ValueError):
    """No figures are known for a GPU product."""


_PART = re.compile(r"[^A-Z0-9]+")


@cache
def _table() -> tuple[tuple[frozenset[str], Hardware], ...]:
    text = resources.files("shardwright.sizing").joinpath("data/hardware.json").read_text("utf-8")
    rows = []
    for row in json.loads(text)["products"]:
        major, _, minor = row["compute"].partition(".")
        known = Hardware(
            name=row["name"],
            compute=(int(major), int(minor)),
            tflops=MappingProxyType(
                {NumberType(name): float(value) for name, value in row["denseTFLOPS"].items()}
            ),
            memory_gbps=float(row["memoryGBps"]),
            nvlink_gbps=float(row["nvlinkGBps"]),
            pcie_gbps=float(row["pcieGBps"]),
            source=row["source"],
            note=row.get("note", ""),
        )
        rows += [(frozenset(parts), known) for parts in row["match"]]
    return tuple(rows)


def products() -> tuple[Hardware, ...]:
    """Every product that figures are known for, once each."""
    return tuple({known.name: known for _, known in _table()}.values())


@cache
def hardware(product: str) -> Hardware:
    """The figures of a product, going by the parts of its name.

    Args:
        product: As a node label has it (`NVIDIA-H100-80GB-HBM3`), or a short name (`H100`).

    Raises:
        UnknownHardwareError: Nothing in the table has all its parts in this name.
    """
    parts = {part for part in _PART.split(base_product(product).upper()) if part}
    found = [(len(needed), known) for needed, known in _table() if needed <= parts]
    if not found:
        names = ", ".join(sorted(known.name for known in products()))
        raise UnknownHardwareError(
            f"GPU product {product}: no figures are known for it; known are {names}. Name one of "
            "these in the nodes' description, or fix the shape by hand"
        )
    return max(found, key=lambda pair: pair[0])[1]
