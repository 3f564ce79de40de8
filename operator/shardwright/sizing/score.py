"""What an objective makes of an estimate: the load it is timed at, and the number to compare by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.sizing.candidates import Option
from shardwright.sizing.estimate import Clock, Setup
from shardwright.sizing.links import Links
from shardwright.sizing.precisions import accuracy_loss
from shardwright.sizing.question import Objective, Question, Workload
from shardwright.sizing.result import Candidate, Estimate
from shardwright.sizing.steps import room_of, step_needs


@dataclass(frozen=True, slots=True)
class Scored:
    """An option with its figures for one objective."""

    option: Option
    estimate: Estimate
    score: float
    needed: int

    @property
    def world_size(self) -> int:
        """GPUs of one replica."""
        return self.option.shape.world_size

    @property
    def held(self) -> int:
        """Requests that all replicas hold."""
        return self.option.capacity * self.option.replicas


def load(objective: Objective, workload: Workload, option: Option) -> int:
    """Requests in flight in one replica that it is timed with.

    Latency and Balanced: its share of the asked concurrency. Throughput: all of that, as far as it
    holds it, since replicas are made as full as they may be. Offline: as many as it holds.
    """
    if objective is Objective.OFFLINE:
        return option.capacity
    if objective is Objective.THROUGHPUT:
        return min(option.capacity, workload.concurrency)
    return min(option.capacity, math.ceil(workload.concurrency / option.replicas))


def value(objective: Objective, workload: Workload, timed: Estimate, rate: float) -> float:
    """The score: requests a second of one user, tokens a second of a GPU, or the mean of both.

    Balanced is the geometric mean of tokens a second for each GPU and for each user: a per cent of
    one is worth a per cent of the other.

    Args:
        objective: What is to be best.
        workload: For the tokens of an answer.
        timed: One replica.
        rate: Tokens a second for each GPU.
    """
    if objective is Objective.LATENCY:
        return 1 / (timed.ttft_seconds + (workload.output_len - 1) * timed.tpot_seconds)
    if objective is Objective.BALANCED:
        return math.sqrt(rate / timed.tpot_seconds)
    return rate


def rate_of(question: Question, option: Option, timed: Estimate) -> float:
    """Tokens a second of all replicas for each GPU that they could have.

    Where replicas take all GPUs they can, those are all free ones of the product, so that a shape
    which leaves some over is charged for them.
    """
    used = option.replicas * option.shape.world_size
    filled = question.limits.replicas is None and option.replicas == option.fitting
    gpus = option.pool.free_gpus if filled else used
    return option.replicas * timed.tokens_per_second / gpus


def clock(question: Question, option: Option, links: Links) -> Clock:
    """What times an option, for all objectives; `links` are those of its pool and shape."""
    workload = question.workload
    setup = Setup(
        model=question.model,
        shape=option.shape,
        precision=option.precision,
        engine=question.engine,
        hardware=option.pool.hardware,
        links=links,
        memory=option.memory,
    )
    return Clock(
        setup,
        input_len=workload.input_len,
        output_len=workload.output_len,
        capacity=option.capacity,
    )


def score(question: Question, option: Option, clock: Clock, objective: Objective) -> Scored:
    """Time one option for an objective."""
    workload = question.workload
    timed = clock.at(load(objective, workload, option))
    return Scored(
        option=option,
        estimate=timed,
        score=value(objective, workload, timed, rate_of(question, option, timed)),
        needed=math.ceil(workload.concurrency / option.capacity),
    )


def candidate(question: Question, scored: Scored, reasons: tuple[str, ...]) -> Candidate:
    """The option as an answer."""
    option = scored.option
    steps = step_needs(
        question.model,
        option.shape,
        option.precision,
        question.engine,
        option.pool.memory,
        room=room_of(question.fleet, option.pool.product),
    )
    return Candidate(
        product=option.pool.product,
        precision=option.precision,
        shape=option.shape,
        replicas=option.replicas,
        replicas_needed=scored.needed,
        stage_nodes=option.pool.stage_nodes(option.shape),
        node_groups=tuple(group.name for group in option.pool.carriers(option.shape.tensor)),
        memory=option.memory,
        estimate=scored.estimate,
        score=scored.score,
        accuracy_loss=accuracy_loss(option.precision),
        reasons=reasons,
        steps=steps,
    )
