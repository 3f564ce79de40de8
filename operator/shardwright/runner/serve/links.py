"""Whether tensor ranks talk over NVLink and stages over the fabric, or which pair does not.

From two witnesses: `nvidia-smi topo -m` knows what the machine has, NCCL's log what is used. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from shardwright.runner.contract import (
    LINK_NETWORK,
    LINK_NONE,
    LINK_NVLINK,
    LINK_PCIE,
    LINK_RDMA,
    LINK_RDMA_HOST,
    LINK_SHARED_MEMORY,
    LINK_SOCKET,
    LINK_UNKNOWN,
    StageLinks,
)
from shardwright.runner.serve.nccl import Way
from shardwright.runner.serve.topo import Topology

_DIRECT = "P2P"
_SHARED = "SHM"
# Ways inside a machine; NVLS and CollNet are sums in a switch and no pair's way.
_LOCAL = frozenset({_DIRECT, _SHARED, "NVLS", "CollNet", "COLLNET"})
_TOLD_LIMIT = 16


def judge(tensor: int, pipeline: int, topology: Topology | None, ways: Sequence[Way]) -> StageLinks:
    """The links of one stage.

    Args:
        tensor: Ranks of the stage, one a GPU.
        pipeline: Number of stages.
        topology: Links between the pod's GPUs; None where there is no `nvidia-smi`.
        ways: What NCCL has told so far.
    """
    among, slow = _tensor(tensor, pipeline, topology, ways)
    between, far = _pipeline(pipeline, ways)
    return StageLinks(among, between, tuple(slow[:_TOLD_LIMIT]), tuple(far[:_TOLD_LIMIT]))


def _tensor(
    tensor: int, pipeline: int, topology: Topology | None, ways: Sequence[Way]
) -> tuple[str, list[str]]:
    if tensor == 1:
        return LINK_NONE, []
    shared = _pairs(ways, tensor, _SHARED)
    if shared:
        return LINK_SHARED_MEMORY, [f"GPUs {a} and {b} talk through host memory" for a, b in shared]
    if pipeline == 1:
        far = [way for way in ways if way.transport not in _LOCAL]
        if far:
            pairs = sorted({_pair(way, tensor) for way in far})
            return LINK_NETWORK, [
                f"GPUs {a} and {b} of one node talk over the network" for a, b in pairs
            ]
    if topology is None:
        return LINK_UNKNOWN, []
    pairs = list(combinations(sorted(topology.gpus)[:tensor], 2))
    words = {pair: topology.link(*pair) for pair in pairs}
    without = [pair for pair in pairs if not words[pair].startswith("NV")]
    if not without and pairs:
        return LINK_NVLINK, []
    if not pairs or not all(words.values()):
        return LINK_UNKNOWN, []
    if len(without) == len(pairs):
        return LINK_PCIE, []
    return LINK_PCIE, [
        f"GPUs {a} and {b} have no NVLink ({words[a, b]}), others have" for a, b in without
    ]


def _pipeline(pipeline: int, ways: Sequence[Way]) -> tuple[str, list[str]]:
    if pipeline == 1:
        return LINK_NONE, []
    far = [way for way in ways if way.transport not in _LOCAL]
    if not far:
        return LINK_UNKNOWN, []
    sockets = sorted({(way.one, way.other) for way in far if way.transport == "Socket"})
    if sockets:
        told = [f"ranks {a} and {b} talk over TCP sockets" for a, b in sockets]
        return LINK_SOCKET, told
    return (LINK_RDMA if all(way.gdr for way in far) else LINK_RDMA_HOST), []


def _pairs(ways: Sequence[Way], tensor: int, transport: str) -> list[tuple[int, int]]:
    return sorted({_pair(way, tensor) for way in ways if way.transport == transport})


def _pair(way: Way, tensor: int) -> tuple[int, int]:
    """Tensor ranks of a way inside a stage, whether its communicator is the stage or the world."""
    one, other = way.one % tensor, way.other % tensor
    return min(one, other), max(one, other)
