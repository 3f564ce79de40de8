"""What ends a step: a cause that is reported, and failures of the storage turned into one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from shardwright.runner.contract import (
    ENVIRONMENT,
    PERMANENT,
    REASON_ACCESS_DENIED,
    REASON_DISK_FULL,
    REASON_TOOL_FAILED,
)
from shardwright.runner.steps.around import free_bytes
from shardwright.runner.steps.classify import Cause

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)


class StepFailedError(Exception):
    """The step cannot be done; carries what is reported, and the log of the tool if one ran."""

    def __init__(self, cause: Cause, tail: tuple[str, ...] = ()) -> None:
        super().__init__(cause.message)
        self.cause = cause
        self.tail = tail


class DeadlineError(Exception):
    """The step's time is over."""


def storage_cause(error: OSError, store: Path) -> Cause:
    """Why a call of the runner's own on the claim failed.

    What is denied is reported as for good, so that it is not tried in vain on five nodes; the
    operator knows that this reason is mended under the same key.
    """
    what = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
    if error.errno in _NO_SPACE:
        try:
            free = f"{free_bytes(store)} bytes are free"
        except OSError as unknown:
            free = f"free space is unknown: {unknown.strerror}"
        return Cause(
            ENVIRONMENT, REASON_DISK_FULL, f"no space on the claim: {what}; {free}; make room there"
        )
    if error.errno in _NO_ACCESS:
        return Cause(
            PERMANENT,
            REASON_ACCESS_DENIED,
            f"the claim refuses this pod (user {os.getuid()}, group {os.getgid()}): {what}; "
            "mend its permissions or mount options",
        )
    return Cause(ENVIRONMENT, REASON_TOOL_FAILED, f"the storage failed: {what}")
