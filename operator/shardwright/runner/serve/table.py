"""One pod's part of the rank table, from what /proc says of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwright.runner.contract import ENV_NODE_NAME, ENV_POD_NAME, ServeRequest
from shardwright.runner.processes import Process, below
from shardwright.runner.serve.view import RankRow

# Of the states of a rank's processes, the one that tells most.
_STATES = "TtDRSI"


def rank_rows(
    request: ServeRequest,
    pids: Mapping[int, int],
    gpus: Sequence[str],
    environment: Mapping[str, str],
    processes: Sequence[Process],
) -> tuple[RankRow, ...]:
    """A row for each rank of the stage, started or not.

    Args:
        request: What the pod is asked to do.
        pids: By global rank, the process at the root of what the rank runs.
        gpus: Names of the pod's devices by local rank; may be shorter.
        environment: The pod's, for its own name and its node's.
        processes: Everything that /proc shows.
    """
    known = {process.pid: process for process in processes}
    rows = []
    for local in range(request.tensor):
        rank = request.stage * request.tensor + local
        pid = pids.get(rank, 0)
        found = below(pid, processes) if pid else []
        if pid in known:
            found.append(known[pid])
        states = {process.state for process in found}
        rows.append(
            RankRow(
                rank=rank,
                stage=request.stage,
                tensor_rank=local,
                node=environment.get(ENV_NODE_NAME, ""),
                pod=environment.get(ENV_POD_NAME, ""),
                gpu=gpus[local] if local < len(gpus) else "",
                pid=pid if found else 0,
                state=next((state for state in _STATES if state in states), ""),
                cpu_seconds=sum(process.cpu_seconds for process in found),
            )
        )
    return tuple(rows)
