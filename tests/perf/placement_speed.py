"""How long placing takes on a large fleet: `python tests/perf/placement_speed.py [nodes]`.

No test: times depend on the machine. It prints the median and the longest of a number of tries for
each shape, on a fleet of 8-GPU nodes in racks of 8 and zones of 128, half of them partly used.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fleet import gpu_node, gpus, replica

from shardwright.observe.world import NodeView, Resources
from shardwright.plan.placement import NoRoom, PlacementRequest, place_group, place_step

TRIES = 20
SHAPES = ((1, 8, True), (2, 8, True), (8, 8, True), (16, 4, True), (16, 2, False), (256, 8, True))


def main(count: int) -> None:
    """Measure and print one line a shape."""
    nodes = [
        gpu_node(f"n{i:05}", rack=f"rack-{i // 8}", zone=f"zone-{i // 128}") for i in range(count)
    ]
    chance = random.Random(0)  # noqa: S311 — a fleet, not a secret
    used = {node.name: gpus(chance.choice([2, 4, 8])) for node in nodes if chance.random() < 1 / 2}
    full = {node.name: gpus(8) for node in nodes}
    for stages, tensor, spread in SHAPES:
        request = replica(stages, tensor, spread=spread)
        _line(f"{stages} × {tensor} {'Spread' if spread else 'Pack'}", request, nodes, used)
    _line("2 × 8, nothing free", replica(2, 8), nodes, full)
    spent = [_timed(lambda: place_step(replica(1, 1), nodes, used)) for _ in range(TRIES)]
    print(f"{'step of 1 GPU':24} {_times(spent)}")  # noqa: T201


def _line(
    title: str,
    request: PlacementRequest,
    nodes: Sequence[NodeView],
    used: dict[str, Resources],
) -> None:
    spent = [_timed(lambda: place_group(request, nodes, used)) for _ in range(TRIES)]
    found = place_group(request, nodes, used)
    where = "no room" if isinstance(found, NoRoom) else found.level or "anywhere"
    print(f"{title:24} {_times(spent)}  {where}")  # noqa: T201


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _times(spent: list[float]) -> str:
    return f"median {statistics.median(spent):6.1f} ms  longest {max(spent):6.1f} ms"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
