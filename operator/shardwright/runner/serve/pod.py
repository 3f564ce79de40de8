"""What a leader's and a worker's runner have in common: one pod's ranks, its view, its end.

One thread, that of `Pod.run`, owns everything here. Other threads only put events into the queue;
it takes them one by one, and looks around every beat. What an event means is decided by pure
functions of `cause`, `drain` and `view`; here it is done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from shardwright.runner.children import Children, Exit
from shardwright.runner.contract import Report, ServeRequest
from shardwright.runner.log import say
from shardwright.runner.processes import Process, all_processes, below, read_bytes
from shardwright.runner.serve import view as views
from shardwright.runner.serve.cause import Cause, rank_ended, report, server_ended
from shardwright.runner.serve.devices import topology
from shardwright.runner.serve.links import judge
from shardwright.runner.serve.mpi import MPI
from shardwright.runner.serve.nccl import Ways
from shardwright.runner.serve.places import Pace, Places
from shardwright.runner.serve.prepare import order_of
from shardwright.runner.serve.ranks import RankEnded, RankMisplaced, RankServer, RankStarted
from shardwright.runner.serve.shm import remove_leftovers
from shardwright.runner.serve.table import rank_rows
from shardwright.runner.serve.view import RankRow, View
from shardwright.runner.steps.around import MemoryWatch

SERVER = "server"
_TAIL_LINES = 120
# Less is a heartbeat of the engine's own, and no sign that weights are being loaded.
_READ_SIGN_BYTES = 256 * 1024


@dataclass(frozen=True)
class Told:
    """SIGTERM or SIGINT has come."""

    number: int


@dataclass(frozen=True)
class Surroundings:
    """What a pod's runner works with: where things are, its pace, environment and event queue.

    `mark` gives a text that changes as the engine makes progress; None: nobody reads its metrics.
    """

    places: Places
    pace: Pace
    environment: dict[str, str]
    events: SimpleQueue[Any]
    mark: Callable[[], str] | None = None


class Pod(ABC):
    """One serving pod's runner, from the moment that its checks have passed."""

    def __init__(
        self,
        request: ServeRequest,
        around: Surroundings,
        order: Mapping[str, Any],
        gpus: tuple[str, ...],
        found: MPI | None,
    ) -> None:
        """Take over.

        Args:
            request: What the pod is asked to do.
            around: What it works with.
            order: What ranks, or the stage's server, run (`prepare.order`).
            gpus: What to call the pod's devices, by local rank.
            found: The image's Open MPI, where it starts the ranks.
        """
        self.request, self.places, self.pace = request, around.places, around.pace
        self.environment, self.events = around.environment, around.events
        self.mark = around.mark
        self.order, self.mpi = order, found
        self.children = Children()
        self.closed = threading.Event()
        self.causes: list[Cause] = []
        self.last_sign = time.monotonic()
        self._gpus = gpus
        self._started_at = time.monotonic()
        self._ranks: dict[int, RankStarted] = {}
        self._tails: dict[int, deque[str]] = {}
        self._ways = Ways()
        self._topology = topology() if request.tensor > 1 else None
        self._memory = MemoryWatch()
        self._read = 0
        self._rank_server: RankServer | None = None
        self._watched: dict[int, int] = {}
        self._beat_at = 0.0
        self.own_rows = self._rows([])
        self.own_links: dict[str, Any] = {}
        self.view = View(
            request.deployment,
            request.replica,
            request.incarnation,
            request.stage,
            request.tensor,
            request.pipeline,
            views.MEETING,
            engine=request.stage == 0,
            rows=self.own_rows,
        )

    def run(self) -> Report:
        """Go on until the pod's part is over; nothing below it lives afterwards."""
        verdict = None
        try:
            self.begin()
            while True:
                self._take_events()
                ended = self.over(time.monotonic())
                if ended is not None:
                    verdict = ended[0]
                    break
        finally:
            self.closed.set()
            self.phase(views.ENDING)
            self._clean_up()
        return report(self._with_tail(verdict), self.request, self._seconds())

    @abstractmethod
    def begin(self) -> None:
        """Start what waits for the others."""

    @abstractmethod
    def take(self, event: object) -> None:
        """Do what an event of the channel or a signal asks for."""

    @abstractmethod
    def beat(self, now: float) -> None:
        """Look around, and tell peers."""

    @abstractmethod
    def over(self, now: float) -> tuple[Cause | None] | None:
        """None while the pod goes on; else whose fault its end is, None for nobody's."""

    @abstractmethod
    def blame(self, cause: Cause) -> None:
        """Something here has ended the group."""

    @abstractmethod
    def end_peers(self) -> None:
        """Tell the others, before this pod's own processes are ended."""

    def phase(self, phase: str, detail: str = "") -> None:
        """Go on to another phase, and say so."""
        if self.view.phase != phase:
            say("phase", phase=phase, detail=detail, seconds=self._seconds())
        self.view = replace(self.view, phase=phase, detail=detail)

    def listen_to_ranks(self) -> None:
        """Let rank programs come. Before mpirun is started anywhere."""
        self._rank_server = RankServer(
            self.places.socket, self.request, self.order, self.events.put, self._printed
        )

    def start_server(self) -> None:
        """Start this stage's own server, which runs its ranks itself."""
        first = self.request.stage * self.request.tensor
        own = order_of(self.order, first)
        env = {**self.environment, **own["env"]}
        pid = self.start(SERVER, own["argv"], env, lambda line: self._printed(first, line))
        for local in range(self.request.tensor if pid else 0):
            self._ranks[first + local] = RankStarted(first + local, local, pid)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        passed: Callable[[bytes], None],
    ) -> int:
        """Start a child; one that cannot be started is blamed. Returns its process id, or 0."""
        try:
            pid = self.children.start(name, argv, env, passed)
        except OSError as error:
            why = f"{argv[0]} cannot be started: {error}"
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self.blame(server_ended(self.request.stage, code, why, time.monotonic()))
            return 0
        say("started", name=name, pid=pid, command=list(argv))
        self.last_sign = time.monotonic()
        return pid

    def child_ended(self, ended: Exit) -> None:
        """What the end of a child means; leaders and workers have more of them than the server."""
        if ended.name == SERVER:
            now, oom = time.monotonic(), bool(self._memory.kills())
            self.blame(
                server_ended(self.request.stage, ended.code, ended.tail, now, oom_killed=oom)
            )

    def watch_processes(self) -> None:
        """From now on the end of any process below is a reason to look at the engine at once."""
        self._watched = {p.pid: p.started for p in below(os.getpid(), all_processes())}

    def process_missing(self) -> bool:
        """Whether one of the watched processes has ended since the last question."""
        living = {p.pid: p.started for p in below(os.getpid(), all_processes())}
        gone = [pid for pid, began in self._watched.items() if living.get(pid) != began]
        for pid in gone:
            del self._watched[pid]
        return bool(gone)

    def below_rank(self, rank: int) -> list[Process]:
        """What lives below the program of one of this pod's ranks."""
        started = self._ranks.get(rank)
        return below(started.pid, all_processes()) if started is not None else []

    def said(self, rank: int) -> str:
        """The end of a rank's log."""
        return "\n".join(self._tails.get(rank, ()))

    def _take_events(self) -> None:
        try:
            event = self.events.get(timeout=0.1)
        except Empty:
            event = None
        if isinstance(event, RankStarted):
            say("rank started", rank=event.rank, local=event.local, pid=event.pid)
            self._ranks[event.rank] = event
            self.last_sign = time.monotonic()
        elif isinstance(event, RankEnded):
            self._rank_ended(event)
        elif isinstance(event, RankMisplaced):
            self.misplaced(event.problem)
        elif event is not None:
            self.take(event)
        for ended in self.children.reap():
            say("ended", name=ended.name, pid=ended.pid, code=ended.code)
            self.child_ended(ended)
        now = time.monotonic()
        if now - self._beat_at >= self.pace.beat:
            self._beat_at = now
            self._look_around()
            self.beat(now)

    @abstractmethod
    def misplaced(self, problem: str) -> None:
        """Open MPI has started ranks otherwise than it was asked to."""

    def _rank_ended(self, event: RankEnded) -> None:
        started = self._ranks.pop(event.rank, None)
        say("rank ended", rank=event.rank, code=event.code, known=started is not None)
        self.blame(
            rank_ended(
                self.request.stage,
                event.rank,
                event.code,
                event.tail,
                time.monotonic(),
                oom_killed=bool(self._memory.kills()),
            )
        )

    def _printed(self, rank: int, line: bytes) -> None:
        """A line of a rank, in another thread: to the pod's log, and looked at."""
        self.last_sign = time.monotonic()
        text = line.decode("utf-8", "replace").rstrip("\n")
        self._tails.setdefault(rank, deque(maxlen=_TAIL_LINES)).append(text)
        self._ways.take(text)
        sys.stdout.write(f"[rank {rank}] {text}\n")
        sys.stdout.flush()

    def _look_around(self) -> None:
        processes = all_processes()
        read = read_bytes(process.pid for process in below(os.getpid(), processes))
        if abs(read - self._read) >= _READ_SIGN_BYTES:
            self.last_sign = time.monotonic()
        self._read = read
        links = judge(
            self.request.tensor, self.request.pipeline, self._topology, self._ways.found()
        )
        self.own_rows, self.own_links = self._rows(processes), links.told()

    def _rows(self, processes: Sequence[Process]) -> tuple[RankRow, ...]:
        pids = {rank: started.pid for rank, started in self._ranks.items()}
        return rank_rows(self.request, pids, self._gpus, self.environment, processes)

    def _with_tail(self, verdict: Cause | None) -> Cause | None:
        """The verdict with the end of the log of the rank it names, if that is ours."""
        if verdict is None or verdict.tail or verdict.stage != self.request.stage:
            return verdict
        return replace(verdict, tail=self.said(verdict.rank))

    def _clean_up(self) -> None:
        self.end_peers()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        left = self.children.end(self.pace.end, self.pace.gone)
        if left:
            say("processes are stuck in the kernel; the container's end waits for them", pids=left)
        if self._rank_server is not None:
            self._rank_server.close()
        removed = remove_leftovers(self.places.shm_path, os.getuid())
        if removed:
            say("shared memory of ended ranks was removed", names=removed)

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started_at, 1)
