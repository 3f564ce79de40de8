"""One bare, gated pod a stage: whole replicas, restricted, and addressed by name."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.golden import specs

from shardwright.api import names
from shardwright.api.settings import FabricProfile, Settings
from shardwright.observe.projections import pod_view
from shardwright.render.pods import group_pods
from shardwright.runner.contract import (
    SOURCE,
    STORE,
    ServeRequest,
    artifact_folder,
    artifact_key,
    decode,
)

RUNNER = "shardwright-runner-0123456789"


def pods(asked: Any = None, model: Any = specs.LLAMA_8B, **identity: Any) -> list[dict[str, Any]]:
    found = specs.resolved(asked if asked is not None else specs.spec(), model)
    return list(group_pods(found, specs.identity(**identity), RUNNER))


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    return dict(only)


def env(pod: dict[str, Any]) -> dict[str, str]:
    entries = container(pod)["env"]
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {entry["name"]: entry.get("value", "") for entry in entries}


def request(pod: dict[str, Any]) -> ServeRequest:
    return decode(ServeRequest, env(pod)["SHARDWRIGHT_REQUEST"])


def volume(pod: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    (found,) = [item for item in pod["spec"]["volumes"] if item["name"] == name]
    (mount,) = [item for item in container(pod)["volumeMounts"] if item["name"] == name]
    return found, mount


TWO_STAGES = specs.spec(parallelism={"tensor": 8, "pipeline": 2})


def test_one_pod_a_stage_asks_for_the_gpus_of_one_tensor_group() -> None:
    found = pods(TWO_STAGES)
    assert len(found) == 2
    for stage, pod in enumerate(found):
        resources = container(pod)["resources"]
        assert resources["requests"] == resources["limits"]
        assert resources["limits"] == {
            "cpu": "8",
            "memory": "64Gi",
            "ephemeral-storage": "20Gi",
            "nvidia.com/gpu": "8",
        }
        assert pod["metadata"]["labels"][names.LABEL_STAGE] == str(stage)


def test_pods_are_gated_bare_and_never_restarted_in_place() -> None:
    for pod in pods(TWO_STAGES):
        assert pod["spec"]["schedulingGates"] == [{"name": names.SCHEDULING_GATE}]
        assert pod["spec"]["restartPolicy"] == "Never"
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == (
            "LLMDeployment",
            True,
            False,
        )


def test_names_and_labels_tell_owner_replica_incarnation_and_stage() -> None:
    first = pods(TWO_STAGES, replica=3, incarnation=7)
    assert [pod["metadata"]["name"] for pod in first] == [
        "llama-32d0-3-7-0",
        "llama-32d0-3-7-1",
    ]
    labels = first[1]["metadata"]["labels"]
    assert labels == {
        names.LABEL_MANAGED_BY: "shardwright",
        names.LABEL_DEPLOYMENT: "llama",
        names.LABEL_REPLICA: "3",
        names.LABEL_INCARNATION: "7",
        names.LABEL_STAGE: "1",
        names.LABEL_REVISION: "llama-4f1c2b3a5d",
        names.LABEL_ROLE: "worker",
        names.LABEL_PROTECTED: "true",
    }


def test_a_recreated_deployment_of_the_same_name_has_other_pod_names() -> None:
    again = specs.Owner(name="llama", uid="another-uid")
    assert pods()[0]["metadata"]["name"] != pods(owner=again)[0]["metadata"]["name"]


@pytest.mark.parametrize(
    ("serving", "leader", "worker"),
    [(True, (True, True), (False, True)), (False, (False, False), (False, False))],
)
def test_only_leaders_of_serving_groups_take_traffic_and_all_their_pods_are_protected(
    serving: bool, leader: tuple[bool, bool], worker: tuple[bool, bool]
) -> None:
    for pod, expected in zip(pods(TWO_STAGES, serving=serving), (leader, worker), strict=True):
        labels = pod["metadata"]["labels"]
        assert (names.LABEL_SERVING in labels, names.LABEL_PROTECTED in labels) == expected


def test_stages_are_kept_on_different_nodes_within_their_own_incarnation() -> None:
    for pod in pods(TWO_STAGES):
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        selector = term["labelSelector"]["matchLabels"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        assert set(selector) == {
            names.LABEL_DEPLOYMENT,
            names.LABEL_REPLICA,
            names.LABEL_INCARNATION,
        }


@pytest.mark.parametrize(
    ("asked", "spread", "apart"),
    [
        ("Auto", None, True),
        ("Spread", None, True),
        ("Pack", None, False),
        ("Auto", False, False),
        ("Auto", True, True),
    ],
)
def test_stages_may_share_a_node_where_packing_was_asked_or_decided(
    asked: str, spread: bool | None, apart: bool
) -> None:
    spec = specs.spec(parallelism={"tensor": 2, "pipeline": 2}, placement={"pipelineStages": asked})
    for pod in pods(spec, spread=spread):
        assert ("affinity" in pod["spec"]) == apart


def test_a_single_stage_needs_no_anti_affinity() -> None:
    assert "affinity" not in pods()[0]["spec"]


def test_ranks_find_each_other_by_name_before_they_are_ready() -> None:
    found = pods(TWO_STAGES)
    peers = request(found[0]).peers
    assert peers == request(found[1]).peers
    for pod, peer in zip(found, peers, strict=True):
        name = pod["metadata"]["name"]
        assert pod["spec"]["hostname"] == name
        assert peer == f"{name}.{pod['spec']['subdomain']}.llm.svc"


def test_each_pod_is_told_its_stage_and_what_to_load() -> None:
    resolved = specs.resolved(TWO_STAGES)
    for stage, pod in enumerate(pods(TWO_STAGES)):
        asked = request(pod)
        assert (asked.stage, asked.tensor, asked.pipeline) == (stage, 8, 2)
        assert (asked.step, asked.key) == ("engine", resolved.serve_key)
        assert asked.artifact == f"{STORE}/{artifact_folder('engine', resolved.serve_key)}"
        assert asked.model_folder == f"{STORE}/{artifact_folder('model', resolved.model_key)}"
        assert asked.command.argv[0] == "trtllm-llmapi-launch"
        assert container(pod)["command"] == [
            "python3",
            "/shardwright/runner/shardwright-runner.pyz",
            "serve",
        ]


def test_a_model_that_is_served_as_it_is_is_loaded_from_its_own_folder() -> None:
    asked = specs.spec(model={"uri": "pvc://shared/llama/8b"}, engine={"backend": "PyTorch"})
    (pod,) = pods(asked)
    assert request(pod).artifact == request(pod).model_folder == f"{SOURCE}/llama/8b"
    found, mount = volume(pod, "source")
    assert found["persistentVolumeClaim"] == {"claimName": "shared", "readOnly": True}
    assert mount["readOnly"] is True


def test_a_model_on_the_same_claim_needs_no_second_mount() -> None:
    (pod,) = pods(specs.spec(model={"uri": "pvc://models/llama"}, engine={"backend": "PyTorch"}))
    assert request(pod).artifact == f"{STORE}/llama"
    assert [item["name"] for item in pod["spec"]["volumes"]] == [
        "store",
        "scratch",
        "shm",
        "runner",
    ]


def test_shared_memory_is_sized_memory_and_the_store_is_read_only() -> None:
    (pod,) = pods(specs.spec(pod={"shmSize": "32Gi"}))
    found, mount = volume(pod, "shm")
    assert found["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}
    assert mount["mountPath"] == "/dev/shm"  # noqa: S108
    assert volume(pod, "store")[1]["readOnly"] is True
    assert volume(pod, "scratch")[0]["emptyDir"] == {"sizeLimit": "20Gi"}


def test_home_user_and_caches_are_on_the_scratch_volume() -> None:
    (pod,) = pods()
    values = env(pod)
    assert values["USER"] == values["LOGNAME"] == "shardwright"
    _, mount = volume(pod, "scratch")
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"):
        assert values[name].startswith(mount["mountPath"])


def test_a_user_s_variable_replaces_a_default_and_the_fabric_s_but_never_the_operator_s() -> None:
    asked = specs.spec(
        pod={
            "fabricProfile": "infiniband",
            "env": [{"name": "HF_HOME", "value": "/x"}, {"name": "NCCL_IB_HCA", "value": "mlx6"}],
        }
    )
    (pod,) = pods(asked)
    assert (env(pod)["HF_HOME"], env(pod)["NCCL_IB_HCA"]) == ("/x", "mlx6")
    assert request(pod).deployment == "llama"


def test_probes_go_to_the_runner_and_liveness_is_patient() -> None:
    for pod in pods(TWO_STAGES):
        ready, live = container(pod)["readinessProbe"], container(pod)["livenessProbe"]
        assert ready["httpGet"] == {"path": "/readyz", "port": 8091}
        assert live["httpGet"] == {"path": "/healthz", "port": 8091}
        assert live["periodSeconds"] * live["failureThreshold"] >= 300


def test_the_grace_period_covers_the_drain() -> None:
    (pod,) = pods(specs.spec(rollout={"drainTimeoutSeconds": 300}))
    assert pod["spec"]["terminationGracePeriodSeconds"] > 300


def restricted_violations(pod: dict[str, Any]) -> list[str]:
    """The restricted pod security standard, rule by rule."""
    spec = pod["spec"]
    wrong = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    allowed = {"emptyDir", "configMap", "persistentVolumeClaim", "secret"}
    wrong += [v["name"] for v in spec["volumes"] if not set(v) - {"name"} <= allowed]
    outer = spec["securityContext"]
    if not (outer.get("runAsNonRoot") and outer.get("runAsUser")):
        wrong.append("runAsNonRoot")
    if outer["seccompProfile"] != {"type": "RuntimeDefault"}:
        wrong.append("seccompProfile")
    for item in spec["containers"]:
        inner = item["securityContext"]
        if inner["allowPrivilegeEscalation"] is not False or inner.get("privileged"):
            wrong.append("allowPrivilegeEscalation")
        if inner["capabilities"] != {"drop": ["ALL"]}:
            wrong.append("capabilities")
        if any("hostPort" in port for port in item.get("ports", [])):
            wrong.append("hostPort")
    return wrong


def test_pods_keep_to_the_restricted_standard() -> None:
    for pod in pods(TWO_STAGES):
        assert restricted_violations(pod) == []


def test_a_fabric_profile_brings_its_resources_and_exactly_its_own_privileges() -> None:
    for pod in pods(specs.spec(pod={"fabricProfile": "infiniband"})):
        assert container(pod)["resources"]["limits"]["rdma/ib"] == "8"
        assert env(pod)["NCCL_IB_HCA"] == "mlx5"
        assert pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "ib"
        # a capability never reaches the process of another user than root
        assert restricted_violations(pod) == ["runAsNonRoot", "capabilities"]
        assert container(pod)["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    for pod in pods(specs.spec(pod={"fabricProfile": "host"})):
        assert restricted_violations(pod) == ["hostNetwork"]
        assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_pods_reach_no_api_server_and_see_no_service_variables() -> None:
    (pod,) = pods()
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False


def test_maps_that_a_placement_is_added_to_are_never_empty() -> None:
    """The API server drops empty maps, and a JSON patch cannot add below one that is missing."""
    (pod,) = pods()
    assert pod["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert pod["metadata"]["annotations"]


def test_the_gpu_taint_and_the_user_s_taints_are_tolerated() -> None:
    asked = [
        {"key": "dedicated", "value": "llm", "effect": "NoSchedule"},
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
    ]
    (pod,) = pods(specs.spec(placement={"tolerations": asked}))
    assert pod["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"},
        {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
    ]


def test_the_observed_pod_asks_for_what_was_rendered() -> None:
    (pod,) = pods(specs.spec(parallelism={"tensor": 4}, pod={"fabricProfile": "infiniband"}))
    view = pod_view({**pod, "metadata": {**pod["metadata"], "uid": "u"}})
    assert view.requests.gpus == 4
    assert view.requests.memory_bytes == 64 * 2**30
    assert view.requests.other == {"rdma/ib": 8}
    assert (view.gated, view.owner_uid) == (True, specs.owner().uid)


DNS_LABEL = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
ENGINES = st.sampled_from(
    [{}, {"backend": "PyTorch"}, {"backend": "PyTorch", "config": {"attn_backend": "TRTLLM"}}]
)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=DNS_LABEL,
    tensor=st.sampled_from([1, 2, 4, 8, 16, 72, 1024]),
    pipeline=st.integers(1, 5),
    replica=st.integers(0, 1024),
    incarnation=st.integers(1, 10**6),
    serving=st.booleans(),
    engine=ENGINES,
    fabric=st.sampled_from(["", "infiniband", "host"]),
    stages=st.sampled_from(["Auto", "Spread", "Pack"]),
    trusted=st.booleans(),
)
def test_any_valid_spec_renders_valid_pods_whose_gpus_add_up_to_the_world(
    name: str,
    tensor: int,
    pipeline: int,
    replica: int,
    incarnation: int,
    serving: bool,
    engine: dict[str, Any],
    fabric: str,
    stages: str,
    trusted: bool,
) -> None:
    asked = specs.spec(
        model={"uri": "hf://org/model", "trustRemoteCode": trusted},
        engine=engine,
        parallelism={"tensor": tensor, "pipeline": pipeline},
        placement={"pipelineStages": stages},
        pod={"fabricProfile": fabric, "annotations": {"example.com/a": "b"}},
    )
    found = pods(asked, name=name, replica=replica, incarnation=incarnation, serving=serving)
    gpus = [int(container(pod)["resources"]["limits"]["nvidia.com/gpu"]) for pod in found]
    assert sum(gpus) == asked.world_size
    assert len({pod["metadata"]["name"] for pod in found}) == pipeline
    for pod in found:
        kubernetes_validate.validate(pod, "1.37", strict=True)
        assert len(pod["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in pod["metadata"]["labels"].values())
        assert json.loads(json.dumps(pod)) == pod


def test_the_runner_is_told_what_the_key_of_its_artifact_is_made_of() -> None:
    for pod in pods(TWO_STAGES):
        asked = request(pod)
        assert asked.inputs
        assert artifact_key(asked.step, asked.inputs) == asked.key


def test_rendering_the_same_revision_twice_gives_the_same_pods() -> None:
    fabric = Settings(fabric_profiles={"ib": FabricProfile(env={"A": "1"})})
    resolved = specs.resolved(TWO_STAGES, settings=fabric)
    one, two = (group_pods(resolved, specs.identity(), RUNNER) for _ in range(2))
    assert one == two
