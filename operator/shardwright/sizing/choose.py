"""The choice: one plan for a model on a fleet, the runner-up, and a reason for everything else.

`choose` puts the parts together: `candidates` says what is possible, `score` times it,
`preferences` narrows it down. Pure and deterministic: the same question gives the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.sizing.candidates import Option, options
from shardwright.sizing.links import Links
from shardwright.sizing.model import Model
from shardwright.sizing.narrowing import Dropped
from shardwright.sizing.preferences import Decision, decide
from shardwright.sizing.question import Fleet, Limits, Objective, Question, Workload
from shardwright.sizing.reasons import notes_of, reasons_of, second_reasons
from shardwright.sizing.result import Choice, Rejection
from shardwright.sizing.score import Scored, candidate, clock, score
from shardwright.sizing.shape import EngineSettings, Shape
from shardwright.sizing.would_change import would_change


def choose(
    model: Model,
    fleet: Fleet,
    workload: Workload,
    engine: EngineSettings,
    limits: Limits | None = None,
) -> Choice:
    """Choose precision, shape, replicas and GPU product.

    Args:
        model: What is to be served.
        fleet: The GPUs that may be used.
        workload: The load, and what is to be made best.
        engine: The runtime and its limits, which decide memory.
        limits: What is fixed already; nothing when None.

    Returns:
        The chosen plan, or None in its place with all refusals where nothing is possible.

    Raises:
        UnknownEngineError: Nothing is known of the runtime's use of memory.
    """
    question = Question(model, fleet, workload, engine, limits or Limits())
    if refusal := _too_long(question):
        return Choice(
            model.name, workload, None, rejected=(refusal,), notes=notes_of(question, None)
        )
    found, refused = options(question)
    timer = Timer(question, found)
    decision = decide(question, timer.scored(workload.objective), workload.objective)
    if decision.best is None:
        return Choice(
            model.name, workload, None, rejected=tuple(refused), notes=notes_of(question, None)
        )
    second = _runner_up(question, timer.scored(workload.objective), decision)
    chosen = candidate(question, decision.best, reasons_of(question, decision, refused))
    return Choice(
        model=model.name,
        workload=workload,
        chosen=chosen,
        runner_up=(
            candidate(question, second, second_reasons(decision, second)) if second else None
        ),
        would_change=would_change(question, decision, timer.scored),
        rejected=(*(_rejection(one) for one in decision.dropped), *refused),
        notes=notes_of(question, chosen),
    )


class Timer:
    """Times all options, once for each objective that is asked for."""

    def __init__(self, question: Question, found: Sequence[Option]) -> None:
        self._question = question
        # Precisions share a shape's links.
        links: dict[tuple[int, Shape], Links] = {}
        self._clocks = []
        for option in found:
            key = (id(option.pool), option.shape)
            if key not in links:
                links[key] = option.pool.links(option.shape)
            self._clocks.append((option, clock(question, option, links[key])))
        self._known: dict[Objective, list[Scored]] = {}

    def scored(self, objective: Objective) -> list[Scored]:
        """Every option with its figures for this objective."""
        if objective not in self._known:
            self._known[objective] = [
                score(self._question, option, timer, objective) for option, timer in self._clocks
            ]
        return self._known[objective]


def _too_long(question: Question) -> Rejection | None:
    asked, longest = question.workload.request_len, question.engine.max_seq_len
    if asked <= longest:
        return None
    return Rejection(
        "RequestTooLong",
        f"workload.inputLen {question.workload.input_len} + outputLen "
        f"{question.workload.output_len} exceed engine.limits.maxSeqLen {longest}: raise maxSeqLen "
        "or shorten the workload",
    )


def _runner_up(question: Question, scored: Sequence[Scored], decision: Decision) -> Scored | None:
    """What would be chosen if this product had no such ranks for these weights.

    Whole experts instead of cut ones are no other choice: the estimate does not tell them apart.
    """
    best = decision.best
    if best is None:
        return None
    others = [one for one in scored if _split(one) != _split(best)]
    return decide(question, others, question.workload.objective).best


def _split(one: Scored) -> tuple[object, ...]:
    option = one.option
    shape = option.shape
    return option.pool.product, option.precision.weights, shape.tensor, shape.attention_data


def _rejection(dropped: Dropped) -> Rejection:
    option = dropped.scored.option
    return Rejection(
        code=dropped.code,
        message=dropped.message,
        product=option.pool.product,
        precision=option.precision,
        shape=option.shape,
        score=dropped.scored.score,
        memory=option.memory,
        estimate=dropped.scored.estimate,
    )
