"""What vLLM's and SGLang's servers share: ranks of several nodes that meet over TCP."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright_standin.front.engine import Engine, Limits, connect
from shardwright_standin.front.group import Group, ipc_environment, tcp_group
from shardwright_standin.model import geometry, shards
from shardwright_standin.ranks import loading
from shardwright_standin.ranks import main as rank_process
from shardwright_standin.tools.played import NotPlayedError

# Both servers' `--quantization` of a 16-bit checkpoint, by what rounds its weights.
_ONLINE = {None: "", "fp8": "fp8"}


@dataclass(frozen=True, slots=True)
class World:
    """One node's part in a world of `tensor` × `pipeline` ranks over `nodes`."""

    tensor: int
    pipeline: int
    nodes: int
    node: int
    master: str
    timeout_seconds: float

    @property
    def own(self) -> range:
        """This node's ranks: a contiguous block."""
        each = self.tensor * self.pipeline // self.nodes
        return range(self.node * each, (self.node + 1) * each)


def online(values: Mapping[str, Any]) -> str:
    """What rounds the weights while they load, by `--quantization`; empty for nothing.

    Raises:
        NotPlayedError: For a method that needs a checkpoint of its own, or other numbers.
    """
    method = values["quantization"]
    if method not in _ONLINE:
        raise NotPlayedError(f"the stand-in does not play --quantization {method}")
    return _ONLINE[method]


def start(
    folder: Path, world: World, limits: Limits, program: str, qformat: str = ""
) -> tuple[Group, Engine | None, Callable[[], None]]:
    """Start this node's ranks; on the first node also load and connect.

    Returns:
        The processes, the engine on the first node (None on others), and what lets them go.

    Raises:
        EngineFailedError: When a rank cannot load.
        ShardError: When the model cannot be cut so.
    """
    shape = geometry.read(folder)
    shards.check(shape, world.tensor, world.pipeline)
    environment = ipc_environment()
    os.environ.update(environment)
    size = world.tensor * world.pipeline
    group = tcp_group(world.own, size, world.master, program, world.timeout_seconds, os.environ)
    if world.node != 0:
        return group, None, group.end
    order = loading.LoadOrder(
        loading.CHECKPOINT,
        str(folder.resolve()),
        world.tensor,
        world.pipeline,
        size // world.nodes,
        qformat,
    )
    try:
        engine = connect(
            rank_process.address(),
            rank_process.key(),
            order,
            limits,
            shape.eos,
            group.alive.is_set,
        )
    except BaseException:
        group.end()
        raise

    def end() -> None:
        engine.stop()
        group.end_when_idle()

    return group, engine, end


def follow(group: Group) -> int:
    """A node without HTTP: wait for its ranks, which end with the first node's.

    Returns:
        The exit status.
    """

    def stop(_number: int, _frame: object) -> None:
        group.end()
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return group.wait()
