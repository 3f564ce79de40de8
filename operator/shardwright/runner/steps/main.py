"""Entry points of the pods that make artifacts and of those that sweep: request in, report out."""

from __future__ import annotations

import os
from pathlib import Path

from shardwright.runner.contract import ENV_POD_UID, STEP_SCORE, StepRequest, SweepRequest
from shardwright.runner.steps.beside import run_beside
from shardwright.runner.steps.request import Places
from shardwright.runner.steps.score import ScoreStep
from shardwright.runner.steps.step import Step
from shardwright.runner.steps.stop import Stop
from shardwright.runner.steps.sweep import sweep
from shardwright.runner.termination import TERMINATION_LOG, leave


def step_main(
    request: StepRequest, places: Places | None = None, log: Path = TERMINATION_LOG
) -> int:
    """Do the step of this pod; returns its exit status."""
    stop = Stop()
    stop.listen()
    uid = os.environ.get(ENV_POD_UID, "")
    kind = ScoreStep if request.step == STEP_SCORE else Step
    return leave(kind(request, uid, places or Places(), stop).run(), log)


def beside_main(request: StepRequest, places: Places | None = None) -> int:
    """Run the server beside this pod's step; returns the exit status of its container."""
    stop = Stop()
    stop.listen()
    return run_beside(request, places or Places(), stop)


def sweep_main(
    request: SweepRequest, places: Places | None = None, log: Path = TERMINATION_LOG
) -> int:
    """Do the sweep of this pod; returns its exit status."""
    stop = Stop()
    stop.listen()
    return leave(sweep(request, (places or Places()).store, stop), log)
