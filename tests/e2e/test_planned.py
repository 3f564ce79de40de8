"""Specs without a shape: the operator chooses one, says why, places it, and stays with it."""

from __future__ import annotations

import pytest
from tests.support.kstatus import FAILED, verdict
from tests.support.kube import A100, H100, H200, Json, Kube, gpus, ready
from tests.support.operator import PATIENT, Operator

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.nodes import cordon, set_labels
from shardwright_sandbox.pytest_plugin import FleetMaker

pytestmark = pytest.mark.e2e

# No deadline is tested here: none may pass on a slow machine, and be counted as a restart.
OPERATOR = PATIENT

# Nothing is given but the model, the claim and the load.
OPEN: Json = {
    "gpu": None,
    "parallelism": None,
    "model": {"uri": "hf://meta-llama/Llama-3.3-70B-Instruct@main", "servedName": "llama-70b"},
    "workload": {"objective": "Balanced", "concurrency": 64, "inputLen": 2048, "outputLen": 512},
}
LARGE: Json = {"model": {"uri": "hf://meta-llama/Llama-3.1-405B-Instruct@main"}}
PRODUCT = "nvidia.com/gpu.product"
PATIENCE = 120.0
# Longer than a pass takes, and far below the operator's resync.
QUIET = 3.0


def a_pool(name: str, product: str, count: int, size: int = 8) -> Json:
    return {"name": name, "count": count, "gpu": {"product": product, "count": size}}


def plan_of(kube: Kube, name: str) -> Json:
    found: Json = kube.get(name).get("status", {}).get("plan", {})
    return found


def what(plan: Json) -> tuple[object, ...]:
    """The choice, without the words around it."""
    fields = ("gpuProduct", "tensor", "pipeline", "weights", "kvCache")
    return tuple(plan[name] for name in fields)


def told(kube: Kube, reason: str) -> list[str]:
    """Notes of the events of one reason."""
    listed = kube.raw(f"/apis/events.k8s.io/v1/namespaces/{kube.namespace}/events")["items"]
    return [item["note"] for item in listed if item["reason"] == reason]


def uids(kube: Kube, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in kube.pods(name)}


def revisions(kube: Kube) -> list[str]:
    items = kube.apps.list_namespaced_controller_revision(kube.namespace).items
    return sorted(item.metadata.name for item in items)


def test_a_plan_is_chosen_placed_and_kept_while_nodes_come_and_go(
    running: Operator, sandbox: Sandbox, fleet: FleetMaker, kube: Kube
) -> None:
    first = fleet([a_pool("a100", A100, 3)])
    made = kube.create("llama", OPEN)
    assert "gpu" not in made["spec"]
    assert "parallelism" not in made["spec"]
    status = kube.wait_ready("llama", PATIENCE)["status"]
    plan = status["plan"]

    # Chosen, with its reasons and its memory, and what runs is what was chosen.
    assert plan["gpuProduct"] == A100
    assert plan["chosen"] == [
        "gpu.product",
        "parallelism.tensor",
        "parallelism.pipeline",
        "quantization.weights",
        "quantization.kvCache",
    ]
    assert plan["reasons"]
    assert plan["runnerUp"]
    assert plan["constants"]
    assert len(plan["perGPU"]) == plan["pipeline"]
    assert all(stage["weightsGiB"] > 0 < stage["kvCacheGiB"] for stage in plan["perGPU"])
    assert "better" not in plan or plan["better"] == ""
    assert status["engine"]["serving"]["builtFor"]["tensor"] == str(plan["tensor"])
    pods = kube.pods("llama")
    assert len(pods) == plan["pipeline"]
    assert [gpus(pod) for pod in pods] == [plan["tensor"]] * plan["pipeline"]
    assert {pod["spec"]["nodeName"] for pod in pods} <= set(first)
    (note,) = kube.wait("an event that says why", lambda: told(kube, "PlanChosen"))
    assert f"tensor {plan['tensor']} × pipeline {plan['pipeline']} on {A100}" in note
    assert plan["reasons"][0] in note
    spec = kube.get("llama")["spec"]
    assert "gpu" not in spec
    assert "parallelism" not in spec

    # Nodes come, of a product that does better: it is told, and nothing is done about it.
    before, jobs, names = uids(kube, "llama"), len(kube.jobs()), revisions(kube)
    fleet([a_pool("h200", H200, 2)])
    better = kube.wait("a better plan in status", lambda: plan_of(kube, "llama").get("better"))
    assert H200 in better
    assert kube.wait("an event of it", lambda: told(kube, "BetterPlanPossible"))
    assert not kube.wait_quietly(QUIET, lambda: uids(kube, "llama") != before)
    assert what(plan_of(kube, "llama")) == what(plan)
    assert kube.condition("llama", "Ready")["status"] == "True"

    # A node is drained: the replica moves, and is the same one elsewhere.
    drained = pods[0]["spec"]["nodeName"]
    cordon(sandbox.api, drained)
    moved, found = kube.wait_replaced("llama", before, PATIENCE)
    assert [gpus(pod) for pod in moved] == [plan["tensor"]] * plan["pipeline"]
    assert {pod["spec"]["nodeName"] for pod in moved} <= set(first) - {drained}
    assert what(found["status"]["plan"]) == what(plan)
    assert revisions(kube) == names
    assert len(kube.jobs()) <= jobs, "nothing was built anew"
    assert len(told(kube, "PlanChosen")) == 1

    # To write down what was chosen changes nothing that runs.
    before = {pod["metadata"]["uid"] for pod in moved}
    kube.edit(
        "llama",
        {
            "gpu": {"product": plan["gpuProduct"]},
            "parallelism": {"tensor": plan["tensor"], "pipeline": plan["pipeline"]},
            "quantization": {"weights": plan["weights"], "kvCache": plan["kvCache"]},
        },
    )
    kube.wait_ready("llama", PATIENCE)
    assert not kube.wait_quietly(QUIET, lambda: uids(kube, "llama") != before)
    assert revisions(kube) == names


def test_where_nothing_is_possible_it_says_how_near_it_was_and_waits_for_nodes(
    running: Operator, fleet: FleetMaker, kube: Kube
) -> None:
    fleet([a_pool("small", A100, 1, 2)])
    kube.create("large", {**OPEN, **LARGE})
    refused = kube.wait_reason("large", "Accepted", "NoPlanPossible", PATIENCE)
    assert refused["status"] == "False"
    assert "nearest was" in refused["message"]
    assert "GiB" in refused["message"]
    assert f"1 × 2 {A100}" in refused["message"]
    assert verdict(kube.get("large")).status == FAILED
    assert kube.pods("large", live=False) == []
    assert revisions(kube) == []
    assert [job["metadata"]["labels"]["shardwright.dev/step"] for job in kube.jobs()] == ["model"]

    fleet([a_pool("h100", H100, 2)])
    kube.wait_reason("large", "Accepted", "Accepted", PATIENCE)
    assert plan_of(kube, "large")["gpuProduct"] == H100


def test_a_plan_that_has_become_impossible_stalls_and_what_runs_goes_on(
    running: Operator, sandbox: Sandbox, fleet: FleetMaker, kube: Kube
) -> None:
    names = fleet([a_pool("h100", H100, 2), a_pool("a100", A100, 2)])
    kube.create("llama", {**OPEN, "engine": {"backend": "PyTorch"}})
    kube.wait_ready("llama", PATIENCE)
    plan = plan_of(kube, "llama")
    assert plan["gpuProduct"] == H100
    before = uids(kube, "llama")
    carriers = [name for name in names if name.startswith("h100")]

    # Their label says another product from now on; what runs on them does not care.
    for name in carriers:
        set_labels(sandbox.api, name, {PRODUCT: "NVIDIA-Other"})
    # After the first node's label it may be stalled already, with another advice.
    stalled = kube.wait(
        "stalled, and what is possible is on the other product",
        lambda: (
            item
            if (item := kube.condition("llama", "Stalled")).get("reason") == "PlanNotPossible"
            and f"on {A100}" in item["message"].rsplit("now ", 1)[1]
            else None
        ),
        PATIENCE,
    )
    assert stalled["status"] == "True"
    assert f"tensor {plan['tensor']} × pipeline {plan['pipeline']} on {H100}" in stalled["message"]
    assert not kube.wait_quietly(QUIET, lambda: uids(kube, "llama") != before)
    assert all(ready(pod) for pod in kube.pods("llama"))
    assert kube.condition("llama", "Available")["status"] == "True"
    assert what(plan_of(kube, "llama")) == what(plan)

    for name in carriers:
        set_labels(sandbox.api, name, {PRODUCT: H100})
    kube.wait(
        "not stalled any more",
        lambda: kube.condition("llama", "Stalled").get("status") == "False",
        PATIENCE,
    )
    kube.wait_ready("llama", PATIENCE)
    assert uids(kube, "llama") == before


def test_an_edit_of_the_load_has_it_chosen_anew_beside_what_serves(
    running: Operator, fleet: FleetMaker, kube: Kube
) -> None:
    fleet([a_pool("h100", H100, 4)])
    asked = {**OPEN, "engine": {"backend": "PyTorch"}}
    kube.create("llama", {**asked, "workload": {"objective": "Latency", "concurrency": 1}})
    kube.wait_ready("llama", PATIENCE)
    plan = plan_of(kube, "llama")
    kube.edit("llama", {"workload": {"objective": "Throughput", "concurrency": 512}})
    kube.wait(
        "another plan",
        lambda: (new := plan_of(kube, "llama")) and what(new) != what(plan),
        PATIENCE,
    )
    chosen = kube.wait_ready("llama", PATIENCE)["status"]["plan"]
    kube.wait("an event for each", lambda: len(told(kube, "PlanChosen")) >= 2)
    assert len(told(kube, "PlanChosen")) == 2
    assert len(revisions(kube)) == 2
    assert [gpus(pod) for pod in kube.pods("llama")] == [chosen["tensor"]]
