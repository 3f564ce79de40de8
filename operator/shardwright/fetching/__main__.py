"""`python -m shardwright.fetching`: what the pod of a fetch starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from shardwright.fetching import Places, main
from shardwright.runner.contract import (
    ENV_POD_UID,
    ENV_REQUEST,
    PERMANENT,
    REASON_TOOL_FAILED,
    SOURCE,
    STORE,
    ContractError,
    Report,
    StepRequest,
    decode,
)
from shardwright.runner.steps.stop import Stop
from shardwright.runner.termination import TERMINATION_LOG, leave


def run(arguments: Sequence[str] | None = None) -> int:
    """Read the request from the environment and do it.

    Args:
        arguments: Of the command line; None takes the process's.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m shardwright.fetching",
        description=f"Fetch the model that {ENV_REQUEST} asks for.",
    )
    parser.add_argument("--store", type=Path, default=Path(STORE), help="where the claim is")
    parser.add_argument(
        "--source", type=Path, default=Path(SOURCE), help="where the claim of a pvc:// model is"
    )
    parser.add_argument("--termination-log", type=Path, default=TERMINATION_LOG)
    options = parser.parse_args(arguments)
    places = Places(options.store, options.source, options.termination_log)
    stop = Stop()
    stop.listen()
    try:
        request = decode(StepRequest, os.environ.get(ENV_REQUEST, ""))
    except ContractError as error:
        report = Report(
            outcome=PERMANENT, reason=REASON_TOOL_FAILED, message=f"{ENV_REQUEST}: {error}"
        )
        return leave(report, places.termination_log)
    pod_uid = os.environ.get(ENV_POD_UID, "")
    return main(request, pod_uid=pod_uid, env=os.environ, places=places, stop=stop)


if __name__ == "__main__":
    sys.exit(run())
