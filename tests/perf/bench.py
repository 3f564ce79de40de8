"""`make bench`: how fast deployments come up, against bare pods, in one run on this machine.

For each size N: 2 × N bare GPU pods are created and awaited; then N LLMDeployments of two stages
each, whose engine and proof were recorded beforehand, until all are Ready; then the bare pods once
more, and the mean of both is what is compared with. The bare pods are the same pods: what the
operator renders, less what makes a group of them (owner, gates, affinity, pins). All under the same
control plane, one after the other. Timings of a shared machine are noisy: compare the ratio.
KWOK plays the containers of both, so that the simulator costs the same on both sides.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "sandbox")]

from tests.support.kube import BASE, merged  # noqa: E402
from tests.support.operator import Operator  # noqa: E402

from shardwright_sandbox import audit  # noqa: E402
from shardwright_sandbox.cluster import Sandbox  # noqa: E402
from shardwright_sandbox.config import SandboxConfig  # noqa: E402
from shardwright_sandbox.crds import apply_crds  # noqa: E402
from shardwright_sandbox.fleet import parse_fleet  # noqa: E402
from shardwright_sandbox.namespaces import make_namespace  # noqa: E402
from shardwright_sandbox.nodes import make_nodes  # noqa: E402
from shardwright_sandbox.progress import Progress  # noqa: E402
from shardwright_sandbox.rest import rest_of  # noqa: E402
from shardwright_sandbox.storage import make_claim  # noqa: E402

NAMESPACE = "bench"
USER = "sandbox-operator"
PLAYED_BY_KWOK = {"sandbox.shardwright.dev/played-by": "kwok"}
GPUS_PER_POD = 2
SERVING = "shardwright.dev/replica"
SPEC = merged(
    BASE,
    {
        "engine": {"backend": "PyTorch"},
        "parallelism": {"tensor": GPUS_PER_POD, "pipeline": 2},
        "pod": {
            "resources": {"cpu": "1", "memory": "2Gi", "ephemeralStorage": "1Gi"},
            "shmSize": "1Gi",
            "annotations": PLAYED_BY_KWOK,
        },
    },
)
IDLE_SECONDS = 60.0
_LOOK_SECONDS = "5"  # between two full lists
console = Console()
Json = dict[str, Any]


class Bench:
    """One sandbox, one operator."""

    def __init__(self, folder: Path, nodes: int) -> None:
        # A busy machine must not make nodes NotReady in the middle of a measurement.
        config = SandboxConfig(audit=True, die_with_parent=True, node_grace_seconds=120)
        self.sandbox = Sandbox.start(folder / "state", config, progress=Progress())
        self.rest = rest_of(self.sandbox.api)
        apply_crds(self.sandbox.api)
        pools = [
            {
                "name": "h100",
                "count": nodes,
                "gpu": {"product": "NVIDIA-H100-80GB-HBM3", "count": 8},
            }
        ]
        make_nodes(self.sandbox.api, parse_fleet({"pools": pools}, "bench"))
        make_namespace(self.sandbox.api, NAMESPACE)
        make_claim(self.sandbox.api, self.sandbox.claims, NAMESPACE, "models")
        self.operator = Operator(
            self.sandbox.kubeconfig_for(USER),
            folder,
            timeouts={"bindSeconds": 120, "startSeconds": 600, "readySeconds": 600},
            # As in a real installation: a busy machine must not cost the Lease.
            lease={"durationSeconds": 15, "renewSeconds": 10, "retrySeconds": 2},
        )
        self.log = folder / "state" / "audit.log"
        self.pod: Json = {}

    def bare(self, number: int) -> float:
        """Create bare pods, wait until all are Ready; seconds."""
        bodies = [merged(self.pod, {"metadata": {"name": f"bare-{i:04d}"}}) for i in range(number)]
        began = time.monotonic()
        self._create("/api/v1/namespaces/bench/pods", bodies)
        self._await_pods("bare=true", number)
        seconds = time.monotonic() - began
        self._delete("/api/v1/namespaces/bench/pods", labelSelector="bare=true")
        self._await_pods("bare=true", 0)
        return seconds

    def deployments(self, number: int) -> tuple[float, float]:
        """Create deployments, wait until all are Ready; (seconds, requests a deployment)."""
        offset = audit.position(self.log)
        began = time.monotonic()
        path = "/apis/shardwright.dev/v1alpha1/namespaces/bench/llmdeployments"
        self._create(path, [_deployment(f"d-{index:04d}") for index in range(number)])
        late = self._await_ready(path, number, seconds=20 + number)
        if late:
            console.print_json(json.dumps(late[0].get("status", {})))
            console.print(self.operator.log.read_text(encoding="utf-8")[-3000:])
            raise SystemExit(f"{len(late)} of {number} were never ready")
        seconds = time.monotonic() - began
        time.sleep(2)
        counted = audit.requests(self.log, USER, offset=offset)
        del counted_noise(counted)[:]
        for what, times in counted.most_common(12):
            console.print(f"  {times / number:6.2f} {what}", style="dim")
        return seconds, counted.total() / number

    def idle(self, number: int) -> float:
        """Requests a minute for 100 deployments when nothing happens."""
        time.sleep(5)
        offset = audit.position(self.log)
        time.sleep(IDLE_SECONDS)
        counted = audit.requests(self.log, USER, offset=offset)
        del counted_noise(counted)[:]
        return counted.total() / (IDLE_SECONDS / 60) / (number / 100)

    def clear(self) -> None:
        """Delete every deployment and wait until the pods are gone."""
        self._delete("/apis/shardwright.dev/v1alpha1/namespaces/bench/llmdeployments")
        self._await_pods(SERVING, 0)

    def prepare(self) -> None:
        """One deployment first: its model, engine and proof are what the others find."""
        path = "/apis/shardwright.dev/v1alpha1/namespaces/bench/llmdeployments"
        self.rest.post(path, _deployment("first"))
        ends = time.monotonic() + 60
        while not _ready(self.rest.get(f"{path}/first")):
            if time.monotonic() > ends:
                raise SystemExit("the first deployment was never ready")
            time.sleep(0.2)
        ours = self.rest.get("/api/v1/namespaces/bench/pods", labelSelector=SERVING)["items"]
        self.pod = _alone(ours[0])
        self.clear()

    def _create(self, path: str, bodies: list[Json]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda body: self.rest.post(path, body), bodies))

    def _delete(self, path: str, **query: str) -> None:
        # one by one: the deletion of a whole collection must end within a minute
        names = [item["metadata"]["name"] for item in self.rest.get(path, **query)["items"]]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: self.rest.delete(f"{path}/{name}"), names))

    def _await_pods(self, selector: str, number: int) -> None:
        path = "/api/v1/namespaces/bench/pods"
        late = self._await_ready(path, number, seconds=300, labelSelector=selector)
        if late:
            raise SystemExit(f"{len(late)} pods of {selector} too few or too many")

    def _await_ready(self, path: str, number: int, *, seconds: float, **query: str) -> list[Json]:
        """Until exactly `number` objects are there and Ready; the others when time is up.

        It watches: asking again and again for hundreds of objects takes more of the API server
        than what is measured, and the more the longer it takes.
        """
        began = time.monotonic()
        while True:
            found = self.rest.get(path, **query)
            ready = {item["metadata"]["name"]: _ready(item) for item in found["items"]}
            watch = self.rest.watch(
                path,
                threading.Event(),
                resourceVersion=found["metadata"]["resourceVersion"],
                timeoutSeconds=_LOOK_SECONDS,
                **query,
            )
            with contextlib.closing(watch):
                while not (len(ready) == number and all(ready.values())):
                    event = next(watch, None)
                    if event is None:
                        break
                    name = event["object"]["metadata"].get("name")
                    if event["type"] == "DELETED":
                        ready.pop(name, None)
                    elif event["type"] != "BOOKMARK":
                        ready[name] = _ready(event["object"])
                else:
                    return []
            there = f"{sum(ready.values())} of {number} ready" if number else f"{len(ready)} left"
            console.print(f"  {there} after {time.monotonic() - began:.1f} s")
            if time.monotonic() - began > seconds:
                return [item for item in found["items"] if not _ready(item)] or [{}]


def counted_noise(counted: Any) -> list[str]:
    """Take the Lease and the watches out of a count: they go on whatever there is to do."""
    noise = [
        what
        for what in counted
        if "leases" in what or what.startswith(("watch ", "list ")) or " /" in what
    ]
    for what in noise:
        del counted[what]
    return noise


def _alone(pod: Json) -> Json:
    """A pod of a group as it would be by itself."""
    found = pod["metadata"]
    labels = {
        name: value
        for name, value in found["labels"].items()
        if not name.startswith("shardwright.dev/")
    }
    spec = {
        name: value
        for name, value in pod["spec"].items()
        if name not in ("nodeName", "nodeSelector", "affinity", "schedulingGates", "subdomain")
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels | {"bare": "true"}, "annotations": PLAYED_BY_KWOK},
        "spec": spec,
    }


def _deployment(name: str) -> Json:
    return {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": SPEC,
    }


def _ready(item: Json) -> bool:
    return any(
        found["type"] == "Ready" and found["status"] == "True"
        for found in item.get("status", {}).get("conditions", [])
    )


def main() -> None:
    """Run it and print the table."""
    sizes = [int(size) for size in sys.argv[1:]] or [200, 700]
    folder = Path(tempfile.mkdtemp(prefix="shardwright-bench-"))
    rows: list[Json] = []
    bench = Bench(folder, nodes=max(200, max(sizes) // 2 + 10))
    try:
        bench.operator.start().wait()
        bench.prepare()
        for size in sizes:
            console.rule(f"{size} deployments of 2 stages")
            before = bench.bare(2 * size)
            console.print(f"  {2 * size} bare pods ready in {before:.1f} s")
            seconds, requests = bench.deployments(size)
            idle = bench.idle(size) if size == sizes[0] else None
            memory = bench.operator.memory_bytes() / 2**20
            bench.clear()
            after = bench.bare(2 * size)
            console.print(f"  {2 * size} bare pods ready in {after:.1f} s")
            rows.append(
                {
                    "deployments": size,
                    "bare": (before + after) / 2,
                    "ours": seconds,
                    "requests": requests,
                    "idle": idle,
                    "memory": memory,
                }
            )
        problems = bench.operator.errors()
    finally:
        bench.operator.stop()
        bench.sandbox.stop(keep_logs=False)
        shutil.rmtree(folder, ignore_errors=True)
    _print(rows)
    if problems:
        console.print(f"the operator logged {len(problems)} errors, the first: {problems[0]}")
        raise SystemExit(1)


def _print(rows: list[Json]) -> None:
    table = Table(title="until Ready, against bare pods in the same run")
    heads = (
        "deployments",
        "bare s",
        "ours s",
        "ratio",
        "requests each",
        "peak MiB",
        "idle/min/100",
    )
    for head in heads:
        table.add_column(head, justify="right")
    for row in rows:
        idle = "" if row["idle"] is None else f"{row['idle']:.2f}"
        table.add_row(
            str(row["deployments"]),
            f"{row['bare']:.1f}",
            f"{row['ours']:.1f}",
            f"{row['ours'] / row['bare']:.2f}",
            f"{row['requests']:.1f}",
            f"{row['memory']:.0f}",
            idle,
        )
    console.print(table)
    console.print(json.dumps(rows))


if __name__ == "__main__":
    main()
