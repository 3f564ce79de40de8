"""What one pod knows of its group, as plain data: is it ready, who is where. Pure.

The supervisor makes a new view whenever something changes; the health server and the peers are told
from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# What a group goes through, in order.
CHECKING = "Checking"
MEETING = "Meeting"
STARTING = "Starting"
SERVING = "Serving"
DRAINING = "Draining"
ENDING = "Ending"

# An engine that was healthy so long ago is not known to be.
HEALTHY_SECONDS = 15.0


@dataclass(frozen=True)
class RankRow:
    """One rank of the table.

    `gpu` is the UUID or index that its pod sees; `state` as in proc(5), empty before its start.
    """

    rank: int
    stage: int
    tensor_rank: int
    node: str
    pod: str
    gpu: str
    pid: int = 0
    state: str = ""
    cpu_seconds: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether it has started and not ended."""
        return bool(self.pid) and self.state not in ("Z", "X")

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "rank": self.rank,
            "stage": self.stage,
            "tensorRank": self.tensor_rank,
            "node": self.node,
            "pod": self.pod,
            "gpu": self.gpu,
            "pid": self.pid,
            "state": self.state,
            "cpuSeconds": round(self.cpu_seconds, 2),
        }


def row_heard(raw: dict[str, Any]) -> RankRow:
    """A row that another runner has told.

    Raises:
        ValueError, KeyError, TypeError: It is none.
    """
    return RankRow(
        rank=int(raw["rank"]),
        stage=int(raw["stage"]),
        tensor_rank=int(raw["tensorRank"]),
        node=str(raw["node"]),
        pod=str(raw["pod"]),
        gpu=str(raw["gpu"]),
        pid=int(raw["pid"]),
        state=str(raw["state"]),
        cpu_seconds=float(raw["cpuSeconds"]),
    )


@dataclass(frozen=True)
class View:
    """What a pod knows.

    `peers` are the stages that this one is connected with. `generated_at` and `healthy_at` are the
    last checked generation and the last healthy answer of the engine, None before the first;
    `engine` is whether this pod is the one that asks it. `adapters` is what the engine has loaded,
    None where it takes none.
    """

    deployment: str
    replica: int
    incarnation: int
    stage: int
    tensor: int
    pipeline: int
    phase: str
    engine: bool
    rows: tuple[RankRow, ...] = ()
    peers: tuple[int, ...] = ()
    generated_at: float | None = None
    healthy_at: float | None = None
    links: dict[str, Any] = field(default_factory=dict)
    adapters: dict[str, Any] | None = None
    loading_adapters: bool = False
    detail: str = ""


def unready(view: View, now: float) -> str:
    """Why the pod is not ready, empty if it is.

    The leader is ready when the whole group serves; a worker when its own ranks run and it is
    connected with the leader. Readiness only takes traffic away: nothing is restarted for it.
    """
    if view.phase not in (STARTING, SERVING):
        return f"{view.phase.lower()}: {view.detail}" if view.detail else view.phase.lower()
    expected = view.pipeline if view.engine else 1
    connected = len(view.peers) + 1 if view.engine else min(1, len(view.peers))
    if view.pipeline > 1 and connected < expected:
        return f"{connected} of {expected} stages are connected"
    wanted = view.tensor * expected
    running = sum(row.runs for row in view.rows)
    if running < wanted:
        return f"{running} of {wanted} ranks run"
    if not view.engine:
        return ""
    if view.generated_at is None:
        return "the engine has not answered a generation yet"
    if view.healthy_at is None or now - view.healthy_at > HEALTHY_SECONDS:
        return f"the engine has not been healthy for {HEALTHY_SECONDS:.0f} s"
    if view.loading_adapters:
        return "adapters are being loaded for the first time"
    return ""


def told(view: View, now: float) -> dict[str, Any]:
    """The view as the status page shows it."""
    why = unready(view, now)
    return {
        "deployment": view.deployment,
        "replica": view.replica,
        "incarnation": view.incarnation,
        "stage": view.stage,
        "tensor": view.tensor,
        "pipeline": view.pipeline,
        "phase": view.phase,
        "ready": not why,
        "why": why,
        "stagesConnected": sorted({view.stage, *view.peers}),
        "secondsSinceGeneration": _age(view.generated_at, now),
        "ranks": [row.told() for row in view.rows],
        "links": view.links,
        **({} if view.adapters is None else {"adapters": view.adapters}),
    }


def suspects(before: Sequence[RankRow], after: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """Ranks that hang, of a group that makes no progress.

    Those that are stopped, else those that used no processor time while others spun. Waiting for a
    collective burns a processor, so idle ones are the odd ones out. Nobody is named when all are
    idle or all spin.
    """
    stopped = tuple(row for row in after if row.state in ("T", "t"))
    if stopped:
        return stopped
    earlier = {row.rank: row.cpu_seconds for row in before}
    used = {row.rank: row.cpu_seconds - earlier.get(row.rank, 0.0) for row in after}
    if not used or max(used.values()) < _SPIN_SECONDS:
        return ()
    idle = tuple(row for row in after if used[row.rank] < max(used.values()) * _IDLE_SHARE)
    return idle if len(idle) < len(after) else ()


_SPIN_SECONDS = 5.0
_IDLE_SHARE = 0.1


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else round(now - moment, 1)
