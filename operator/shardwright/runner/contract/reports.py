"""The last words of a pod, cut to what the kubelet keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from shardwright.runner.contract.adapters import AdapterFacts
from shardwright.runner.contract.artifacts import ModelFacts
from shardwright.runner.contract.folders import canonical
from shardwright.runner.contract.words import CONTRACT_VERSION, TERMINATION_LIMIT_BYTES


@dataclass(frozen=True)
class FirstCause:
    """What a pod that only lost its peers was told: who went first, and how.

    `rank` is −1 where no rank is meant. The end of that rank's log is the report's own `log_tail`.
    """

    stage: int
    rank: int
    outcome: str
    reason: str
    message: str


@dataclass(frozen=True)
class Report:
    """A pod's last words, in its termination message: at most 4,096 bytes of JSON.

    `first` goes with REASON_PEER_LOST, where the pod knows more than that. `score` is what the step
    `score` has measured, over `samples` of its task (0: not told).
    """

    outcome: str
    reason: str = ""
    message: str = ""
    step: str = ""
    key: str = ""
    commit: str = ""
    facts: ModelFacts | None = None
    tools: dict[str, str] = field(default_factory=dict)
    total_bytes: int = 0
    seconds: float = 0.0
    reused: bool = False
    rank: int = -1
    log_tail: str = ""
    first: FirstCause | None = None
    adapter: AdapterFacts | None = None
    score: float | None = None
    samples: int = 0
    contract: int = CONTRACT_VERSION


# Of a first cause's words, in a report that is too long.
_FIRST_BYTES = 500


def beginning(text: str, limit: int) -> str:
    """As much of a text as takes so many bytes in a report.

    Letters other than ASCII's take 6 or 12 bytes each there.
    """
    kept = text[:limit]
    while len(canonical(kept)) - 2 > limit:
        surplus = len(canonical(kept)) - 2 - limit
        kept = kept[: -max(1, surplus // 12)]
    return kept


def encode(message: Any) -> str:
    """A message as JSON of one line; what it says nothing of is left out."""
    return canonical({name: value for name, value in asdict(message).items() if value is not None})


def _room(bare: dict[str, Any]) -> int:
    """Bytes that are left in a termination message."""
    return TERMINATION_LIMIT_BYTES - len(canonical(bare)) - 2


def encode_report(report: Report) -> str:
    """A report cut to the kubelet's limit: the log's middle goes first, its last line never.

    The last lines hold the exception, which is what the reader needs.
    """
    text = encode(report)
    if len(text.encode()) <= TERMINATION_LIMIT_BYTES:
        return text
    bare = asdict(report)
    tail, message = report.log_tail, report.message
    bare["log_tail"] = ""
    if report.first is not None:
        bare["first"]["message"] = beginning(report.first.message, _FIRST_BYTES)
    bare["message"] = ""
    bare["message"] = beginning(message, max(0, _room(bare)))
    room = _room(bare)
    while tail and len(canonical(tail).encode()) > room:
        surplus = len(canonical(tail).encode()) - room
        tail = tail[max(1, surplus // 6) :]
    bare["log_tail"] = tail
    return canonical(bare)
