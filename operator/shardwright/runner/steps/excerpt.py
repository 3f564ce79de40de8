"""The end of a log, as much as fits into a termination message, with its exception in it.

What follows an exception (the banner of an aborted MPI job, warnings at exit, a progress bar) may
be longer than the whole message. Cutting at the front, as a plain tail does, then leaves everything
but the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.runner.contract import TERMINATION_LIMIT_BYTES, Report, canonical, encode

# A long line keeps its beginning and its end: an exception's name, and what it is about.
_LINE = 600
_LEFT_OUT = "… {} lines left out …"
# For the two marks of what was left out.
_MARKS_BYTES = 120
# Of the room, what the evidence may take: a single line of it can be longer than all the room.
_EVIDENCE_SHARE = 0.6
# Of what is left, what its own neighbourhood gets before the last lines get any.
_BEFORE_SHARE = 0.6


def with_tail(report: Report, tail: Sequence[str], evidence: str) -> Report:
    """The report with as much of the log as fits, the evidence always among it.

    Args:
        report: Everything but the log.
        tail: Last lines of the log, oldest first.
        evidence: A line of `tail`, without blanks around it; may be empty.

    Returns:
        A report whose encoded form has at most `TERMINATION_LIMIT_BYTES` bytes, provided that it
        had with an empty log.
    """
    bare = replace(report, log_tail="")
    room = TERMINATION_LIMIT_BYTES - len(encode(bare).encode()) - _MARKS_BYTES
    return replace(bare, log_tail="\n".join(_chosen(tail, evidence, room)))


def _chosen(tail: Sequence[str], evidence: str, room: int) -> list[str]:
    lines = [_short(line) for line in tail]
    at = _position(tail, evidence)
    if at is None:
        taken = _upwards(lines, len(lines), room)
        return _joined(lines, [taken])
    lines[at] = _within(lines[at], int(room * _EVIDENCE_SHARE))
    room -= _cost(lines[at])
    before = _upwards(lines, at, int(room * _BEFORE_SHARE))
    room -= sum(_cost(lines[index]) for index in before)
    after = [index for index in _upwards(lines, len(lines), room) if index > at]
    room -= sum(_cost(lines[index]) for index in after)
    if before:
        # What the end did not need goes to the traceback.
        before = [*_upwards(lines, before[0], room), *before]
    return _joined(lines, [[*before, at], after])


def _position(tail: Sequence[str], evidence: str) -> int | None:
    """Index of the last line that is the evidence."""
    if not evidence:
        return None
    found = [index for index, line in enumerate(tail) if line.strip() == evidence]
    return found[-1] if found else None


def _upwards(lines: list[str], end: int, room: int) -> list[int]:
    """Indices of the lines before `end` that fit into `room` bytes, nearest first chosen."""
    start = end
    while start > 0 and _cost(lines[start - 1]) <= room:
        start -= 1
        room -= _cost(lines[start])
    return list(range(start, end))


def _joined(lines: list[str], runs: list[list[int]]) -> list[str]:
    """Runs of indices as lines, with a mark wherever lines are left out."""
    found: list[str] = []
    last = -1
    for run in runs:
        for index in run:
            if index != last + 1:
                found.append(_LEFT_OUT.format(index - last - 1))
            found.append(lines[index])
            last = index
    return found


def _short(line: str) -> str:
    return line if len(line) <= _LINE else _middle_out(line, _LINE // 2)


def _within(line: str, room: int) -> str:
    """A line that costs at most `room`, beginning and end kept."""
    half = len(line) // 2
    short = line
    while _cost(short) > room and half > 0:
        half = half * 3 // 4
        short = _middle_out(line, half)
    return short


def _middle_out(line: str, half: int) -> str:
    return f"{line[:half]} … {line[len(line) - half :]}"


def _cost(line: str) -> int:
    """Bytes of a line inside the encoded report; its end of line takes two."""
    return len(canonical(line)) - 2 + 2
