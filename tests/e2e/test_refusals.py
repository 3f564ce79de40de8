"""What is refused: when, in which words, and that a refusal costs nobody anything.

Three classes (see the conditions): what spec or inventory refuse makes no object at all; what the
model's facts refuse makes no build and no serving pod; what a quota refuses is released whole.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from tests.support.history import watched
from tests.support.kstatus import FAILED, verdict
from tests.support.kube import A100, H100, H200, PLURAL, Json, Kube, condition_of, ready
from tests.support.operator import Operator

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.namespaces import make_namespace, remove_namespace
from shardwright_sandbox.player.control import Act, Match, PlayerControl, Rule
from shardwright_sandbox.pytest_plugin import FleetMaker
from shardwright_sandbox.storage import RWO, make_claim, remove_claims

pytestmark = pytest.mark.e2e

SLICED, SHARED = "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-L40S-SHARED"
ONE_GPU: Json = {"tensor": 1, "pipeline": 1}
PYTORCH: Json = {"engine": {"backend": "PyTorch"}}
PATIENCE = 120.0  # the operator's resync takes ten minutes: whatever comes sooner was no poll


_CORE = "/api/v1"


@pytest.fixture(scope="module", autouse=True)
def machines(sandbox: Sandbox) -> Iterator[list[str]]:
    """Whole H100 and A100, sliced A100 and shared L40S: enough to be refused in every way."""
    maker = FleetMaker(sandbox.api)
    sliced = {"product": "NVIDIA-A100-SXM4-40GB", "count": 8, "mig": {"strategy": "single"}}
    yield maker(
        [
            {"name": "h100", "count": 4, "gpu": {"product": H100, "count": 8}},
            {"name": "a100", "count": 2, "gpu": {"product": A100, "count": 8}},
            {"name": "sliced", "count": 1, "gpu": sliced},
            {
                "name": "shared",
                "count": 1,
                "gpu": {"product": "NVIDIA-L40S", "count": 8, "sharing": {"replicas": 4}},
            },
        ]
    )
    maker.remove()


@pytest.fixture(scope="module")
def calm(sandbox: Sandbox) -> Iterator[Kube]:
    """One namespace for all that must leave it as it is: claims `models` and `alone` (RWO)."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    make_namespace(sandbox.api, name)
    make_claim(sandbox.api, sandbox.claims, name, "models")
    make_claim(sandbox.api, sandbox.claims, name, "alone", mode=RWO)
    kube = Kube(sandbox.api, name)
    # The controller manager puts it into each namespace, some time after that was made.
    kube.wait(
        "the cluster's own ConfigMap",
        lambda: (f"{_CORE}/configmaps", "kube-root-ca.crt") in everything(kube),
    )
    yield kube
    remove_claims(sandbox.api, sandbox.claims, name)
    remove_namespace(sandbox.api, name)


def everything(kube: Kube) -> set[tuple[str, str]]:
    """(kind, name) of every object of any kind in the namespace, but for events and our own."""
    found: set[tuple[str, str]] = set()
    groups = [f"/apis/{item['preferredVersion']['groupVersion']}" for item in _groups(kube)]
    for base in [_CORE, *groups]:
        for item in kube.raw(base)["resources"]:
            kind = item["name"]
            if not item["namespaced"] or "list" not in item["verbs"]:
                continue
            if kind in ("events", PLURAL):
                continue
            listed = kube.raw(f"{base}/namespaces/{kube.namespace}/{kind}")["items"]
            found |= {(f"{base}/{kind}", one["metadata"]["name"]) for one in listed}
    return found


def _groups(kube: Kube) -> list[Json]:
    groups: list[Json] = kube.raw("/apis")["groups"]
    return groups


def refused(kube: Kube, name: str, reason: str) -> str:
    """Wait for the refusal; every condition must say the same; its message."""

    def refusing() -> Json | None:
        state = kube.get(name)
        return state if condition_of(state, "Accepted").get("reason") == reason else None

    found = kube.wait(f"{name} refused for {reason}", refusing, PATIENCE)
    message = str(condition_of(found, "Accepted")["message"])
    said = {item["type"]: item for item in found["status"]["conditions"]}
    assert said["Accepted"]["status"] == "False"
    assert (said["Ready"]["status"], said["Ready"]["reason"]) == ("False", reason)
    assert (said["Stalled"]["status"], said["Stalled"]["reason"]) == ("True", reason)
    assert said["Stalled"]["message"] == said["Ready"]["message"] == message
    assert said["Reconciling"]["status"] == "False"
    judged = verdict(found)
    assert (judged.status, judged.message) == (FAILED, message)
    return message


@dataclass(frozen=True)
class Case:
    """A change of the base spec, the reason it is refused for, and what the message must name."""

    change: Json
    reason: str
    names: tuple[str, ...] = field(default=())


CASES = {
    "tensor parallelism over more than one node": Case(
        {"parallelism": {"tensor": 16, "pipeline": 1}},
        "TensorParallelExceedsNVLinkDomain",
        ("spec.parallelism.tensor 16", H100, "8 GPUs", "tensor: 8, pipeline: 2", "TP=8 × PP=2"),
    ),
    "a product that no node has": Case(
        {"gpu": {"product": "NVIDIA-H100-80GB-HBM2"}},
        "GPUProductNotFound",
        ("spec.gpu.product NVIDIA-H100-80GB-HBM2", f"Did you mean {H100}?", "8 GPUs on 4 nodes"),
    ),
    "MIG slices that would have to talk": Case(
        {"gpu": {"product": SLICED}, "parallelism": {"tensor": 2, "pipeline": 1}},
        "GPUNotExclusive",
        ("spec.parallelism.tensor 2", SLICED, "MIG slices", "tensor 1"),
    ),
    "time-shared GPUs that would have to talk": Case(
        {"gpu": {"product": SHARED}, "parallelism": {"tensor": 2, "pipeline": 1}},
        "GPUNotExclusive",
        ("spec.parallelism.tensor 2", SHARED, "time-shared", "tensor 1"),
    ),
    "an engine of a version without a builder": Case(
        {"engine": {"version": "1.3.0", "backend": "TensorRT"}},
        "BuilderNotAvailable",
        ("engine.version 1.3.0", "up to TensorRTLLM 1.2", "backend PyTorch", "1.2.1"),
    ),
    "FP8 on a GPU without it": Case(
        {"gpu": {"product": A100}, "quantization": {"weights": "FP8"}},
        "PrecisionNotSupported",
        ("quantization.weights FP8", A100, "8.9 or higher", "has 8.0", "INT4AWQ"),
    ),
    "stages on several nodes with a volume for one": Case(
        {"storage": {"claimName": "alone"}},
        "StorageNotShared",
        ("spec.storage.claimName alone", "ReadWriteOnce", "2 pipeline stages", "ReadWriteMany"),
    ),
    "more GPUs than a node has with a volume for one": Case(
        {
            "storage": {"claimName": "alone"},
            "parallelism": {"tensor": 8, "pipeline": 1},
            "replicas": 2,
        },
        "StorageNotShared",
        ("spec.storage.claimName alone", "16 GPUs", "one node has 8", "ReadWriteMany"),
    ),
    "a claim that is not there": Case(
        {"storage": {"claimName": "nowhere"}},
        "ClaimNotFound",
        ("spec.storage.claimName nowhere", "namespace test-", "create it"),
    ),
    "a model on a claim that is not there": Case(
        {"model": {"uri": "pvc://elsewhere/llama"}},
        "ClaimNotFound",
        ("spec.model.uri pvc://elsewhere/llama", "elsewhere", "namespace test-"),
    ),
    "a Secret for the fetch that is not there": Case(
        {"model": {"secretRef": {"name": "hf-token"}}},
        "SecretNotFound",
        ("spec.model.secretRef", "hf-token", "namespace test-", "create it"),
    ),
    "a Secret for the pull that is not there": Case(
        {"pod": {"imagePullSecrets": [{"name": "registry"}]}},
        "SecretNotFound",
        ("spec.pod.imagePullSecrets", "registry", "create it"),
    ),
    "a fabric profile that nobody described": Case(
        {"pod": {"fabricProfile": "infiniband"}},
        "FabricProfileNotFound",
        ("spec.pod.fabricProfile infiniband", "none", "fabricProfiles"),
    ),
    "an engine option that the runtime does not know": Case(
        {"engine": {"config": {"enable_chunked_prefil": True}}},
        "UnknownEngineConfig",
        ("engine.config.enable_chunked_prefil", "1.2.1", "did you mean enable_chunked_prefill?"),
    ),
    "an unknown option inside a known block": Case(
        {"engine": {"config": {"kv_cache_config": {"enable_block_reus": True}}}},
        "UnknownEngineConfig",
        ("engine.config.kv_cache_config.enable_block_reus", "kv_cache_config.enable_block_reuse"),
    ),
    "an engine option that has a field of its own": Case(
        {"engine": {"config": {"tensor_parallel_size": 4}}},
        "ReservedEngineConfig",
        ("engine.config.tensor_parallel_size", "parallelism.tensor"),
    ),
    "a version whose image is not known": Case(
        {"engine": {"version": "1.2.9"}},
        "UnknownVersion",
        ("engine.version 1.2.9", "1.2.1", "engine.image"),
    ),
}


@pytest.mark.parametrize("title", CASES)
def test_what_spec_or_inventory_refuse_makes_no_object_of_any_kind(
    running: Operator, calm: Kube, title: str
) -> None:
    case = CASES[title]
    before = everything(calm)
    calm.create("refused", case.change)
    try:
        message = refused(calm, "refused", case.reason)
        for part in case.names:
            assert part in message
        # Nothing was being made in the background either.
        time.sleep(0.5)
        assert everything(calm) == before
        status = calm.get("refused")["status"]
        assert status.get("groups", []) == []
        assert "plan" not in status
    finally:
        calm.delete("refused")


def test_two_passes_over_a_refusal_write_one_status(running: Operator, calm: Kube) -> None:
    calm.create("refused", CASES["tensor parallelism over more than one node"].change)
    try:
        refused(calm, "refused", "TensorParallelExceedsNVLinkDomain")
        version = calm.get("refused")["metadata"]["resourceVersion"]
        # Another label on a node is a change of inventory, which wakes whoever was refused.
        patch = {"metadata": {"labels": {"example.com/touched": uuid.uuid4().hex[:8]}}}
        calm.core.patch_node("h100-0", patch)
        time.sleep(2)
        assert calm.get("refused")["metadata"]["resourceVersion"] == version
    finally:
        calm.delete("refused")


def test_a_product_that_comes_with_a_new_node_is_accepted_without_waiting_for_a_poll(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    kube.create("early", {**PYTORCH, "gpu": {"product": H200}, "parallelism": ONE_GPU})
    refused(kube, "early", "GPUProductNotFound")
    fleet([{"name": "h200", "count": 1, "gpu": {"product": H200, "count": 8}}])
    kube.wait_ready("early", PATIENCE)


def test_wider_nodes_that_arrive_lift_the_refusal_of_a_wide_split(
    running: Operator, kube: Kube, fleet: FleetMaker
) -> None:
    fleet([{"name": "h200", "count": 1, "gpu": {"product": H200, "count": 4}}])
    kube.create(
        "wide",
        {**PYTORCH, "gpu": {"product": H200}, "parallelism": {"tensor": 8, "pipeline": 1}},
    )
    refused(kube, "wide", "TensorParallelExceedsNVLinkDomain")
    fleet([{"name": "big", "count": 1, "gpu": {"product": H200, "count": 8}}])
    kube.wait_ready("wide", PATIENCE)
    assert {pod["spec"]["nodeName"] for pod in kube.pods("wide")} == {"big-0"}


def test_a_claim_that_is_made_later_is_found_without_waiting_for_a_poll(
    running: Operator, kube: Kube, sandbox: Sandbox
) -> None:
    kube.create("early", {**PYTORCH, "storage": {"claimName": "later"}, "parallelism": ONE_GPU})
    refused(kube, "early", "ClaimNotFound")
    make_claim(sandbox.api, sandbox.claims, kube.namespace, "later")
    kube.wait_ready("early", PATIENCE)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"secretRef": {"name": "later"}}},
        {"pod": {"imagePullSecrets": [{"name": "later"}]}},
    ],
    ids=["for the fetch", "for the pull"],
)
def test_a_secret_that_is_made_later_is_found_soon(
    running: Operator, kube: Kube, change: Json
) -> None:
    kube.create("early", {**PYTORCH, **change, "parallelism": ONE_GPU})
    refused(kube, "early", "SecretNotFound")
    kube.core.create_namespaced_secret(
        kube.namespace, client.V1Secret(metadata=client.V1ObjectMeta(name="later"))
    )
    kube.wait_ready("early", PATIENCE)


def test_an_edit_that_mends_the_spec_goes_on_at_once(running: Operator, kube: Kube) -> None:
    kube.create("llama", {**PYTORCH, "parallelism": {"tensor": 16, "pipeline": 1}})
    refused(kube, "llama", "TensorParallelExceedsNVLinkDomain")
    kube.edit("llama", {"parallelism": {"tensor": 8, "pipeline": 2}})
    found = kube.wait_ready("llama", PATIENCE)
    said = {item["type"]: item["status"] for item in found["status"]["conditions"]}
    assert (said["Accepted"], said["Stalled"], said["Reconciling"]) == ("True", "False", "False")


# What the model's facts refuse.

BY_FACTS = {
    "heads that ranks cannot share": Case(
        {"parallelism": {"tensor": 3, "pipeline": 1}},
        "HeadsNotDivisible",
        ("parallelism.tensor 3", "32 attention heads", "use parallelism.tensor 2"),
    ),
    "KV heads that ranks cannot share": Case(
        # 48 attention heads would do for 6 ranks, 8 KV heads do not.
        {
            "model": {"uri": "hf://mistralai/Mixtral-8x22B-v0.1@main"},
            "parallelism": {"tensor": 6, "pipeline": 1},
        },
        "HeadsNotDivisible",
        ("parallelism.tensor 6", "8 KV heads", "use parallelism.tensor 4"),
    ),
    "more stages than layers": Case(
        {"parallelism": {"tensor": 1, "pipeline": 33}},
        "MoreStagesThanLayers",
        ("parallelism.pipeline 33", "32 layers", "use parallelism.pipeline 32"),
    ),
    "a GPTQ name over a 16-bit model": Case(
        {
            "model": {"uri": "hf://gptq-tests/Llama-3.1-8B-Instruct@main"},
            "parallelism": ONE_GPU,
            "quantization": {"weights": "INT4GPTQ"},
        },
        "GPTQCheckpointRequired",
        ("INT4GPTQ", "bfloat16", "INT4AWQ"),
    ),
}


@pytest.mark.parametrize("title", BY_FACTS)
def test_what_the_models_facts_refuse_is_fetched_and_nothing_more(
    running: Operator, kube: Kube, title: str
) -> None:
    case = BY_FACTS[title]
    kube.create("refused", case.change)
    message = refused(kube, "refused", case.reason)
    for part in case.names:
        assert part in message
    time.sleep(0.5)
    steps = [job["metadata"]["labels"]["shardwright.dev/step"] for job in kube.jobs()]
    assert steps == ["model"]
    assert kube.pods("refused", live=False) == []
    assert kube.raw(f"/apis/apps/v1/namespaces/{kube.namespace}/controllerrevisions")["items"] == []


# What is refused before it is stored.


@pytest.mark.parametrize(
    ("name", "change", "parts"),
    [
        ("a" * 41, {}, ("metadata.name", "41", "the limit is 40", "choose a shorter one")),
        ("1st", {}, ("metadata.name", "letter")),
        (
            "llama",
            {"engine": {"limits": {"maxInputLen": 9000, "maxSeqLen": 8192}}},
            ("spec.engine.limits.maxInputLen", "9000", "8192", "raise maxSeqLen"),
        ),
        (
            "llama",
            {"engine": {"limits": {"maxBatchSize": 9000, "maxNumTokens": 8192}}},
            ("spec.engine.limits.maxBatchSize", "9000", "8192", "raise maxNumTokens"),
        ),
        (
            "llama",
            {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
            ("spec.rollout.maxUnavailable", "cannot both be 0"),
        ),
        ("llama", {"parallelism": {"tensor": 0}}, ("spec.parallelism.tensor", "0", "1")),
        ("llama", {"replicas": 1025}, ("spec.replicas", "1025", "1024")),
        ("llama", {"model": {"uri": "llama"}}, ("spec.model.uri", "hf://org/name@revision")),
        ("llama", {"engine": {"runtime": "vLLM"}}, ("spec.engine.runtime", "vLLM", "TensorRTLLM")),
    ],
)
def test_what_needs_no_cluster_is_refused_at_apply_with_field_value_and_limit(
    calm: Kube, name: str, change: Json, parts: tuple[str, ...]
) -> None:
    with pytest.raises(ApiException) as caught:
        calm.create(name, change)
    assert caught.value.status == 422
    for part in parts:
        assert part in str(caught.value.body)


def test_a_name_of_forty_characters_is_served(running: Operator, kube: Kube) -> None:
    name = "a" * 40
    kube.create(name, {**PYTORCH, "parallelism": {"tensor": 1, "pipeline": 2}})
    kube.wait_ready(name, PATIENCE)


# A refused or broken one is nobody else's trouble.


def test_refused_and_broken_deployments_never_disturb_another(
    running: Operator, kube: Kube, player: PlayerControl
) -> None:
    kube.create("good", {**PYTORCH, "parallelism": ONE_GPU, "replicas": 2})
    kube.wait_ready("good", PATIENCE)
    before = {pod["metadata"]["uid"] for pod in kube.pods("good")}
    with watched(kube) as history:
        for number, case in enumerate(CASES.values()):
            if case.change.get("storage", {}).get("claimName") != "alone":
                kube.create(f"refused-{number}", case.change)
        crash = Rule(act=Act.FAIL, match=Match(deployment="broken"), times=None)
        player.add(crash)
        # What it serves is proven already, by the good one: it is held, not called a bad proof.
        kube.create("broken", {**PYTORCH, "parallelism": ONE_GPU})
        kube.wait(
            "the broken one is held",
            lambda: (
                [one["held"] for one in kube.get("broken")["status"].get("groups", [])] == [True]
            ),
            PATIENCE,
        )
        assert kube.condition("broken", "Stalled")["status"] == "True"
        player.add(
            Rule(act=Act.FAIL, match=Match(deployment="unproven", role="leader"), times=None)
        )
        other = {"model": {"uri": "hf://microsoft/phi-4@main"}, "parallelism": ONE_GPU}
        kube.create("unproven", {**PYTORCH, **other})
        kube.wait_reason("unproven", "Stalled", "ProofFailed", PATIENCE)
        # A broken object that another one's pods would have to share the claim with.
        player.fail_step("model", times=None, match={"deployment": "*", "step": "model"})
        kube.create("unfetched", {**PYTORCH, "model": {"uri": "hf://Qwen/Qwen3-8B@main"}})
        kube.wait(
            "unfetched stalls",
            lambda: kube.condition("unfetched", "Stalled").get("status") == "True",
            PATIENCE,
        )
        assert kube.condition("good", "Ready")["status"] == "True"
        pods = kube.pods("good")
        assert {pod["metadata"]["uid"] for pod in pods} == before
        assert all(ready(pod) for pod in pods)
        assert {life.incarnation for life in history.of("good")} == {
            int(pod["metadata"]["labels"]["shardwright.dev/incarnation"]) for pod in pods
        }
    # And one more can still be served beside all of them.
    kube.create("late", {**PYTORCH, "parallelism": ONE_GPU})
    kube.wait_ready("late", PATIENCE)


def test_an_edit_that_is_refused_leaves_what_serves_as_it_is(running: Operator, kube: Kube) -> None:
    kube.create("llama", {**PYTORCH, "parallelism": {"tensor": 2, "pipeline": 2}})
    kube.wait_ready("llama", PATIENCE)
    before = {pod["metadata"]["uid"] for pod in kube.pods("llama")}
    kube.edit("llama", {"parallelism": {"tensor": 16, "pipeline": 1}})
    refused(kube, "llama", "TensorParallelExceedsNVLinkDomain")
    kube.edit("llama", {"gpu": {"product": A100}, "quantization": {"weights": "FP8"}})
    refused(kube, "llama", "TensorParallelExceedsNVLinkDomain")
    kube.edit("llama", {"parallelism": {"tensor": 2}})
    refused(kube, "llama", "PrecisionNotSupported")
    time.sleep(1)
    pods = kube.pods("llama")
    assert {pod["metadata"]["uid"] for pod in pods} == before
    assert all(ready(pod) for pod in pods)
    found = kube.get("llama")
    assert found["status"]["readyReplicas"] == 1
    assert kube.condition("llama", "Available")["status"] == "True"
    kube.edit("llama", {"gpu": {"product": H100}, "quantization": None, **_shape(2, 2)})
    kube.wait_ready("llama", PATIENCE)
    assert {pod["metadata"]["uid"] for pod in kube.pods("llama")} == before


def _shape(tensor: int, pipeline: int) -> Json:
    return {"parallelism": {"tensor": tensor, "pipeline": pipeline}}


# Quotas.


def _quota(kube: Kube, hard: dict[str, str]) -> Callable[[dict[str, str]], None]:
    """A ResourceQuota that is in force; returns what changes its limits."""
    body: Any = {"metadata": {"name": "limits"}, "spec": {"hard": hard}}
    kube.core.create_namespaced_resource_quota(kube.namespace, body)
    path = f"/api/v1/namespaces/{kube.namespace}/resourcequotas/limits"
    # Admission refuses everything until the controller has counted once.
    kube.wait(
        "the quota is counted",
        lambda: kube.raw(path)["status"].get("hard") == hard,
    )

    def change(to: dict[str, str]) -> None:
        kube.core.patch_namespaced_resource_quota("limits", kube.namespace, {"spec": {"hard": to}})

    return change


# Whoever a quota refused tries again by itself, after ever longer times.
LATER = 240.0
QUOTAS = {
    "pods": ({"pods": "1"}, {"pods": "4"}),
    "GPUs": ({"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "32"}),
}


@pytest.mark.parametrize("what", QUOTAS)
def test_what_a_quota_refuses_is_named_released_whole_and_placed_when_the_quota_is_raised(
    running: Operator, kube: Kube, what: str
) -> None:
    tight, wide = QUOTAS[what]
    change = _quota(kube, tight)
    with watched(kube) as history:
        kube.create("llama", PYTORCH)
        said = kube.wait_reason("llama", "Placed", "QuotaExceeded", PATIENCE)
        for part in ("exceeded quota: limits", *tight, *tight.values()):
            assert part in said["message"]
        kube.wait("nothing of it is left", lambda: not kube.pods("llama", live=False), PATIENCE)
        # It stays named while it is waited for, whatever woke the pass.
        ends = time.monotonic() + 4
        while time.monotonic() < ends:
            state = kube.get("llama")
            placed, summary = (condition_of(state, one) for one in ("Placed", "Ready"))
            assert (placed["reason"], summary["reason"]) == ("QuotaExceeded", "QuotaExceeded")
            assert "exceeded quota: limits" in summary["message"]
            time.sleep(0.1)
        assert kube.condition("llama", "Stalled")["status"] == "False"
        assert all(life.bound is None for life in history.of("llama"))
        change(wide)
        kube.wait_ready("llama", LATER)


def test_a_quota_that_refuses_a_builds_gpu_is_named(running: Operator, kube: Kube) -> None:
    change = _quota(kube, {"requests.nvidia.com/gpu": "0"})
    kube.create("llama", {"parallelism": ONE_GPU})
    kube.wait(
        "the quota is named",
        lambda: "ResourceQuota" in kube.condition("llama", "Ready").get("message", ""),
        PATIENCE,
    )
    change({"requests.nvidia.com/gpu": "8"})
    kube.wait_ready("llama", LATER)


def test_a_quota_on_jobs_is_named(running: Operator, kube: Kube) -> None:
    change = _quota(kube, {"count/jobs.batch": "0"})
    kube.create("llama", {**PYTORCH, "parallelism": ONE_GPU})
    said = kube.wait_reason("llama", "Ready", "QuotaExceeded", PATIENCE)
    assert "count/jobs.batch" in said["message"]
    change({"count/jobs.batch": "4"})
    kube.wait_ready("llama", LATER)
