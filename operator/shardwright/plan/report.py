"""What status says: conditions with their times, plan, engine, groups, steps.

Written from what a pass found and what came of it. Times change only when a condition's status
does, so that an unchanged world writes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shardwright.api import names
from shardwright.api.spec import EngineSpec
from shardwright.api.status import (
    AccuracyStatus,
    BarredRevision,
    Condition,
    EngineStatus,
    GroupStatus,
    LLMDeploymentStatus,
    NextEngine,
    PlanStatus,
    ServingEngine,
    StageMemory,
    StepStatus,
)
from shardwright.plan import warned
from shardwright.plan.adapter_report import adapters_status
from shardwright.plan.adapters import advice
from shardwright.plan.advice import advised
from shardwright.plan.attempts import doing
from shardwright.plan.conditions import Outcome, Say, conditions, fault
from shardwright.plan.gate import Answer, limit_words, verdict
from shardwright.plan.groups import Group, State
from shardwright.plan.links import links_of
from shardwright.plan.memory import Memory
from shardwright.plan.revisions import Revision
from shardwright.plan.rollout import Wish
from shardwright.plan.situation import Decision, Findings, Situation
from shardwright.plan.times import stamp
from shardwright.resolved import StageRoom

MESSAGE_LIMIT = 2000


def report(situation: Situation, decision: Decision, outcome: Outcome) -> LLMDeploymentStatus:
    """The status to be written."""
    findings, memory = decision.findings, decision.memory
    spec = situation.spec
    replicas = spec.replicas if spec is not None else len(findings.wishes)
    groups = {(group.index, group.incarnation): group for group in findings.groups}
    serving = [group for group in findings.groups if group.serving]
    return LLMDeploymentStatus(
        observed_generation=situation.deployment.generation,
        conditions=[_timed(situation, say) for say in conditions(situation, decision, outcome)],
        plan=_plan(findings.target, findings.better, replicas, advice(spec.lora if spec else None)),
        engine=_engine(situation, findings, outcome, memory),
        groups=[
            _group(wish, groups.get((wish.index, wish.incarnation)), situation, findings, outcome)
            for wish in memory.wishes
        ],
        steps=[
            StepStatus(
                step=step,
                key=key,
                attempts=tries.attempts,
                failures=tries.failures,
                edit=tries.edit,
                not_before=stamp(tries.not_before),
                avoid_nodes=list(tries.avoid),
                reason=tries.reason,
                cause=_short(tries.cause, 500),
            )
            for (step, key), tries in sorted(memory.tries.items())
        ],
        adapters=adapters_status(situation, findings),
        advice=advised(situation, findings),
        failed_revision=memory.failed_revision,
        failed_cause=_short(memory.failed_cause, 500),
        barred_revisions=[
            BarredRevision(revision=revision, cause=_short(cause, 500))
            for revision, cause in memory.barred
        ],
        settled_revision=memory.settled,
        incarnations=memory.incarnations,
        replicas=len(serving),
        ready_replicas=sum(group.ready for group in serving),
        selector=f"{names.LABEL_DEPLOYMENT}={situation.deployment.name},{names.LABEL_SERVING}=true",
        benchmark=situation.status.benchmark,
    )


def defect(situation: Situation, error: Exception) -> LLMDeploymentStatus:
    """The status while no pass gets to its end, by a fault of the operator's own.

    All that is remembered stays as it is, and nothing is said of replicas that was not seen.
    """
    said = fault(error)
    kinds = {say.type for say in said}
    kept = [item for item in situation.status.conditions if item.type not in kinds]
    return situation.status.model_copy(
        update={
            "observed_generation": situation.deployment.generation,
            "conditions": [*kept, *(_timed(situation, say) for say in said)],
        }
    )


def applied(status: LLMDeploymentStatus) -> dict[str, Any]:
    """A status as server-side apply takes it.

    A map that is applied empty after its keys were ours is stored as null, which the schema
    refuses, from then on at every write; left out, it goes. What a benchmark wrote is another
    manager's: left out, it stays.
    """
    body = status.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"benchmark"})
    serving = body.get("engine", {}).get("serving", {})
    if not serving.get("builtFor", True):
        del serving["builtFor"]
    return body


def _short(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Cut the middle out: the beginning names the place, the end holds the exception."""
    if len(text) <= limit:
        return text
    head = limit // 3
    return f"{text[:head]} […] {text[-(limit - head - 5) :]}"


def _word(reason: str) -> str:
    """A reason as the API takes it: what kubelets and Jobs call things need not fit."""
    word = re.sub(r"[^A-Za-z0-9_,:]", "", reason).rstrip(",:")
    return word if word[:1].isalpha() else f"Reason{word}"


def _timed(situation: Situation, say: Say) -> Condition:
    old = next((item for item in situation.status.conditions if item.type == say.type), None)
    kept = old is not None and old.status == say.status
    return Condition(
        type=say.type,
        status=say.status,
        observed_generation=situation.deployment.generation,
        last_transition_time=(
            old.last_transition_time if old is not None and kept else stamp(situation.now)
        ),
        reason=_word(say.reason),
        message=_short(say.message),
    )


def _plan(
    target: Revision | None, better: str, replicas: int, advised: tuple[str, ...]
) -> PlanStatus | None:
    if target is None:
        return None
    resolved = target.resolved
    room = resolved.room
    return PlanStatus(
        world_size=resolved.world_size,
        gpus=resolved.world_size * replicas,
        tensor=resolved.tensor,
        pipeline=resolved.pipeline,
        expert=resolved.spec.parallelism.expert,
        attention_data=resolved.spec.parallelism.attention_data,
        gpu_product=resolved.spec.gpu.product,
        weights=resolved.spec.quantization.weights,
        kv_cache=resolved.spec.quantization.kv_cache,
        chosen=list(resolved.asked.open) if resolved.asked is not None else [],
        engine=_runtime(resolved.spec.engine),
        image=resolved.image,
        commit=resolved.commit,
        reasons=[_short(reason, 500) for reason in (*warned.told(resolved), *advised)],
        runner_up=resolved.chosen.runner_up if resolved.chosen is not None else "",
        better=better,
        kv_tokens=max(0, room.kv_tokens) if room is not None else 0,
        constants=room.constants if room is not None else "",
        per_gpu=[_stage(stage) for stage in room.stages] if room is not None else [],
    )


def _runtime(engine: EngineSpec) -> str:
    return " ".join(filter(None, (engine.runtime, engine.version, engine.backend)))


def _stage(stage: StageRoom) -> StageMemory:
    return StageMemory(
        stage=stage.stage,
        layers=stage.layers,
        weights_gib=_gib(stage.weights),
        activation_gib=_gib(stage.activation),
        runtime_gib=_gib(stage.runtime),
        lora_gib=_gib(stage.lora),
        draft_gib=_gib(stage.draft),
        kv_cache_gib=_gib(stage.kv_cache),
        kv_tokens=max(0, stage.kv_tokens),
    )


def _gib(count: int) -> float:
    return round(count / 2**30, 2)


def _accuracy(situation: Situation, revision: Revision) -> AccuracyStatus | None:
    judged = verdict(revision.resolved, situation.records)
    if judged is None:
        return None
    decided = judged.answer is not Answer.UNDECIDED
    return AccuracyStatus(
        task=judged.accuracy.task.value,
        score=_shown(judged.score),
        baseline=_shown(judged.baseline),
        limit=limit_words(judged.accuracy),
        samples=judged.samples,
        measured=stamp(judged.measured),
        passed=judged.passed if decided else None,
    )


def _shown(score: float | None) -> float | None:
    return None if score is None else round(score, 4)


def _engine(
    situation: Situation, findings: Findings, outcome: Outcome, memory: Memory
) -> EngineStatus | None:
    serving = findings.answering
    target = findings.target
    shown = ServingEngine()
    if serving is not None:
        resolved = serving.resolved
        shown = ServingEngine(
            key=resolved.serve_key,
            revision=serving.name,
            built_for={
                "tensor": str(resolved.tensor),
                "pipeline": str(resolved.pipeline),
                "gpu": resolved.spec.gpu.product,
                "runtime": resolved.spec.engine.runtime.value,
                "version": resolved.spec.engine.version,
                "step": resolved.serve_step,
            },
            accuracy=_accuracy(situation, serving),
        )
    coming = None
    if target is not None and (serving is None or target.name != serving.name):
        chain = findings.chain
        step = "Rolling" if findings.target_proven else "Proving"
        if chain is None or chain.artifact is None:
            chain = findings.scoring
        if chain is not None and chain.artifact is not None:
            step = doing(chain.artifact)
        coming = NextEngine(
            key=target.resolved.serve_key,
            revision=target.name,
            step=step,
            reason=findings.rebuild_reason,
            attempt=chain.attempt if chain is not None else 0,
            borrowed=memory.borrowed or outcome.borrow,
            accuracy=_accuracy(situation, target),
        )
    if serving is None and coming is None:
        return None
    return EngineStatus(serving=shown, next=coming)


def _group(
    wish: Wish,
    group: Group | None,
    situation: Situation,
    findings: Findings,
    outcome: Outcome,
) -> GroupStatus:
    candidate = findings.to_be_proven(wish.revision, group)
    nodes: Sequence[str] = ()
    placed = (outcome.placed or {}).get(wish.index)
    state = "Pending"
    if group is not None:
        if group.state in (State.PLACING, State.STARTING) or placed:
            state, nodes = "Starting", placed or group.nodes
        elif group.state is State.READY:
            state, nodes = "Ready", group.nodes
    if wish.held:
        state = "Held"
    return GroupStatus(
        index=wish.index,
        incarnation=wish.incarnation,
        revision=wish.revision,
        role="Candidate" if candidate else "Serving",
        state=state,
        restarts=wish.restarts,
        not_before=stamp(wish.not_before),
        avoid_nodes=list(wish.avoid),
        cause=_short(wish.cause, 1000),
        reason=wish.reason,
        held=wish.held,
        held_edit=wish.held_edit,
        nodes=list(nodes),
        links=links_of(situation, group) if group is not None else None,
    )
