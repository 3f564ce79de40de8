"""Why a group ended: what each end means, and which of several came first.

When one rank dies the others follow within moments, killed or with errors about lost peers. The
report must name the first and not its victims, so causes are collected for a moment and compared:
by how far they can be trusted, then by time. Pure.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    PERMANENT,
    REASON_GPU_MISMATCH,
    REASON_KILLED,
    REASON_MANIFEST_MISMATCH,
    REASON_OUT_OF_MEMORY,
    REASON_PEER_LOST,
    REASON_RANK_FAILED,
    REASON_RANK_HUNG,
    REASON_UNKNOWN_FLAG,
    FirstCause,
    Report,
    ServeRequest,
)

# What engines print when they will fail again however often they are started. Texts of
# TensorRT-LLM's worldConfig.cpp and LlmArgs, of TensorRT, of Python's argparse and click, and of
# pydantic, as reports quote them (TensorRT-LLM#1031, #2058; TensorRT#4479, #2176).
_OTHER_GPU = re.compile(r"incompatible device, expecting compute")
_OTHER_ENGINE = re.compile(
    r"Version tag does not match|Failed to deserialize cuda engine|"
    r"MPI size \d+ != TP size|MPI worldSize is expected to be equal|"
    r"is not consistent with the engine's"
)
_USAGE = re.compile(
    r"(?m)error: (?:unrecognized arguments|argument .+: invalid|the following arguments are)|"
    r"^Error: (?:No such option|Invalid value for|Got unexpected extra)|"
    r"Extra inputs are not permitted"
)
_MEMORY = re.compile(
    r"(?m)CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
    r"insufficient GPU memory|^MemoryError\b|std::bad_alloc|Cannot allocate memory"
)
_TOLD: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (_OTHER_GPU, ENVIRONMENT, REASON_GPU_MISMATCH),
    (_OTHER_ENGINE, PERMANENT, REASON_MANIFEST_MISMATCH),
    (_USAGE, PERMANENT, REASON_UNKNOWN_FLAG),
    (_MEMORY, ENVIRONMENT, REASON_OUT_OF_MEMORY),
)
_TOLD_CHARS = 16 * 1024
# What a rank says that lost another one.
_VICTIM = re.compile(
    r"NCCL WARN .*(?:connection closed by remote peer|Call to recv from .* failed|"
    r"Got completion from peer)|ncclRemoteError|remote process exited or there was a network error|"
    r"MPI_ABORT was invoked|Connection reset by peer|ORTE has lost communication|"
    r"PRTE has lost communication"
)
# Signals that a process brings upon itself. The errors that this causes in others are seen within
# milliseconds, over other wires than ours: such an end counts as that much earlier.
_OWN_FAULT = frozenset({-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE})
_HEAD_START_SECONDS = 0.5
_ENDED_BY_OTHERS = (-signal.SIGTERM, 128 + signal.SIGTERM)

TAIL_CHARS = 8 * 1024


@dataclass(frozen=True)
class Cause:
    """One thing that ended the group, as one runner saw it.

    `rank` is −1 where no rank is meant. `weight` is 0 for what can be a first cause, higher for
    what is likely a consequence; `at` is in seconds on the clock of the runner that holds it.
    """

    stage: int
    rank: int
    outcome: str
    reason: str
    message: str
    tail: str
    at: float
    weight: int = 0

    def told(self, now: float) -> dict[str, Any]:
        """As JSON for another runner, whose clock is another: an age in place of a time."""
        return {
            "stage": self.stage,
            "rank": self.rank,
            "outcome": self.outcome,
            "reason": self.reason,
            "message": self.message[:1000],
            "tail": self.tail[-TAIL_CHARS:],
            "age": round(max(0.0, now - self.at), 3),
            "weight": self.weight,
        }


# A launcher's exit says least: it follows from a rank's end or from a lost stage.
VICTIM, LAUNCHER = 1, 2


def heard(raw: dict[str, Any], now: float) -> Cause:
    """A cause that another runner has told.

    Raises:
        ValueError, KeyError, TypeError: It is none.
    """
    return Cause(
        stage=int(raw["stage"]),
        rank=int(raw["rank"]),
        outcome=str(raw["outcome"]),
        reason=str(raw["reason"]),
        message=str(raw["message"]),
        tail=str(raw["tail"]),
        at=now - float(raw["age"]),
        weight=int(raw["weight"]),
    )


def first_cause(causes: Iterable[Cause]) -> Cause | None:
    """The one that the others follow from: of the lightest weight, the earliest."""
    return min(causes, key=lambda cause: (cause.weight, cause.at, cause.stage), default=None)


def rank_ended(
    stage: int, rank: int, code: int, tail: str, at: float, *, oom_killed: bool = False
) -> Cause:
    """What a rank's end means.

    Args:
        stage: Of the rank.
        rank: Global rank.
        code: Exit status, or minus the signal.
        tail: End of its log.
        at: When it was seen.
        oom_killed: Whether the kernel has killed a process of this container for want of memory.
    """
    how = ended(code)
    outcome, reason = _meaning(code, tail, oom_killed=oom_killed)
    weight = 0
    if reason == REASON_RANK_FAILED and (code in _ENDED_BY_OTHERS or _VICTIM.search(tail)):
        weight = VICTIM
    message = f"rank {rank} {how}"
    if reason == REASON_OUT_OF_MEMORY and oom_killed:
        message += (
            "; the kernel killed a process here for want of memory: raise spec.pod.resources.memory"
        )
    moment = at - _HEAD_START_SECONDS if code in _OWN_FAULT else at
    return Cause(stage, rank, outcome, reason, message, tail, moment, weight)


def server_ended(stage: int, code: int, tail: str, at: float, *, oom_killed: bool = False) -> Cause:
    """What the end of a server means that runs all ranks of its stage itself."""
    found = rank_ended(stage, -1, code, tail, at, oom_killed=oom_killed)
    return replace(found, message=found.message.replace("rank -1", "the engine's server", 1))


def left_by_server(stage: int, tail: str, at: float) -> Cause:
    """A launcher whose server has ended while the ranks stay; the server's code is not told."""
    outcome, reason = _meaning(1, tail, oom_killed=False)
    message = "the server has ended, and its launcher goes on without it"
    return Cause(stage, 0, outcome, reason, message, tail, at)


def hung(stage: int, rank: int, why: str, at: float) -> Cause:
    """A group that makes no progress; `rank` is the one to blame, −1 if none stands out."""
    who = f"rank {rank} hangs" if rank >= 0 else "the group hangs"
    return Cause(stage, rank, ENVIRONMENT, REASON_RANK_HUNG, f"{who}: {why}", "", at)


def launcher_ended(stage: int, name: str, code: int, tail: str, at: float) -> Cause:
    """What the end of `mpirun` or of its daemon means: mostly that a rank has ended.

    One that a signal has ended went by itself: after a rank's end it exits, and SIGTERM is what the
    others get. Its ranks are told within moments, and some of them are seen to end before it.
    """
    outcome, reason = _meaning(code, tail, oom_killed=False)
    found = Cause(stage, -1, outcome, reason, f"{name} {ended(code)}", tail, at, LAUNCHER)
    if code < 0 and code != -signal.SIGTERM:
        return replace(found, at=at - _HEAD_START_SECONDS, weight=0)
    return found


def peer_lost(own_stage: int, stage: int, why: str, at: float) -> Cause:
    """Another stage's runner is gone or silent; whoever tells is a witness only.

    What ends here afterwards is a consequence: a runner that can tells why before it goes.
    """
    message = f"stage {own_stage} lost stage {stage}: {why}"
    return Cause(own_stage, -1, ENVIRONMENT, REASON_PEER_LOST, message, "", at)


def ended(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"
    return f"exited with code {code}"


def _meaning(code: int, tail: str, *, oom_killed: bool) -> tuple[str, str]:
    """Outcome and reason of an end."""
    if oom_killed and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return ENVIRONMENT, REASON_OUT_OF_MEMORY
    text = tail[-_TOLD_CHARS:]
    for pattern, outcome, reason in _TOLD:
        if pattern.search(text):
            return outcome, reason
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return ENVIRONMENT, REASON_KILLED
    return ENVIRONMENT, REASON_RANK_FAILED


def report(verdict: Cause | None, own: ServeRequest, seconds: float) -> Report:
    """A pod's last words: the first cause if it lies in this pod, else that another went first."""
    bare = Report(outcome=DONE, message="drained", step=own.step, key=own.key, seconds=seconds)
    if verdict is None:
        return bare
    if verdict.stage == own.stage:
        return replace(
            bare,
            outcome=verdict.outcome,
            reason=verdict.reason,
            message=verdict.message,
            rank=verdict.rank,
            log_tail=verdict.tail,
        )
    where = f"stage {verdict.stage}"
    if verdict.rank >= 0:
        where += f", rank {verdict.rank}"
    return replace(
        bare,
        outcome=ENVIRONMENT,
        reason=REASON_PEER_LOST,
        message=f"{where} went first: {verdict.reason}: {verdict.message}",
        log_tail=verdict.tail,
        first=FirstCause(
            verdict.stage, verdict.rank, verdict.outcome, verdict.reason, verdict.message
        ),
    )
