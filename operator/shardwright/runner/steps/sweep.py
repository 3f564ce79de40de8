"""A sweep: an artifact's folder to the trash, back again, or deleted there.

Each action may be repeated at will and cut short anywhere: as far as others can see it is one
rename. The artifact's own folder is never deleted, only renamed.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    PERMANENT,
    REASON_KILLED,
    REASON_MANIFEST_MISSING,
    REASON_TOOL_FAILED,
    SWEEP_RESTORE,
    SWEEP_TRASH,
    ContractError,
    Report,
    SweepRequest,
    sweep_folders,
)
from shardwright.runner.publish import discard, make, sync
from shardwright.runner.steps.failure import storage_cause
from shardwright.runner.steps.stop import Stop, StoppedError

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def sweep(request: SweepRequest, store: Path, stop: Stop) -> Report:
    """Carry out one request under the claim's root; every way in which it can end is reported."""
    started = time.monotonic()

    def report(outcome: str, reason: str = "", message: str = "") -> Report:
        return Report(
            outcome=outcome,
            reason=reason,
            message=message,
            step=request.step,
            key=request.key,
            seconds=round(time.monotonic() - started, 3),
        )

    try:
        gone = _sweep(request, store, stop)
    except StoppedError as error:
        return report(ENVIRONMENT, REASON_KILLED, f"{error}; it is resumed by the next try")
    except ContractError as error:
        return report(ENVIRONMENT, REASON_TOOL_FAILED, str(error))
    except OSError as error:
        # Also what is denied is tried again: the operator repeats a sweep until it is done.
        cause = storage_cause(error, store)
        return report(ENVIRONMENT, cause.reason, cause.message)
    if gone:
        return report(PERMANENT, REASON_MANIFEST_MISSING, gone)
    return report(DONE)


def _sweep(request: SweepRequest, store: Path, stop: Stop) -> str:
    """Do it; returns what is missing, if that is why it cannot be done."""
    live, trash, purged = (store / folder for folder in sweep_folders(request))
    if not store.is_dir():
        raise ContractError(f"the claim is not mounted: {store} is no folder")
    if request.action == SWEEP_TRASH:
        make(trash.parent)
        _move(live, trash)
    elif request.action == SWEEP_RESTORE:
        make(live.parent)
        if not _move(trash, live) and not os.path.lexists(live):
            return f"neither {live.relative_to(store)} nor {trash.relative_to(store)} is there"
    else:
        # What an earlier try has begun to delete, then what is still whole.
        for _ in range(2):
            _delete(purged, stop)
            if not _move(trash, purged):
                break
        _delete(purged, stop)
    return ""


def _move(source: Path, target: Path) -> bool:
    """Rename, unless the source is not there or the target is; whether it was renamed."""
    if not os.path.lexists(source) or os.path.lexists(target):
        return False
    try:
        os.rename(source, target)  # noqa: PTH104 - this call is what others see
    except FileNotFoundError:
        return False  # another try of the same sweep was faster
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    sync(target.parent)
    sync(source.parent)
    return True


def _delete(folder: Path, stop: Stop) -> None:
    """Delete a folder, entry by entry at its top, so that a deletion of terabytes can be ended."""
    if not os.path.lexists(folder):
        return
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.iterdir()):
            stop.check()
            if path.is_dir() and not path.is_symlink():
                discard(path)
            else:
                path.unlink(missing_ok=True)
    discard(folder)
