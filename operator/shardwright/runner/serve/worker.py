"""The runner of a stage above 0: calls the leader, starts what it asks for, and follows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.runner.children import Exit
from shardwright.runner.contract import ENVIRONMENT, REASON_WORLD_MISMATCH, ServeRequest
from shardwright.runner.log import say
from shardwright.runner.processes import kill_group
from shardwright.runner.serve import view as views
from shardwright.runner.serve.agent import (
    beat_message,
    exit_message,
    output_message,
    refused_message,
)
from shardwright.runner.serve.cause import (
    Cause,
    first_cause,
    heard,
    launcher_ended,
    peer_lost,
)
from shardwright.runner.serve.daemon_line import DaemonCommand, LineError, from_message
from shardwright.runner.serve.frames import ChannelError
from shardwright.runner.serve.handshake import Session
from shardwright.runner.serve.meet import PeerDown, PeerSaid, PeerUp, call_leader
from shardwright.runner.serve.mpi import MPI, settings
from shardwright.runner.serve.net import interface_of, resolve
from shardwright.runner.serve.pod import Pod, Surroundings, Told
from shardwright.runner.serve.secret import Token

DAEMON = "mpi daemon"
# A leader that was asked to drain ends this long after its own deadline at the latest.
DRAIN_MARGIN_SECONDS = 5.0


@dataclass(frozen=True)
class Launch:
    """The leader's mpirun asks for its daemon here."""

    session: Session
    command: DaemonCommand


@dataclass(frozen=True)
class LaunchGone:
    """The agent that asked for the daemon is gone."""

    session: Session


def serve_launch(
    session: Session, told: Callable[[Launch | LaunchGone], None], timeout_seconds: float
) -> None:
    """Read what an agent asks for; stay until it is gone. In the session's own thread."""
    try:
        message = session.receive(timeout_seconds)
        try:
            command = _asked(session.peer, message)
        except LineError as error:
            say("a daemon was refused", stage=session.peer, why=str(error))
            session.send(refused_message(str(error)))
            return
        told(Launch(session, command))
        while True:
            session.receive(365 * 86400.0)
    except ChannelError:
        told(LaunchGone(session))


def _asked(stage: int, message: dict[str, Any]) -> DaemonCommand:
    """The daemon that a stage asks for.

    Raises:
        LineError: It asks for something else, or is not the one that may.
    """
    if stage != 0:
        raise LineError(f"stage {stage} starts no daemons, stage 0 does")
    start = message.get("start")
    if not isinstance(start, dict):
        raise LineError("no daemon is named")
    return from_message(start)


class Worker(Pod):
    """A runner that follows the leader."""

    def __init__(
        self,
        request: ServeRequest,
        around: Surroundings,
        order: Mapping[str, Any],
        gpus: tuple[str, ...],
        found: MPI | None,
        token: Token | None,
    ) -> None:
        """As a pod's; `token` is the incarnation's.

        Raises:
            ValueError: There is no token: a worker without a leader to call is none.
        """
        super().__init__(request, around, order, gpus, found)
        if token is None:
            raise ValueError("a worker needs the token of its incarnation")
        self._token = token

    def begin(self) -> None:
        """Call the leader."""
        self._leader: Session | None = None
        self._launch: Session | None = None
        self._verdict: tuple[Cause | None] | None = None
        self._decide_at: float | None = None
        self._drain_until: float | None = None
        self._meet_until = time.monotonic() + self.request.peer_deadline_seconds
        if self.request.by_mpi:
            self.listen_to_ranks()
        arguments = (self.request, self._token, self.events.put, self.closed)
        threading.Thread(target=call_leader, args=arguments, name="leader", daemon=True).start()

    def take(self, event: object) -> None:
        """Do what the leader or a signal asks for."""
        if isinstance(event, PeerUp):
            say("the leader is connected", address=event.session.address)
            self._leader = event.session
            self.view = replace(self.view, detail="connected, waiting for the other stages")
        elif isinstance(event, PeerSaid):
            self._leader_said(event.message)
        elif isinstance(event, PeerDown):
            self._leader_gone(event.why)
        elif isinstance(event, Launch):
            self._start_daemon(event)
        elif isinstance(event, LaunchGone):
            self._end_daemon(event.session)
        elif isinstance(event, Told):
            self._drain(event.number)

    def child_ended(self, ended: Exit) -> None:
        """The server's or the daemon's end is the group's."""
        super().child_ended(ended)
        if ended.name == DAEMON:
            if self._launch is not None:
                self._tell(self._launch, exit_message(ended.code))
            now = time.monotonic()
            self.blame(launcher_ended(self.request.stage, DAEMON, ended.code, ended.tail, now))

    def end_peers(self) -> None:
        """The leader has been told, or is gone."""

    def misplaced(self, problem: str) -> None:
        """Ranks in other places than asked for would load each other's weights."""
        stage, now = self.request.stage, time.monotonic()
        self.blame(Cause(stage, -1, ENVIRONMENT, REASON_WORLD_MISMATCH, problem, "", now))

    def blame(self, cause: Cause) -> None:
        """Tell the leader, who knows whose cause came first, and wait for its word."""
        self.causes.append(cause)
        say("cause", stage=cause.stage, rank=cause.rank, reason=cause.reason, why=cause.message)
        now = time.monotonic()
        if self._leader is not None:
            self._tell(self._leader, {"cause": cause.told(now)})
        if self._decide_at is None:
            waits = self.pace.verdict if self._leader is not None else self.pace.settle
            self._decide_at = now + waits

    def over(self, now: float) -> tuple[Cause | None] | None:
        """Over when the leader says so, or when it cannot any more."""
        if self._verdict is not None:
            return self._verdict
        if self._decide_at is not None and now >= self._decide_at:
            return (first_cause(self.causes),)
        if self._drain_until is not None and now >= self._drain_until:
            say("the leader has not ended in time")
            return (None,)
        if self.view.phase == views.MEETING and self._leader is None and now >= self._meet_until:
            why = f"not there within {self.request.peer_deadline_seconds} s"
            return (peer_lost(self.request.stage, 0, why, now),)
        return None

    def beat(self, now: float) -> None:
        """Tell the leader, and the agent whose daemon runs here."""
        connected = (0,) if self._leader is not None else ()
        self.view = replace(
            self.view,
            peers=connected,
            rows=self.own_rows,
            links={str(self.request.stage): self.own_links},
        )
        if self._launch is not None:
            self._tell(self._launch, beat_message())
        if self._leader is None:
            return
        state = {
            "rows": [row.told() for row in self.own_rows],
            "links": self.own_links,
            "signAge": round(now - self.last_sign, 3),
        }
        self._tell(self._leader, {"state": state})
        if self.process_missing():
            self._tell(self._leader, {"look": True})

    def _leader_said(self, message: dict[str, Any]) -> None:
        if "end" in message:
            self._verdict = (self._heard(message["end"]),)
        elif "go" in message and self.view.phase == views.MEETING:
            self.phase(views.STARTING)
            self.start_server()
        elif "state" in message:
            phase = str((message["state"] or {}).get("phase", ""))
            if phase == views.SERVING and self.view.phase == views.STARTING:
                self.phase(views.SERVING)
                self.watch_processes()

    def _heard(self, raw: dict[str, Any] | None) -> Cause | None:
        if raw is None:
            return None
        try:
            return heard(raw, time.monotonic())
        except (KeyError, TypeError, ValueError) as error:
            say("the leader's cause cannot be read", error=repr(error))
            return peer_lost(self.request.stage, 0, "it ended the group", time.monotonic())

    def _leader_gone(self, why: str) -> None:
        say("the leader is gone", why=why)
        self._leader = None
        if self._drain_until is not None:
            self._drain_until = time.monotonic()
            return
        now = time.monotonic()
        self.causes.append(peer_lost(self.request.stage, 0, why, now))
        # Nobody is left to wait for; what happened here in the same moment may still be told.
        self._decide_at = min(self._decide_at or now + self.pace.settle, now + self.pace.settle)

    def _drain(self, number: int) -> None:
        """The leader goes first: it is asked to drain, and its end is waited for."""
        if self._drain_until is not None:
            return
        self.phase(views.DRAINING, f"signal {number}")
        waits = 0.0
        if self._leader is not None:
            self._tell(self._leader, {"drain": True})
            waits = self.request.drain_timeout_seconds + DRAIN_MARGIN_SECONDS
        self._drain_until = time.monotonic() + waits

    def _start_daemon(self, event: Launch) -> None:
        if self._launch is not None or self.view.phase != views.MEETING:
            why = f"no daemon is started here now: {self.view.phase}"
            self._tell(event.session, refused_message(why))
            event.session.close()
            return
        self.phase(views.STARTING)
        self._launch = event.session
        base = dict(self.environment)
        if self.mpi is not None:
            base.update(settings(self.mpi, "", self._interface(), self.environment))
        env = event.command.environment(base)
        self.start(DAEMON, event.command.argv, env, self._daemon_printed)

    def _interface(self) -> str:
        try:
            return interface_of(resolve(self.request.peers[self.request.stage]))
        except OSError:
            return ""  # no name of our own: Open MPI looks at all interfaces then

    def _daemon_printed(self, line: bytes) -> None:
        if self._launch is not None:
            self._tell(self._launch, output_message(line))

    def _end_daemon(self, session: Session) -> None:
        if session is not self._launch:
            return
        self._launch = None
        pid = self.children.running(DAEMON)
        if pid is not None:
            say("mpirun has let go of its daemon here", pid=pid)
            kill_group(pid, 15)

    def _tell(self, session: Session, message: dict[str, Any]) -> None:
        try:
            session.send(message)
        except ChannelError as error:
            # Whoever reads the session hears of its end as well, as an event.
            say("a peer cannot be told", stage=session.peer, error=str(error))
