"""What has to be done before a model is served as planned, and what each step takes.

Calibration finds the scales of quantized weights, conversion splits a checkpoint for a shape, the
builder compiles an engine. Rooms, limits and formats are those that the steps themselves use
(`runtimes.tensorrt_steps`), so that a plan never promises what a Job then refuses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from shardwright.api.serving import Backend, KVPrecision, WeightPrecision
from shardwright.observe.gpus import catalogue_memory
from shardwright.runtimes.tensorrt_precision import CALIBRATED
from shardwright.runtimes.tensorrt_steps import (
    CONVERT_ROOM,
    GPUS_PER_NODE_AT_MOST,
    QUANTIZE_ROOM,
)
from shardwright.sizing.model import Model
from shardwright.sizing.question import GIB, Fleet
from shardwright.sizing.shape import EngineSettings, GPUMemory, Precision, Shape
from shardwright.sizing.weights import as_stored, checkpoint_bytes
from shardwright.words import counted

# Runtimes that make FP8 of 16-bit weights while they load them: no step is needed.
_LOADS_FP8 = frozenset({"vllm", "sglang"})


class Step(StrEnum):
    """A step before serving."""

    CALIBRATE = "Calibrate"
    CONVERT = "Convert"
    BUILD = "Build"


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What one node of the cluster can give a step; None is not known, and stands in no way.

    Attributes:
        gpus: GPUs of the largest node of the product.
        host_bytes: Memory that pods may ask for, on the node of the product that has most.
        scratch_bytes: Space on the volume that steps write to.
        any_host_bytes: As `host_bytes`, of all nodes: for steps that take no GPU.
    """

    gpus: int
    host_bytes: int | None = None
    scratch_bytes: int | None = None
    any_host_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StepNeed:
    """What one step takes on one node.

    Attributes:
        step: The step.
        gpus: GPUs it takes.
        host_bytes: Host memory it takes.
        scratch_bytes: What it writes before it is done.
        reason: Why it is needed.
        obstacle: Why the given node cannot do it; empty when it can, or none was given.
        alternative: What to do instead when there is an obstacle.
    """

    step: Step
    gpus: int
    host_bytes: int
    scratch_bytes: int
    reason: str
    obstacle: str = ""
    alternative: str = ""


def step_needs(
    model: Model,
    shape: Shape,
    precision: Precision,
    engine: EngineSettings,
    gpu: GPUMemory,
    *,
    room: NodeRoom | None = None,
) -> tuple[StepNeed, ...]:
    """The steps before serving, in order; empty when the checkpoint is served as it is.

    Args:
        model: What is served.
        shape: How one replica is split.
        precision: Of weights and KV cache.
        engine: The runtime.
        gpu: The GPU that steps run on.
        room: What the largest nodes give; left out, nothing is judged.
    """
    source = checkpoint_bytes(model, None)
    target = checkpoint_bytes(model, precision.weights)
    compiled = _compiled(engine)
    needs: list[StepNeed] = []
    if _calibrates(model, precision, engine):
        # The Job counts a GPU by its product's data sheet; so does this, or the two would differ.
        each = catalogue_memory(gpu.product) if gpu.product else gpu.total
        wanted = max(1, math.ceil(source * QUANTIZE_ROOM / each))
        needs.append(
            StepNeed(
                Step.CALIBRATE,
                gpus=min(wanted, GPUS_PER_NODE_AT_MOST),
                host_bytes=math.ceil(source * CONVERT_ROOM),
                scratch_bytes=target,
                reason=f"{_name(precision)} has to be made of the checkpoint's weights",
            )
        )
    elif compiled:
        needs.append(
            StepNeed(
                Step.CONVERT,
                gpus=0,
                host_bytes=math.ceil(source * CONVERT_ROOM),
                scratch_bytes=target,
                reason=f"the checkpoint has to be split for tensor {shape.tensor} × pipeline "
                f"{shape.pipeline}",
            )
        )
    if compiled:
        needs.append(
            StepNeed(
                Step.BUILD,
                gpus=engine.build_workers,
                host_bytes=source,
                scratch_bytes=target,
                reason="the TensorRT backend serves engines built for one GPU product",
            )
        )
    return tuple(_judged(need, room, source, precision) for need in needs)


def room_of(fleet: Fleet, product: str) -> NodeRoom:
    """What the largest nodes of a product give, as far as the fleet tells; it knows no volumes."""
    known = dict(fleet.host_bytes)
    return NodeRoom(
        gpus=max((g.gpus_per_node for g in fleet.groups if g.product == product), default=0),
        host_bytes=known.get(product),
        any_host_bytes=known.get(""),
    )


def _compiled(engine: EngineSettings) -> bool:
    return engine.backend == Backend.TENSORRT.value


def _calibrates(model: Model, precision: Precision, engine: EngineSettings) -> bool:
    """Whether quantized weights, or scales of the cache that an engine needs, are still to make."""
    weights = precision.weights
    published = weights in (WeightPrecision.INT4_GPTQ, WeightPrecision.NONE)
    loaded = weights is WeightPrecision.FP8 and engine.runtime.lower() in _LOADS_FP8
    made = not (published or loaded or as_stored(model, weights))
    return made or (_compiled(engine) and precision.kv_cache is not KVPrecision.NONE)


def _name(precision: Precision) -> str:
    weights, cache = precision.weights, precision.kv_cache
    if weights in (None, WeightPrecision.NONE):
        return f"{cache.value} KV cache"
    how = "" if weights in CALIBRATED else " (without data)"
    return f"{weights.value}{how}" if weights else ""


def _judged(need: StepNeed, room: NodeRoom | None, source: int, precision: Precision) -> StepNeed:
    """The need with what stands against it on the largest node."""
    if room is None:
        return need
    obstacle = ""
    host = room.host_bytes if need.gpus else room.any_host_bytes or room.host_bytes
    if need.gpus > room.gpus:
        obstacle = f"takes {counted(need.gpus, 'GPU')} of one node, the largest has {room.gpus:,}"
    elif host is not None and need.host_bytes > host:
        obstacle = (
            f"takes {need.host_bytes / GIB:.0f} GiB of host memory, the largest node has "
            f"{host / GIB:.0f}"
        )
    elif room.scratch_bytes is not None and need.scratch_bytes > room.scratch_bytes:
        obstacle = (
            f"writes {need.scratch_bytes / GIB:.0f} GiB, the volume has "
            f"{room.scratch_bytes / GIB:.0f}"
        )
    if not obstacle:
        return need
    return replace(need, obstacle=obstacle, alternative=_alternative(need.step, source, precision))


def _alternative(step: Step, source: int, precision: Precision) -> str:
    if step is Step.CALIBRATE:
        return (
            f"take a checkpoint of the model that is published in {_name(precision)}: the "
            f"{source / GIB:.0f} GiB of 16-bit weights then never load on one node"
        )
    return (
        "serve with the PyTorch backend, which splits the checkpoint as it loads and builds no "
        "engine"
    )
