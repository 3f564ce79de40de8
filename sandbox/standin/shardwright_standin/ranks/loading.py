"""How a rank gets its weights and its GPU."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from shardwright_standin import gpu
from shardwright_standin.model import geometry, make, shards
from shardwright_standin.model.geometry import Geometry
from shardwright_standin.model.network import Shard
from shardwright_standin.model.shards import Place, Weights
from shardwright_standin.trtllm import checkpoint, engine, quantization

ENGINE = "engine"
CHECKPOINT = "huggingface"
# What is rounded while it loads has a scale a tensor.
_NO_GROUP = 0


class NoGPUError(RuntimeError):
    """The rank has no device, in torch's words."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What all ranks are told to load; `per_node` 0 means the GPUs that are visible.

    A checkpoint's weights are rounded by `qformat` while they are loaded; empty: not at all.
    """

    kind: str
    folder: str
    tensor: int
    pipeline: int
    per_node: int = 0
    qformat: str = ""

    def encoded(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RankReport:
    """Where a rank runs: what a test compares with what was placed."""

    rank: int
    stage: int
    tensor_rank: int
    node: str
    pod: str
    gpu_index: int
    gpu_uuid: str
    gpu_name: str
    pid: int

    def line(self) -> str:
        """For the log."""
        return (
            f"[standin] rank {self.rank}: node={self.node} pod={self.pod} stage={self.stage} "
            f"tensor_rank={self.tensor_rank} gpu={self.gpu_index} uuid={self.gpu_uuid} "
            f"pid={self.pid}"
        )


def load(order: LoadOrder, rank: int, size: int) -> tuple[Shard, RankReport, list[str]]:
    """This rank's shard, where it runs, and warnings.

    Raises:
        EngineError: When the engine does not fit, see `trtllm.engine`.
        NoGPUError: When this rank's device is not there.
        ShardError: When the model cannot be cut so.
        RuntimeError: When another number of ranks runs than the split needs.
    """
    place = Place(rank, order.tensor, order.pipeline)
    folder = Path(order.folder)
    device = _device(order, rank)
    report = RankReport(
        rank=rank,
        stage=place.stage,
        tensor_rank=place.tensor_rank,
        node=os.environ.get("SHARDWRIGHT_NODE_NAME") or socket.gethostname(),
        pod=os.environ.get("SHARDWRIGHT_POD_NAME") or socket.gethostname(),
        gpu_index=device.index,
        gpu_uuid=device.uuid,
        gpu_name=device.name,
        pid=os.getpid(),
    )
    if order.kind == ENGINE:
        config = engine.read_config(folder)
        engine.check_world(config, size)
        weights, warnings = engine.read_rank(folder, place, device)
        shape = checkpoint.geometry(config.pretrained)
        return Shard.load(shape, place, weights), report, warnings
    if size != place.world:
        raise RuntimeError(
            f"MPI size {size} != TP size {order.tensor} * PP size {order.pipeline} * CP Size 1"
        )
    shape, whole = _whole(folder, order.qformat)
    shards.check(shape, order.tensor, order.pipeline)
    return Shard.load(shape, place, shards.cut(whole, shape, place)), report, []


def _device(order: LoadOrder, rank: int) -> gpu.GPU:
    """The visible GPU that a rank of a pod takes: its rank modulo GPUs a node."""
    devices = gpu.visible(os.environ)
    if not devices:
        raise NoGPUError("RuntimeError: No CUDA GPUs are available")
    index = rank % (order.per_node or len(devices))
    if index >= len(devices):
        raise NoGPUError(
            f"CUDA error: invalid device ordinal: rank {rank} asks for device {index}, "
            f"{len(devices)} are visible"
        )
    return devices[index]


@lru_cache(maxsize=1)
def _whole(folder: Path, qformat: str) -> tuple[Geometry, Weights]:
    # Tests run all ranks in one process; reading the folder once for all keeps them quick.
    shape, weights = geometry.read(folder), make.read(folder)
    if qformat:
        weights = quantization.apply(weights, qformat, _NO_GROUP)
    return shape, weights


def decode_order(raw: Mapping[str, Any]) -> LoadOrder:
    """The order that `LoadOrder.encoded` made."""
    return LoadOrder(**raw)
