"""The sandbox itself, on a control plane of its own: it must start, work and leave nothing."""

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardwright.runner.contract import (
    ENV_REQUEST,
    STORE,
    Command,
    Report,
    ServeRequest,
    StepRequest,
    artifact_folder,
    artifact_key,
    decode,
    encode,
)
from shardwright_sandbox import Sandbox, SandboxConfig, SandboxError, audit, load_fleet, nodes
from shardwright_sandbox.cluster import stop
from shardwright_sandbox.fleet import parse_fleet
from shardwright_sandbox.player import Act, Match, PlayerControl, Rule
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.rest import Json, Rest, RestError, api_client, rest_of
from shardwright_sandbox.storage import make_claim

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(1200)]

FLEETS = Path(__file__).parents[2] / "sandbox" / "fleets"
URI = "hf://meta-llama/Llama-3.1-8B-Instruct@main"
TOLERATE = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the demo fleet; afterwards nothing of it may be left."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG is set: this test is about starting a cluster")
    state = tmp_path_factory.mktemp("own") / "state"
    config = SandboxConfig(audit=True, die_with_parent=True, node_grace_seconds=16)
    sandbox = Sandbox.start(state, config)
    pids = [entry.pid for entry in Processes(sandbox.layout.processes).entries]
    nodes.make_nodes(sandbox.api, load_fleet(FLEETS / "demo.yaml"))
    yield sandbox
    sandbox.check()
    sandbox.stop()
    assert not state.exists()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert stop(state) is False


@pytest.fixture
def rest(box: Sandbox) -> Iterator[Rest]:
    client = rest_of(box.api)
    yield client
    client.delete(PODS + "?gracePeriodSeconds=0")
    until(lambda: not client.get(PODS)["items"])


def until(done: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)
    return value


def gpu_pod(name: str, gpus: int = 8, product: str | None = None, **labels: str) -> Json:
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "tolerations": TOLERATE,
        "containers": [
            {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        ],
    }
    if product:
        spec["nodeSelector"] = {"nvidia.com/gpu.product": product}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def with_request(body: Json, request: StepRequest | ServeRequest) -> Json:
    container = body["spec"]["containers"][0]
    container["env"] = [{"name": ENV_REQUEST, "value": encode(request)}]
    container["volumeMounts"] = [{"name": "s", "mountPath": STORE}]
    body["spec"]["volumes"] = [{"name": "s", "persistentVolumeClaim": {"claimName": "models"}}]
    return body


def is_ready(pod: Json) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in pod["status"].get("conditions", [])
    )


def report_of(pod: Json) -> Report:
    state = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return decode(Report, state["message"])


def test_gpu_pods_go_through_the_real_scheduler(box: Sandbox, rest: Rest) -> None:
    for number in range(3):
        rest.post(PODS, gpu_pod(f"a{number}", product="NVIDIA-A100-SXM4-80GB"))
    # two nodes of eight: the third waits
    until(lambda: sum(map(is_ready, rest.get(PODS)["items"])) == 2)
    waiting = [pod for pod in rest.get(PODS)["items"] if "nodeName" not in pod["spec"]]
    assert len(waiting) == 1
    gone = next(pod for pod in rest.get(PODS)["items"] if "nodeName" in pod["spec"])
    rest.delete(f"{PODS}/{gone['metadata']['name']}")
    name = waiting[0]["metadata"]["name"]
    until(lambda: is_ready(rest.get(f"{PODS}/{name}")))


def test_nodes_can_be_changed(box: Sandbox, rest: Rest) -> None:
    api = box.api

    def node(name: str) -> Json:
        return rest.get(f"/api/v1/nodes/{name}")

    def taints(name: str) -> list[str]:
        return [taint["key"] for taint in node(name)["spec"].get("taints", [])]

    nodes.cordon(api, "h200-0")
    assert node("h200-0")["spec"]["unschedulable"] is True
    nodes.cordon(api, "h200-0", on=False)
    nodes.set_allocatable(api, "h200-0", 7)
    assert node("h200-0")["status"]["allocatable"]["nvidia.com/gpu"] == "7"
    nodes.set_ready(api, "h200-1", ready=False)
    until(lambda: "node.kubernetes.io/not-ready" in taints("h200-1"))
    nodes.set_ready(api, "h200-1", ready=True)
    until(lambda: "node.kubernetes.io/not-ready" not in taints("h200-1"))
    # an unhealthy GPU stays unhealthy over a flap of the node
    assert node("h200-0")["status"]["allocatable"]["nvidia.com/gpu"] == "7"


def test_a_dead_kubelet_is_unreachable_and_ends_no_pods(box: Sandbox, rest: Rest) -> None:
    body = gpu_pod("stuck")
    body["spec"]["nodeName"] = "h200-3"
    rest.post(PODS, body)
    until(lambda: is_ready(rest.get(f"{PODS}/stuck")))
    nodes.kill_kubelet(box.api, "h200-3")
    until(
        lambda: any(
            taint["key"] == "node.kubernetes.io/unreachable"
            for taint in rest.get("/api/v1/nodes/h200-3")["spec"].get("taints", [])
        )
    )
    rest.delete(f"{PODS}/stuck")
    time.sleep(1.5)
    assert "deletionTimestamp" in rest.get(f"{PODS}/stuck")["metadata"]
    nodes.revive_kubelet(box.api, "h200-3")
    until(lambda: not rest.get(PODS)["items"])


def test_a_silent_node_is_noticed_by_the_node_controller(box: Sandbox, rest: Rest) -> None:
    nodes.kill_kubelet(box.api, "h200-2", noticed=False)
    until(
        lambda: any(
            taint["key"] == "node.kubernetes.io/unreachable"
            for taint in rest.get("/api/v1/nodes/h200-2")["spec"].get("taints", [])
        )
    )
    nodes.revive_kubelet(box.api, "h200-2")
    nodes.wait_schedulable(box.api, ["h200-2"], 120)


def test_nodes_that_come_and_go_cost_no_other_node_its_lease(box: Sandbox, rest: Rest) -> None:
    pool = {"name": "churn", "count": 30}
    churned = nodes.make_nodes(box.api, parse_fleet({"pools": [pool]}, "the test's fleet"))

    def come_and_go(name: str) -> None:
        for _ in range(3):
            nodes.kill_kubelet(box.api, name, noticed=False)
            nodes.revive_kubelet(box.api, name)

    def renewed() -> dict[str, str]:
        found = rest.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")["items"]
        leases = {lease["metadata"]["name"]: lease["spec"]["renewTime"] for lease in found}
        return {name: leases.get(name, "") for name in churned}

    try:
        # several at once, so that leases wait for their renewal while nodes go
        with ThreadPoolExecutor(8) as workers:
            list(workers.map(come_and_go, churned[:15]))
        before = renewed()
        until(lambda: all(time > before[name] for name, time in renewed().items()))
    finally:
        nodes.remove_nodes(box.api, churned)


@pytest.fixture(scope="module")
def store(box: Sandbox) -> Path:
    return make_claim(box.api, box.claims, "default", "models")


@pytest.fixture
def orders(box: Sandbox) -> Iterator[PlayerControl]:
    control = PlayerControl(box.api)
    control.reset()
    yield control
    control.reset()


MODEL = StepRequest(
    step="model",
    key=artifact_key("model", {"uri": URI}),
    inputs={"uri": URI},
    commands=(),
    expected_files=(),
    source=URI,
)


def fetch_job(name: str) -> Json:
    pod = with_request(
        gpu_pod(
            name,
            gpus=0,
            **{
                "shardwright.dev/role": "model",
                "shardwright.dev/step": "model",
                "shardwright.dev/key": MODEL.key,
            },
        ),
        MODEL,
    )
    labels = pod["metadata"]["labels"]
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template}}


JOBS = "/apis/batch/v1/namespaces/default/jobs"


def job_pod(rest: Rest, job: str) -> Json | None:
    query = f"?labelSelector=batch.kubernetes.io/job-name%3D{job}"
    items = rest.get(PODS + query)["items"]
    return items[0] if items and items[0]["status"]["phase"] in ("Succeeded", "Failed") else None


def test_a_steps_job_is_played_and_may_be_made_to_fail(
    box: Sandbox, rest: Rest, store: Path, orders: PlayerControl
) -> None:
    rule = orders.fail_step("model", reason="DiskFull", outcome="Environment")
    rest.post(JOBS, fetch_job("first"))
    failed = report_of(until(lambda: job_pod(rest, "first")))
    assert (failed.outcome, failed.reason) == ("Environment", "DiskFull")
    until(lambda: orders.hits(rule) == 1)
    rest.post(JOBS, fetch_job("second"))
    done = report_of(until(lambda: job_pod(rest, "second")))
    assert (done.outcome, done.key, done.facts.layers) == ("Done", MODEL.key, 32)
    assert (store / artifact_folder("model", MODEL.key) / "config.json").exists()
    until(lambda: rest.get(f"{JOBS}/second")["status"].get("succeeded") == 1)
    published = [json.loads(line) for line in box.layout.publishes.read_text().splitlines()]
    assert [line["key"] for line in published] == [MODEL.key]
    for name in ("first", "second"):
        rest.delete(f"{JOBS}/{name}?propagationPolicy=Background")


def serving_pod(stage: int, key: str = MODEL.key, incarnation: int = 1) -> Json:
    request = ServeRequest(
        deployment="d",
        replica=0,
        incarnation=incarnation,
        stage=stage,
        tensor=8,
        pipeline=2,
        step="model",
        key=key,
        artifact=f"{STORE}/{artifact_folder('model', MODEL.key)}",
        model_folder="",
        served_name="x",
        product="NVIDIA-H100-80GB-HBM3",
        command=Command("trtllm-serve", ("trtllm-serve",)),
        config={},
        peers=(),
    )
    labels = {
        "shardwright.dev/role": "worker" if stage else "leader",
        "shardwright.dev/deployment": "d",
        "shardwright.dev/replica": "0",
        "shardwright.dev/incarnation": str(incarnation),
        "shardwright.dev/stage": str(stage),
    }
    body = gpu_pod(f"d-{incarnation}-{stage}", product="NVIDIA-H100-80GB-HBM3", **labels)
    return with_request(body, request)


def test_a_group_serves_when_all_its_ranks_have_met(
    box: Sandbox, rest: Rest, store: Path, orders: PlayerControl
) -> None:
    rest.post(JOBS, fetch_job("third"))
    until(lambda: job_pod(rest, "third"))
    rest.post(PODS, serving_pod(0))
    until(lambda: rest.get(f"{PODS}/d-1-0")["status"]["phase"] == "Running")
    time.sleep(0.3)
    assert not is_ready(rest.get(f"{PODS}/d-1-0"))
    rest.post(PODS, serving_pod(1))
    until(lambda: is_ready(rest.get(f"{PODS}/d-1-0")) and is_ready(rest.get(f"{PODS}/d-1-1")))
    crash = Rule(act=Act.CRASH, match=Match(role="worker"), reason="RankFailed")
    orders.add(crash)
    until(lambda: rest.get(f"{PODS}/d-1-1")["status"]["phase"] == "Failed")
    until(lambda: rest.get(f"{PODS}/d-1-0")["status"]["phase"] == "Failed")
    assert report_of(rest.get(f"{PODS}/d-1-1")).reason == "RankFailed"
    assert report_of(rest.get(f"{PODS}/d-1-0")).reason == "PeerLost"
    rest.delete(f"{JOBS}/third?propagationPolicy=Background")


def test_a_leader_with_the_wrong_artifact_ends_with_the_reason(
    box: Sandbox, rest: Rest, store: Path, orders: PlayerControl
) -> None:
    rest.post(PODS, serving_pod(0, key="0" * 16, incarnation=2))
    pod = until(
        lambda: (
            ((found := rest.get(f"{PODS}/d-2-0"))["status"]["phase"] == "Failed" and found) or None
        )
    )
    assert report_of(pod).reason in ("ManifestMissing", "ManifestMismatch")


def test_never_start_and_never_ready(
    box: Sandbox, rest: Rest, store: Path, orders: PlayerControl
) -> None:
    orders.add(
        Rule(act=Act.NEVER_START, match=Match(role="leader"), reason="ImagePullBackOff"),
        Rule(act=Act.NEVER_READY, match=Match(role="worker")),
    )
    rest.post(PODS, serving_pod(0, incarnation=3))
    until(
        lambda: (
            rest.get(f"{PODS}/d-3-0")["status"]
            .get("containerStatuses", [{}])[0]
            .get("state", {})
            .get("waiting", {})
            .get("reason")
            == "ImagePullBackOff"
        )
    )


def test_accounts_get_real_tokens_and_no_rights(box: Sandbox, rest: Rest, tmp_path: Path) -> None:
    rest.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "sa"}})
    path = box.kubeconfig_for_account("default", "sa", tmp_path / "kubeconfig")
    with pytest.raises(RestError) as refused:
        rest_of(api_client(path)).get(PODS)
    assert refused.value.status == 403
    assert "system:serviceaccount:default:sa" in str(refused.value)

    def asked() -> dict[str, int]:
        return audit.requests(box.layout.audit_log, "system:serviceaccount:default:sa")

    # the server may answer before it writes
    until(asked)
    assert asked() == {"list pods": 1}


def test_a_second_start_finds_the_live_one(box: Sandbox) -> None:
    again = Sandbox.start(box.layout.root, box.config)
    assert (again.kubeconfig, again.started_here) == (box.kubeconfig, False)
    again.stop()
    box.check()
    with pytest.raises(SandboxError, match="other settings"):
        Sandbox.start(box.layout.root, SandboxConfig())


def test_a_crashed_start_says_why_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    config = SandboxConfig(apiserver_args=("--no-such-flag",), die_with_parent=True)
    with pytest.raises(SandboxError, match=r"kube-apiserver ended(.|\n)*no-such-flag"):
        Sandbox.start(tmp_path / "s", config)
    assert Processes(tmp_path / "s" / "processes.json").entries == ()
    stop(tmp_path / "s")
    assert not (tmp_path / "s").exists()
