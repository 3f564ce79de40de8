"""Plays a sweep: really moves an artifact's folder to the trash and back, or deletes it there."""

import shutil
from pathlib import Path

from shardwright.runner.contract import (
    DONE,
    ENV_REQUEST,
    PERMANENT,
    REASON_MANIFEST_MISSING,
    STORE,
    SWEEP,
    SWEEP_RESTORE,
    SWEEP_TRASH,
    ContractError,
    Report,
    SweepRequest,
    decode,
    sweep_folders,
)
from shardwright_sandbox.player.steps import Played
from shardwright_sandbox.player.view import PodView


def play_sweep(pod: PodView, claims: Path) -> Played | None:
    """Do the sweep of this pod in its claim's folder; None if it is not the pod of a sweep."""
    if pod.label("role") != SWEEP:
        return None
    return Played(sweep(_request(pod), pod.folder(claims, STORE)))


def sweep(request: SweepRequest, root: Path) -> Report:
    """Carry out one request under the claim's root. May be repeated, and cut short anywhere."""
    live, trash, purged = (root / folder for folder in sweep_folders(request))
    if request.action == SWEEP_TRASH:
        if live.exists() and not trash.exists():
            trash.parent.mkdir(parents=True, exist_ok=True)
            live.rename(trash)
    elif request.action == SWEEP_RESTORE:
        if trash.exists() and not live.exists():
            live.parent.mkdir(parents=True, exist_ok=True)
            trash.rename(live)
        elif not live.exists():
            return Report(
                outcome=PERMANENT,
                reason=REASON_MANIFEST_MISSING,
                message=f"neither {live.relative_to(root)} nor {trash.relative_to(root)} is there",
                step=request.step,
                key=request.key,
            )
    else:
        if trash.exists() and not purged.exists():
            trash.rename(purged)
        for folder in (purged, trash):
            if folder.exists():
                shutil.rmtree(folder)
    return Report(outcome=DONE, step=request.step, key=request.key)


def _request(pod: PodView) -> SweepRequest:
    for container in pod.raw["spec"]["containers"]:
        for variable in container.get("env", []):
            if variable["name"] == ENV_REQUEST:
                return decode(SweepRequest, variable.get("value", ""))
    raise ContractError(f"pod {pod.name} has no {ENV_REQUEST}")
