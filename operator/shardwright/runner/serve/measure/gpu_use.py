"""How much of its GPUs a pod uses, as `nvidia-smi` tells it."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from shardwright.runner.gpus import GPUError, ask

_TIMEOUT_SECONDS = 30
_FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total")
_QUERY = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_MIB = 2**20
_SHOWN = 200


@dataclass(frozen=True)
class GPUUse:
    """One GPU: its index in this pod, share of time in use (0 to 1), bytes; None: not told."""

    index: int
    utilization: float | None
    used_bytes: int | None
    total_bytes: int | None


def gpus_in_use() -> tuple[GPUUse, ...] | None:
    """Each GPU that this pod sees; None where there is no nvidia-smi to ask.

    Raises:
        GPUError: It fails, does not answer, or answers something else.
    """
    done = ask(_QUERY, _TIMEOUT_SECONDS)
    if done is None:
        return None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[:_SHOWN]
        raise GPUError(f"nvidia-smi failed with exit status {done.returncode}: {said}")
    return read_use(done.stdout)


def read_use(text: str) -> tuple[GPUUse, ...]:
    """From lines of index, percent, MiB and MiB; `[N/A]`, as sliced GPUs have it, is not told.

    Raises:
        GPUError: A line has other fields.
    """
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        fields = [cell.strip() for cell in row]
        if not any(fields):
            continue
        if len(fields) != len(_FIELDS) or not fields[0].isdigit():
            raise GPUError(f"nvidia-smi answered {row!r}, expected {', '.join(_FIELDS)}")
        percent, used, total = (_number(cell, row) for cell in fields[1:])
        found.append(
            GPUUse(
                int(fields[0]),
                None if percent is None else percent / 100,
                None if used is None else used * _MIB,
                None if total is None else total * _MIB,
            )
        )
    return tuple(found)


def _number(cell: str, row: list[str]) -> int | None:
    if cell.startswith("["):
        return None
    if not cell.isdigit():
        raise GPUError(f"nvidia-smi answered {row!r}: {cell!r} is no number")
    return int(cell)
