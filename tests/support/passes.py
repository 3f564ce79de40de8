"""A deployment of one proven replica, as a pass sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.golden import specs
from tests.support.fleet import gpu_node

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.api.status import GroupStatus, LLMDeploymentStatus
from shardwright.observe.world import DeploymentView, PodView, Record, RecordState
from shardwright.plan.conditions import Outcome
from shardwright.plan.deployment import decide
from shardwright.plan.report import report
from shardwright.plan.revisions import Revision
from shardwright.plan.situation import Decision, Situation
from shardwright.runner.contract import STEP_PROOF

NOW = 1_800_000_000.0
RESOLVED = specs.resolved(specs.spec(parallelism={"tensor": 8, "pipeline": 2}))
SERVING = Revision("llama-abc", "uid-abc", 1, RESOLVED)
WISH = GroupStatus(index=0, incarnation=3, revision=SERVING.name)
NODES = {name: gpu_node(name) for name in ("node-0", "node-1")}


def pod(stage: int, incarnation: int, replica: int = 0, **changes: Any) -> PodView:
    """A member of a replica, ready on a living node."""
    labels = {
        names.LABEL_REPLICA: str(replica),
        names.LABEL_STAGE: str(stage),
        names.LABEL_INCARNATION: str(incarnation),
        names.LABEL_PROTECTED: "true",
    }
    base = PodView(
        "llm",
        f"llama-{replica}-{incarnation}-{stage}",
        f"uid-{replica}-{incarnation}-{stage}",
        labels=labels,
        node=f"node-{stage}",
        phase="Running",
        ready=True,
        started=True,
        created=NOW - 100,
        bound_at=NOW - 99,
    )
    return replace(base, **changes)


def situation(
    *pods: PodView, revision: Revision = SERVING, wishes: Sequence[GroupStatus] = (WISH,)
) -> Situation:
    """The one replica is wished for as incarnation 3 of replica 0, and proven.

    The spec cannot be read, so that what serves is the aim and nothing else is going on.
    """
    resolved = revision.resolved
    made = [(STEP_PROOF, resolved.proof_key), *((a.step, a.key) for a in resolved.artifacts)]
    claim = resolved.claim_uid
    return Situation(
        now=NOW,
        jitter=0.0,
        settings=Settings(),
        deployment=DeploymentView("llm", "llama", "uid", generation=1, resource_version=7),
        spec=None,
        spec_error="unreadable",
        spec_digest="",
        status=LLMDeploymentStatus(observed_generation=1, groups=[*wishes], incarnations=3),
        claims={},
        missing_secrets=(),
        revisions=(revision,),
        pods=pods,
        jobs=(),
        job_pods={},
        records={(claim, *what): Record(*what, claim, RecordState.READY) for what in made},
        nodes=NODES,
    )


def acting(found: Situation) -> Decision:
    """Passes over an unchanged world until one acts: what is to be remembered is written first."""
    for _ in range(3):
        decision = decide(found)
        if not decision.remembered:
            return decision
        found = replace(found, status=report(found, decision, Outcome()))
    raise AssertionError(decision)
