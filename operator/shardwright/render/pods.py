"""The pods of one replica: one a pipeline stage, bare, gated, replaced together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwright.api import names
from shardwright.api.spec import StagePlacement
from shardwright.plan.drafts import draft_claim
from shardwright.plan.resolve import model_folder, source_claim
from shardwright.render import common
from shardwright.render.adapters import table_key
from shardwright.render.common import Manifest, Owner
from shardwright.render.names import (
    adapters_name,
    pod_name,
    rank_address,
    ranks_service_name,
    token_name,
)
from shardwright.resolved import Artifact, Resolved
from shardwright.runner.contract import (
    ADAPTERS_FILE,
    LIVE_PATH,
    STEP_MODEL,
    STORE,
    Also,
    ServeRequest,
    artifact_folder,
    encode,
)
from shardwright.runtimes.base import serving_of
from shardwright.runtimes.metrics import pages_of
from shardwright.runtimes.registry import runtime

# After the drain the server still has to end its ranks, and the runner to write its report.
GRACE_MARGIN_SECONDS = 30


@dataclass(frozen=True, slots=True)
class GroupIdentity:
    """Which incarnation of which replica: what tells its pods from all others.

    `serving` puts the pods into the Service and the disruption budget from the start; a candidate
    is created without. `spread` is what the planner decided for `pipelineStages: Auto`; None goes
    by the spec, where Auto spreads.
    """

    namespace: str
    owner: Owner
    replica: int
    incarnation: int
    revision: str
    serving: bool
    spread: bool | None = None


def stage_pod_name(identity: GroupIdentity, stage: int) -> str:
    """Name of a stage's pod."""
    owner = identity.owner
    return pod_name(owner.name, owner.uid, identity.replica, identity.incarnation, stage)


def group_pods(
    resolved: Resolved, identity: GroupIdentity, runner_config_map: str
) -> tuple[Manifest, ...]:
    """All pods of a replica, by stage.

    Args:
        resolved: The revision's content.
        identity: Which incarnation of which replica.
        runner_config_map: Name of the namespace's ConfigMap that holds the runner.

    Returns:
        As many Pod manifests as there are pipeline stages; each asks for `tensor` GPUs.
    """
    return tuple(
        _stage_pod(resolved, identity, stage, runner_config_map)
        for stage in range(resolved.pipeline)
    )


def serve_request(resolved: Resolved, identity: GroupIdentity, stage: int) -> ServeRequest:
    """What the runner in this stage's pod is asked to do."""
    spec, owner = resolved.spec, identity.owner
    engine = runtime(spec.engine.runtime)
    service = ranks_service_name(owner.name, owner.uid)
    needs = serving_of(engine, resolved)
    return ServeRequest(
        deployment=owner.name,
        replica=identity.replica,
        incarnation=identity.incarnation,
        stage=stage,
        tensor=resolved.tensor,
        pipeline=resolved.pipeline,
        step=resolved.serve_step,
        key=resolved.serve_key,
        artifact=(
            model_folder(spec)
            if resolved.serve_step == STEP_MODEL
            else f"{STORE}/{artifact_folder(resolved.serve_step, resolved.serve_key)}"
        ),
        model_folder=model_folder(spec),
        served_name=spec.model.served_name,
        product=spec.gpu.product,
        command=engine.serve_command(resolved, stage),
        config=dict(engine.serve_config(resolved)),
        peers=tuple(
            rank_address(stage_pod_name(identity, peer), service, identity.namespace)
            for peer in range(resolved.pipeline)
        ),
        drain_timeout_seconds=spec.rollout.drain_timeout_seconds,
        http_port=names.PORT_HTTP,
        runner_port=names.PORT_RUNNER,
        channel_port=names.PORT_CHANNEL,
        launch=needs.launch,
        health_path=needs.health_path,
        inputs=dict(_served(resolved).inputs),
        revision=identity.revision,
        # Only the leader has a server to ask.
        metrics=pages_of(resolved) if stage == 0 else (),
        adapters=engine.adapters(resolved) if stage == 0 else None,
        also=_also(resolved),
        prepared=needs.prepared,
    )


def _also(resolved: Resolved) -> tuple[Also, ...]:
    """What is loaded beside the served artifact: what drafts tokens for it."""
    draft = resolved.draft
    if draft is None:
        return ()
    made = next(one for one in resolved.artifacts if one.key == draft.key)
    return (Also(step=made.step, key=draft.key, artifact=draft.folder, inputs=dict(made.inputs)),)


def _served(resolved: Resolved) -> Artifact:
    """The artifact that the ranks load."""
    return next(one for one in resolved.artifacts if one.key == resolved.serve_key)


def _stage_pod(
    resolved: Resolved, identity: GroupIdentity, stage: int, runner_config_map: str
) -> Manifest:
    spec, owner, fabric = resolved.spec, identity.owner, resolved.fabric
    name = stage_pod_name(identity, stage)
    capabilities = fabric.capabilities if fabric else []
    host_network = bool(fabric and fabric.host_network)
    placed = common.volumes(
        spec,
        shm=str(spec.pod.shm_size),
        scratch=str(spec.pod.resources.ephemeral_storage),
        runner=runner_config_map,
        source=source_claim(spec),
        draft=draft_claim(spec),
        token=_token(resolved, identity),
        adapters=_adapters(resolved, identity, stage),
    )
    pod_spec: Manifest = {
        **common.pod_settings(spec),
        "hostname": name,
        "subdomain": ranks_service_name(owner.name, owner.uid),
        "schedulingGates": [{"name": names.SCHEDULING_GATE}],
        "terminationGracePeriodSeconds": (
            spec.rollout.drain_timeout_seconds + GRACE_MARGIN_SECONDS
        ),
        "securityContext": common.pod_security(as_image_user=bool(capabilities)),
        "containers": [_container(resolved, identity, stage, placed)],
        "volumes": placed,
    }
    if host_network:
        pod_spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if resolved.pipeline > 1 and _spread(resolved, identity):
        pod_spec["affinity"] = {"podAntiAffinity": _apart(identity)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": identity.namespace,
            "labels": _labels(identity, stage),
            "annotations": {
                **common.BASE_ANNOTATIONS,
                **(fabric.annotations if fabric else {}),
                **spec.pod.annotations,
            },
            # With a controller a drain needs no force; the owner's deletion never waits for us.
            "ownerReferences": [owner.reference(controller=True)],
        },
        "spec": pod_spec,
    }


def _token(resolved: Resolved, identity: GroupIdentity) -> str:
    """Name of the Secret with the incarnation's token; a pod alone has nobody to talk to."""
    if resolved.pipeline == 1:
        return ""
    owner = identity.owner
    return token_name(owner.name, owner.uid, identity.replica, identity.incarnation)


def _adapters(resolved: Resolved, identity: GroupIdentity, stage: int) -> Manifest | None:
    """The volume with the table of adapters: leaders of bases that take any read their own."""
    if resolved.spec.lora is None or stage:
        return None
    return {
        "name": "adapters",
        "configMap": {
            "name": adapters_name(identity.owner.name, identity.owner.uid),
            "items": [{"key": table_key(identity.revision), "path": ADAPTERS_FILE}],
            # There is none before the first adapter is, and it changes while the pod runs.
            "optional": True,
        },
    }


def _spread(resolved: Resolved, identity: GroupIdentity) -> bool:
    if identity.spread is not None:
        return identity.spread
    return resolved.spec.placement.pipeline_stages is not StagePlacement.PACK


def group_labels(identity: GroupIdentity) -> dict[str, str]:
    """Labels that exactly the pods of one incarnation have, and what belongs to them."""
    return {
        names.LABEL_DEPLOYMENT: identity.owner.name,
        names.LABEL_REPLICA: str(identity.replica),
        names.LABEL_INCARNATION: str(identity.incarnation),
    }


def _apart(identity: GroupIdentity) -> Manifest:
    """Stages of one incarnation never share a node: enforced by the scheduler, not only planned."""
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": group_labels(identity)},
                "topologyKey": names.HOSTNAME_LABEL,
            }
        ]
    }


def _labels(identity: GroupIdentity, stage: int) -> dict[str, str]:
    leader = stage == 0
    serving: dict[str, str] = {}
    if identity.serving:
        serving[names.LABEL_PROTECTED] = "true"
        if leader:
            serving[names.LABEL_SERVING] = "true"
    return common.labels(
        group_labels(identity),
        {
            names.LABEL_STAGE: str(stage),
            names.LABEL_REVISION: identity.revision,
            names.LABEL_ROLE: names.ROLE_LEADER if leader else names.ROLE_WORKER,
        },
        serving,
    )


def _container(
    resolved: Resolved, identity: GroupIdentity, stage: int, placed: list[Manifest]
) -> Manifest:
    spec, fabric = resolved.spec, resolved.fabric
    asked = {
        "cpu": str(spec.pod.resources.cpu),
        "memory": str(spec.pod.resources.memory),
        "ephemeral-storage": str(spec.pod.resources.ephemeral_storage),
        names.GPU_RESOURCE: str(resolved.tensor),
    }
    if fabric:
        asked |= {name: str(amount) for name, amount in sorted(fabric.resources.items())}
    ports = [{"name": "runner", "containerPort": names.PORT_RUNNER, "protocol": "TCP"}]
    if stage == 0:
        ports.insert(0, {"name": "http", "containerPort": names.PORT_HTTP, "protocol": "TCP"})
    if resolved.pipeline > 1:
        channel = {"name": "channel", "containerPort": names.PORT_CHANNEL, "protocol": "TCP"}
        ports.append(channel)
    return {
        "name": common.CONTAINER,
        "image": resolved.image,
        "command": [*common.RUNNER_COMMAND, "serve"],
        "env": common.environment(
            encode(serve_request(resolved, identity, stage)),
            fabric.env if fabric else {},
            {item.name: item.value for item in spec.pod.env},
        ),
        "ports": ports,
        "resources": {"requests": asked, "limits": dict(asked)},
        "volumeMounts": common.mounts(placed, store_read_only=True),
        "readinessProbe": _readiness(resolved),
        # Shallow and patient: it ends a runner that hangs, and never takes a loading model, a slow
        # generation or a lost peer for one. Those the runner reports itself.
        "livenessProbe": {
            "httpGet": {"path": LIVE_PATH, "port": names.PORT_RUNNER},
            "initialDelaySeconds": 30,
            "periodSeconds": 30,
            "timeoutSeconds": 10,
            "failureThreshold": 10,
        },
        # The message is a report or nothing. Falling back to the log would put text there that is
        # no report, and the runner's report carries the end of the log already.
        "terminationMessagePolicy": "File",
        "securityContext": common.container_security(fabric.capabilities if fabric else None),
    }


def _readiness(resolved: Resolved) -> dict[str, Any]:
    """Leader and workers are asked alike, on the runner's port; it only takes traffic away."""
    probe = runtime(resolved.spec.engine.runtime).readiness(resolved)
    return {
        "httpGet": {"path": probe.path, "port": probe.port},
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "failureThreshold": probe.failure_threshold,
    }
