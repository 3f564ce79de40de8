"""Entry point of the packed runner.

Running ranks and tools inside real pods comes with a later release. Until then a pod that starts
this file says so in its termination message, as a failure for good: nothing is tried for ever, and
status names the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardwright.runner.contract import PERMANENT, Report, encode_report

TERMINATION_LOG = "/dev/termination-log"


def main(log: str = TERMINATION_LOG) -> int:
    """Report that this release cannot run what was asked for."""
    report = Report(
        outcome=PERMANENT,
        reason="RunnerNotAvailable",
        message="this release of shardwright plans, places and supervises pods, and runs steps on "
        "its sandbox; running tools and ranks inside pods comes with a later release",
    )
    text = encode_report(report)
    Path(log).write_text(text, encoding="utf-8")
    sys.stderr.write(f"{report.message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
