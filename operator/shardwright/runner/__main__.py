"""Entry point of the runner: one verb, and the request in the environment.

`step` makes a checkpoint or an engine, or measures; `beside` runs the server that a measurement
asks; `sweep` moves an artifact to the trash or deletes it there; `serve` starts a stage's ranks:
these run from the packed file, in whatever image. `fetch` brings a model; it needs clients that
only the operator's own image has.

Whatever happens, the pod's last words say it: an exception that nobody expected is a report too.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shardwright.runner.contract import (
    ENV_POD_UID,
    ENV_REQUEST,
    ENVIRONMENT,
    REASON_TOOL_FAILED,
    ContractError,
    Report,
    ServeRequest,
    StepRequest,
    SweepRequest,
    decode,
)
from shardwright.runner.steps.excerpt import with_tail
from shardwright.runner.steps.stop import Stop
from shardwright.runner.termination import TERMINATION_LOG, leave

# As argparse has it; nothing else of the runner exits with it.
USAGE = 2


def main(
    argv: Sequence[str] = tuple(sys.argv[1:]),
    environ: Mapping[str, str] = os.environ,
    log: Path = TERMINATION_LOG,
) -> int:
    """Do what one verb says; returns the process's exit status."""
    if len(argv) != 1 or argv[0] not in _VERBS:
        said = f"called with {list(argv)}, expected one of {', '.join(_VERBS)}"
        leave(Report(ENVIRONMENT, REASON_TOOL_FAILED, said), log)
        return USAGE
    text = environ.get(ENV_REQUEST, "")
    try:
        return _VERBS[argv[0]](text)
    except ContractError as error:
        said = f"{ENV_REQUEST} cannot be used: {error}"
        return leave(Report(ENVIRONMENT, REASON_TOOL_FAILED, said), log)
    except Exception as error:  # noqa: BLE001 - it is reported, with all that is known of it
        trace = traceback.format_exc()
        sys.stderr.write(trace)
        said = f"the runner itself failed: {type(error).__name__}: {error}"
        lines = trace.splitlines()
        report = Report(ENVIRONMENT, REASON_TOOL_FAILED, said[:1000])
        return leave(with_tail(report, lines, lines[-1].strip()), log)


def _step(text: str) -> int:
    from shardwright.runner.steps.main import step_main  # noqa: PLC0415 - one verb, one import

    return step_main(decode(StepRequest, text))


def _beside(text: str) -> int:
    from shardwright.runner.steps.main import beside_main  # noqa: PLC0415 - as above

    return beside_main(decode(StepRequest, text))


def _sweep(text: str) -> int:
    from shardwright.runner.steps.main import sweep_main  # noqa: PLC0415 - as above

    return sweep_main(decode(SweepRequest, text))


def _serve(text: str) -> int:
    from shardwright.runner import serve  # noqa: PLC0415 - as above

    return int(serve.main(decode(ServeRequest, text)))


def _fetch(text: str) -> int:
    request = decode(StepRequest, text)
    try:
        fetching = importlib.import_module("shardwright.fetching")
    except ModuleNotFoundError as error:
        raise ContractError(
            f"fetching needs the operator's own image ({error.name} is not installed here)"
        ) from error
    stop = Stop()
    stop.listen()
    uid = os.environ.get(ENV_POD_UID, "")
    return int(fetching.main(request, pod_uid=uid, env=os.environ, stop=stop))


_VERBS: Mapping[str, Callable[[str], int]] = {
    "step": _step,
    "beside": _beside,
    "sweep": _sweep,
    "serve": _serve,
    "fetch": _fetch,
}

if __name__ == "__main__":
    sys.exit(main())
