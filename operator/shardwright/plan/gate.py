"""The accuracy gate: which scores a revision needs, and whether what was measured passes.

A gate has two sides. What is measured (task, samples, data, tool, engine) makes the key of a score,
which is kept and shared like any artifact. What is demanded (a limit, a baseline) makes the proof's
key together with it, and is judged here from the kept scores: another limit needs no new run.

    artifacts ──▶ scores of tools with a copy of their own ──▶ candidate ──▶ scores that ask it
                                    │                                              │
                                    └──────────────── verdict ◀────────────────────┘
                                    passed: proof        failed: failure record, the old one serves
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from shardwright.api.accuracy import Accuracy, Task
from shardwright.api.changes import hashed_spec
from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.world import Record, RecordState
from shardwright.resolved import Gate, Resolved, Score
from shardwright.runner.contract import STEP_PROOF, STEP_SCORE, ModelFacts
from shardwright.runtimes.registry import runtime

Records = Mapping[tuple[str, str, str], Record]

ACCURACY_TOO_LOW = "AccuracyTooLow"
# Scores are told with two decimals; a limit that is met to within rounding is met.
_ROUNDING = 1e-6
# What is tried when a precision answers too badly, in this order. Four bits give way to eight, and
# floating-point eight bits to whole numbers whose outliers are smoothed: which of the two a model
# takes better differs between models (SmoothQuant, arXiv:2211.10438; the figures for one model are
# in sizing.precisions).
_LADDER = (
    WeightPrecision.INT4_GPTQ,
    WeightPrecision.W4A8_AWQ,
    WeightPrecision.NVFP4,
    WeightPrecision.INT4_AWQ,
    WeightPrecision.FP8,
    WeightPrecision.INT8_SMOOTHQUANT,
    WeightPrecision.INT8,
    WeightPrecision.NONE,
)


class Answer(StrEnum):
    """What a gate says."""

    UNDECIDED = "Undecided"
    PASSED = "Passed"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate says of what was measured.

    `score` and `baseline` are None while they are not known (the baseline also where nothing is
    compared). `worst` is the score that just passes, `measured` when the score was taken, in
    seconds since the epoch.
    """

    answer: Answer
    accuracy: Accuracy
    score: float | None = None
    baseline: float | None = None
    worst: float | None = None
    samples: int = 0
    measured: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether it may serve."""
        return self.answer is Answer.PASSED

    @property
    def failed(self) -> bool:
        """Whether it must not serve."""
        return self.answer is Answer.FAILED


def verdict(resolved: Resolved, records: Records) -> Verdict | None:
    """What the gate of a revision says; None when it has none."""
    accuracy, gate = resolved.spec.quantization.accuracy, resolved.gate
    if accuracy is None or gate is None:
        return None
    score = _found(resolved, gate.score, records)
    base = _found(resolved, gate.baseline, records) if gate.baseline is not None else None
    return judge(
        accuracy,
        score.score if score is not None else None,
        base.score if base is not None else accuracy.given_baseline,
        samples=score.samples if score is not None else 0,
        measured=score.created if score is not None else 0.0,
    )


def judge(
    accuracy: Accuracy,
    score: float | None,
    baseline: float | None,
    *,
    samples: int = 0,
    measured: float = 0.0,
) -> Verdict:
    """Whether a score passes; `baseline` counts only for limits beside one."""
    told = Verdict(Answer.UNDECIDED, accuracy, score, baseline, None, samples, measured)
    worst = _worst(accuracy, baseline)
    if worst is None:
        return told
    told = replace(told, worst=worst)
    if score is None:
        return told
    falls_short = score - worst if accuracy.task is Task.PERPLEXITY else worst - score
    # So written, a score that is no number fails.
    answer = Answer.PASSED if falls_short <= _ROUNDING else Answer.FAILED
    return replace(told, answer=answer)


def _worst(accuracy: Accuracy, baseline: float | None) -> float | None:
    """The score that just passes; None while the baseline is not known."""
    if accuracy.min_score is not None:
        return accuracy.min_score
    if accuracy.max_perplexity is not None:
        return accuracy.max_perplexity
    if baseline is None:
        return None
    if accuracy.max_rise is not None:
        return baseline + accuracy.max_rise
    return baseline - (accuracy.max_drop or 0.0)


def _found(resolved: Resolved, score: Score, records: Records) -> Record | None:
    record = records.get((resolved.claim_uid, STEP_SCORE, score.key))
    if record is None or record.state is not RecordState.READY or record.score is None:
        return None
    return record


def unscored(resolved: Resolved, records: Records, *, asks_leader: bool) -> tuple[Score, ...]:
    """Scores that are still to be measured: those that ask a replica, or the others.

    What is served comes first: where it fails by itself (a wrong flag, no data) the baseline's run
    is spared.
    """
    gate = resolved.gate
    if gate is None:
        return ()
    every = [gate.score, *([gate.baseline] if gate.baseline is not None else [])]
    return tuple(
        score
        for score in every
        if score.asks_leader is asks_leader and _found(resolved, score, records) is None
    )


def loaded(resolved: Resolved, records: Records) -> bool:
    """Whether it is known to load and answer, by whichever deployment found it."""
    gate = resolved.gate
    if gate is None:
        return False
    record = records.get((resolved.claim_uid, STEP_PROOF, gate.loads_key))
    return record is not None and record.state is RecordState.READY


def gate_keys(resolved: Resolved) -> tuple[str, ...]:
    """Keys of the records that a gate rests on."""
    gate = resolved.gate
    if gate is None:
        return ()
    return (gate.loads_key, *(one.key for one in (gate.score, gate.baseline) if one is not None))


def proof_inputs(accuracy: Accuracy, gate: Gate) -> dict[str, object]:
    """What a gate adds to the inputs of a proof: what is measured, and what is demanded."""
    limits = {
        "maxDrop": accuracy.max_drop,
        "minScore": accuracy.min_score,
        "maxRise": accuracy.max_rise,
        "maxPerplexity": accuracy.max_perplexity,
        "baseline": gate.baseline.key if gate.baseline is not None else accuracy.given_baseline,
    }
    given = {name: value for name, value in limits.items() if value is not None}
    return {"gate": {"score": gate.score.key, **given}}


def same_pods(one: Resolved, other: Resolved) -> bool:
    """Whether two revisions differ in nothing but their gate: the same pods serve both."""
    return _of_pods(one) == _of_pods(other)


def _of_pods(resolved: Resolved) -> tuple[object, ...]:
    """All that a revision's pods are made from."""
    plain = resolved.spec.quantization.model_copy(update={"accuracy": None})
    spec = resolved.spec.model_copy(update={"quantization": plain})
    return (
        hashed_spec(spec),
        resolved.claim_uid,
        resolved.image,
        resolved.commit,
        resolved.serve_key,
        resolved.levels,
        resolved.fabric,
        resolved.restarted_at,
    )


def told(judged: Verdict) -> str:
    """The verdict in words: both scores, the task and its samples, the limit, by how much."""
    accuracy = judged.accuracy
    samples = f" over {judged.samples} samples" if judged.samples else ""
    found = "not measured yet" if judged.score is None else f"{judged.score:.2f}"
    parts = [f"{accuracy.task.value} {found}{samples}"]
    if accuracy.relative:
        known = "not measured yet" if judged.baseline is None else f"{judged.baseline:.2f}"
        parts.append(f"baseline {known}")
    parts.append(limit_words(accuracy))
    if judged.failed and judged.score is not None and judged.worst is not None:
        beyond = abs(judged.score - judged.worst)
        parts.append(f"fails by {beyond:.2f} ({judged.worst:.2f} would pass)")
    return ", ".join(parts)


def limit_words(accuracy: Accuracy) -> str:
    """The limit of a gate, as in `maxDrop 1`."""
    limits = {
        "maxDrop": accuracy.max_drop,
        "minScore": accuracy.min_score,
        "maxRise": accuracy.max_rise,
        "maxPerplexity": accuracy.max_perplexity,
    }
    return next(f"{name} {value:g}" for name, value in limits.items() if value is not None)


def next_precision(
    spec: LLMDeploymentSpec, facts: ModelFacts, compute: tuple[int, int] | None
) -> str:
    """What to try when this precision answers too badly; as the fields of a spec, in words."""
    weights, cache = spec.quantization.weights, spec.quantization.kv_cache
    engine = runtime(spec.engine.runtime)
    for other in _LADDER[_LADDER.index(weights) + 1 :]:
        if other is WeightPrecision.INT8 and weights is not WeightPrecision.INT8:
            continue  # loses what SmoothQuant was made to keep
        changed = spec.quantization.model_copy(update={"weights": other})
        tried = spec.model_copy(update={"quantization": changed})
        if engine.refuse_spec(tried, compute) or engine.refuse_model(tried, facts, compute):
            continue
        return f"quantization.weights {other.value}"
    if cache is not KVPrecision.NONE:
        return "quantization.kvCache None"
    return "another model, or another limit: nothing is quantized here that could be taken back"
