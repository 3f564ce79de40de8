"""Fetches models and adapters onto a claim: from a hub, a bucket, a registry, or in place.

Runs in the operator's own image as the first step of a chain; whatever happens, it ends with a
report. `main` is what the pod runs.
"""

from __future__ import annotations

import errno
import os
import time
import traceback
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from shardwright import __version__
from shardwright.fetching.bucket import Bucket
from shardwright.fetching.failures import FetchError, environment, permanent
from shardwright.fetching.folders import Folders
from shardwright.fetching.hub import Hub
from shardwright.fetching.kinds import Kind, kind_of
from shardwright.fetching.patience import Halt, Patience
from shardwright.fetching.registry import Registry
from shardwright.fetching.remote import Source
from shardwright.fetching.uris import (
    BucketFolder,
    ClaimFolder,
    HubModel,
    RegistryArtifact,
    parse,
)
from shardwright.fetching.wire import Wire
from shardwright.fetching.work import Fetch, sealed
from shardwright.runner.contract import (
    DONE,
    REASON_DISK_FULL,
    REASON_KILLED,
    REASON_TOOL_FAILED,
    SOURCE,
    STORE,
    Manifest,
    Report,
    StepRequest,
)
from shardwright.runner.log import say
from shardwright.runner.steps.stop import Stop, StoppedError
from shardwright.runner.termination import TERMINATION_LOG, leave

__all__ = ["Places", "main"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TRACE_CHARS = 3000


@dataclass(frozen=True, slots=True)
class Places:
    """Where a pod finds its volumes, and where it leaves its report."""

    store: Path = Path(STORE)
    source: Path = Path(SOURCE)
    termination_log: Path = TERMINATION_LOG


def main(
    request: StepRequest,
    *,
    pod_uid: str,
    env: Mapping[str, str],
    places: Places | None = None,
    patience: Patience | None = None,
    stop: Stop | None = None,
) -> int:
    """Fetch what is asked for and leave a report.

    Args:
        request: Step `model` or `adapter`; its source is the uri, with its commit if that is known.
        pod_uid: Names this attempt's temporary folder.
        env: Credentials and endpoints, as the Secret of `model.secretRef` has them.
        places: Volumes; None takes those of the contract.
        patience: Bounds of trying again; None takes the usual ones.
        stop: Set by a signal; None is never set.

    Returns:
        The exit status: 0 when the model is there and the report is written, else 1.
    """
    places = places or Places()
    started = time.monotonic()
    trace = ""
    try:
        halt = Halt(stop or Stop(), request.timeout_seconds)
        manifest, reused = _made(request, pod_uid, env, places, patience or Patience(), halt)
    except Exception as error:  # noqa: BLE001 - the report is what tells it, a fault of ours too
        failure = _failure(error, request.source, places)
        if failure is None:
            trace = traceback.format_exc()
            say("failed", trace=trace)
            failure = environment(REASON_TOOL_FAILED, f"{type(error).__name__}: {error}")
        report = Report(
            outcome=failure.outcome,
            reason=failure.reason,
            message=str(failure),
            step=request.step,
            key=request.key,
            seconds=_since(started),
            log_tail=trace[-_TRACE_CHARS:],
        )
    else:
        facts = manifest.facts
        told = facts or manifest.adapter
        report = Report(
            outcome=DONE,
            step=manifest.step,
            key=manifest.key,
            commit=manifest.commit,
            facts=facts,
            adapter=manifest.adapter,
            tools=manifest.tools,
            # A model in place has no files of ours; what it weighs is what it has to be loaded.
            total_bytes=manifest.total_bytes or (told.bytes if told else 0),
            seconds=_since(started),
            reused=reused,
        )
    return leave(report, places.termination_log)


def _made(
    request: StepRequest,
    pod_uid: str,
    env: Mapping[str, str],
    places: Places,
    patience: Patience,
    halt: Halt,
) -> tuple[Manifest, bool]:
    """The manifest of the artifact, and whether it was there already."""
    kind = kind_of(request)
    if kind is None:
        raise permanent(
            REASON_TOOL_FAILED,
            f"this image fetches models and adapters; it was asked for a {request.step!r}",
        )
    location = parse(request.source)
    folders = Folders(places.store, kind.step, request.key, pod_uid)
    there = sealed(folders, kind.step, request.key)
    if isinstance(location, ClaimFolder):
        return _in_place(request, kind, location, folders, there, places)
    if there is not None:
        folders.clear()
        return there, True
    commit = location.revision if isinstance(location, HubModel) and location.pinned else ""
    if isinstance(location, RegistryArtifact) and location.pinned:
        commit = location.reference
    with (
        closing(Wire(patience.silence_seconds)) as wire,
        closing(_source(location, wire, env)) as source,
    ):
        return Fetch(request, kind, source, folders, patience, halt).run(commit), False


def _in_place(
    request: StepRequest,
    kind: Kind,
    location: ClaimFolder,
    folders: Folders,
    there: Manifest | None,
    places: Places,
) -> tuple[Manifest, bool]:
    """The manifest of what lies on a claim: it has facts and no files, which are not ours."""
    # The other claim is mounted only where it is not the store itself.
    root = places.source if places.source.is_dir() else places.store
    manifest = Manifest(
        step=kind.step,
        key=request.key,
        inputs=request.inputs,
        files={},
        tools={"shardwright": __version__},
        **kind.inspect(location, root),
    )
    if there == manifest:
        return there, True
    folders.open()
    folders.seal(manifest)
    return manifest, False


def _source(
    location: HubModel | BucketFolder | RegistryArtifact, wire: Wire, env: Mapping[str, str]
) -> Source:
    if isinstance(location, HubModel):
        return Hub(location, wire, env)
    if isinstance(location, BucketFolder):
        return Bucket(location, wire, env)
    return Registry(location, wire, env)


def _failure(error: Exception, source: str, places: Places) -> FetchError | None:
    """An error as it is reported; None when nobody has foreseen it."""
    if isinstance(error, FetchError):
        return error
    if isinstance(error, StoppedError):
        return environment(
            REASON_KILLED,
            f"{error}; what has come so far is kept, and the next attempt goes on from there",
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return environment(
            REASON_DISK_FULL,
            f"the claim is full: {error.filename or source} cannot be written, "
            f"{_free_bytes(places.store)} bytes are free; enlarge the claim (storage.claimName) or "
            "make room; what has come so far is kept",
        )
    if isinstance(error, OSError) and error.errno is not None:
        return environment(
            REASON_TOOL_FAILED,
            f"the storage failed: {error}; the claim must be mounted for writing by user "
            f"{os.getuid()} and group {os.getgid()}",
        )
    return None


def _free_bytes(store: Path) -> int:
    try:
        found = os.statvfs(store)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)
