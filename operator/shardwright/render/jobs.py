"""The Job of one attempt at one step: created suspended, pinned and resumed like a replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.api import names
from shardwright.api.settings import Settings
from shardwright.api.spec import CommonSpec, SecretReference
from shardwright.observe.world import ClaimView, Resources
from shardwright.plan.drafts import draft_claim, draft_key
from shardwright.plan.fetched import claim_of
from shardwright.plan.resolve import adapter_key, model_folder, model_key, source_claim
from shardwright.render import common
from shardwright.render.common import Manifest, Owner
from shardwright.render.names import job_name
from shardwright.resolved import Artifact, Score, ServerBeside
from shardwright.runner.contract import (
    FETCHED,
    STEP_ADAPTER,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    STEP_SCORE,
    STORE,
    Also,
    Beside,
    StepRequest,
    artifact_folder,
    encode,
)

# Fetching runs in the operator's own image, where its clients are installed with the package.
FETCH_COMMAND = ("python3", "-m", "shardwright.runner", "fetch")
# Builders and quantizers hand tensors between processes through it.
SHM = "8Gi"
# The container of a server that a step asks.
SERVER = "server"


def step_request(
    artifact: Artifact, spec: CommonSpec, deployment: str, settings: Settings, leader: str = ""
) -> StepRequest:
    """What the runner in the step's pod is asked to do.

    The source is the uri of what is fetched, a model's with its commit pinned, the model's folder,
    or the checkpoint's. `leader` is the DNS name of the replica that a score asks.
    """
    if isinstance(artifact, Score):
        source = artifact.loads
    elif artifact.step == STEP_ENGINE:
        source = f"{STORE}/{artifact_folder(STEP_CHECKPOINT, artifact.source_key)}"
    else:
        source = artifact.source_key if artifact.step in FETCHED else model_folder(spec)
    return StepRequest(
        step=artifact.step,
        key=artifact.key,
        inputs=dict(artifact.inputs),
        commands=artifact.commands,
        expected_files=artifact.expected_files,
        source=source,
        timeout_seconds=int(settings.timeouts.step_seconds),
        deployment=deployment,
        config=dict(artifact.config) if isinstance(artifact, Score) else {},
        leader="127.0.0.1" if _beside(artifact) is not None else leader,
        beside=_server(artifact),
        also=tuple(
            Also(STEP_MODEL, key, f"{STORE}/{artifact_folder(STEP_MODEL, key)}")
            for key in artifact.also
        ),
    )


def step_job(
    artifact: Artifact,
    *,
    attempt: int,
    owners: Sequence[Owner],
    spec: CommonSpec,
    claim: ClaimView,
    settings: Settings,
    runner_config_map: str,
    source_attempt: int = 0,
    also_attempts: tuple[int, ...] = (),
    leader: str = "",
) -> Manifest:
    """The suspended Job of one attempt.

    Args:
        artifact: What is to be made.
        attempt: Counts from 1; part of the name.
        owners: The deployments that need it. The first one's spec gives tolerations, node labels,
            pull secrets, priority and the fetch's Secret.
        spec: The first owner's spec.
        claim: Where the artifact will live.
        settings: Deadlines.
        runner_config_map: Name of the namespace's ConfigMap that holds the runner.
        source_attempt: Which attempt made what the step works on; 0 for a model's fetch.
        also_attempts: The same of what it reads beside that, in order.
        leader: DNS name of the replica that a score asks.
    """
    fetch = artifact.step in FETCHED
    # An engine is built from the checkpoint alone; these two read the models themselves.
    reads = artifact.step in (STEP_CHECKPOINT, STEP_SCORE)
    marks = labels_of(artifact, attempt, claim.uid, source_attempt, also_attempts)
    of_model = source_claim(spec) if reads else ""
    placed = common.volumes(
        spec,
        shm="" if fetch else SHM,
        scratch=byte_quantity(artifact.resources.ephemeral_bytes),
        runner="" if fetch else runner_config_map,
        # A fetch looks at the claim that its own uri names.
        source=claim_of(artifact.source_key) if fetch else of_model,
        draft=draft_claim(spec) if reads else "",
    )
    beside = _beside(artifact)
    own = artifact.resources if beside is None else artifact.resources - beside.resources
    request = encode(step_request(artifact, spec, owners[0].name, settings, leader))
    asked = quantities(own)
    container: Manifest = {
        "name": common.CONTAINER,
        "image": artifact.image,
        "command": list(FETCH_COMMAND) if fetch else [*common.RUNNER_COMMAND, "step"],
        "env": common.environment(
            request,
            # Without a GPU of its own a pod may still see the node's, where the container runtime
            # shows them all by default. This shows the driver's libraries and no device.
            {} if own.gpus else {"NVIDIA_VISIBLE_DEVICES": "none"},
        ),
        "resources": {"requests": asked, "limits": dict(asked)},
        "volumeMounts": common.mounts(placed, store_read_only=False),
        "terminationMessagePolicy": "File",
        "securityContext": common.container_security(),
    }
    if fetch and (reference := _secret(artifact, spec)):
        container["envFrom"] = [{"secretRef": {"name": reference.name, "optional": False}}]
    timeouts = settings.timeouts
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(artifact.step, artifact.key, attempt, claim.uid),
            "namespace": claim.namespace,
            "labels": dict(marks),
            # Not controlled: several deployments may need it, and it goes with the last of them.
            "ownerReferences": [owner.reference(controller=False) for owner in owners],
        },
        "spec": {
            "suspend": True,
            "backoffLimit": 0,
            "parallelism": 1,
            "completions": 1,
            # Pods are counted as over when they are, not when they begin to end.
            "podReplacementPolicy": "Failed",
            # The runner's own deadline comes first and leaves a report; this one is for a pod that
            # never started or cannot end.
            "activeDeadlineSeconds": int(timeouts.step_seconds + timeouts.start_seconds),
            "template": {
                "metadata": {"labels": marks, "annotations": dict(common.BASE_ANNOTATIONS)},
                "spec": {
                    **common.pod_settings(spec),
                    "securityContext": common.pod_security(),
                    **_sidecar(beside, request, placed, spec),
                    "containers": [container],
                    "volumes": placed,
                },
            },
        },
    }


def _beside(artifact: Artifact) -> ServerBeside | None:
    return artifact.beside if isinstance(artifact, Score) else None


def _server(artifact: Artifact) -> Beside | None:
    server = _beside(artifact)
    if server is None:
        return None
    return Beside(
        command=server.command,
        served_name=server.served_name,
        config=dict(server.config),
        health_path=server.health_path,
        port=names.PORT_HTTP,
    )


def _sidecar(
    server: ServerBeside | None, request: str, placed: list[Manifest], spec: CommonSpec
) -> Manifest:
    """The server's container: one that the kubelet ends when the step has ended.

    It has no startup probe, so that the step begins with it: it is the one that waits, and tells.
    """
    if server is None:
        return {}
    asked = quantities(server.resources)
    container = {
        "name": SERVER,
        "image": server.image,
        "restartPolicy": "Always",
        "command": [*common.RUNNER_COMMAND, "beside"],
        # It serves, with what the user found that servers need here (`NCCL_P2P_DISABLE`, …).
        "env": common.environment(request, {item.name: item.value for item in spec.pod.env}),
        "resources": {"requests": asked, "limits": dict(asked)},
        "volumeMounts": common.mounts(placed, store_read_only=True),
        "securityContext": common.container_security(),
    }
    return {"initContainers": [container]}


def _secret(artifact: Artifact, spec: CommonSpec) -> SecretReference | None:
    """Credentials of a fetch: an adapter has its own or none, and so has what drafts tokens."""
    if artifact.step == STEP_ADAPTER:
        adapters = spec.lora.adapters if spec.lora is not None else []
        asked = [one.secret_ref for one in adapters if adapter_key(one.uri) == artifact.key]
        return next((reference for reference in asked if reference is not None), None)
    if artifact.key == draft_key(spec) != model_key(spec):
        drafts = spec.speculative.model if spec.speculative is not None else None
        return drafts.secret_ref if drafts is not None else None
    return spec.model.secret_ref


def labels_of(
    artifact: Artifact,
    attempt: int,
    claim_uid: str,
    source_attempt: int = 0,
    also_attempts: tuple[int, ...] = (),
) -> dict[str, str]:
    """Labels of a step Job and its pod: they are read back as the Job's identity."""
    source = {names.LABEL_SOURCE_ATTEMPT: str(source_attempt)} if source_attempt else {}
    if also_attempts:
        source[names.LABEL_ALSO_ATTEMPTS] = ".".join(str(one) for one in also_attempts)
    return common.labels(
        {
            names.LABEL_STEP: artifact.step,
            names.LABEL_ROLE: artifact.step,
            names.LABEL_KEY: artifact.key,
            names.LABEL_ATTEMPT: str(attempt),
            names.LABEL_CLAIM_UID: claim_uid,
            **source,
        }
    )


def quantities(resources: Resources) -> Mapping[str, str]:
    """Resources as Kubernetes quantities; requests and limits are the same."""
    asked = {
        "cpu": f"{resources.cpu_millis}m",
        "memory": byte_quantity(resources.memory_bytes),
        "ephemeral-storage": byte_quantity(resources.ephemeral_bytes),
        **{name: str(amount) for name, amount in sorted(resources.other.items())},
    }
    if resources.gpus:
        asked[names.GPU_RESOURCE] = str(resources.gpus)
    return asked


def byte_quantity(amount: int) -> str:
    """Bytes as a quantity, exact, in the largest binary unit that divides them."""
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return str(amount)
