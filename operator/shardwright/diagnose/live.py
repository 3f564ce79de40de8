"""A live object as a description: its spec and status, and the nodes that carry its GPUs.

What only a user can see (that latency does not fall, that answers are bad) is told beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shardwright.api.asked import AskedSpec
from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.api.status import LLMDeploymentStatus
from shardwright.diagnose.observed import Facts, Observed, Symptom
from shardwright.observe.world import DeploymentView, NodeView

# Which reasons of status show which symptom; docs/status.md describes them all.
_SHOWN_BY = {
    Symptom.ENGINE_FAILS_TO_LOAD: (
        "ProofFailed",
        "GPUMismatch",
        "WorldMismatch",
        "ManifestMissing",
        "ManifestMismatch",
        "ArtifactUnusable",
    ),
    Symptom.OUT_OF_MEMORY: ("OutOfMemory", "OOMKilled"),
    Symptom.HANGS_AT_START: ("NotReadyInTime", "RankHung"),
    Symptom.WAITS_FOR_GPUS: ("InsufficientGPUs", "NoSpareGPUs", "QuotaExceeded", "Queued"),
}
_MESSAGE_LIMIT = 65536


def observed_of(
    view: DeploymentView, nodes: Iterable[NodeView], told: Sequence[Symptom] = ()
) -> Observed:
    """Describe a live object.

    Args:
        view: The object as stored.
        nodes: Nodes of its cluster.
        told: Symptoms that its user sees.

    Raises:
        pydantic.ValidationError: The stored spec breaks a rule of this version.
    """
    spec = AskedSpec.model_validate(view.spec)
    status = LLMDeploymentStatus.model_validate(view.status)
    reasons = _reasons(status)
    shown = [
        symptom for symptom, words in _SHOWN_BY.items() if any(word in reasons for word in words)
    ]
    return Observed(
        symptoms=list(dict.fromkeys([*told, *shown])),
        facts=_facts(spec, status, nodes, reasons),
    )


def _facts(
    spec: AskedSpec,
    status: LLMDeploymentStatus,
    nodes: Iterable[NodeView],
    reasons: list[str],
) -> Facts:
    plan = status.plan
    product = (plan.gpu_product if plan else "") or spec.product or ""
    carriers = [node.gpu for node in nodes if product and node.gpu.product == product]
    computes = {gpu.compute for gpu in carriers} - {(0, 0)}
    known: dict[str, Any] = {}
    if carriers:
        known["gpus_per_node"] = max(1, *(gpu.capacity for gpu in carriers))
        known["nvlink_domain"] = max(gpu.nvlink_size for gpu in carriers)
    if computes:
        known["compute"] = "{}.{}".format(*max(computes))
    limits = spec.engine.limits
    return Facts(
        tensor=(plan.tensor if plan else 0) or spec.tensor,
        pipeline=(plan.pipeline if plan else 0) or spec.pipeline,
        replicas=spec.replicas,
        gpu_product=product,
        backend=spec.engine.backend,
        version=spec.engine.version,
        weights=WeightPrecision(plan.weights) if plan and plan.weights else spec.weights,
        kv_cache=KVPrecision(plan.kv_cache) if plan and plan.kv_cache else spec.kv_cache,
        dtype=spec.model.dtype,
        max_batch_size=limits.max_batch_size,
        max_num_tokens=limits.max_num_tokens,
        reasons=reasons,
        message=_message(status),
        **known,
    )


def _reasons(status: LLMDeploymentStatus) -> list[str]:
    """Reasons of what is not well: conditions that fail, replicas and steps that failed."""
    found = [item.reason for item in status.conditions if _ill(item.type, item.status)]
    found += [group.reason for group in status.groups if group.reason and group.state != "Ready"]
    found += [step.reason for step in status.steps if step.reason]
    return list(dict.fromkeys(found))


def _ill(kind: str, state: str) -> bool:
    if kind == "Stalled":
        return state == "True"
    return state == "False" and kind != "Reconciling"


def _message(status: LLMDeploymentStatus) -> str:
    lines = [item.message for item in status.conditions if _ill(item.type, item.status)]
    lines += [group.cause for group in status.groups if group.state != "Ready"]
    lines += [step.cause for step in status.steps]
    lines.append(status.failed_cause)
    return "\n".join(dict.fromkeys(line for line in lines if line))[:_MESSAGE_LIMIT]
