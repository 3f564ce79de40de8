"""How long ranks and stages take to talk: latency and bandwidth of NVLink, PCIe and the network."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from shardwright.sizing.hardware import Hardware
from shardwright.sizing.question import Fabric, FabricKind

# What NCCL gets of a line's rate: 370 of 450 GB/s over NVLink (NVIDIA/nccl-tests#212), 20 of 32
# over PCIe between sockets (NVIDIA/nccl-tests#178), 84.8 of 100 over InfiniBand (#119).
_NVLINK_SHARE = 0.8
_PCIE_SHARE = 0.6
_FABRIC_SHARE = 0.85
# Of one collective with a small message. NVLink: 6 to 10 µs with two to eight H100, whatever their
# number (sgl-project/sglang#2904). The others are assumptions of the usual magnitude.
_NVLINK_SECONDS = 8e-6
_PCIE_SECONDS = 20e-6
_RDMA_SECONDS = 50e-6
_ETHERNET_SECONDS = 200e-6


@dataclass(frozen=True, slots=True)
class Link:
    """One level of the interconnect, as seen by one GPU.

    Attributes:
        rate: Usable bytes a second, one way.
        seconds: Of a small message.
        switched: Every GPU reaches every other in one step; otherwise steps grow with their number.
    """

    rate: float
    seconds: float
    switched: bool = True

    def small(self, ranks: int) -> float:
        """Seconds of a collective of `ranks` whose message is too small to count."""
        return self.seconds if self.switched else self.seconds * math.log2(max(2, ranks))


@dataclass(frozen=True, slots=True)
class Links:
    """What connects the ranks of one replica.

    Attributes:
        domain: Ranks of a stage that `inside` connects; the rest are reached over `outside`.
        inside: Between ranks of one stage in one domain.
        outside: Between domains: the network, or the host's own bus.
        sends: Between a stage and the next, one link for each boundary.
    """

    domain: int
    inside: Link
    outside: Link
    sends: tuple[Link, ...] = ()

    def all_reduce(self, ranks: int, size: float) -> float:
        """Seconds to sum `size` bytes over `ranks`, ring by ring: inside domains, then over them.

        A ring of n moves 2 (n − 1) / n of the message over each link (NVIDIA/nccl-tests,
        doc/PERFORMANCE.md); after the sum inside a domain each GPU carries its part outside.
        """
        inner = min(ranks, self.domain)
        outer = -(-ranks // inner)
        seconds = 0.0
        if inner > 1:
            seconds += self.inside.small(inner) + 2 * (inner - 1) / inner * size / self.inside.rate
        if outer > 1:
            part = size / inner
            seconds += (
                self.outside.small(outer) + 2 * (outer - 1) / outer * part / self.outside.rate
            )
        return seconds

    def all_to_all(self, ranks: int, size: float) -> float:
        """Seconds for a GPU to send `size` bytes in all, spread evenly over the other ranks."""
        if ranks == 1:
            return 0.0
        inner = min(ranks, self.domain)
        away = (ranks - inner) / (ranks - 1)
        seconds = self.inside.small(inner) + size * (1 - away) / self.inside.rate
        if away:
            seconds += self.outside.small(ranks // inner) + size * away / self.outside.rate
        return seconds

    def send(self, boundary: int, size: float) -> float:
        """Seconds for `size` bytes from a stage to the next."""
        link = self.sends[boundary]
        return link.seconds + size / link.rate


def nvlink(hardware: Hardware) -> Link:
    """NVLink of a product."""
    return Link(hardware.nvlink_gbps * 1e9 * _NVLINK_SHARE, _NVLINK_SECONDS)


def pcie(hardware: Hardware) -> Link:
    """PCIe of a product."""
    return Link(hardware.pcie_gbps * 1e9 * _PCIE_SHARE, _PCIE_SECONDS, switched=False)


def network(fabric: Fabric) -> Link:
    """The network between nodes."""
    rdma = fabric.kind is FabricKind.RDMA
    return Link(
        fabric.gigabytes_per_second * 1e9 * _FABRIC_SHARE,
        _RDMA_SECONDS if rdma else _ETHERNET_SECONDS,
        switched=False,
    )


def links_of(
    hardware: Hardware,
    *,
    nvlink_size: int,
    gpus_per_node: int,
    fabric: Fabric,
    stage_nodes: tuple[int, ...],
    tensor: int,
    clique_nodes: int = 1,
) -> Links:
    """What connects a replica whose stages stand on these nodes.

    Args:
        hardware: The GPUs.
        nvlink_size: GPUs of a node in one NVLink domain; 0 for PCIe only.
        gpus_per_node: GPUs of a node.
        fabric: The network between nodes.
        stage_nodes: Each stage's node.
        tensor: Ranks of a stage; more than a node has is possible here, though no plan does it.
        clique_nodes: Nodes that share one NVLink domain.
    """
    has_nvlink = nvlink_size > 1 and hardware.nvlink_gbps > 0
    inside = nvlink(hardware) if has_nvlink else pcie(hardware)
    domain = nvlink_size if has_nvlink else gpus_per_node
    between = network(fabric)
    in_clique = has_nvlink and max(stage_nodes) < clique_nodes
    sends = []
    for position, (here, there) in enumerate(itertools.pairwise(stage_nodes)):
        if here != there:
            sends.append(nvlink(hardware) if in_clique else between)
            continue
        first = sum(1 for node in stage_nodes[: position + 1] if node == here) * tensor
        together = has_nvlink and (first - 1) // domain == first // domain
        sends.append(inside if together or not has_nvlink else pcie(hardware))
    crosses = tensor > gpus_per_node
    return Links(
        domain=min(domain, tensor),
        inside=inside,
        outside=between if crosses else pcie(hardware),
        sends=tuple(sends),
    )
