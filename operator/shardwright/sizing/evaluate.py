"""Memory and speed of one given way of serving, whether or not a plan would ever be like it.

For comparing what others ask for, or measured: nothing is refused here but what cannot be counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.sizing.candidates import capacity_of
from shardwright.sizing.estimate import Setup, estimate
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.model import Model
from shardwright.sizing.pools import Pool
from shardwright.sizing.question import Workload
from shardwright.sizing.result import Estimate
from shardwright.sizing.shape import EngineSettings, MemoryPlan, Precision, Shape


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one configuration takes, and how fast it is."""

    memory: MemoryPlan
    estimate: Estimate


def evaluate(
    model: Model,
    pool: Pool,
    workload: Workload,
    engine: EngineSettings,
    *,
    precision: Precision,
    shape: Shape,
    batch: int | None = None,
) -> Evaluation:
    """Count and time one replica of a given shape.

    Args:
        model: What is served.
        pool: The GPUs.
        workload: Lengths of prompt and answer.
        engine: The runtime and its limits.
        precision: Of weights and KV cache.
        shape: How the replica is split; ranks beyond a node are timed over the network.
        batch: Requests in flight; as many as it holds, at least one, when None.

    Raises:
        ValueError: The shape or the precision cannot be counted on these GPUs.
    """
    memory = plan_memory(model, shape, precision, engine, pool.memory)
    held = capacity_of(
        model,
        engine,
        memory,
        pool=pool,
        precision=precision,
        shape=shape,
        length=workload.request_len,
    )
    setup = Setup(model, shape, precision, engine, pool.hardware, pool.links(shape), memory)
    timed = estimate(
        setup,
        input_len=workload.input_len,
        output_len=workload.output_len,
        batch=max(1, held) if batch is None else batch,
        capacity=held,
    )
    return Evaluation(memory, timed)
