"""From a serving pod's first moment to its last: checks, files, then leading or following."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from shardwright.runner.contract import (
    ENVIRONMENT,
    LAUNCHES,
    PERMANENT,
    REASON_GPU_MISMATCH,
    REASON_TOOL_FAILED,
    Report,
    ServeRequest,
)
from shardwright.runner.gpus import GPUError, visible_gpus
from shardwright.runner.log import say
from shardwright.runner.serve import inflight, mpi, prepare
from shardwright.runner.serve.channel import ChannelServer
from shardwright.runner.serve.devices import names
from shardwright.runner.serve.handshake import PURPOSE_LAUNCH, Identity, Session
from shardwright.runner.serve.health import HealthServer
from shardwright.runner.serve.leader import Leader
from shardwright.runner.serve.measure.page import page
from shardwright.runner.serve.measure.watch import Watch
from shardwright.runner.serve.meet import follow
from shardwright.runner.serve.places import Pace, Places, write_programs
from shardwright.runner.serve.pod import Pod, Surroundings, Told
from shardwright.runner.serve.preflight import Problem, artifact_problem, manifest_of, node_problem
from shardwright.runner.serve.secret import Token, TokenError, read_token
from shardwright.runner.serve.shm import remove_leftovers
from shardwright.runner.serve.view import CHECKING, View
from shardwright.runner.serve.worker import Worker, serve_launch
from shardwright.runner.termination import leave

_VERSION_SECONDS = 60


def main(
    request: ServeRequest,
    places: Places | None = None,
    pace: Pace | None = None,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Serve this pod's stage until the group ends. To be called in the main thread.

    Args:
        request: What the operator asks this pod for.
        places: Where things are; as in a pod by default.
        pace: How long things take.
        environment: The pod's.

    Returns:
        0 after a drain, 1 after anything else; the report in the termination message says what.

    Raises:
        OSError: A port of the request is taken.
    """
    current, pace = _Current(request), pace or Pace()
    watch = Watch(request, pace, lambda: current.view)
    around = Surroundings(
        places or Places(),
        pace,
        dict(environment),
        SimpleQueue(),
        mark=watch.mark if request.metrics else None,
    )
    _take_signals(around.events)
    health = HealthServer(
        request.runner_port, lambda: current.view, lambda: _metrics(watch), lambda: _used(watch)
    )
    try:
        report = _serve(request, around, current)
    finally:
        watch.close()
        health.close()
    return leave(report, Path(around.places.termination_log))


def _used(watch: Watch) -> dict[str, Any]:
    usage = watch.usage(time.monotonic())
    return {} if usage is None else {"usage": usage.told()}


def _metrics(watch: Watch) -> str:
    request, now = watch.request, time.monotonic()
    in_flight = inflight.look(request.http_port)
    return page(request, watch.look(now), watch.gpu_look(now), watch.errors(), in_flight)


class _Current:
    """The view that probes are answered from: of the pod, once there is one."""

    def __init__(self, request: ServeRequest) -> None:
        self.pod: Pod | None = None
        self._checking = View(
            request.deployment,
            request.replica,
            request.incarnation,
            request.stage,
            request.tensor,
            request.pipeline,
            CHECKING,
            engine=request.stage == 0,
        )

    @property
    def view(self) -> View:
        return self._checking if self.pod is None else self.pod.view


def _serve(request: ServeRequest, around: Surroundings, current: _Current) -> Report:
    """The pod's part from its checks to its end."""
    problem = _problem(request, around.places)
    if problem is not None:
        say("refused", reason=problem.reason, why=problem.message)
        return _refused(request, problem)
    try:
        places = around.places
        token = read_token(places.token_path) if request.pipeline > 1 else None
        if request.by_mpi:
            write_programs(places)
        prepare.write_files(request, places)
        removed = remove_leftovers(places.shm_path, os.getuid())
        found = _mpi() if request.by_mpi else None
    except (OSError, TokenError) as error:
        return _refused(request, Problem(ENVIRONMENT, REASON_TOOL_FAILED, str(error)))
    except (ValueError, mpi.MPIError) as error:
        return _refused(request, Problem(PERMANENT, REASON_TOOL_FAILED, str(error)))
    if removed:
        say("shared memory of an earlier container was removed", names=removed)
    order = prepare.order(request, places, around.environment)
    gpus = names(around.environment)
    pod: Pod
    if request.stage == 0:
        pod = Leader(request, around, order, gpus, found)
    else:
        pod = Worker(request, around, order, gpus, found, token)
    current.pod = pod
    channel = _listen(request, around, token) if token is not None else None
    try:
        return pod.run()
    finally:
        if channel is not None:
            channel.close()


def _listen(request: ServeRequest, around: Surroundings, token: Token) -> ChannelServer:
    """Take calls: the leader those of workers, a worker those of the leader's mpirun."""

    def accepted(session: Session) -> None:
        launches = session.purpose == PURPOSE_LAUNCH
        if launches and request.stage > 0:
            serve_launch(session, around.events.put, request.peer_timeout_seconds)
        elif not launches and request.stage == 0:
            follow(session, around.events.put, request.peer_timeout_seconds)
        else:
            say("a stage called for what is not done here", stage=session.peer)

    return ChannelServer(request.channel_port, token, Identity.of(request), accepted)


def _problem(request: ServeRequest, places: Places) -> Problem | None:
    """What speaks against loading; the node is looked at only for a good artifact."""
    if request.launch and request.launch not in LAUNCHES:
        said = f"launch is {request.launch!r}, this runner knows {', '.join(LAUNCHES)}"
        return Problem(PERMANENT, REASON_TOOL_FAILED, said)
    try:
        found = artifact_problem(request, Path(places.store))
        if found is not None:
            return found
        built_for = manifest_of(request, Path(places.store)).gpu
        return node_problem(request, built_for, visible_gpus())
    except GPUError as error:
        return Problem(ENVIRONMENT, REASON_GPU_MISMATCH, str(error))
    except OSError as error:
        said = f"{request.artifact} cannot be read: {error}"
        return Problem(ENVIRONMENT, REASON_TOOL_FAILED, said)


def _refused(request: ServeRequest, problem: Problem) -> Report:
    return Report(
        outcome=problem.outcome,
        reason=problem.reason,
        message=problem.message,
        step=problem.step or request.step,
        key=problem.key or request.key,
    )


def _mpi() -> mpi.MPI:
    """The image's Open MPI.

    Raises:
        MPIError: There is none that is known.
    """
    try:
        answer = subprocess.run(
            ["mpirun", "--version"],  # noqa: S607 - the image's own
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise mpi.MPIError(
            "this image has no mpirun, which starts ranks on several stages; set engine.image to "
            "one that has Open MPI"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise mpi.MPIError(f"mpirun --version gave no answer in {_VERSION_SECONDS} s") from error
    return mpi.read_version(answer.stdout + answer.stderr)


def _take_signals(events: SimpleQueue[Any]) -> None:
    """Signals become events; putting one into this kind of queue is safe in a handler."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: events.put(Told(number)))
    signal.signal(signal.SIGCHLD, lambda *_: events.put(None))
