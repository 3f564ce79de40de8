"""From Kubernetes objects (decoded JSON) to views: what deciding needs, and no more.

Pure functions. A missing field means what it means to Kubernetes; times are seconds since the
epoch. Nodes are projected in `observe.nodes`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from shardwright.api.names import (
    ANNOTATION_ADAPTERS,
    ANNOTATION_PLACEMENT,
    ANNOTATION_RESTARTED_AT,
    GROUP,
    HOSTNAME_LABEL,
    LABEL_ALSO_ATTEMPTS,
    LABEL_ATTEMPT,
    LABEL_CLAIM_UID,
    LABEL_KEY,
    LABEL_SOURCE_ATTEMPT,
    LABEL_STEP,
)
from shardwright.observe.nodes import pod_requests
from shardwright.observe.world import (
    CRASH_LOOP,
    ChildView,
    ClaimView,
    DeploymentView,
    JobView,
    PodView,
    Record,
    RecordState,
    RevisionView,
)
from shardwright.runner.contract import AdapterFacts, ContractError, ModelFacts, Report, decode

Body = Mapping[str, Any]

_LAST_WORDS = 400


class RecordError(ValueError):
    """A record ConfigMap cannot be read: somebody changed it, or a newer operator wrote it."""


def deployment_view(body: Body) -> DeploymentView:
    """An LLMDeployment as stored."""
    meta = _meta(body)
    return DeploymentView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=int(meta.get("generation") or 0),
        resource_version=_version(meta),
        spec=body.get("spec") or {},
        status=body.get("status") or {},
        restarted_at=(meta.get("annotations") or {}).get(ANNOTATION_RESTARTED_AT, ""),
        deleting=_deleting(meta),
        created=epoch(meta.get("creationTimestamp")) or 0.0,
    )


def pod_view(body: Body) -> PodView:
    """A pod, ours or anybody's."""
    meta, spec, status = _meta(body), body.get("spec") or {}, body.get("status") or {}
    owner = _controller(meta)
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    ready = conditions.get("Ready", {})
    disruption = conditions.get("DisruptionTarget", {})
    containers = status.get("containerStatuses") or ()
    waiting, waiting_message = _waiting([*(status.get("initContainerStatuses") or ()), *containers])
    # A sidecar is started again when it ends, and ended when the pod has: neither is the pod's end.
    sidecars = {item["name"] for item in _sidecars(spec)}
    first = [
        item
        for item in status.get("initContainerStatuses") or ()
        if item.get("name") not in sidecars
    ]
    ended = _terminated([*first, *containers])
    phase = status.get("phase") or "Pending"
    return PodView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=_version(meta),
        owner_uid=owner.get("uid", ""),
        owner_kind=owner.get("kind", ""),
        labels=_ours(meta.get("labels")),
        node=spec.get("nodeName") or "",
        pin=(spec.get("nodeSelector") or {}).get(HOSTNAME_LABEL, ""),
        ip=status.get("podIP") or "",
        phase=phase,
        gated=bool(spec.get("schedulingGates")),
        ready=ready.get("status") == "True",
        started=bool(containers)
        and all(
            "running" in (item.get("state") or {}) or "terminated" in (item.get("state") or {})
            for item in containers
        ),
        deleting=_deleting(meta),
        # The API server adds the grace to the moment of the request.
        gone_by=epoch(meta.get("deletionTimestamp")),
        disrupted=disruption.get("reason", "") if disruption.get("status") == "True" else "",
        requests=pod_requests(body),
        priority=int(spec.get("priority") or 0),
        created=epoch(meta.get("creationTimestamp")) or 0.0,
        bound_at=epoch(scheduled.get("lastTransitionTime"))
        if scheduled.get("status") == "True"
        else None,
        ready_changed=epoch(ready.get("lastTransitionTime")),
        placement=(meta.get("annotations") or {}).get(ANNOTATION_PLACEMENT, ""),
        adapters=(meta.get("annotations") or {}).get(ANNOTATION_ADAPTERS, ""),
        waiting=waiting,
        waiting_message=waiting_message,
        # a gated pod has PodScheduled=False too, with the reason SchedulingGated
        unschedulable=scheduled.get("message", "")
        if scheduled.get("reason") == "Unschedulable"
        else "",
        exit_reason=_first_failure(ended).get("reason", "") or str(status.get("reason") or ""),
        exit_code=_first_failure(ended).get("exitCode"),
        report=_report(ended),
        restarts=sum(int(item.get("restartCount") or 0) for item in containers),
        finished_at=_finished_at(ended, conditions) if phase in ("Succeeded", "Failed") else None,
    )


def job_view(body: Body) -> JobView:
    """A step Job. Its owners are all the deployments that need it."""
    meta, spec, status = _meta(body), body.get("spec") or {}, body.get("status") or {}
    labels = meta.get("labels") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    conditions = {
        item["type"]: item
        for item in status.get("conditions") or ()
        if item.get("status") == "True"
    }
    # FailureTarget comes first, while the pods still end: the outcome is certain from then on
    failure = conditions.get("Failed") or conditions.get("FailureTarget") or {}
    complete = conditions.get("Complete") or {}
    ended = complete or failure
    return JobView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=_version(meta),
        step=labels.get(LABEL_STEP, ""),
        key=labels.get(LABEL_KEY, ""),
        attempt=_int(labels.get(LABEL_ATTEMPT)),
        source_attempt=_int(labels.get(LABEL_SOURCE_ATTEMPT)),
        also_attempts=tuple(
            _int(word) for word in labels.get(LABEL_ALSO_ATTEMPTS, "").split(".") if word
        ),
        claim_uid=labels.get(LABEL_CLAIM_UID, ""),
        owners=tuple(item["uid"] for item in meta.get("ownerReferences") or ()),
        suspended=bool(spec.get("suspend")),
        deleting=_deleting(meta),
        node=(template.get("nodeSelector") or {}).get(HOSTNAME_LABEL, ""),
        requests=pod_requests({"spec": template}),
        beside=replace(pod_requests({"spec": {"containers": _sidecars(template)}}), pods=0),
        active=int(status.get("active") or 0),
        complete=bool(complete),
        failed=bool(failure),
        failure_reason=failure.get("reason", ""),
        failure_message=failure.get("message", ""),
        created=epoch(meta.get("creationTimestamp")) or 0.0,
        started_at=epoch(status.get("startTime")),
        finished_at=epoch(status.get("completionTime")) or epoch(ended.get("lastTransitionTime")),
    )


def claim_view(pvc: Body, pv: Body | None) -> ClaimView:
    """A PersistentVolumeClaim with the node affinity of its volume (None: not known yet)."""
    meta, spec, status = _meta(pvc), pvc.get("spec") or {}, pvc.get("status") or {}
    # what the volume offers counts once it is bound, until then what was asked for
    modes = status.get("accessModes") or spec.get("accessModes") or ()
    return ClaimView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        bound=status.get("phase") == "Bound",
        access_modes=tuple(modes),
        node_terms=node_terms(pv) if pv is not None else (),
        deleting=_deleting(meta),
    )


def node_terms(pv: Body) -> tuple[Mapping[str, tuple[str, ...]], ...]:
    """Terms of a volume's required node affinity: any term, all of its labels.

    Only `In` names places; volumes are provisioned with nothing else (CSI topology). A term with
    another operator is left to the scheduler and taken as anywhere.
    """
    affinity = ((pv.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    terms: list[Mapping[str, tuple[str, ...]]] = []
    for term in affinity.get("nodeSelectorTerms") or ():
        wanted = {
            item["key"]: tuple(item.get("values") or ())
            for item in term.get("matchExpressions") or ()
            if item.get("operator") == "In"
        }
        if not wanted:
            return ()
        terms.append(wanted)
    return tuple(terms)


def record_view(body: Body) -> Record:
    """A record ConfigMap.

    Raises:
        RecordError: If a field that decides is missing or malformed.
    """
    meta, data = _meta(body), body.get("data") or {}
    name = f"ConfigMap {meta.get('namespace')}/{meta.get('name')}"
    try:
        facts = json.loads(data["facts"]) if data.get("facts") else None
        return Record(
            step=data["step"],
            key=data["key"],
            claim_uid=(meta.get("labels") or {})[LABEL_CLAIM_UID],
            state=RecordState(data["state"]),
            name=meta["name"],
            uid=meta["uid"],
            resource_version=_version(meta),
            inputs=json.loads(data.get("inputs") or "{}"),
            commit=data.get("commit", ""),
            facts=ModelFacts.read({**facts, "config": data.get("config", "")}) if facts else None,
            adapter=AdapterFacts.read(json.loads(data["adapter"])) if data.get("adapter") else None,
            total_bytes=int(data.get("totalBytes") or 0),
            reason=data.get("reason", ""),
            message=data.get("message", ""),
            log_tail=data.get("logTail", ""),
            created=_moment(data.get("createdAt")),
            used=_moment(data.get("usedAt")),
            attempt=int(data.get("attempt") or 0),
            rebuilds=int(data.get("rebuilds") or 0),
            unused=_moment(data.get("unusedSince")),
            trash=data.get("trashStamp", ""),
            score=_number(data["score"]) if data.get("score") else None,
            samples=int(data.get("samples") or 0),
            tried=tuple(data.get("triedUnder", "").split()),
        )
    except KeyError as error:
        raise RecordError(f"{name}: {error.args[0]} is missing") from error
    except (TypeError, ValueError) as error:
        raise RecordError(f"{name}: {error}") from error


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"score {text} is no number")
    return found


def revision_view(body: Body) -> RevisionView:
    """A ControllerRevision."""
    meta = _meta(body)
    return RevisionView(
        name=meta["name"],
        uid=meta["uid"],
        resource_version=_version(meta),
        number=int(body.get("revision") or 0),
        owner_uid=_controller(meta).get("uid", ""),
        labels=_ours(meta.get("labels")),
        text=json.dumps(body.get("data") or {}, separators=(",", ":")),
        created=epoch(meta.get("creationTimestamp")) or 0.0,
    )


def child_view(body: Body) -> ChildView:
    """A Service, a PodDisruptionBudget, or a ConfigMap with a runner or a table of adapters."""
    meta = _meta(body)
    return ChildView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=_version(meta),
        owner_uid=_controller(meta).get("uid", ""),
        generation=int(meta.get("generation") or 0),
        labels=_ours(meta.get("labels")),
        deleting=_deleting(meta),
        created=epoch(meta.get("creationTimestamp")) or 0.0,
    )


def epoch(text: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 time, None for none."""
    if not text:
        return None
    return datetime.fromisoformat(text).timestamp()


def _moment(text: str | None) -> float:
    """A record's time: RFC 3339, or seconds since the epoch."""
    if not text:
        return 0.0
    try:
        return float(text)
    except ValueError:
        return epoch(text) or 0.0


def _meta(body: Body) -> Mapping[str, Any]:
    found: Mapping[str, Any] = body.get("metadata") or {}
    return found


def _version(meta: Mapping[str, Any]) -> int:
    return int(meta.get("resourceVersion") or 0)


def _sidecars(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Containers that run beside the others to the pod's end."""
    inits = spec.get("initContainers") or ()
    return [item for item in inits if item.get("restartPolicy") == "Always"]


def _deleting(meta: Mapping[str, Any]) -> bool:
    return bool(meta.get("deletionTimestamp"))


def _controller(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    owners: Iterable[Mapping[str, Any]] = meta.get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _ours(labels: Mapping[str, str] | None) -> dict[str, str]:
    return {name: value for name, value in (labels or {}).items() if name.startswith(f"{GROUP}/")}


def _int(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _waiting(statuses: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Why a container does not start: a reason and words. Creating one is no reason."""
    for item in statuses:
        found: Mapping[str, Any] = (item.get("state") or {}).get("waiting") or {}
        reason: str = found.get("reason") or ""
        if reason == CRASH_LOOP:
            return reason, _last_words(item) or found.get("message", "")
        if reason not in ("", "ContainerCreating", "PodInitializing"):
            return reason, found.get("message", "")
    return "", ""


def _last_words(status: Mapping[str, Any]) -> str:
    """What ended a container that is started again: by itself, else by its kubelet."""
    last = (status.get("lastState") or {}).get("terminated") or {}
    report = _report([last])
    if report is not None and report.message:
        return report.message
    code = f" with exit code {last['exitCode']}" if "exitCode" in last else ""
    said = last.get("message", "").strip()[:_LAST_WORDS]
    return f"{last.get('reason', '')}{code}{': ' if said else ''}{said}"


def _terminated(statuses: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found = ((item.get("state") or {}).get("terminated") for item in statuses)
    return [item for item in found if item]


def _first_failure(ended: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first container that ended badly, else any that ended."""
    items = list(ended)
    return next((item for item in items if item.get("exitCode")), items[-1] if items else {})


def _report(ended: Iterable[Mapping[str, Any]]) -> Report | None:
    """The runner's last words; text that is none counts as absent, an environment failure."""
    for item in ended:
        try:
            return decode(Report, item.get("message") or "")
        except ContractError:
            continue
    return None


def _finished_at(
    ended: Iterable[Mapping[str, Any]], conditions: Mapping[str, Mapping[str, Any]]
) -> float | None:
    """When the last container ended; a pod that was evicted before any started has none."""
    moments = [epoch(item.get("finishedAt")) for item in ended]
    known = [moment for moment in moments if moment is not None]
    if known:
        return max(known)
    return epoch(conditions.get("Ready", {}).get("lastTransitionTime"))
