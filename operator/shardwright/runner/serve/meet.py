"""How the pods of a group come together: names are waited for, the leader is called.

A peer may come late: its image is pulled, its node is slow. Nobody is restarted for that; the
waiting is told, once when it changes and then every half minute, and ends with the request's
deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.runner.contract import ServeRequest
from shardwright.runner.log import say
from shardwright.runner.serve.channel import connect
from shardwright.runner.serve.frames import ChannelError
from shardwright.runner.serve.handshake import PURPOSE_LINK, Identity, Session
from shardwright.runner.serve.net import resolve
from shardwright.runner.serve.secret import Token

RETRY_SECONDS = 1.0
TOLD_SECONDS = 30.0


@dataclass(frozen=True)
class PeerUp:
    """A stage's runner is connected."""

    stage: int
    session: Session


@dataclass(frozen=True)
class PeerSaid:
    """A message of a stage's runner."""

    stage: int
    message: dict[str, Any]


@dataclass(frozen=True)
class PeerDown:
    """A stage's runner is gone, or silent for too long."""

    stage: int
    session: Session
    why: str


@dataclass(frozen=True)
class NamesFound:
    """Every stage's name resolves: its addresses, by stage."""

    addresses: tuple[str, ...]


class Waiting:
    """Tells what is waited for, without filling the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing told."""
        self._clock = clock
        self._started = clock()
        self._told_at = float("-inf")
        self._told = ""

    def tell(self, what: str, why: str) -> None:
        """Say it if it is new, or was said half a minute ago."""
        now = self._clock()
        if (what, why) != tuple(self._told.split("\0", 1)) or now - self._told_at >= TOLD_SECONDS:
            self._told, self._told_at = f"{what}\0{why}", now
            say("waiting", waited_for=what, why=why, seconds=round(now - self._started, 1))


def follow(
    session: Session, told: Callable[[PeerUp | PeerSaid | PeerDown], None], timeout_seconds: float
) -> None:
    """Turn a session into events until it ends; returns when it has."""
    told(PeerUp(session.peer, session))
    try:
        while True:
            told(PeerSaid(session.peer, session.receive(timeout_seconds)))
    except ChannelError as error:
        told(PeerDown(session.peer, session, str(error)))
    finally:
        session.close()


def find_names(
    names: Sequence[str],
    told: Callable[[NamesFound], None],
    closed: threading.Event,
    look_up: Callable[[str], str] = resolve,
) -> None:
    """Resolve every name, again and again until all do or `closed` is set."""
    waiting = Waiting()
    while not closed.is_set():
        found = []
        for name in names:
            try:
                found.append(look_up(name))
            except OSError as error:
                waiting.tell(name, str(error))
                break
        if len(found) == len(names):
            told(NamesFound(tuple(found)))
            return
        closed.wait(RETRY_SECONDS)


def call_leader(
    request: ServeRequest,
    token: Token,
    told: Callable[[PeerUp | PeerSaid | PeerDown], None],
    closed: threading.Event,
) -> None:
    """Call stage 0 until it answers or `closed` is set, then listen to it to the end.

    Whoever answers and is not the leader of this incarnation is not listened to: an address may
    still be that of a pod that went.
    """
    leader, who, waiting = request.peers[0], Identity.of(request), Waiting()
    while not closed.is_set():
        try:
            session = connect(leader, request.channel_port, token, who, 0, PURPOSE_LINK)
        except (OSError, ChannelError) as error:
            waiting.tell(leader, str(error))
            closed.wait(RETRY_SECONDS)
            continue
        follow(session, told, request.peer_timeout_seconds)
        return
