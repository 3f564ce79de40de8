"""Stage 0's runner: waits for the others, starts the ranks, watches the engine, ends the group."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.runner.children import Exit
from shardwright.runner.contract import (
    ADAPTERS_FILE,
    ENVIRONMENT,
    MPI_TOOLS,
    REASON_RANK_FAILED,
    REASON_WORLD_MISMATCH,
)
from shardwright.runner.log import say
from shardwright.runner.serve import inflight, mpi
from shardwright.runner.serve import view as views
from shardwright.runner.serve.adapters import AdapterKeeper
from shardwright.runner.serve.cause import (
    Cause,
    first_cause,
    heard,
    hung,
    launcher_ended,
    left_by_server,
    peer_lost,
)
from shardwright.runner.serve.drain import CUT, WAIT, Draining, drain_verdict, hang, stall
from shardwright.runner.serve.frames import ChannelError
from shardwright.runner.serve.handshake import Session
from shardwright.runner.serve.launcher import Server
from shardwright.runner.serve.meet import (
    NamesFound,
    PeerDown,
    PeerSaid,
    PeerUp,
    Waiting,
    find_names,
)
from shardwright.runner.serve.net import interface_of
from shardwright.runner.serve.places import AGENT_PROGRAM, RANK_PROGRAM
from shardwright.runner.serve.pod import Pod, Told
from shardwright.runner.serve.probe import Prober
from shardwright.runner.serve.view import RankRow, row_heard

MPIRUN = "mpirun"


class Leader(Pod):
    """The runner that the group's fate hangs on."""

    def begin(self) -> None:
        """Wait for the workers, or start at once where there are none."""
        self._peers: dict[int, Session] = {}
        self._peer_rows: dict[int, tuple[RankRow, ...]] = {}
        self._peer_links: dict[int, Any] = {}
        self._peer_signs: dict[int, float] = {}
        self._addresses: tuple[str, ...] = ()
        self._prober: Prober | None = None
        self._adapters: AdapterKeeper | None = None
        self._adapters_until = 0.0
        # From the first on: a pod is never ready for the moment before its adapters are looked at.
        self.view = replace(self.view, loading_adapters=self.request.adapters is not None)
        self._draining: Draining | None = None
        self._settle_at: float | None = None
        self._missing_at: float | None = None
        self._rows_before: tuple[RankRow, ...] = ()
        argv = self.order["argv"]
        launches = self.request.by_mpi and self.request.command.tool in MPI_TOOLS
        self._server = Server(argv) if launches and len(argv) > 1 else None
        self._waiting = Waiting()
        self._meet_until = time.monotonic() + self.request.peer_deadline_seconds
        if self.request.pipeline > 1:
            names = (self.request.peers, self.events.put, self.closed)
            threading.Thread(target=find_names, args=names, name="names", daemon=True).start()
        if self.request.by_mpi:
            self.listen_to_ranks()

    def take(self, event: object) -> None:
        """Do what a peer or a signal asks for."""
        if isinstance(event, PeerUp):
            self._peer_up(event)
        elif isinstance(event, PeerSaid):
            self._peer_said(event)
        elif isinstance(event, PeerDown):
            self._peer_down(event)
        elif isinstance(event, NamesFound):
            self._addresses = event.addresses
        elif isinstance(event, Told):
            self._drain(f"signal {event.number}")

    def child_ended(self, ended: Exit) -> None:
        """The server's or mpirun's end is the group's."""
        super().child_ended(ended)
        if ended.name == MPIRUN:
            now = time.monotonic()
            self.blame(launcher_ended(self.request.stage, MPIRUN, ended.code, ended.tail, now))

    def misplaced(self, problem: str) -> None:
        """Ranks in other places than asked for would load each other's weights."""
        stage, now = self.request.stage, time.monotonic()
        self.blame(Cause(stage, -1, ENVIRONMENT, REASON_WORLD_MISMATCH, problem, "", now))

    def blame(self, cause: Cause) -> None:
        """Keep it; which of the causes was first is settled a moment later."""
        if not self.causes:
            self._settle_at = time.monotonic() + self.pace.settle
        self.causes.append(cause)
        say("cause", stage=cause.stage, rank=cause.rank, reason=cause.reason, why=cause.message)

    def over(self, now: float) -> tuple[Cause | None] | None:
        """Over when a cause has settled, when a drain is done, or when nobody came."""
        if self._settle_at is not None:
            return (first_cause(self.causes),) if now >= self._settle_at else None
        if self.view.phase == views.MEETING:
            return self._meet(now)
        if self._draining is not None:
            return self._drained(now)
        return None

    def beat(self, now: float) -> None:
        """Tell the workers, and look for what hangs."""
        rows = (*self.own_rows, *(row for part in self._peer_rows.values() for row in part))
        self.view = replace(
            self.view, peers=tuple(sorted(self._peers)), rows=rows, links=self._links()
        )
        self._send_all({"state": {"phase": self.view.phase}})
        if self._prober is not None:
            answer = self._prober.answer
            self.view = replace(
                self.view, generated_at=answer.generated_at, healthy_at=answer.healthy_at
            )
            if self.view.phase == views.STARTING and answer.generated_at is not None:
                self.phase(views.SERVING)
                self.watch_processes()
                self._keep_adapters()
        if self._adapters is not None:
            waits = not self._adapters.looked and now < self._adapters_until
            told = self._adapters.heard.told()
            self.view = replace(self.view, adapters=told, loading_adapters=waits)
        self._look_for_hangs(now)
        self._look_at_server(now)
        self._rows_before = rows

    def end_peers(self) -> None:
        """The workers' words and ends follow from this one."""
        verdict = first_cause(self.causes)
        now = time.monotonic()
        self._send_all({"end": verdict.told(now) if verdict else None})
        self._ask_no_more()

    def _ask_no_more(self) -> None:
        """Whatever asks the engine by itself stops."""
        if self._prober is not None:
            self._prober.close()
        if self._adapters is not None:
            self._adapters.close()

    def _keep_adapters(self) -> None:
        """Once the engine serves, where it takes adapters."""
        serving = self.request.adapters
        if serving is not None:
            table = Path(self.places.adapters) / ADAPTERS_FILE
            store = Path(self.places.store)
            self._adapters = AdapterKeeper(serving, table, store, self.request.http_port)
            self._adapters_until = time.monotonic() + self.pace.adapters

    def _meet(self, now: float) -> tuple[Cause | None] | None:
        missing = sorted(set(range(1, self.request.pipeline)) - set(self._peers))
        if not missing and (self._addresses or self.request.pipeline == 1):
            self._start()
            return None
        what = f"stages {missing}" if missing else "names of the stages"
        self._waiting.tell(what, "not connected yet" if missing else "do not resolve yet")
        self.view = replace(self.view, detail=f"waiting for {what}")
        if now < self._meet_until:
            return None
        seconds = self.request.peer_deadline_seconds
        why = f"not there within {seconds} s"
        return (peer_lost(0, missing[0] if missing else 0, why, now),)

    def _start(self) -> None:
        """All are there: start mpirun, or let each stage start its own server."""
        self.phase(views.STARTING)
        if self.mpi is not None and self.request.by_mpi:
            self._start_mpirun(self.mpi)
        else:
            self._send_all({"go": True})
            self.start_server()
        self._prober = Prober(self.request, self.pace, lambda: None, mark=self.mark)

    def _start_mpirun(self, found: mpi.MPI) -> None:
        run, request = self.places.run, self.request
        # A stage alone has asked nobody for addresses, and needs no network.
        addresses = self._addresses or (mpi.HERE,)
        hosts = run / "hosts"
        hosts.write_text(mpi.hostfile(addresses, request.tensor), encoding="utf-8")
        stages = {address: stage for stage, address in enumerate(addresses)}
        self.places.world.write_text(json.dumps(stages), encoding="utf-8")
        interface = interface_of(addresses[0]) if self._addresses else ""
        command = mpi.command(
            str(hosts),
            str(run / RANK_PROGRAM),
            world_size=request.world_size,
            tensor=request.tensor,
            as_root=os.getuid() == 0,
        )
        ours = mpi.settings(found, str(run / AGENT_PROGRAM), interface, self.environment)
        say("forming the MPI world", version=found.text, hosts=stages, interface=interface)
        self.start(MPIRUN, command, {**self.environment, **ours}, self._launcher_printed)

    def _launcher_printed(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip("\0\n ")
        if text:
            say("mpirun", line=text)

    def _drain(self, why: str) -> None:
        """Out of the Service first; requests that run may finish."""
        if self._draining is not None or self._settle_at is not None:
            return
        served = self.view.phase == views.SERVING
        self.phase(views.DRAINING, why)
        self._ask_no_more()
        since = time.monotonic()
        if not served:
            since -= self.request.drain_timeout_seconds  # nothing was served: nothing to wait for
        self._draining = Draining(since)

    def _drained(self, now: float) -> tuple[Cause | None] | None:
        if self._draining is None:
            return None
        left = inflight.look(self.request.http_port)
        self._draining = self._draining.seen(left, now)
        verdict = drain_verdict(
            self._draining,
            now,
            timeout=self.request.drain_timeout_seconds,
            lame_duck=self.pace.lame_duck,
        )
        if verdict == WAIT:
            return None
        passed = round(now - self._draining.since, 1)
        cut = left if verdict == CUT else 0
        say("drained", verdict=verdict, seconds=passed, most=self._draining.most, cut=cut)
        return (None,)

    def _look_for_hangs(self, now: float) -> None:
        if self._prober is None or self._settle_at is not None or self._draining is not None:
            return
        if self.view.phase == views.STARTING:
            sign = max([self.last_sign, *self._peer_signs.values()])
            why = stall(sign, now, self.request.stall_seconds)
        else:
            why = hang(self._prober.answer, 0.0, now, self.request.hang_seconds)
            if self.process_missing():
                self.look_at_engine(now)
            if not why and self._missing_at is not None:
                self._judge_missing(self._missing_at, now)
        if why:
            found = views.suspects(self._rows_before, self.view.rows)
            stage, rank = (found[0].stage, found[0].rank) if found else (self.request.stage, -1)
            self.blame(hung(stage, rank, why, now))

    def _look_at_server(self, now: float) -> None:
        """Ranks that a failed server has left do not end by themselves."""
        if self._server is None or self._settle_at is not None or self._draining is not None:
            return
        self._server.look(self.below_rank(0))
        if self._server.gone:
            self.blame(left_by_server(self.request.stage, self.said(0), now))

    def look_at_engine(self, now: float) -> None:
        """A process of the engine has ended somewhere: ask for a token now."""
        if self._missing_at is None and self._prober is not None:
            self._missing_at = now
            self._prober.hurry()

    def _judge_missing(self, since: float, now: float) -> None:
        """A lost process is forgiven with the next token, and is the cause if none comes."""
        answer = self._prober.answer if self._prober else None
        if answer is None or (answer.generated_at or 0.0) > since:
            self._missing_at = None
        elif why := hang(answer, since, now, self.pace.missing):
            text = f"a process of the engine ended, and {why}"
            stage = self.request.stage
            self.blame(Cause(stage, -1, ENVIRONMENT, REASON_RANK_FAILED, text, "", since))

    def _peer_up(self, event: PeerUp) -> None:
        if event.stage in self._peers or self.view.phase != views.MEETING:
            say("a stage called twice, or too late", stage=event.stage)
            event.session.close()
            return
        say("a stage is connected", stage=event.stage, address=event.session.address)
        self._peers[event.stage] = event.session

    def _peer_said(self, event: PeerSaid) -> None:
        message, now = event.message, time.monotonic()
        try:
            if "state" in message:
                state = message["state"]
                self._peer_rows[event.stage] = tuple(row_heard(row) for row in state["rows"])
                self._peer_links[event.stage] = state["links"]
                self._peer_signs[event.stage] = now - float(state["signAge"])
            elif "cause" in message:
                self.blame(heard(message["cause"], now))
            elif "drain" in message:
                self._drain(f"stage {event.stage} was told to end")
            elif "look" in message:
                self.look_at_engine(now)
        except (KeyError, TypeError, ValueError) as error:
            say("a stage said what cannot be read", stage=event.stage, error=repr(error))

    def _peer_down(self, event: PeerDown) -> None:
        if self._peers.get(event.stage) is not event.session:
            return
        del self._peers[event.stage]
        self._peer_rows.pop(event.stage, None)
        say("a stage is gone", stage=event.stage, why=event.why)
        if self.view.phase != views.MEETING:
            self.blame(peer_lost(self.request.stage, event.stage, event.why, time.monotonic()))

    def _send_all(self, message: dict[str, Any]) -> None:
        for stage, session in list(self._peers.items()):
            try:
                session.send(message)
            except ChannelError as error:
                # Its reader says so too, as an event; nothing is decided here.
                say("a stage cannot be told", stage=stage, error=str(error))

    def _links(self) -> dict[str, Any]:
        found = {self.request.stage: self.own_links, **self._peer_links}
        return {str(stage): links for stage, links in sorted(found.items())}
