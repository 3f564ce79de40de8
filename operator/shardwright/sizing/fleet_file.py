"""The fleet a plan may use, from a file that a person wrote."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from pydantic import Field, ValidationError, model_validator

from shardwright.api.model import Model
from shardwright.api.problems import problems
from shardwright.api.yamltext import load
from shardwright.observe.products import base_product, nvlink_prior
from shardwright.sizing.fleet_nodes import ASSUMED_RDMA_GBPS, memory_of, named
from shardwright.sizing.hardware import UnknownHardwareError, hardware
from shardwright.sizing.question import ASSUMED_FABRIC, GIB, Fabric, FabricKind, Fleet, NodeGroup


class FleetError(ValueError):
    """A description of nodes cannot be used; the message names the field and a fix."""


class FabricEntry(Model):
    """The network of a fleet file's nodes."""

    kind: FabricKind
    gigabytes_per_second: float | None = Field(
        default=None, gt=0, description="10⁹ bytes a second for each GPU, one way."
    )


class NodeEntry(Model):
    """Equal nodes of a fleet file."""

    name: str = ""
    product: str = Field(min_length=1)
    count: int = Field(default=1, ge=1, le=1_000_000)
    gpus: int = Field(default=8, ge=1, le=1024)
    free: int | None = Field(default=None, ge=0, description="GPUs of a node that are free.")
    nvlink: int | None = Field(default=None, ge=0, description="GPUs that share NVLink; 0 none.")
    memory_gib: float | None = Field(default=None, alias="memoryGiB", gt=0, le=4096)
    host_memory_gib: float | None = Field(
        default=None, alias="hostMemoryGiB", gt=0, le=65536, description="Of a node, for pods."
    )
    compute: str | None = Field(default=None, pattern=r"^[0-9]+\.[0-9]+$")
    fabric: FabricEntry | None = None
    clique_nodes: int = Field(default=1, ge=1, le=1024)

    @model_validator(mode="before")
    @classmethod
    def _fabric_by_name(cls, raw: object) -> object:
        """`fabric: RDMA` is short for `fabric: {kind: RDMA}`."""
        if isinstance(raw, dict) and isinstance(raw.get("fabric"), str):
            return {**raw, "fabric": {"kind": raw["fabric"]}}
        return raw

    @model_validator(mode="after")
    def _sizes_agree(self) -> NodeEntry:
        for name in ("free", "nvlink"):
            value = getattr(self, name)
            if value is not None and value > self.gpus:
                raise ValueError(f"{name} {value} exceeds gpus {self.gpus}: a node has no more")
        return self


class FleetFile(Model):
    """A fleet as a person writes it."""

    nodes: list[NodeEntry] = Field(min_length=1, max_length=10_000)


def fleet_of_yaml(text: str) -> Fleet:
    """The fleet that a YAML file describes.

    For example::

        nodes:
          - {product: NVIDIA-H100-80GB-HBM3, count: 2, gpus: 8, fabric: RDMA}

    `gpus` is 8, `free` all of them, `nvlink`, `memoryGiB` and `compute` are taken from the product
    where they are not given, `fabric` is slow Ethernet.

    Raises:
        FleetError: The text is no YAML, a field is unknown or out of range, or nothing is known of
            a product that the file does not describe itself.
    """
    try:
        raw = load(text)
    except yaml.YAMLError as error:
        raise FleetError(f"nodes file: no YAML: {error}") from error
    if not isinstance(raw, dict):
        raise FleetError("nodes file: expected a map with the key nodes, a list of kinds of nodes")
    try:
        entries = FleetFile.read(raw).nodes
    except ValidationError as error:
        said = "; ".join(problems(error, FleetFile))
        raise FleetError(f"nodes file: {said}") from error
    return Fleet(named([_entry_group(entry) for entry in entries]), host_bytes=_host_bytes(entries))


def _host_bytes(entries: Sequence[NodeEntry]) -> tuple[tuple[str, int], ...]:
    """As in `Fleet.host_bytes`; nothing where an entry of a product leaves it out."""
    told: dict[str, list[float | None]] = {}
    for entry in entries:
        for product in ("", entry.product):
            told.setdefault(product, []).append(entry.host_memory_gib)
    known = {
        product: max(size for size in sizes if size is not None)
        for product, sizes in told.items()
        if None not in sizes
    }
    return tuple(sorted((product, int(size * GIB)) for product, size in known.items()))


def _entry_group(entry: NodeEntry) -> NodeGroup:
    if base_product(entry.product) != entry.product:
        raise FleetError(
            f"nodes file: product {entry.product}: slices (MIG) and shared GPUs are not planned, "
            "since their speed is not known; they serve with tensor 1, given by hand. Name whole "
            f"GPUs, such as {base_product(entry.product)}"
        )
    nvlink = entry.nvlink
    if nvlink is None:
        nvlink = min(nvlink_prior(entry.product, entry.gpus) or 0, entry.gpus)
    if entry.compute is not None:
        major, _, minor = entry.compute.partition(".")
        compute = (int(major), int(minor))
    else:
        try:
            compute = hardware(entry.product).compute
        except UnknownHardwareError as error:
            raise FleetError(f"nodes file: {error}") from error
    fabric = ASSUMED_FABRIC
    if entry.fabric is not None:
        speed = entry.fabric.gigabytes_per_second
        fabric = Fabric(entry.fabric.kind, speed or 0, "nodes file")
        if speed is None and entry.fabric.kind is FabricKind.RDMA:
            fabric = Fabric(FabricKind.RDMA, ASSUMED_RDMA_GBPS, "nodes file; speed assumed")
        elif speed is None:
            fabric = ASSUMED_FABRIC
    total = int(entry.memory_gib * GIB) if entry.memory_gib else memory_of(entry.product)
    return NodeGroup(
        name=entry.name,
        product=entry.product,
        nodes=entry.count,
        gpus_per_node=entry.gpus,
        free_gpus=entry.gpus if entry.free is None else entry.free,
        nvlink_size=nvlink,
        memory_bytes=total,
        compute=compute,
        fabric=fabric,
        clique_nodes=entry.clique_nodes,
    )
