"""Twenty random fleets and shapes through the real operator and the real scheduler.

The planner's own property test tries thousands; here the scheduler has the last word. Each case is
its seed, which is printed; `SHARDWRIGHT_SEED` moves all of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.history import watched
from tests.support.kube import A100, H100, H200, Json, Kube, condition_of, gpus, ready
from tests.support.operator import PATIENT, Operator

from shardwright_sandbox.pytest_plugin import FleetMaker

pytestmark = pytest.mark.e2e

# No deadline is tested here: none may pass on a slow machine, and be counted as a restart.
OPERATOR = PATIENT

FIRST = int(os.environ.get("SHARDWRIGHT_SEED", "0"))
PATIENCE = 180.0
# Bound by half for longer it would have been given up: nothing here is in the scheduler's way.
BIND_SECONDS = float(PATIENT["timeouts"]["bindSeconds"])
RACK = "topology.example.com/rack"


@dataclass(frozen=True)
class Draw:
    """One case."""

    pools: list[Json]
    taken: dict[str, int]  # node → GPUs that somebody else holds
    closed: frozenset[str]  # nodes that take nothing
    product: str
    tensor: int
    pipeline: int
    replicas: int

    def spec(self) -> Json:
        return {
            "engine": {"backend": "PyTorch"},
            "gpu": {"product": self.product},
            "parallelism": {"tensor": self.tensor, "pipeline": self.pipeline},
            "replicas": self.replicas,
            "placement": {"levels": [RACK, "topology.kubernetes.io/zone"]},
        }


def draw(seed: int) -> Draw:
    """A fleet with one pool of the product asked for and one of another, and a shape."""
    chance = random.Random(seed)  # noqa: S311 - a case to be found again by its number
    product, other = chance.sample([H100, H200, A100], 2)
    pools: list[Json] = []
    taken: dict[str, int] = {}
    closed: set[str] = set()
    for number, (name, which) in enumerate((("main", product), ("more", product), ("rest", other))):
        count, size = chance.randint(2, 5), chance.choice([4, 8])
        nodes: dict[int, Json] = {}
        for index in range(count):
            node = f"{name}-{index}"
            fate = chance.random()
            if fate < 0.1:
                nodes[index] = {"taints": [{"key": "example.com/kept", "value": "other"}]}
                closed.add(node)
            elif fate < 0.2:
                nodes[index] = {"unschedulable": True}
                closed.add(node)
            elif fate < 0.45:
                taken[node] = chance.randint(1, size)
        pools.append(
            {
                "name": name,
                "count": count,
                "gpu": {"product": which, "count": size},
                "zone": chance.choice(["a", "b-{i%2}"]),
                "network": {RACK: f"rack-{number}-{{i//{chance.randint(1, 3)}}}"},
                "nodes": nodes,
            }
        )
    largest = max(pool["gpu"]["count"] for pool in pools[:2])
    return Draw(
        pools=pools,
        taken=taken,
        closed=frozenset(closed),
        product=product,
        tensor=chance.choice([size for size in (1, 2, 4, 8) if size <= largest]),
        pipeline=chance.randint(1, 4),
        replicas=chance.randint(1, 3),
    )


def left_over(case: Draw, held: Counter[str]) -> int:
    """Nodes that have room for one more stage beside what is held: worked out the plain way."""
    roomy = 0
    for pool in case.pools:
        if pool["gpu"]["product"] != case.product:
            continue
        for index in range(pool["count"]):
            node = f"{pool['name']}-{index}"
            free = pool["gpu"]["count"] - case.taken.get(node, 0) - held[node]
            roomy += node not in case.closed and free >= case.tensor
    return roomy


def occupy(kube: Kube, node: str, count: int) -> None:
    limits = {"nvidia.com/gpu": str(count)}
    body: Any = {
        "metadata": {"name": f"other-{node}"},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}],
        },
    }
    kube.core.create_namespaced_pod(kube.namespace, body)


Groups = dict[str, list[Json]]


def settled(kube: Kube, pipeline: int) -> tuple[Groups, Json] | None:
    """Replicas' pods and status when nothing is under way any more.

    All is ready, or the next replica has no room: then each group is there with all its stages, is
    ready or gated as a whole, and counted by status.
    """
    groups: Groups = {}
    for pod in kube.pods("llama"):
        groups.setdefault(pod["metadata"]["labels"]["shardwright.dev/replica"], []).append(pod)
    found = kube.get("llama")
    status = found.get("status", {})
    well = condition_of(found, "Ready").get("status") == "True"
    short = condition_of(found, "Placed").get("reason") in ("InsufficientGPUs", "NoSpareGPUs")
    served = sum(all(ready(pod) for pod in pods) for pods in groups.values())
    gated = sum(all(pod["spec"].get("schedulingGates") for pod in pods) for pods in groups.values())
    over = (
        (well or short)
        and all(len(pods) == pipeline for pods in groups.values())
        and served + gated == len(groups)
        and served == status.get("readyReplicas", 0)
    )
    return (groups, status) if over else None


@pytest.mark.parametrize("seed", range(FIRST, FIRST + 20))
def test_ranks_of_a_stage_share_a_node_and_stages_of_a_replica_never_do(
    running: Operator, kube: Kube, fleet: FleetMaker, seed: int
) -> None:
    case = draw(seed)
    print(f"seed {seed}: {case}")  # noqa: T201 - the case, to be drawn again
    fleet(case.pools)
    for node, count in case.taken.items():
        occupy(kube, node, count)
    with watched(kube) as history:
        kube.create("llama", case.spec())
        groups, status = kube.wait("settled", lambda: settled(kube, case.pipeline), PATIENCE)
        held: Counter[str] = Counter()
        products = {
            f"{pool['name']}-{index}": pool["gpu"]["product"]
            for pool in case.pools
            for index in range(pool["count"])
        }
        whole = 0
        for pods in groups.values():
            nodes = [pod["spec"].get("nodeName", "") for pod in pods]
            assert len(pods) == case.pipeline
            assert all(gpus(pod) == case.tensor for pod in pods)
            assert all(nodes) or not any(nodes), "a replica is bound by half"
            if not any(nodes):
                continue
            whole += 1
            assert len(set(nodes)) == case.pipeline, "two stages share a node"
            assert {products[node] for node in nodes} == {case.product}
            assert not set(nodes) & case.closed
            held.update(dict.fromkeys(nodes, case.tensor))
        # What is not placed has no room, and what has room is placed.
        assert whole == case.replicas or left_over(case, held) < case.pipeline
        assert whole <= case.replicas
        for node, count in held.items():
            size = next(pool["gpu"]["count"] for pool in case.pools if node[:4] == pool["name"])
            assert count + case.taken.get(node, 0) <= size
        assert status.get("readyReplicas", 0) == whole
        # One life a place: nothing was given up and tried again, so no half was held for long.
        assert all(life.incarnation <= case.replicas for life in history.of())
        assert history.bound_by_half() < BIND_SECONDS
