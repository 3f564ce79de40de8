"""One namespace with a model, its deployments, and questions to them."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright_standin import gpu as standin_gpu
from tests.standin.running import REPOSITORY
from tests.support.client_loop import TIMEOUT_SECONDS, problem
from tests.support.kube import H100, Json, Kube, merged
from tests.support.standin_model import ANSWER_TOKENS

from shardwright.api import names
from shardwright.runner.contract import STATUS_PATH
from shardwright_sandbox.clients import kubectl
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.real.node import RealNode

MODEL = "tiny"
CLAIM = "models"
NOTED = "asked.jsonl"
CHAT = "/v1/chat/completions"
READY_SECONDS = 240.0
# So many requests are under way together: the engine's batch.
AT_ONCE = 8
# A property of tests: lines of the report that the end of a run shows.
RANKS = "ranks"
HEAD = f"{'shape':<20}{'rank':<6}{'stage':<7}{'tensor':<8}{'node':<9}{'GPU':<5}pod"

SPEC: Json = {
    "model": {"uri": f"pvc://{CLAIM}/{MODEL}", "servedName": MODEL},
    "engine": {
        "backend": "TensorRT",
        "limits": {
            "maxBatchSize": AT_ONCE,
            "maxNumTokens": 1024,
            "maxInputLen": 512,
            "maxSeqLen": 1024,
        },
    },
    "rollout": {"drainTimeoutSeconds": 2},
    "pod": {
        "resources": {"cpu": "2", "memory": "1Gi", "ephemeralStorage": "256Mi"},
        "shmSize": "128Mi",
    },
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a client: Unix times, and what was wrong with the answer."""

    began: float
    ended: float
    problem: str


@dataclass(frozen=True, slots=True)
class Site:
    """A namespace whose claim (`claim` is its folder here) holds the tiny model."""

    kube: Kube
    sandbox: Sandbox
    claim: Path
    reference: Mapping[str, str]

    def create(self, name: str, tensor: int, pipeline: int, **change: Any) -> None:
        """Create a deployment of the model in one shape."""
        shape = {"parallelism": {"tensor": tensor, "pipeline": pipeline}}
        self.kube.create(name, merged(merged(SPEC, shape), change))

    def ready(self, name: str, seconds: float = READY_SECONDS) -> Json:
        """Wait until the deployment is Ready."""
        return self.kube.wait_ready(name, seconds)

    def leaders(self, name: str) -> list[Json]:
        """The pods that serve, by replica."""
        role = f"{names.GROUP}/role"
        return [
            pod
            for pod in self.kube.pods(name)
            if pod["metadata"]["labels"][role] == names.ROLE_LEADER
        ]

    def wrong_answers(
        self,
        leader: Json,
        says: Mapping[str, str] | None = None,
        model: str = MODEL,
        more: Mapping[str, object] | None = None,
    ) -> list[str]:
        """What a leader says otherwise than the unsharded model, asked all prompts.

        Args:
            leader: A pod that serves.
            says: What is right by prompt, where it is not the model's own answers.
            model: What requests ask for.
            more: What else they say.
        """
        right = self.reference if says is None else says
        url = f"http://{leader['status']['podIP']}:{names.PORT_HTTP}{CHAT}"
        with ThreadPoolExecutor(AT_ONCE) as workers:
            found = workers.map(
                lambda item: problem(url, model, *item, ANSWER_TOKENS, more=more), right.items()
            )
            return [one for one in found if one]

    def ranks(self, leader: Json) -> list[Json]:
        """The table of ranks on the leader's status page; `gpu` is the index on its node."""
        status = self.status(leader)
        return [{**row, "gpu": _index(row["node"], row["gpu"])} for row in status["ranks"]]

    def status(self, leader: Json) -> Json:
        """The leader's status page."""
        address = leader["status"]["podIP"]
        connection = http.client.HTTPConnection(address, names.PORT_RUNNER, timeout=60)
        try:
            connection.request("GET", STATUS_PATH)
            found: Json = json.load(connection.getresponse())
        finally:
            connection.close()
        return found

    def visible(self, pod: Json) -> list[int]:
        """The GPUs that the device plugin gave to a pod's container, as indices on its node."""
        told = self.execute(pod, "printenv", standin_gpu.VISIBLE)
        return [int(word) for word in told.split(",")]

    def execute(self, pod: Json, *words: str) -> str:
        """Run a command in a pod's container; what it printed."""
        command = [kubectl(Progress(quiet=True)), f"--kubeconfig={self.sandbox.kubeconfig}"]
        command += [f"--namespace={self.kube.namespace}", "exec", pod["metadata"]["name"], "--"]
        done = subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    @property
    def client_node(self) -> RealNode:
        """Where clients ask from."""
        return next(iter(self.sandbox.real_nodes().values()))

    def routed(self, name: str) -> set[str]:
        """Addresses that clients of a deployment's Service get to, by their node's own rules.

        kube-proxy writes them a moment after the endpoints have changed.
        """
        rules = self.client_node.machine.run("iptables-save", "--table", "nat")
        service = rf"-A KUBE-SVC-\S+ .*{self.kube.namespace}/{name}(?::\S+)? -> ([\d.]+):\d+"
        return set(re.findall(service, rules))

    @contextmanager
    def clients(
        self,
        name: str,
        folder: Path,
        pause: float = 0.05,
        at_once: int = 1,
        seconds: float = TIMEOUT_SECONDS,
        others: Mapping[str, str] | None = None,
    ) -> Iterator[list[Asked]]:
        """Ask the deployment's Service on and on from a node; the list is filled at the end.

        `others` are answers that are as right as the model's own, by prompt.
        """
        service = self.kube.core.read_namespaced_service(name, self.kube.namespace)
        url = f"http://{service.spec.cluster_ip}{CHAT}"
        node = self.client_node
        program = REPOSITORY / "tests/support/client_loop.py"
        order = {
            "model": MODEL,
            "answers": dict(self.reference),
            "others": dict(others or {}),
            "tokens": ANSWER_TOKENS,
            "pause": pause,
            "seconds": seconds,
            "at_once": at_once,
        }
        asked: list[Asked] = []
        with (
            (folder / NOTED).open("wb") as out,
            subprocess.Popen(
                node.machine.command(sys.executable, "-I", program, url),
                stdin=subprocess.PIPE,
                stdout=out,
                text=True,
            ) as client,
        ):
            assert client.stdin is not None
            client.stdin.write(json.dumps(order) + "\n")
            client.stdin.flush()
            try:
                yield asked
            finally:
                client.stdin.close()
                assert client.wait(60 + seconds) == 0
        asked += noted(folder)


def noted(folder: Path) -> list[Asked]:
    """What clients that note into a folder have asked so far."""
    lines = (folder / NOTED).read_text().splitlines(keepends=True)
    # The last one may be in the making.
    return [Asked(*json.loads(line)) for line in lines if line.endswith("\n")]


def _index(node: str, uuid: str) -> int:
    """Which GPU of a node has this UUID."""
    asked = {
        standin_gpu.VISIBLE: "all",
        standin_gpu.NODE: node,
        standin_gpu.PRODUCT: H100,
    }
    return next(one.physical for one in standin_gpu.visible(asked) if one.uuid == uuid)


def table(shape: str, rows: list[Json]) -> list[str]:
    """The ranks of one replica as lines of a report."""
    return [
        f"{shape:<20}{row['rank']:<6}{row['stage']:<7}{row['tensorRank']:<8}{row['node']:<9}"
        f"{row['gpu']:<5}{row['pod']}"
        for row in rows
    ]
