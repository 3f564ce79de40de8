"""What a pass counts: steps that ended, artifacts found, groups replaced, rollouts that ended.

Counted once, when the pass that noticed it has written it down; a pass that was repeated after a
crash may count again, which is what counters of a process are.
"""

from __future__ import annotations

from shardwright.api.status import LLMDeploymentStatus
from shardwright.apply.executor import Outcome
from shardwright.control.metrics import Metrics
from shardwright.observe.world import RecordState
from shardwright.plan.attempts import Chain, Next
from shardwright.plan.situation import Decision, MakeRevision, Situation
from shardwright.runner.contract import DONE, ENVIRONMENT, PERMANENT

_ENDED = {
    Next.RECORD: DONE,
    Next.FAIL: PERMANENT,
    Next.COUNT: ENVIRONMENT,
    Next.WITHDRAW: ENVIRONMENT,
}


def measure_steps(metrics: Metrics, situation: Situation, decision: Decision) -> None:
    """Steps whose end this pass wrote down, and artifacts that a new revision found made."""
    findings = decision.findings
    for chain in findings.steps:
        if chain.next in _ENDED and chain.artifact is not None:
            metrics.step_seconds.labels(chain.artifact.step, _ENDED[chain.next]).observe(
                _seconds(chain)
            )
    for intent in decision.intents:
        if not isinstance(intent, MakeRevision):
            continue
        resolved = intent.revision.resolved
        for artifact in resolved.artifacts:
            known = situation.records.get((resolved.claim_uid, artifact.step, artifact.key))
            if known is not None and known.state is RecordState.READY:
                metrics.artifacts_reused.labels(artifact.step).inc()


def _seconds(chain: Chain) -> float:
    """From the Job's start to its end; the report's own time where the Job does not say."""
    job, report = chain.job, chain.report
    if job is not None and job.started_at is not None and job.finished_at is not None:
        return max(0.0, job.finished_at - job.started_at)
    return report.seconds if report is not None else 0.0


def measure_placement(metrics: Metrics, situation: Situation, placed: bool, done: Outcome) -> None:  # noqa: FBT001 - a fact
    """How long a replica that was just placed had waited."""
    waiting = [pod.created for pod in situation.pods if pod.gated]
    if placed and done.complete and waiting:
        metrics.placement_wait.observe(max(0.0, situation.now - min(waiting)))


def measure_turns(metrics: Metrics, old: LLMDeploymentStatus, new: LLMDeploymentStatus) -> None:
    """Groups that were replaced, and rollouts that came to an end."""
    known = {(group.index, group.incarnation) for group in old.groups}
    for group in new.groups:
        if (group.index, group.incarnation) not in known and group.cause:
            metrics.group_restarts.labels(group.reason or "Unknown").inc()
    if _rolled_back(new) - _rolled_back(old):
        metrics.rollouts.labels("RolledBack").inc()
    was = old.engine.next if old.engine is not None else None
    now = new.engine.next if new.engine is not None else None
    serving = new.engine.serving.revision if new.engine is not None else ""
    if was is not None and now is None and was.revision == serving:
        metrics.rollouts.labels("Completed").inc()


def _rolled_back(status: LLMDeploymentStatus) -> set[str]:
    barred = {one.revision for one in status.barred_revisions}
    return barred | ({status.failed_revision} if status.failed_revision else set())
