"""One step, from request to report: make an artifact with the vendor's tools, and publish it.

Find it there already, or: work in a temporary folder of this pod's own, run the tools, look at what
they left, write the manifest last, publish by one rename. At every point where this process may be
killed, the volume holds either the whole artifact or nothing that counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    PERMANENT,
    REASON_DISK_FULL,
    REASON_KILLED,
    REASON_TIMEOUT,
    REASON_TOOL_FAILED,
    Command,
    ContractError,
    Manifest,
    Report,
    StepRequest,
    artifact_folder,
)
from shardwright.runner.log import say
from shardwright.runner.publish import ContentError, publish, seal, settle
from shardwright.runner.steps import request as requests
from shardwright.runner.steps.around import CGROUP, MemoryWatch, free_bytes
from shardwright.runner.steps.before import beside_there, data_there, gpu_entry, source_inputs
from shardwright.runner.steps.classify import Cause, Surroundings, classify
from shardwright.runner.steps.excerpt import with_tail
from shardwright.runner.steps.failure import DeadlineError, StepFailedError, storage_cause
from shardwright.runner.steps.request import Places
from shardwright.runner.steps.result import IncompleteError, ResultError, verify
from shardwright.runner.steps.stop import Stop, StoppedError
from shardwright.runner.steps.tool import TERM_SECONDS, Ending, run_tool
from shardwright.runner.steps.workspace import Janitor, Workspace, WorkspaceLostError
from shardwright.runner.verify import ArtifactError, check
from shardwright.runner.versions import tool_versions


class Outcome(Protocol):
    """Where a tool writes to, and whether it is still this pod's."""

    @property
    def out(self) -> Path:
        """What `{out}` stands for."""

    def check(self) -> None:
        """Do nothing if it is."""


@dataclass
class Step:
    """One pod's attempt at one step.

    Attributes:
        request: What to make.
        pod_uid: Names the temporary folder.
        places: Where the volumes are.
        stop: Set when the pod is told to end.
        cgroup: Where the kernel tells of memory.
        term_seconds: How long a tool may take to end when it is told to.
    """

    request: StepRequest
    pod_uid: str
    places: Places = field(default_factory=Places)
    stop: Stop = field(default_factory=Stop)
    cgroup: Path = CGROUP
    term_seconds: float = TERM_SECONDS

    def __post_init__(self) -> None:
        """Start the step's clock."""
        self._started = time.monotonic()
        limit = self.request.timeout_seconds
        self._deadline = self._started + limit if limit > 0 else float("inf")
        self._tail: tuple[str, ...] = ()

    def run(self) -> Report:
        """Do the step; every way in which it can end is in the report."""
        try:
            return self._run()
        except StepFailedError as error:
            return self._failed(error.cause, error.tail)
        except (StoppedError, WorkspaceLostError) as error:
            return self._failed(Cause(ENVIRONMENT, REASON_KILLED, str(error)))
        except DeadlineError as error:
            return self._failed(Cause(ENVIRONMENT, REASON_TIMEOUT, str(error)))
        except ContractError as error:
            return self._failed(Cause(ENVIRONMENT, REASON_TOOL_FAILED, str(error)))
        except OSError as error:
            return self._failed(storage_cause(error, self.places.store))

    def _run(self) -> Report:
        requests.check(self.request)
        if not self.places.store.is_dir():
            raise ContractError(f"the claim is not mounted: {self.places.store} is no folder")
        final = self.places.store / artifact_folder(self.request.step, self.request.key)
        wanted = requests.wanted(self.request)
        try:
            present = check(final, wanted, between=self._between)
        except ArtifactError as error:
            say("the artifact is to be made", key=self.request.key, found=str(error))
        else:
            return self._done(present, reused=True)
        workspace = Workspace(self.places.store, self.request.step, self.request.key, self.pod_uid)
        janitor = Janitor(self.places.store, workspace.folder)
        janitor.start()
        try:
            workspace.open()
            manifest = self._make(workspace)
            there = publish(workspace.out, final, wanted, workspace.folder)
        except StepFailedError as error:
            self._make_room(error, janitor)
            raise
        except OSError as error:
            # Judged here, while the volume is as it was, not when it is cleaned up.
            workspace.check_after(error)
            failure = StepFailedError(storage_cause(error, self.places.store), self._tail)
            self._make_room(failure, janitor)
            raise failure from error
        finally:
            janitor.close()
            self._clean_up(workspace)
        if there is not None:
            say("another pod has published this artifact first", key=self.request.key)
        return self._done(there or manifest, reused=there is not None)

    def _make(self, workspace: Workspace) -> Manifest:
        """Run the tools in the workspace and seal what they leave."""
        request, out = self.request, workspace.out
        made_from = source_inputs(request, self.places, self._between)
        beside_there(request, self.places, self._between)
        shape = requests.asked_shape(request, made_from)
        data_there(request, self.places)
        gpu = gpu_entry(request)
        memory = MemoryWatch(self.cgroup)
        endings = [self._tool(command, workspace, memory) for command in request.commands]
        version = str(request.inputs.get("version") or "")
        try:
            verify(out, request.step, request.expected_files, shape, version)
            files = settle(out, lambda: self._between(workspace))
        except IncompleteError as error:
            raise self._incomplete(error, endings[-1], memory) from error
        except (ResultError, ContentError) as error:
            cause = Cause(PERMANENT, REASON_TOOL_FAILED, self._but(error))
            raise StepFailedError(cause, endings[-1].tail) from error
        manifest = Manifest(
            step=request.step,
            key=request.key,
            inputs=request.inputs,
            files=files,
            tools=tool_versions(),
            gpu=gpu,
        )
        seal(out, manifest)
        self._between(workspace)
        return manifest

    def _tool(
        self,
        command: Command,
        workspace: Outcome,
        memory: MemoryWatch,
        echo: Callable[[bytes], None] | None = None,
    ) -> Ending:
        """Run one command line to a good end; `echo` takes each line of its log.

        Raises:
            StepFailedError: It did not end well.
            WorkspaceLostError: The folder it wrote to was taken away.
        """
        self._between(workspace)
        argv = requests.command_line(command, self.places, workspace.out)
        say("running", tool=command.tool, argv=argv)
        try:
            ending = run_tool(
                argv,
                env=requests.environment(command, self.places, workspace.out),
                cwd=self.places.scratch,
                why_stop=lambda: self._why_stop(workspace),
                echo=echo,
                term_seconds=self.term_seconds,
            )
        except OSError as error:
            raise StepFailedError(
                Cause(
                    PERMANENT,
                    REASON_TOOL_FAILED,
                    f"{argv[0]} cannot be started: {error.strerror}; the image must hold "
                    f"{command.tool}: choose another engine.image or engine.version",
                )
            ) from error
        self._tail = ending.tail
        say("has ended", tool=command.tool, status=ending.code, seconds=round(ending.seconds, 3))
        workspace.check()
        if ending.code != 0 or ending.stopped:
            cause = classify(command.tool, ending, self._around(ending, memory))
            raise StepFailedError(cause, ending.tail)
        return ending

    def _between(self, workspace: Outcome | None = None) -> None:
        """Asked between all parts of the work.

        Raises:
            StoppedError: The pod was told to end.
            DeadlineError: The step's time is over.
            WorkspaceLostError: The temporary folder was taken away.
        """
        self.stop.check()
        if workspace is not None:
            workspace.check()
        if time.monotonic() > self._deadline:
            raise DeadlineError(
                f"the step took more than {self.request.timeout_seconds} s; raise "
                "timeouts.stepSeconds in the operator's settings"
            )

    def _why_stop(self, workspace: Outcome) -> str:
        try:
            self._between(workspace)
        except (StoppedError, DeadlineError, WorkspaceLostError) as error:
            return str(error)
        return ""

    def _around(self, ending: Ending, memory: MemoryWatch) -> Surroundings:
        rooms = {"the claim": self.places.store, "scratch": self.places.scratch}
        told_to_end = self.stop.is_set()
        return Surroundings(
            oom_kills=memory.kills(),
            memory_limit=memory.limit_bytes(),
            free=tuple((name, free_bytes(path)) for name, path in rooms.items()),
            timed_out=bool(ending.stopped) and not told_to_end,
            told_to_end=ending.stopped if told_to_end else "",
        )

    def _incomplete(
        self, error: IncompleteError, last: Ending, memory: MemoryWatch
    ) -> StepFailedError:
        """The tool said that all is well, and files are missing: its log may tell why."""
        cause = classify(self.request.commands[-1].tool, last, self._around(last, memory))
        if cause.reason == REASON_TOOL_FAILED:
            cause = replace(cause, message=self._but(error))
        else:
            cause = replace(cause, message=f"{cause.message} ({error})")
        return StepFailedError(cause, last.tail)

    def _but(self, error: Exception) -> str:
        return f"{self.request.commands[-1].tool} ended with exit status 0, but {error}"

    def _make_room(self, failure: StepFailedError, janitor: Janitor) -> None:
        """On a full volume, wait for what crashed pods have left there to be deleted."""
        if failure.cause.reason == REASON_DISK_FULL:
            janitor.finish(self.stop.is_set)

    def _clean_up(self, workspace: Workspace) -> None:
        try:
            workspace.close()
        except OSError as error:
            # It does not count, and a later step on this claim deletes it.
            say("the temporary folder is left behind", folder=workspace.folder.name, why=str(error))

    def _done(self, manifest: Manifest, *, reused: bool) -> Report:
        return Report(
            outcome=DONE,
            step=manifest.step,
            key=manifest.key,
            commit=manifest.commit,
            facts=manifest.facts,
            tools=manifest.tools,
            total_bytes=manifest.total_bytes,
            seconds=self._seconds(),
            reused=reused,
        )

    def _failed(self, cause: Cause, tail: tuple[str, ...] = ()) -> Report:
        report = Report(
            outcome=cause.outcome,
            reason=cause.reason,
            message=cause.message,
            step=self.request.step,
            key=cause.key or self.request.key,
            tools=tool_versions(),
            seconds=self._seconds(),
        )
        return with_tail(report, tail or self._tail, cause.evidence)

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 3)
