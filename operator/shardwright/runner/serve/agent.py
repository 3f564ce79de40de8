"""What Open MPI calls in the place of ssh: it has the peer's runner start the MPI daemon there.

`mpirun` on stage 0 calls it as `<agent> HOST <line>` and waits for it as it would for ssh: its
output is the daemon's, its exit status too, and when it is killed the daemon is ended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.runner.contract import ENV_REQUEST, ContractError, ServeRequest, decode
from shardwright.runner.serve.channel import connect
from shardwright.runner.serve.daemon_line import LineError, read_line
from shardwright.runner.serve.frames import ChannelError
from shardwright.runner.serve.handshake import PURPOSE_LAUNCH, Identity, Session
from shardwright.runner.serve.places import Places
from shardwright.runner.serve.secret import TokenError, read_token

# What ssh itself answers when it cannot do what it was asked to.
FAILED = 255
# The peer says that it lives every few seconds; the request says how long silence may last.
_EXIT, _OUTPUT, _BEAT, _REFUSED = "exit", "output", "beat", "refused"


def main(argv: Sequence[str], places: str, environment: Mapping[str, str] = os.environ) -> int:
    """Start the daemon on HOST and stay until it has ended.

    Returns:
        The daemon's exit status, 255 when it could not be started or its runner is gone.
    """
    try:
        return _run(argv, Places.load(places), environment)
    except (OSError, ValueError, ContractError, LineError, ChannelError, TokenError) as error:
        sys.stderr.write(f"shardwright: no MPI daemon on {argv[0] if argv else '?'}: {error}\n")
        return FAILED


def _run(argv: Sequence[str], places: Places, environment: Mapping[str, str]) -> int:
    if not argv:
        raise ValueError("called without a host; Open MPI calls this program, nobody else")
    request = decode(ServeRequest, environment.get(ENV_REQUEST, ""))
    stages: dict[str, int] = json.loads(places.world.read_text(encoding="utf-8"))
    if argv[0] not in stages:
        raise ValueError(f"no stage of this group is at {argv[0]}; there are {sorted(stages)}")
    command = read_line(argv[1:])
    session = connect(
        argv[0],
        request.channel_port,
        read_token(places.token_path),
        Identity.of(request),
        stages[argv[0]],
        PURPOSE_LAUNCH,
    )
    try:
        session.send({"start": command.message()})
        return _follow(session, request.peer_timeout_seconds)
    finally:
        session.close()


def _follow(session: Session, timeout_seconds: float) -> int:
    while True:
        message = session.receive(timeout_seconds)
        if _OUTPUT in message:
            sys.stdout.write(str(message[_OUTPUT]))
            sys.stdout.flush()
        elif _EXIT in message:
            return _status(int(message[_EXIT]))
        elif _REFUSED in message:
            raise ChannelError(str(message[_REFUSED]))


def _status(code: int) -> int:
    """An exit status as a shell gives it; a signal's is 128 and its number."""
    return code if code >= 0 else 128 - code


def exit_message(code: int) -> dict[str, Any]:
    """Told by the runner that started the daemon, last of all."""
    return {_EXIT: code}


def output_message(line: bytes) -> dict[str, Any]:
    """A line that the daemon has printed."""
    return {_OUTPUT: line.decode("utf-8", "replace")}


def beat_message() -> dict[str, Any]:
    """The daemon runs and is silent."""
    return {_BEAT: True}


def refused_message(why: str) -> dict[str, Any]:
    """The daemon was not started."""
    return {_REFUSED: why}
