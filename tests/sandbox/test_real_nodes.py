"""Real nodes: kubelets, containers, a network, GPUs through the device-plugin socket, switches."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.observe.quantity import to_whole
from shardwright_sandbox import Sandbox, SandboxConfig
from shardwright_sandbox.clients import kubectl
from shardwright_sandbox.cluster import stop
from shardwright_sandbox.fleet import real_pool
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.pytest_plugin import Namespace
from shardwright_sandbox.real.addresses import Addresses
from shardwright_sandbox.real.images import TOOLS
from shardwright_sandbox.real.node import RealNode
from shardwright_sandbox.real.record import cgroup_name
from shardwright_sandbox.real.volumes import volume
from shardwright_sandbox.rest import Json, Rest, rest_of
from shardwright_sandbox.storage import make_claim

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

GPU = "nvidia.com/gpu"
STANDIN = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
SERVE = "mkdir -p /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8000 -h /tmp/www"
ANSWERS = "wget -q -O /dev/null http://127.0.0.1:8000/"


def until(done: Callable[[], Any], seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)
    return value


class Cluster:
    """One namespace of the sandbox with real nodes."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.sandbox = namespace.sandbox
        self.rest: Rest = rest_of(self.sandbox.api)
        self.pods = f"/api/v1/namespaces/{namespace.name}/pods"
        self._kubectl = kubectl(Progress(quiet=True))

    def run(self, name: str, script: str, *, node: str = "", **more: Any) -> Json:
        """Create a pod; `more`: gpus, image, labels, subdomain, ready, claim, account, memory."""
        gpus, claim = more.get("gpus", 0), more.get("claim", "")
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        if memory := more.get("memory"):
            limits["memory"] = memory
        container: Json = {
            "name": "c",
            "image": more.get("image", TOOLS),
            "command": ["sh", "-c", script],
            "resources": {"limits": limits},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }
        if ready := more.get("ready"):
            probe = {"exec": {"command": ["sh", "-c", ready]}, "periodSeconds": 1}
            container["readinessProbe"] = probe
        volume: Json = (
            {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        )
        spec: Json = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": bool(more.get("account")),
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "hostname": name,
            "containers": [container],
            "volumes": [{"name": "v", **volume}],
        }
        if user := more.get("user"):
            spec["securityContext"] = {"runAsUser": user, "runAsGroup": user}
        if subdomain := more.get("subdomain"):
            spec["subdomain"] = subdomain
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        body = {"metadata": {"name": name, "labels": more.get("labels", {})}, "spec": spec}
        return self.rest.post(self.pods, body)

    def pod(self, name: str) -> Json:
        return self.rest.get(f"{self.pods}/{name}")

    def address(self, name: str) -> str:
        return str(until(lambda: self.pod(name)["status"].get("podIP")))

    def is_ready(self, name: str) -> bool:
        conditions = self.pod(name)["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def running(self, *names: str) -> None:
        for name in names:
            until(lambda name=name: self.pod(name)["status"]["phase"] == "Running")

    def ended(self, name: str, phase: str = "Succeeded", seconds: float = 180) -> str:
        """Wait for the pod's end; its log."""
        until(lambda: self.pod(name)["status"]["phase"] in ("Succeeded", "Failed"), seconds)
        assert self.pod(name)["status"]["phase"] == phase, self.log(name)
        return self.log(name)

    def log(self, name: str) -> str:
        return self.rest.text(f"{self.pods}/{name}/log")

    def execute(self, name: str, script: str) -> subprocess.CompletedProcess[str]:
        command = [self._kubectl, f"--kubeconfig={self.sandbox.kubeconfig}"]
        command += [f"--namespace={self.namespace}", "exec", name, "--", "sh", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)

    def service(self, name: str, app: str, *, headless: bool = False) -> Json:
        spec: Json = {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8000}]}
        if headless:
            spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
        path = f"/api/v1/namespaces/{self.namespace}/services"
        return self.rest.post(path, {"metadata": {"name": name}, "spec": spec})

    def node(self, name: str) -> Json:
        return self.rest.get(f"/api/v1/nodes/{name}")

    def node_ready(self, name: str) -> str:
        conditions = self.node(name)["status"]["conditions"]
        return str(next(one["status"] for one in conditions if one["type"] == "Ready"))

    def gpus(self, name: str) -> tuple[int, int]:
        """Capacity and what can be allocated."""
        status = self.node(name)["status"]
        return (
            int(status["capacity"].get("nvidia.com/gpu", 0)),
            int(status["allocatable"].get("nvidia.com/gpu", 0)),
        )


@pytest.fixture
def cluster(real_namespace: Namespace) -> Iterator[Cluster]:
    found = Cluster(real_namespace)
    yield found
    # the namespace controller would end them too, some seconds later
    found.rest.delete(found.pods)
    until(lambda: not found.rest.get(found.pods)["items"])


@pytest.fixture
def nodes(real_sandbox: Sandbox) -> Iterator[dict[str, RealNode]]:
    """Both nodes; whatever a test has broken is mended, and both are Ready again."""
    found = real_sandbox.real_nodes()
    yield found
    cluster = rest_of(real_sandbox.api)
    for node in found.values():
        node.mend()
        node.start_containerd()
        node.start_kubelet()
        node.free_volume()
        node.set_unhealthy()
    until(
        lambda: all(
            any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
            for conditions in (
                cluster.get(f"/api/v1/nodes/{name}")["status"]["conditions"] for name in found
            )
        )
    )
    # the plugins register with their kubelet anew
    until(
        lambda: all(
            int(cluster.get(f"/api/v1/nodes/{name}")["status"]["allocatable"].get(GPU, 0)) == 8
            for name in found
        )
    )


def fetched(address: str, seconds: int = 30) -> str:
    """What a pod's HTTP server answers to this machine; empty if it does not in so many seconds."""
    url = f"http://{address}:8000/"
    command = ["curl", "--silent", "--max-time", str(seconds), url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def visible(cluster: Cluster, name: str) -> set[int]:
    """GPUs that a container has told of, once its log has come."""
    told = until(
        lambda: re.search(r"^NVIDIA_VISIBLE_DEVICES=([\d,]+)$", cluster.log(name), re.MULTILINE)
    )
    listed = [int(word) for word in told[1].split(",")]
    assert len(listed) == len(set(listed))
    return set(listed)


def test_gpus_come_from_the_device_plugin_and_go_when_they_are_unhealthy(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    for name, node in nodes.items():
        assert cluster.node_ready(name) == "True"
        until(lambda name=name: cluster.gpus(name) == (8, 8))
        product = cluster.node(name)["metadata"]["labels"]["nvidia.com/gpu.product"]
        assert product == "NVIDIA-H100-80GB-HBM3"
        addresses = {one["address"] for one in cluster.node(name)["status"]["addresses"]}
        assert str(node.address) in addresses
        # as large as the pool says, whatever this machine is
        found = cluster.node(name)["status"]["allocatable"]
        assert to_whole(found["cpu"]) == 192
        assert to_whole(found["memory"]) == 2 << 40
        assert to_whole(found["ephemeral-storage"]) == 7 << 40
    nodes["real-0"].set_unhealthy(2, 5)
    until(lambda: cluster.gpus("real-0") == (8, 6))
    assert cluster.gpus("real-1") == (8, 8)
    nodes["real-0"].set_unhealthy()
    until(lambda: cluster.gpus("real-0") == (8, 8))


def test_each_container_sees_gpus_of_its_own(cluster: Cluster, nodes: dict[str, RealNode]) -> None:
    nodes["real-0"].set_unhealthy(7)
    until(lambda: cluster.gpus("real-0") == (8, 7))
    for name, gpus in (("two", 2), ("three", 3)):
        cluster.run(name, "env; exec sleep 600", node="real-0", gpus=gpus)
    cluster.running("two", "three")
    two, three = (visible(cluster, name) for name in ("two", "three"))
    assert (len(two), len(three)) == (2, 3)
    assert not two & three
    assert two | three <= set(range(7))
    # five of seven are taken: the scheduler knows it
    cluster.run("late", "env; nvidia-smi -L", node="real-0", gpus=3, image=STANDIN)
    until(lambda: "Insufficient nvidia.com/gpu" in str(cluster.pod("late")["status"]))
    cluster.rest.delete(f"{cluster.pods}/three")
    cluster.ended("late")
    assert not visible(cluster, "late") & two
    # what runs inside finds as many, by the product of the node's label
    assert len(re.findall(r"^GPU \d: NVIDIA H100", cluster.log("late"), re.MULTILINE)) == 3


def test_a_pod_without_gpus_sees_none(cluster: Cluster, nodes: dict[str, RealNode]) -> None:
    cluster.run("plain", "env", node="real-0")
    assert "NVIDIA" not in cluster.ended("plain")


def test_pods_of_a_headless_service_find_each_other_over_nodes_before_they_are_ready(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    cluster.service("ranks", "ranks", headless=True)
    for index, name in enumerate(nodes):
        cluster.run(
            f"stage-{index}",
            SERVE,
            node=name,
            labels={"app": "ranks"},
            subdomain="ranks",
            ready="test -e /tmp/go",
        )
    cluster.running("stage-0", "stage-1")
    for one, other in (("stage-0", "stage-1"), ("stage-1", "stage-0")):
        ask = f"timeout 30 wget -q -O - http://{other}.ranks.{cluster.namespace}:8000"
        answer = until(lambda one=one, ask=ask: cluster.execute(one, ask).stdout.strip())
        assert answer == other
        assert not cluster.is_ready(one)
    # a name that is not there is no failure of the name server
    missing = cluster.execute("stage-0", "nslookup stage-9.ranks.nowhere.svc.cluster.local")
    assert "NXDOMAIN" in missing.stdout + missing.stderr
    cluster.execute("stage-0", "touch /tmp/go")
    until(lambda: cluster.is_ready("stage-0"))
    cluster.execute("stage-0", "rm /tmp/go")
    until(lambda: not cluster.is_ready("stage-0"))


def test_a_cluster_address_leads_to_the_ready_pod_from_every_pod_itself_included(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    service = cluster.service("web", "web")
    address = service["spec"]["clusterIP"]
    for index, node in enumerate(("real-0", "real-0", "real-1")):
        app = "web" if index == 0 else "client"
        cluster.run(f"p{index}", SERVE, node=node, labels={"app": app}, ready="true")
    for index in range(3):
        until(lambda name=f"p{index}": cluster.is_ready(name))
    # the pod itself, one on its node, one on the other
    for index in range(3):
        ask = f"timeout 30 wget -q -O - http://{address}/"
        answer = until(lambda name=f"p{index}", ask=ask: cluster.execute(name, ask).stdout.strip())
        assert answer == "p0"
    # by name too, and for a process of the node's
    by_name = cluster.execute("p2", "timeout 30 wget -q -O - http://web/")
    assert by_name.stdout.strip() == "p0"
    assert nodes["real-1"].machine.run("curl", "--silent", f"http://{address}/").strip() == "p0"


IN_CLUSTER = """\
python3 - <<'END'
import json, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
token = open(f"{folder}/token").read()
trust = ssl.create_default_context(cafile=f"{folder}/ca.crt")
request = urllib.request.Request(
    "https://kubernetes.default.svc/apis/authentication.k8s.io/v1/selfsubjectreviews",
    data=b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}',
    headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
)
with urllib.request.urlopen(request, context=trust, timeout=10) as answer:
    print(json.load(answer)["status"]["userInfo"]["username"])
END
"""


def test_a_client_in_the_cluster_reaches_the_api_server_by_its_service(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    cluster.run("client", IN_CLUSTER, node="real-1", image=STANDIN, account=True)
    told = cluster.ended("client").strip()
    assert told == f"system:serviceaccount:{cluster.namespace}:default"


def test_a_claim_is_one_folder_for_pods_of_all_nodes(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    folder = cluster.namespace.claim()
    cluster.run("writer", "echo ours > /v/file", node="real-0", claim="models", user=1000)
    cluster.ended("writer")
    cluster.run("reader", "cat /v/file; id -u", node="real-1", claim="models", user=1000)
    assert cluster.ended("reader").split() == ["ours", "1000"]
    assert (folder / "file").read_text() == "ours\n"


def test_a_full_claim_refuses_writes_until_there_is_room(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    folder = cluster.namespace.claim("small", limit_bytes=8 << 20)
    full = volume(folder)
    assert 7 << 20 < full.fill() <= 8 << 20
    assert full.fill() == 0
    write = "dd if=/dev/zero of=/v/block bs=1024 count=64"
    cluster.run("early", write, node="real-1", claim="small", user=1000)
    assert "No space left on device" in cluster.ended("early", "Failed")
    full.free()
    cluster.run("later", write, node="real-1", claim="small", user=1000)
    cluster.ended("later")
    assert (folder / "block").stat().st_size == 64 << 10


def test_a_full_node_refuses_writes_to_an_empty_dir_until_there_is_room(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    write = "dd if=/dev/zero of=/v/block bs=1024 count=64 conv=notrunc"
    cluster.run("writer", "exec sleep 600", node="real-0")
    cluster.running("writer")
    assert cluster.execute("writer", write).returncode == 0
    cluster.execute("writer", "rm /v/block")
    assert nodes["real-0"].fill_volume() > 0
    assert "No space left on device" in cluster.execute("writer", write).stderr
    nodes["real-0"].free_volume()
    assert cluster.execute("writer", write).returncode == 0


def test_a_container_beyond_its_memory_is_killed(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    grow = "python3 -c 'b = bytearray(400 << 20)'"
    cluster.run("big", grow, node="real-0", image=STANDIN, memory="64Mi")
    cluster.ended("big", "Failed")
    state = cluster.pod("big")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (state["exitCode"], state["reason"]) == (137, "OOMKilled")


def serving(cluster: Cluster) -> tuple[str, str]:
    """A pod that serves on real-0; its address and its container's id."""
    cluster.run("server", SERVE, node="real-0", ready=ANSWERS)
    until(lambda: cluster.is_ready("server"))
    status = cluster.pod("server")["status"]
    assert fetched(status["podIP"]) == "server"
    return status["podIP"], status["containerStatuses"][0]["containerID"]


def same_container(cluster: Cluster, container: str) -> bool:
    (status,) = cluster.pod("server")["status"]["containerStatuses"]
    return (status["containerID"], status["restartCount"]) == (container, 0)


def test_without_its_kubelet_a_node_is_lost_and_its_containers_go_on(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    address, container = serving(cluster)
    nodes["real-0"].stop_kubelet()
    until(lambda: cluster.node_ready("real-0") == "Unknown")
    assert fetched(address) == "server"
    cluster.rest.delete(f"{cluster.pods}/server")
    time.sleep(3)
    assert "deletionTimestamp" in cluster.pod("server")["metadata"]
    assert fetched(address) == "server"
    nodes["real-0"].start_kubelet()
    until(lambda: cluster.node_ready("real-0") == "True")
    until(lambda: not cluster.rest.get(cluster.pods)["items"])
    assert fetched(address, seconds=2) == ""
    # the plugin has registered with the new kubelet
    until(lambda: cluster.gpus("real-0") == (8, 8))
    cluster.run("after", "env", node="real-0", gpus=1)
    cluster.ended("after")
    assert len(visible(cluster, "after")) == 1
    assert container


def test_without_containerd_a_node_is_not_ready_and_its_containers_go_on(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    address, container = serving(cluster)
    nodes["real-0"].kill_containerd()
    until(lambda: cluster.node_ready("real-0") == "False")
    assert fetched(address) == "server"
    nodes["real-0"].start_containerd()
    until(lambda: cluster.node_ready("real-0") == "True")
    until(lambda: cluster.is_ready("server"))
    assert same_container(cluster, container)


def test_a_node_that_is_cut_off_hears_nothing_until_it_is_joined_again(
    cluster: Cluster, nodes: dict[str, RealNode]
) -> None:
    address, container = serving(cluster)
    cluster.run("peer", "exec sleep 600", node="real-1")
    cluster.running("peer")
    ask = f"wget -q -O - http://{address}:8000/"
    assert cluster.execute("peer", f"timeout 30 {ask}").stdout.strip() == "server"
    nodes["real-0"].cut()
    assert cluster.execute("peer", f"timeout 5 {ask}").returncode != 0
    assert fetched(address, seconds=2) == ""
    # the node itself does not know: its containers go on
    inside = nodes["real-0"].machine.run("curl", "--silent", f"http://{address}:8000/")
    assert inside.strip() == "server"
    until(lambda: cluster.node_ready("real-0") == "Unknown")
    assert cluster.node_ready("real-1") == "True"
    nodes["real-0"].mend()
    until(lambda: cluster.node_ready("real-0") == "True")
    until(lambda: cluster.is_ready("server"))
    assert cluster.execute("peer", f"timeout 30 {ask}").stdout.strip() == "server"
    assert same_container(cluster, container)


def traces(*ours: str) -> list[str]:
    """Whatever of this machine's state names one of `ours`."""
    printed = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        for command in (["ip", "-o", "link"], ["ip", "route", "show", "table", "all"])
    ]
    found = [line for lines in printed for line in lines]
    found += Path("/proc/self/mountinfo").read_text().splitlines()
    found += [str(path) for path in Path("/sys/fs/cgroup").glob("**/shardwright-*")]
    return [line for line in found if any(mark in line for mark in ours)]


def inhabitants(namespaces: set[str]) -> list[int]:
    """Processes in one of these process namespaces; one that waits to be reaped is none."""
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/pid"):
        try:
            state = (link.parents[1] / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and str(link.readlink()) in namespaces:
                found.append(int(link.parts[2]))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def contained(cgroup: str) -> set[str]:
    """Processes of containers: those in the sandbox's cgroup."""
    lists = Path("/sys/fs/cgroup").glob(f"**/{cgroup}/**/cgroup.procs")
    return {pid for path in lists for pid in path.read_text().split()}


def machine_wide() -> dict[str, set[str]]:
    """What kubelets and containerds of any machine write, and none of ours may write to this one.

    Only that: others work on the machine too, and what they make and remove is not counted.
    """
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    places = ("run/netns/cni-*", "run/containerd/**/*", "var/lib/cni/**/*", "var/lib/kubelet/**/*")
    return {
        "rules": {line for line in rules.splitlines() if re.search("KUBE|CNI", line)},
        **{place: set(map(str, Path("/").glob(place))) for place in places},
    }


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder; whatever a failing test has left in it goes."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    yield tmp_path / "state"
    stop(tmp_path / "state")


def test_a_crashed_sandbox_is_cleared_by_the_next_and_down_leaves_nothing(
    real_sandbox: Sandbox, state: Path
) -> None:
    before = machine_wide()
    config = SandboxConfig(die_with_parent=True, player=False, real=(real_pool(1, name="lone"),))
    first = Sandbox.start(state, config, progress=Progress(quiet=True))
    lone = first.real_nodes()["lone-0"]
    slots = {lone.slot, *(node.slot for node in real_sandbox.real_nodes().values())}
    assert len(slots) == 2, "two sandboxes share a network"
    make_claim(first.api, first.claims, "default", "small", limit_bytes=1 << 20)
    rest = rest_of(first.api)
    spec = {"nodeName": "lone-0", "containers": [{"name": "c", "image": TOOLS}]}
    rest.post("/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": spec})
    path = "/api/v1/namespaces/default/pods/p"
    until(lambda: rest.get(path)["status"]["phase"] == "Running")
    spaces = {str(Path(f"/proc/{lone.machine.first}/ns/pid").readlink())}
    # Its first process, containerd, kubelet, kube-proxy, device plugin and a shim, when none of
    # them runs a tool.
    until(lambda: len(inhabitants(spaces)) == 6)
    # the pod's two containers, in process namespaces of their own
    until(lambda: len(contained(cgroup_name(first.layout))) == 2)
    link, network = Addresses(lone.slot).host_link, str(Addresses(lone.slot).pods(0))
    ours = (str(state), f"{link}@", network, cgroup_name(first.layout))
    assert len(traces(*ours)) > 4

    # the machine of the node and the API server are gone at once, the rest goes on
    processes = Processes(first.layout.processes)
    for name in ("node-lone-0", "kube-apiserver"):
        os.killpg(processes.named(name).pid, signal.SIGKILL)
    until(lambda: not inhabitants(spaces) and not contained(cgroup_name(first.layout)))
    second = Sandbox.start(state, config, progress=Progress(quiet=True))
    for child in first._processes._children.values():
        assert child.wait(timeout=120) is not None
    assert second.started_here
    assert list(second.real_nodes()) == ["lone-0"]
    spaces |= {
        str(Path(f"/proc/{node.machine.first}/ns/pid").readlink())
        for node in second.real_nodes().values()
    }
    second.stop()
    assert not state.exists()
    assert inhabitants(spaces) == []
    # the kernel takes a namespace's links away some time after its last process
    until(lambda: traces(*ours) == [])
    assert machine_wide() == before
