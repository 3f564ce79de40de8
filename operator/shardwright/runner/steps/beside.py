"""A server beside the tool that measures: both sides of what they tell each other.

The tool and the server come in different images, so they are two containers of one pod: the server
is a sidecar, which the kubelet ends when the tool's container has ended. A sidecar is started again
when it ends, and its words are lost; so what ended the server is written to the scratch volume,
which both mount, and the sidecar waits there until it is told to end.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from shardwright.runner.contract import (
    ENVIRONMENT,
    PERMANENT,
    REASON_OUT_OF_MEMORY,
    REASON_TOOL_FAILED,
    Beside,
    ContractError,
    StepRequest,
)
from shardwright.runner.jsonfile import JsonFileError, read_object
from shardwright.runner.log import say
from shardwright.runner.served import link_model, write_config
from shardwright.runner.steps import patterns
from shardwright.runner.steps import request as requests
from shardwright.runner.steps.around import CGROUP, MemoryWatch, free_bytes
from shardwright.runner.steps.classify import Cause, Surroundings, classify
from shardwright.runner.steps.failure import StepFailedError
from shardwright.runner.steps.request import Places
from shardwright.runner.steps.stop import Stop
from shardwright.runner.steps.tool import run_tool

_BEGUN = "beside.begun"
_ENDED = "beside.json"
_ASK_SECONDS = 5.0
_POLL_SECONDS = 1.0
# What a server leaves running when it ends is ended first, and gets so long at most.
_LAST_WORDS_SECONDS = 20.0
# What the words of a server advise is of the candidate's; this one is started otherwise.
_OF_ITS_OWN = (
    "; of these it has its own, so lower engine.limits.gpuMemoryFraction, or give its score "
    "(quantization.accuracy.baseline)"
)
_TOLD = "the measurement has ended"


def run_beside(
    request: StepRequest, places: Places, stop: Stop, cgroup: Path = CGROUP, *, poll: float = 1.0
) -> int:
    """Run the server of a step until the pod ends; the sidecar's exit status.

    Whatever ends the server is told, a request that cannot be used too.

    Raises:
        OSError: The scratch volume cannot be written.
    """
    begun, ended = places.scratch / _BEGUN, places.scratch / _ENDED
    if begun.exists() and not ended.exists():
        memory = MemoryWatch(cgroup).limit_bytes()
        limit = f" (limit {memory / 2**30:.1f} GiB)" if memory else ""
        tool = request.beside.command.tool if request.beside else "the server"
        said = patterns.HOST_MEMORY_SAID.format(
            tool=tool,
            limit=limit,
            how=": its container was killed as a whole",
            memory=patterns.memory_field(tool),
        )
        _tell(ended, Cause(ENVIRONMENT, REASON_OUT_OF_MEMORY, said), ())
    if not ended.exists():
        begun.touch()
        try:
            _serve(request, places, stop, ended, cgroup)
        except ContractError as error:
            said = f"the request cannot be used: {error}"
            _tell(ended, Cause(ENVIRONMENT, REASON_TOOL_FAILED, said), ())
        except Exception:
            # Else the next start would take this one for killed by the kernel.
            begun.unlink()
            raise
    while not stop.is_set():
        time.sleep(poll)
    return 0


def _serve(request: StepRequest, places: Places, stop: Stop, ended: Path, cgroup: Path) -> None:
    """Run the server; unless the pod is told to end meanwhile, tell what ended it."""
    server, folder = request.beside, requests.source_folder(request, places)
    if server is None or folder is None:
        raise ContractError("it has no server to run beside the step, or no model for it")
    link_model(places.scratch, server.served_name, folder)
    write_config(places.scratch, server.config)
    memory = MemoryWatch(cgroup)
    words = requests.command_line(server.command, places, places.scratch)
    argv = [word.replace("{model}", str(folder)) for word in words]
    say("running", tool=server.command.tool, argv=argv)
    try:
        ending = run_tool(
            argv,
            env=requests.environment(server.command, places, places.scratch),
            cwd=places.scratch,
            why_stop=lambda: _TOLD if stop.is_set() else "",
        )
    except OSError as error:
        said = f"{argv[0]} cannot be started: {error.strerror}; choose another engine.image"
        _tell(ended, Cause(ENVIRONMENT, REASON_TOOL_FAILED, said), ())
        return
    if stop.is_set():
        return
    around = Surroundings(
        oom_kills=memory.kills(),
        memory_limit=memory.limit_bytes(),
        free=(("scratch", free_bytes(places.scratch)),),
    )
    cause = classify(server.command.tool, ending, around)
    say("has ended", tool=server.command.tool, status=ending.code, reason=cause.reason)
    _tell(ended, cause, ending.tail)


def _tell(path: Path, cause: Cause, tail: tuple[str, ...]) -> None:
    """Write what ended the server; whole or not at all."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"cause": asdict(cause), "tail": tail}), encoding="utf-8")
    os.replace(written, path)  # noqa: PTH105 - named as what it is: atomic


def heard(scratch: Path) -> StepFailedError | None:
    """What ended the server beside this step, None while nothing has."""
    path = scratch / _ENDED
    if not path.exists():
        return None
    try:
        told = read_object(path)
        cause = Cause(**{name: str(value) for name, value in told["cause"].items()})
        tail = tuple(str(line) for line in told["tail"])
    except (JsonFileError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"what the server beside left cannot be read: {error}") from error
    said = f"the server of the 16-bit model ended before it was measured: {cause.message}"
    if (cause.outcome, cause.reason) == (PERMANENT, REASON_OUT_OF_MEMORY):
        said += _OF_ITS_OWN
    return StepFailedError(
        Cause(cause.outcome, cause.reason, said, cause.evidence, cause.key), tail
    )


def await_server(server: Beside, scratch: Path, between: Callable[[], None]) -> None:
    """Return once the server beside answers.

    Args:
        server: Where it is asked.
        scratch: The volume on which it tells what ended it.
        between: Asked every second; may raise.

    Raises:
        StepFailedError: It ended.
    """
    say("waiting for the server beside", port=server.port, path=server.health_path)
    while True:
        between()
        if (failure := heard(scratch)) is not None:
            raise failure
        if _answers(server):
            return
        time.sleep(_POLL_SECONDS)


def last_words(
    server: Beside, scratch: Path, *, patience: float = _LAST_WORDS_SECONDS
) -> StepFailedError | None:
    """What ended the server, asked for by a tool that has failed; None if it answers still.

    A connection is cut before its server's end is seen and written down, so that it is waited for.
    """
    deadline = time.monotonic() + patience
    while (failure := heard(scratch)) is None:
        if time.monotonic() >= deadline or _answers(server):
            return None
        time.sleep(_POLL_SECONDS)
    return failure


def _answers(server: Beside) -> bool:
    url = f"http://127.0.0.1:{server.port}{server.health_path}"
    try:
        with urllib.request.urlopen(url, timeout=_ASK_SECONDS):
            return True
    except (OSError, http.client.HTTPException):
        return False
