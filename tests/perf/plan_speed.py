"""How long a plan takes by the number of nodes: `python tests/perf/plan_speed.py [model]`.

No test: times depend on the machine. Each line is one fleet, built from its nodes and planned for;
seconds are those of this process's CPU, the best of a number of tries, so that neighbours do not
count. The last column is the growth against a hundred nodes, which is to stay below the growth of
the nodes: 12 for a thousand.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fleet import gpu_node
from tests.support.sizing import A100, H100, H200, L40S, M70B, VLLM

from shardwright.observe.world import NodeView
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.choose import choose
from shardwright.sizing.fleet import fleet_of_nodes
from shardwright.sizing.question import Workload
from shardwright.sizing.result import Choice

SIZES = (1, 100, 1000, 5000)
TRIES = 7
BASE = 100
KINDS = ((H100, 8, 81559), (H200, 8, 143771), (A100, 8, 81920), (L40S, 0, 46068))


def cluster(count: int) -> tuple[list[NodeView], dict[str, int]]:
    """Nodes of four products, and how many GPUs of each are taken."""
    chance = random.Random(0)  # noqa: S311 — a fleet, not a secret
    nodes = []
    for number in range(count):
        product, nvlink, memory = KINDS[number % len(KINDS)]
        nodes.append(
            gpu_node(
                f"n{number:05}",
                product=product,
                nvlink=nvlink,
                other={"rdma/ib": 8} if number % 3 else {},
                rack=f"rack-{number // 8}",
                inventory={"memory_mib": memory},
            )
        )
    return nodes, {node.name: chance.choice((0, 0, 2, 4, 8)) for node in nodes}


def main(name: str) -> None:
    """Measure and print one line a size."""
    model, workload = catalogue_model(name), Workload()

    def plan(nodes: list[NodeView], used: dict[str, int]) -> Choice:
        return choose(model, fleet_of_nodes(nodes, used=used), workload, VLLM)

    print(f"plan of {name}, from nodes to choice")  # noqa: T201
    spent: dict[int, float] = {}
    for count in SIZES:
        nodes, used = cluster(count)
        tries = []
        for _ in range(TRIES):
            start = time.process_time()
            choice = plan(nodes, used)
            tries.append(time.process_time() - start)
        spent[count] = min(tries)
        best = choice.chosen
        told = (
            "nothing" if best is None else f"{best.replicas} × {best.shape.tensor} {best.product}"
        )
        growth = f"{spent[count] / spent[BASE]:5.1f}×" if BASE in spent else "      "
        print(  # noqa: T201
            f"{count:5} nodes {spent[count] * 1000:7.1f} ms  {growth}  "
            f"{len(choice.rejected):4} rejected  {told}"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else M70B)
