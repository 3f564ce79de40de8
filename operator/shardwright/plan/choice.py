"""The planner's answer for a spec with open fields: asked once, kept, and looked at again.

The cluster counts in three ways: what is free now, what is there at all, and what node pools may
bring. The first that allows a plan decides, so that a new deployment need not wait for GPUs that
others hold while something else would do. What is possible later, and whether a plan has become
impossible, is asked of what is there at all: nodes that are cordoned or busy change no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from shardwright.api.asked import AskedSpec
from shardwright.api.serving import DType, WeightPrecision
from shardwright.api.spec import LLMDeploymentSpec, StagePlacement
from shardwright.plan.fleets import Fleets
from shardwright.plan.given import WARNING
from shardwright.plan.question import (
    engine_settings,
    headline,
    headline_of,
    limits_of,
    model_of,
    same_question,
    shape_words,
    workload_of,
)
from shardwright.plan.room import room_of
from shardwright.resolved import Chosen, Resolved, Room
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.sizing.choose import choose
from shardwright.sizing.hardware import NumberType, hardware
from shardwright.sizing.model import Model
from shardwright.sizing.order import ranks, told_of
from shardwright.sizing.precisions import sixteen_bit
from shardwright.sizing.precisions import words as precision_words
from shardwright.sizing.question import Fleet, Limits, Workload
from shardwright.sizing.result import Candidate, Choice, Rejection
from shardwright.sizing.shape import EngineSettings

# Refusals that say how near it was.
_NEAR = frozenset({"DoesNotFit", "TooLittleHeadroom", "LongestRequestDoesNotFit"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The part of a `Choice` that is kept: what was chosen, what came second, what was nearest."""

    best: Candidate | None
    second: Candidate | None
    nearest: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A spec with its open fields filled, and what status tells of it."""

    spec: LLMDeploymentSpec
    chosen: Chosen
    room: Room
    reasons: tuple[str, ...]


def plan_for(
    asked: AskedSpec, facts: ModelFacts, fleets: Fleets, draft: ModelFacts | None = None
) -> Plan | Refusal:
    """Fill the open fields of a spec; `draft` are the facts of the draft model that it names.

    Returns:
        The plan, or why there is none: with the nearest miss and its numbers.
    """
    model = model_of(facts, asked.model.uri)
    if isinstance(model, Refusal):
        return Refusal("NoPlanPossible", model.message)
    replicas = max(1, asked.replicas)
    free = fleets.free if fleets.free is not None else fleets.owned
    answer = waits = None
    for fleet, count in _tries(free, fleets, replicas):
        answer = ask(asked, model, fleet, count, draft)
        if answer.best is not None:
            waits = fleet is not free or count is None
            break
    if answer is None or answer.best is None:
        return Refusal("NoPlanPossible", _no_plan(asked, answer, fleets.possible))
    ideal = _ideal(asked, model, fleets, replicas, draft)
    return _planned(
        asked,
        model,
        answer,
        Chosen(
            replicas=replicas,
            runner_up=headline(answer.second) if answer.second else "",
            all_free=headline(ideal) if ideal else "",
        ),
        waits=bool(waits),
    )


def _tries(free: Fleet, fleets: Fleets, replicas: int) -> list[tuple[Fleet, int | None]]:
    """What is asked in turn; without a number of replicas the rest of them wait for room."""
    return [
        (free, replicas),
        (fleets.owned, replicas),
        (fleets.owned, None),
        (fleets.possible, replicas),
        (fleets.possible, None),
    ]


def _ideal(
    asked: AskedSpec, model: Model, fleets: Fleets, replicas: int, draft: ModelFacts | None
) -> Candidate | None:
    """What would be chosen were every GPU free."""
    for fleet, count in _tries(fleets.owned, fleets, replicas)[1:]:
        if best := ask(asked, model, fleet, count, draft).best:
            return best
    return None


def _planned(
    asked: AskedSpec, model: Model, answer: Answer, chosen: Chosen, *, waits: bool
) -> Plan:
    best = answer.best
    if best is None:
        raise ValueError("an answer without a plan cannot be filled in")
    half = sixteen_bit(model, hardware(best.product)) is NumberType.FP16
    # Stages of one node are not spread over several, which may not even be there.
    shared = best.nodes_per_replica < best.shape.pipeline
    spec = asked.filled(
        product=best.product,
        tensor=best.shape.tensor,
        pipeline=best.shape.pipeline,
        expert=best.shape.expert,
        attention_data=best.shape.attention_data,
        weights=best.precision.weights or WeightPrecision.NONE,
        kv_cache=best.precision.kv_cache,
        dtype=DType.FP16 if half and model.dtype == "bfloat16" else None,
        stages=StagePlacement.PACK if shared else None,
    )
    waiting = ("all GPUs counted as free: it waits for those that others hold",) if waits else ()
    lacking = tuple(
        f"{WARNING}{need.step} {need.obstacle}; {need.alternative}"
        for need in best.steps
        if need.obstacle
    )
    return Plan(spec, chosen, room_of(best.memory), (*best.reasons, *waiting, *lacking))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the planner would say now of a plan that is kept.

    Attributes:
        better: Another plan that has become possible, in words; empty when there is none.
        now: What would be chosen now, in words; empty when nothing is possible.
    """

    better: str = ""
    now: str = ""


def outlook(
    resolved: Resolved, facts: ModelFacts, fleets: Fleets, draft: ModelFacts | None = None
) -> Outlook:
    """How a kept plan stands against the cluster as it is.

    A better plan is told only where the answer for all of the cluster's GPUs is another one than it
    was at the time: other deployments that come and go make no plan better.
    """
    asked, chosen = resolved.asked, resolved.chosen
    if asked is None or chosen is None:
        return Outlook()
    model = model_of(facts, asked.model.uri)
    if isinstance(model, Refusal):
        return Outlook()
    best = _ideal(asked, model, fleets, chosen.replicas, draft)
    now = headline(best) if best is not None else ""
    fresh = now not in ("", chosen.all_free, headline_of(resolved.spec))
    return Outlook(now if fresh else "", now)


def kept(previous: Resolved, asked: AskedSpec) -> Plan | None:
    """The plan of the previous revision for a spec that asks the planner the same."""
    if previous.asked is None or previous.chosen is None or previous.room is None:
        return None
    if not same_question(previous.asked, asked):
        return None
    old = previous.spec
    spec = asked.filled(
        product=old.gpu.product,
        tensor=old.parallelism.tensor,
        pipeline=old.parallelism.pipeline,
        expert=old.parallelism.expert_groups,
        attention_data=old.parallelism.attention_groups,
        weights=old.quantization.weights,
        kv_cache=old.quantization.kv_cache,
        dtype=old.model.dtype,
        stages=old.placement.pipeline_stages,
    )
    return Plan(spec, previous.chosen, previous.room, previous.reasons)


def ask(
    asked: AskedSpec,
    model: Model,
    fleet: Fleet,
    replicas: int | None,
    draft: ModelFacts | None = None,
) -> Answer:
    """What the planner says of a spec on a fleet; the same question is worked out once."""
    return _answer(
        model,
        fleet,
        workload_of(asked),
        engine_settings(asked.engine, asked.lora, asked.speculative, draft),
        limits_of(asked, replicas),
    )


@lru_cache(maxsize=1024)
def _answer(
    model: Model, fleet: Fleet, workload: Workload, engine: EngineSettings, limits: Limits
) -> Answer:
    choice = choose(model, fleet, workload, engine, limits)
    return Answer(
        choice.chosen, choice.runner_up, "" if choice.chosen else _nearest(choice, limits)
    )


def _nearest(choice: Choice, limits: Limits) -> str:
    """The refusal that tells most: a cause (`sizing.order`), or what lacked least.

    Of several it is that with the most memory left, else the last one asked.
    """
    rank = ranks(choice.rejected, limits)
    first = min(map(rank, choice.rejected), default=None)
    told = [one for one in choice.rejected if rank(one) is first]
    if near := [one for one in told if one.code in _NEAR and one.memory is not None]:
        return _refused(max(near, key=_left))
    few = [one for one in told if one.code.startswith("NotEnough")]
    last = (few or told)[-1:]
    return _refused(told_of(last[0], rank(last[0]))) if last else ""


def _left(one: Rejection) -> float:
    stages = one.memory.stages if one.memory is not None else ()
    return min((stage.kv_pool / stage.total for stage in stages), default=0.0)


def _refused(one: Rejection) -> str:
    parts = [one.product or ""]
    if one.shape is not None:
        parts.append(shape_words(one.shape))
    if one.precision is not None:
        parts.append(precision_words(one.precision))
    subject = ", ".join(part for part in parts if part)
    return f"{subject}: {one.message}" if subject else one.message


def _no_plan(asked: AskedSpec, answer: Answer | None, fleet: Fleet) -> str:
    found = ", ".join(
        f"{group.nodes} × {group.gpus_per_node} {group.product}"
        + (" (pool)" if group.possible else "")
        for group in fleet.groups
    )
    nearest = answer.nearest if answer is not None else ""
    why = f"; nearest was {nearest}" if nearest else ""
    return (
        f"nothing can be chosen for {', '.join(asked.open)} on {found or 'no usable GPUs'}{why}; "
        "add such GPUs, lower engine.limits, or name a smaller or quantized model"
    )
