"""From how a tool ended to what the pod reports: outcome, stable reason, and a message with a fix.

Permanent: the same command on the same kind of node fails again, so it is not repeated until the
key changes. Environment: somewhere else, later or with more memory it may work. What the kernel
knows (exit status, its count of out-of-memory kills) goes before what a log says; what words mean
is a table, `patterns.ROWS`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from shardwright.runner.contract import (
    ENVIRONMENT,
    PERMANENT,
    REASON_KILLED,
    REASON_OUT_OF_MEMORY,
    REASON_TIMEOUT,
    REASON_TOOL_FAILED,
)
from shardwright.runner.steps import patterns
from shardwright.runner.steps.tool import Ending

# A shell's way of saying that a child was killed by a signal.
_SHELL_SIGNALS = 128
_LINE = 400


@dataclass(frozen=True)
class Surroundings:
    """What is known of the pod beyond the tool's own words.

    Attributes:
        oom_kills: Processes of this container that the kernel killed for want of memory while the
            tool ran; None where that is not told.
        memory_limit: The container's memory limit in bytes; 0 when unknown.
        free: Free bytes by what the volume is for, such as `claim` and `scratch`.
        timed_out: The step's deadline passed.
        told_to_end: Why the pod itself is ending; empty if it is not.
    """

    oom_kills: int | None = None
    memory_limit: int = 0
    free: tuple[tuple[str, int], ...] = ()
    timed_out: bool = False
    told_to_end: str = ""


@dataclass(frozen=True)
class Cause:
    """Why a step failed.

    `evidence` is the line of the log that tells it, if one does; `key` of the artifact that is to
    blame, where that is not the step's own source.
    """

    outcome: str
    reason: str
    message: str
    evidence: str = ""
    key: str = ""


def classify(tool: str, ending: Ending, around: Surroundings) -> Cause:
    """Why the tool did not do what it was asked for.

    Args:
        tool: Its name, for the message.
        ending: How it ended. An exit status of 0 is allowed: tools have been seen to log a failure
            and exit as if nothing was (NVIDIA/TensorRT-LLM#1964).
        around: The rest of what is known.
    """
    killed_by = _signal_of(ending.code)
    if around.told_to_end:
        return Cause(ENVIRONMENT, REASON_KILLED, f"{tool} was ended: {around.told_to_end}")
    if around.timed_out:
        return Cause(
            ENVIRONMENT,
            REASON_TIMEOUT,
            f"{tool} was ended: {ending.stopped or 'the deadline of the step passed'}; raise "
            "timeouts.stepSeconds in the operator's settings",
        )
    if around.oom_kills or (killed_by == signal.SIGKILL and around.oom_kills is None):
        how = " and was killed by the kernel (exit 137)"
        said = patterns.HOST_MEMORY_SAID.format(
            tool=tool, limit=_limit(around), how=how, memory=patterns.memory_field(tool)
        )
        return Cause(ENVIRONMENT, REASON_OUT_OF_MEMORY, said)
    return _by_words(tool, ending, around) or _by_signal(tool, killed_by) or _plain(tool, ending)


def _by_words(tool: str, ending: Ending, around: Surroundings) -> Cause | None:
    """What the log says: the first row that one of its lines tells."""
    for row in patterns.ROWS:
        line = row.told_by(ending.tail, ending.code)
        if line:
            rooms = ", ".join(f"{what} has {_gib(size)} free" for what, size in around.free)
            said = row.said.format(
                tool=tool,
                line=_short(line),
                rooms=rooms or "free space is unknown",
                limit=_limit(around),
                how=f": {_short(line)}",
                memory=patterns.memory_field(tool),
            )
            return Cause(row.outcome, row.reason, said, line)
    return None


def _by_signal(tool: str, killed_by: int) -> Cause | None:
    if not killed_by:
        return None
    return Cause(
        ENVIRONMENT,
        REASON_KILLED,
        f"{tool} was killed by {_name(killed_by)}; the end of its log may tell more",
    )


def _plain(tool: str, ending: Ending) -> Cause:
    line = last_exception(ending.tail[-patterns.NEAR_LINES :] if ending.code else ())
    said = f": {_short(line)}" if line else ", and said nothing that looks like a cause"
    return Cause(
        PERMANENT,
        REASON_TOOL_FAILED,
        f"{tool} failed with exit status {ending.code}{said}",
        line,
    )


def _limit(around: Surroundings) -> str:
    return f" under a limit of {_gib(around.memory_limit)}" if around.memory_limit else ""


def last_exception(tail: tuple[str, ...]) -> str:
    """The last line that names an exception, else the last that looks like an error."""
    for pattern in (patterns.EXCEPTION, patterns.FATAL):
        for line in reversed(tail):
            if pattern.search(line):
                return line.strip()
    return next((line.strip() for line in reversed(tail) if line.strip()), "")


def _signal_of(code: int) -> int:
    """Number of the signal that killed the tool, or a child that its shell reports; else 0."""
    if code < 0:
        return -code
    number = code - _SHELL_SIGNALS
    return number if number in set(signal.Signals) else 0


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _short(line: str) -> str:
    """A line for a message: the log's excerpt has it at greater length."""
    return line if len(line) <= _LINE else f"{line[: _LINE - 100]} … {line[-100:]}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
