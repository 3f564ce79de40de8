"""A pod's last words: the report in its termination message."""

from __future__ import annotations

from pathlib import Path

from shardwright.runner.contract import DONE, Report, encode_report
from shardwright.runner.log import say

# Where the kubelet reads a container's last words from, unless its spec names another file.
TERMINATION_LOG = Path("/dev/termination-log")


def leave(report: Report, log: Path = TERMINATION_LOG) -> int:
    """Write the report where the kubelet finds it, and tell it on stdout.

    The file is mounted by the kubelet, so it is written in place; a rename would go to the
    container's own layer.

    Returns:
        The exit status that goes with the report: 0 if it is done and was written, else 1. A
        report that cannot be written is no report: the step is tried again then, and finds what
        this one has published.
    """
    text = encode_report(report)
    say(
        "ended",
        outcome=report.outcome,
        reason=report.reason,
        detail=report.message,
        step=report.step,
        key=report.key,
        reused=report.reused,
        seconds=report.seconds,
    )
    try:
        log.write_text(text, encoding="utf-8")
    except OSError as error:
        say("the report could not be written", path=str(log), error=str(error), report=text)
        return 1
    return 0 if report.outcome == DONE else 1
