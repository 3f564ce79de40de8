"""The conditions: what is true, what is waited for, what the user must mend.

Ready means: this generation, this engine, all of `spec.replicas` ready, nothing old left. Stalled
is for what only the user can mend; capacity, image pulls and restarts are waited for. Reasons are
stable CamelCase words; every message carries numbers and the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.api import names
from shardwright.api.status import ConditionStatus
from shardwright.observe.world import Record
from shardwright.plan import warned
from shardwright.plan.adapter_report import adapters_ready
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.gate import ACCURACY_TOO_LOW
from shardwright.plan.gate import told as scores_told
from shardwright.plan.given import WARNING
from shardwright.plan.groups import Group, State
from shardwright.plan.links import topology
from shardwright.plan.memory import Memory
from shardwright.plan.revisions import Revision
from shardwright.plan.situation import Decision, Findings, Situation
from shardwright.runner.contract import STEP_MODEL
from shardwright.words import counted


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the intents that may fail without being an error.

    `no_room` and `no_room_for_step` say in numbers why nothing was placed, `quota` that a quota
    refused a pod, `borrow` which serving group is lent to the candidate (announced first).
    """

    no_room: str = ""
    no_room_candidate: bool = False
    no_room_for_step: str = ""
    queued_behind: str = ""
    quota: str = ""
    taken: str = ""  # which name of ours belongs to an object of somebody else's
    refused: str = ""  # what the API server said when it would not have a write
    borrow: str = ""
    placed: Mapping[int, Sequence[str]] | None = None


@dataclass(frozen=True, slots=True)
class Say:
    """One condition before it has times."""

    type: str
    status: ConditionStatus
    reason: str
    message: str


def conditions(situation: Situation, decision: Decision, outcome: Outcome) -> list[Say]:
    """All conditions of one pass, one a type."""
    findings = decision.findings
    spec = situation.spec
    replicas = spec.replicas if spec is not None else len(findings.wishes)
    return [
        _accepted(findings),
        _model_ready(findings),
        _engine_ready(findings, outcome),
        _placed(findings, outcome, replicas),
        _available(situation, findings, replicas),
        *_topology(situation, findings),
        *_adapters(situation, findings),
        *_summary(situation, findings, outcome, decision.memory, replicas),
    ]


def fault(error: Exception) -> list[Say]:
    """What is said while no pass gets to its end, by a fault of the operator's own."""
    reason = "OperatorFailed"
    message = (
        f"the operator cannot work out what to do: {type(error).__name__}: {str(error)[:800]}; "
        "what runs is left as it is. It tries again, more and more rarely: take the last edit back "
        "if there was one, and report this with the operator's log"
    )
    return [
        Say("Ready", "False", reason, message),
        Say("Reconciling", "False", "Stalled", "waiting for the user"),
        Say("Stalled", "True", reason, message),
    ]


def _accepted(findings: Findings) -> Say:
    if findings.refusal is not None:
        return Say("Accepted", "False", findings.refusal.reason, findings.refusal.message)
    if findings.fetching is not None:
        return Say(
            "Accepted",
            "Unknown",
            "FetchingModel",
            "the config.json of the model, or of what drafts for it, is not known yet; it decides "
            "whether the shape fits",
        )
    told = warned.told(findings.target.resolved) if findings.target is not None else ()
    if warnings := [reason for reason in told if reason.startswith(WARNING)]:
        return Say("Accepted", "True", "AcceptedWithWarning", "; ".join(warnings))
    return Say("Accepted", "True", "Accepted", "spec, cluster and model fit together")


def _model_chain(findings: Findings) -> Chain | None:
    if findings.fetching is not None:
        return findings.fetching
    chain = findings.chain
    if chain is not None and chain.artifact is not None and chain.artifact.step == STEP_MODEL:
        return chain
    return None


def _model_ready(findings: Findings) -> Say:
    chain = _model_chain(findings)
    if chain is not None:
        return Say("ModelReady", "False", chain.reason or "Fetching", _words(chain))
    target = findings.target
    if target is None:
        return Say("ModelReady", "Unknown", "NotAccepted", "nothing is fetched for this spec")
    at = f" at {target.resolved.commit}" if target.resolved.commit else ""
    return Say("ModelReady", "True", "ModelFetched", f"{target.resolved.spec.model.uri}{at}")


def _words(chain: Chain) -> str:
    tail = f"; end of its log: {chain.log_tail}" if chain.log_tail else ""
    return f"{chain.message or chain.next}{tail}"


def _engine_ready(findings: Findings, outcome: Outcome) -> Say:
    target = findings.target
    if target is None or findings.fetching is not None:
        return Say("EngineReady", "Unknown", "NotResolved", "no engine is asked for yet")
    resolved = target.resolved
    what = f"{resolved.serve_step} {resolved.serve_key}"
    chain = findings.chain
    if findings.proof_failure is not None:
        return Say("EngineReady", "False", _proof_reason(findings), _proof_words(findings))
    if chain is not None and not chain.ready:
        told = outcome.no_room_for_step or _words(chain)
        return Say("EngineReady", "False", chain.reason or "Building", told)
    if findings.scoring is not None and not findings.target_proven:
        told = outcome.no_room_for_step or _words(findings.scoring)
        return Say("EngineReady", "False", findings.scoring.reason or "Measuring", told)
    if not findings.target_proven:
        candidate = _candidate(findings)
        if candidate is None:
            return Say("EngineReady", "False", "Proving", f"{what} is built, not proven yet")
        told = candidate.waiting or _STAGES_OF_PROOF[candidate.state]
        return Say(
            "EngineReady",
            "False",
            "Proving",
            f"{what} is being proven by replica {candidate.index}: {told}",
        )
    scores = f": {scores_told(findings.verdict)}" if findings.verdict is not None else ""
    return Say("EngineReady", "True", "Proven", f"{what} loads and answers{scores}")


def _proof_reason(findings: Findings) -> str:
    failure = findings.proof_failure
    low = failure is not None and failure.reason == ACCURACY_TOO_LOW
    return ACCURACY_TOO_LOW if low else "ProofFailed"


def _proof_words(findings: Findings) -> str:
    failure = findings.proof_failure
    if failure is None:
        return ""
    if failure.reason == ACCURACY_TOO_LOW:
        return _accuracy_words(findings, failure)
    tail = f"; end of its log: {failure.log_tail}" if failure.log_tail else ""
    kept = (
        f"; revision {findings.serving.name} goes on serving"
        if findings.serving is not None
        else ""
    )
    return (
        f"the candidate failed: {failure.reason}: {failure.message}{tail}{kept}; change the spec, "
        "or set the annotation shardwright.dev/restartedAt to try the same again"
    )


def _accuracy_words(findings: Findings, failure: Record) -> str:
    """Both scores and what to try; as of now while the scores are kept, else as it was recorded."""
    said = failure.message
    if findings.verdict is not None and findings.verdict.failed:
        said = f"{scores_told(findings.verdict)}; try {findings.try_next}"
    serving = findings.serving
    kept = f"; revision {serving.name} goes on serving" if serving is not None else ""
    return f"it never serves: {said}{kept}"


def _candidate(findings: Findings) -> Group | None:
    return next(
        (group for group in findings.groups if findings.to_be_proven(group.revision, group)), None
    )


def _quota(findings: Findings, outcome: Outcome) -> str:
    """What a quota said: in this pass, or at the last try while the next one is not due."""
    if outcome.quota:
        return outcome.quota
    absent = {group.index for group in findings.groups if group.state is State.ABSENT}
    return next(
        (
            wish.cause
            for wish in findings.wishes
            if wish.reason == "QuotaExceeded" and wish.index in absent
        ),
        "",
    )


_STAGES_OF_PROOF = {
    State.ABSENT: "its pods are being created",
    State.PARTIAL: "its pods are being created",
    State.GATED: "it waits for GPUs",
    State.PLACING: "it gets its GPUs",
    State.STARTING: "it starts",
    State.READY: "it answers",
    State.BROKEN: "it broke and is tried again",
}


def _placed(findings: Findings, outcome: Outcome, replicas: int) -> Say:
    if quota := _quota(findings, outcome):
        return Say("Placed", "False", "QuotaExceeded", quota)
    if outcome.no_room:
        if outcome.no_room_candidate:
            return Say("Placed", "False", "NoSpareGPUs", outcome.no_room)
        return Say("Placed", "False", "InsufficientGPUs", outcome.no_room)
    if outcome.no_room_for_step:
        return Say("Placed", "False", "NoSpareGPUs", outcome.no_room_for_step)
    if outcome.queued_behind:
        return Say("Placed", "False", "Queued", outcome.queued_behind)
    if replicas == 0:
        return Say("Placed", "True", "ScaledToZero", "no replica is asked for")
    homes = [
        group
        for group in findings.groups
        if group.state in (State.PLACING, State.STARTING, State.READY)
    ]
    waiting = [wish for wish in findings.wishes if wish.held or wish.not_before]
    lacking = max(0, replicas - len(homes))
    if not lacking:
        have = "has all its" if len(homes) == 1 else "have all their"
        return Say("Placed", "True", "AllPlaced", f"{counted(len(homes), 'replica')} {have} GPUs")
    if waiting and len(waiting) >= lacking:
        return Say("Placed", "False", "RestartBackoff", _backoff_words(findings))
    return Say(
        "Placed",
        "False",
        "NotPlacedYet",
        f"{len(homes)} of {replicas} replicas have their GPUs",
    )


def _backoff_words(findings: Findings) -> str:
    told = [
        f"replica {wish.index} is {'held' if wish.held else 'restarting'} after "
        f"{wish.restarts} restarts: {wish.cause}"
        for wish in findings.wishes
        if wish.held or wish.not_before
    ]
    return "; ".join(told[:3])


def _available(situation: Situation, findings: Findings, replicas: int) -> Say:
    ready = sum(group.ready and group.serving for group in findings.groups)
    spec = situation.spec
    unavailable = spec.rollout.max_unavailable if spec is not None else 0
    # None at all is never available, whatever may be missing.
    least = max(min(1, replicas), replicas - unavailable)
    words = f"{ready} of {replicas} replicas are ready, at least {least} must be"
    if ready >= least:
        return Say("Available", "True", "MinimumReplicasReady", words)
    return Say("Available", "False", "TooFewReplicasReady", words)


def _topology(situation: Situation, findings: Findings) -> list[Say]:
    verdict = topology(situation, findings)
    return [Say("TopologyVerified", *verdict)] if verdict is not None else []


def _adapters(situation: Situation, findings: Findings) -> list[Say]:
    verdict = adapters_ready(situation, findings)
    return [Say("AdaptersReady", *verdict)] if verdict is not None else []


def _stall(findings: Findings, memory: Memory) -> tuple[str, str] | None:
    """(reason, message) of what only the user can mend."""
    if findings.refusal is not None:
        return findings.refusal.reason, findings.refusal.message
    for chain in findings.steps:
        if chain.next in (Next.STALLED, Next.FAIL):
            return chain.reason, _words(chain)
    if findings.proof_failure is not None:
        return _proof_reason(findings), _proof_words(findings)
    # It stays barred while another one is made, and then says nothing of that one.
    barred = memory.rolled_back
    if findings.target is not None and findings.target.name in barred:
        cause = barred[findings.target.name]
        serving = findings.serving
        back = (
            f"revision {serving.name} serves again"
            if serving is not None and serving.name not in barred
            else "there is no older one to go back to"
        )
        return "RolledBack", (
            f"the first new replica spent its restart budget: {cause}; {back}; "
            "change the spec to try another way"
        )
    held = [wish for wish in findings.wishes if wish.held]
    if held:
        return "RestartBudgetSpent", (
            f"replica {held[0].index} is held after {held[0].restarts} restarts: {held[0].cause}; "
            f"edit the spec or set the annotation {names.ANNOTATION_RESTARTED_AT} to try again"
        )
    return None


def _summary(
    situation: Situation, findings: Findings, outcome: Outcome, memory: Memory, replicas: int
) -> list[Say]:
    """Ready, Reconciling and Stalled: what kstatus, Flux, Helm and Argo CD read."""
    stall = _stall(findings, memory)
    reason, message = _progress(findings, outcome, memory, replicas)
    well = reason in ("AllReplicasReady", "ScaledToZero")
    ready = well and stall is None
    if situation.fleet_lost and not (well and _all_homes_ready(situation)):
        # What pods on such nodes last said of themselves is no news.
        ready = False
        reason, message = (
            "ClusterUnreachable",
            (
                "more than half of the GPU nodes went NotReady in a minute: nothing is replaced "
                f"until they are back, or have been away for long; {message}"
            ),
        )
    if stall is not None:
        return [
            Say("Ready", "False", *stall),
            Say("Reconciling", "False", "Stalled", "waiting for the user"),
            Say("Stalled", "True", *stall),
        ]
    busy: ConditionStatus = "False" if ready else "True"
    return [
        Say("Ready", "True" if ready else "False", reason, message),
        Say("Reconciling", busy, reason, message),
        Say("Stalled", "False", "Progressing" if not ready else reason, message),
    ]


def _all_homes_ready(situation: Situation) -> bool:
    nodes = situation.nodes
    return all(nodes[pod.node].ready for pod in situation.pods if pod.node in nodes)


def _progress(
    findings: Findings, outcome: Outcome, memory: Memory, replicas: int
) -> tuple[str, str]:
    """The one thing that is waited for now, or that all is well."""
    if outcome.taken:
        return "NameTaken", f"{outcome.taken}; rename or delete it, or choose another name"
    if outcome.refused:
        return "WriteRefused", f"the API server refuses what the operator writes: {outcome.refused}"
    if quota := _quota(findings, outcome):
        return "QuotaExceeded", quota
    for chain in findings.steps:
        if not chain.ready:
            if outcome.no_room_for_step:
                return "NoSpareGPUs", outcome.no_room_for_step
            return chain.reason or chain.next, _words(chain)
    target = findings.target
    if target is None:
        return "Pending", "nothing is resolved yet"
    if replicas == 0:
        if findings.groups or findings.leaving:
            return "ScalingDown", f"{findings.leaving} pods are going"
        return "ScaledToZero", "scaled to zero: no GPU is held, models and engines are kept"
    if outcome.no_room:
        reason = "NoSpareGPUs" if outcome.no_room_candidate else "InsufficientGPUs"
        return reason, outcome.no_room
    if outcome.queued_behind:
        return "Queued", outcome.queued_behind
    if not findings.target_proven:
        candidate = _candidate(findings)
        told = candidate.waiting if candidate is not None else "its candidate is being created"
        reason = candidate.waiting_reason if candidate is not None else ""
        proving = "Proving" if reason in ("", "GroupStarting") else reason
        return proving, f"proving {target.resolved.serve_key}: {told}"
    return _rolling(findings, memory, target, replicas)


def _rolling(
    findings: Findings, memory: Memory, target: Revision, replicas: int
) -> tuple[str, str]:
    current = [group for group in findings.groups if group.revision == target.name]
    ready = sum(group.ready and group.serving for group in current)
    old = len(findings.groups) - len(current)
    if old or len(findings.groups) > replicas:
        why = f" ({findings.rebuild_reason})" if findings.rebuild_reason else ""
        return "RollingOut", (
            f"{ready} of {replicas} replicas are on revision {target.name}{why}, "
            f"{old} of an older revision left"
        )
    if findings.leaving:
        return "RollingOut", f"{findings.leaving} pods of older groups are going"
    if ready >= replicas:
        return "AllReplicasReady", f"{ready} of {replicas} replicas are ready"
    failing = [wish for wish in memory.wishes if wish.not_before or wish.held]
    if failing:
        return failing[0].reason or "RestartBackoff", _backoff_words(findings)
    waiting = next((group for group in current if group.waiting), None)
    if waiting is not None:
        return waiting.waiting_reason, waiting.waiting
    return "ReplicasNotReady", f"{ready} of {replicas} replicas are ready"
