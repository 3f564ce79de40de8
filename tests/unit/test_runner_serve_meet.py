"""Waiting for peers, meeting them, and the ranks of one's own pod."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shardwright_standin.ports import reserved
from tests.runner.serve_world import ROOT
from tests.support.serving import REQUEST as BASE

from shardwright.runner.serve.channel import ChannelServer
from shardwright.runner.serve.handshake import Identity, Session
from shardwright.runner.serve.meet import (
    NamesFound,
    PeerDown,
    PeerSaid,
    PeerUp,
    Waiting,
    call_leader,
    find_names,
    follow,
)
from shardwright.runner.serve.net import interface_of, resolve
from shardwright.runner.serve.places import Places, write_programs
from shardwright.runner.serve.ranks import (
    RankEnded,
    RankMisplaced,
    RankServer,
    RankStarted,
    placement_problem,
)
from shardwright.runner.serve.secret import Token
from shardwright.runner.serve.shm import remove_leftovers

TOKEN = Token(b"t" * 40)
REQUEST = replace(BASE, incarnation=4, peers=("127.0.0.1", "m-1"), peer_timeout_seconds=60)
LEADER = replace(REQUEST, stage=0)


def until(what: Any, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_names_are_waited_for_and_the_waiting_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwright.runner.serve.meet.RETRY_SECONDS", 0.01)
    asked: list[str] = []

    def look_up(name: str) -> str:
        asked.append(name)
        if name == "m-1" and asked.count("m-1") < 5:
            raise OSError("Name or service not known")
        return f"10.0.0.{len(name)}"

    found: list[NamesFound] = []
    find_names(("m-0", "m-1"), found.append, threading.Event(), look_up)
    assert found == [NamesFound(("10.0.0.3", "10.0.0.3"))]
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["waited_for"] for line in told] == ["m-1"]
    assert told[0]["why"] == "Name or service not known"


def test_waiting_ends_when_the_pod_does() -> None:
    closed = threading.Event()
    closed.set()

    def never(name: str) -> str:
        raise AssertionError(name)

    find_names(("m-0",), lambda _: None, closed, never)


def test_what_is_waited_for_is_told_when_it_changes_and_every_half_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = iter([0.0, 1.0, 2.0, 3.0, 20.0, 40.0])
    waiting = Waiting(lambda: next(clock))
    for what in ("a", "a", "b", "b", "b"):
        waiting.tell(what, "not there")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["waited_for"], line["seconds"]) for line in told] == [
        ("a", 1.0),
        ("b", 3.0),
        ("b", 40.0),
    ]


@contextmanager
def leader(token: Token, who: Identity, port: int = 0) -> Iterator[tuple[ChannelServer, list[Any]]]:
    events: list[Any] = []

    def accepted(session: Session) -> None:
        follow(session, events.append, 60.0)

    server = ChannelServer(port, token, who, accepted)
    try:
        yield server, events
    finally:
        server.close()


def test_a_worker_passes_by_another_incarnation_and_meets_its_own_leader(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shardwright.runner.serve.meet.RETRY_SECONDS", 0.05)
    events: list[Any] = []
    closed = threading.Event()
    told = ""

    def turned_away() -> bool:
        nonlocal told
        told += capsys.readouterr().out
        return "its incarnation differs" in told

    other = Identity.of(replace(LEADER, incarnation=3))
    with leader(TOKEN, other, reserved()) as (old, strangers):
        asked = replace(REQUEST, channel_port=old.port)
        thread = threading.Thread(
            target=call_leader, args=(asked, TOKEN, events.append, closed), daemon=True
        )
        thread.start()
        until(turned_away)
        assert events == []
        assert strangers == []
    with leader(TOKEN, Identity.of(LEADER), old.port) as (_, heard):
        until(lambda: any(isinstance(event, PeerUp) for event in events))
        until(lambda: heard)
        session = events[0].session
        session.send({"drain": True})
        until(lambda: PeerSaid(1, {"drain": True}) in heard)
        heard[0].session.send({"end": None})
        until(lambda: PeerSaid(0, {"end": None}) in events)
        heard[0].session.close()
        down = until(lambda: next((e for e in events if isinstance(e, PeerDown)), None))
        assert "closed" in down.why
    thread.join(60)
    assert not thread.is_alive()


def test_a_silent_leader_is_lost_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    hold = threading.Event()
    server = ChannelServer(0, TOKEN, Identity.of(LEADER), lambda _: hold.wait(300) and None)
    try:
        asked = replace(REQUEST, channel_port=server.port, peer_timeout_seconds=1)
        started = time.monotonic()
        call_leader(asked, TOKEN, events.append, threading.Event())
        assert time.monotonic() - started > 0.9
        assert isinstance(events[-1], PeerDown)
        assert "nothing came in time" in events[-1].why
    finally:
        hold.set()
        server.close()


def test_addresses_and_interfaces_of_this_machine() -> None:
    assert resolve("127.0.0.1") == "127.0.0.1"
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") == ""
    assert interface_of("2001:db8::77") == ""
    with pytest.raises(OSError, match=r".*"):
        resolve("no-such-name.invalid")


@pytest.mark.parametrize(
    ("rank", "local", "size", "words"),
    [
        (2, 0, 4, ""),
        (3, 1, 4, ""),
        (0, 0, 4, "rank 0 was started as number 0 on stage 1, which has ranks 2 to 3 in order"),
        (3, 0, 4, "rank 3 was started as number 0 on stage 1"),
        (2, 0, 2, "the MPI world has 2 ranks, tensor 2 × pipeline 2 needs 4"),
    ],
)
def test_a_rank_must_be_where_its_weights_are(rank: int, local: int, size: int, words: str) -> None:
    found = placement_problem(REQUEST, rank, local, size)
    assert bool(found) is bool(words)
    assert words in found


class Ranks:
    """A runner's side of the ranks of stage 1, and rank programs to start."""

    def __init__(self, folder: Path, argv: list[str], env: dict[str, str]) -> None:
        self.places = Places(scratch=str(folder))
        write_programs(self.places)
        self.events: list[Any] = []
        self.lines: list[tuple[int, bytes]] = []
        self.server = RankServer(
            self.places.socket,
            REQUEST,
            {"argv": argv, "env": env},
            self.events.append,
            lambda rank, line: self.lines.append((rank, line)),
        )

    def start(self, rank: int, local: int, size: int = 4) -> subprocess.Popen[bytes]:
        env = {
            "PATH": os.environ["PATH"],
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_SIZE": str(size),
        }
        return subprocess.Popen([str(self.places.run / "rank")], env=env)


@contextmanager
def ranks(folder: Path, code: str, env: dict[str, str] | None = None) -> Iterator[Ranks]:
    made = Ranks(folder, [sys.executable, "-c", code], env or {})
    try:
        yield made
    finally:
        made.server.close()


def ended(made: Ranks) -> RankEnded | None:
    return next((event for event in made.events if isinstance(event, RankEnded)), None)


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path is short enough for a socket's."""
    return tmp_path_factory.mktemp("r")


def test_a_rank_gets_its_command_and_environment_and_its_end_is_known_before_it_ends(
    short: Path,
) -> None:
    code = (
        "import os, sys; print('rank', os.environ['OMPI_COMM_WORLD_RANK'], os.environ['ASKED'], "
        "flush=True); print('ValueError: no', file=sys.stderr); sys.exit(3)"
    )
    with ranks(short, code, {"ASKED": "yes"}) as made:
        process = made.start(3, 1)
        assert process.wait(60) == 3
        found = ended(made)
        assert found is not None
        assert (found.rank, found.code) == (3, 3)
        assert found.tail.splitlines() == ["rank 3 yes", "ValueError: no"]
        assert made.events[0] == RankStarted(3, 1, process.pid)
        assert made.lines[0] == (3, b"rank 3 yes\n")


def test_a_signal_that_ends_a_rank_is_told(short: Path) -> None:
    with ranks(short, "import os; os.kill(os.getpid(), 11)") as made:
        assert made.start(2, 0).wait(60) == 128 + 11
        assert until(lambda: ended(made)).code == -11


def test_a_command_that_is_not_there_is_told(short: Path) -> None:
    made = Ranks(short, ["/no/such/engine"], {})
    try:
        assert made.start(2, 0).wait(60) == 127
        assert "/no/such/engine cannot be started" in until(lambda: ended(made)).tail
    finally:
        made.server.close()


def test_a_rank_that_is_told_to_end_ends_its_command(short: Path) -> None:
    with ranks(short, "import time; print('up', flush=True); time.sleep(60)") as made:
        process = made.start(2, 0)
        until(lambda: made.lines)
        process.terminate()
        assert process.wait(60) == 128 + 15
        assert until(lambda: ended(made)).code == -15


def test_a_killed_rank_program_takes_its_command_along(short: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with ranks(short, code) as made:
        process = made.start(2, 0)
        child = int(until(lambda: made.lines)[0][1])
        process.kill()
        process.wait(60)
        assert until(lambda: ended(made)).code == -9
        until(lambda: not Path(f"/proc/{child}").exists())


def test_a_misplaced_rank_is_refused_and_told(short: Path) -> None:
    with ranks(short, "print('never')") as made:
        assert made.start(0, 0).wait(60) == 1
        assert isinstance(until(lambda: made.events)[0], RankMisplaced)
        assert made.lines == []


def test_what_a_rank_leaves_running_does_not_hold_its_end_up(short: Path) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    with ranks(short, code) as made:
        assert made.start(2, 0).wait(60) == 0
        assert until(lambda: ended(made)).code == 0
        os.kill(int(until(lambda: made.lines)[0][1]), signal.SIGKILL)


PARENT = """
import sys, time, json
sys.path[:0] = [{root!r}]
from shardwright.runner.children import Children
children = Children()
lines = []
pid = children.start("work", json.loads(sys.argv[1]), {{"PATH": "/usr/bin:/bin"}}, lines.append)
deadline = time.monotonic() + float(sys.argv[2])
ended = []
while time.monotonic() < deadline and not ended:
    ended = children.reap()
    time.sleep(0.02)
left = children.end(0.5, 60.0)
print(json.dumps({{
    "ended": [[e.name, e.code, e.tail] for e in ended],
    "left": left,
    "lines": [line.decode() for line in lines],
}}))
"""


def parent(argv: list[str], seconds: float) -> dict[str, Any]:
    """Run a program as a child of a runner in a process of its own, then end everything below."""
    answer = subprocess.run(
        [sys.executable, "-c", PARENT.format(root=ROOT), json.dumps(argv), str(seconds)],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def alive(mark: str) -> list[str]:
    answer = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False)
    return answer.stdout.split()


def test_a_childs_end_its_output_and_code_are_known() -> None:
    found = parent(["sh", "-c", "echo one; echo two >&2; exit 7"], 20)
    assert found["ended"] == [["work", 7, "one\ntwo"]]
    assert found["lines"] == ["one\n", "two\n"]
    assert found["left"] == []


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep {mark}",
        "trap '' TERM; sleep {mark}; sleep {mark}",
        "setsid sleep {mark}",
        "(setsid sh -c 'trap \"\" TERM; sleep {mark}; sleep {mark}' &); sleep 0.3",
        "setsid sh -c '(setsid sleep {mark} &) ; sleep {mark}'",
    ],
    ids=["plain", "ignores-term", "own-session", "orphan-ignores-term", "generations"],
)
def test_nothing_below_the_runner_outlives_it(script: str) -> None:
    mark = f"{6000 + os.getpid() % 1000}.{abs(hash(script)) % 10**6}"
    found = parent(["sh", "-c", script.replace("{mark}", mark)], 1.0)
    assert found["left"] == []
    assert alive(f"sleep {mark}") == []


def test_shared_memory_of_a_known_kind_and_our_own_is_removed(tmp_path: Path) -> None:
    for name in ("nccl-abc", "psm_1", "sem.mp-1", "vader_segment.m-0.1", "keep", "model.bin"):
        (tmp_path / name).write_text("x")
    (tmp_path / "nccl-folder").mkdir()
    (tmp_path / "nccl-link").symlink_to(tmp_path / "keep")
    removed = remove_leftovers(tmp_path, os.getuid())
    assert removed == ["nccl-abc", "psm_1", "sem.mp-1", "vader_segment.m-0.1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "keep",
        "model.bin",
        "nccl-folder",
        "nccl-link",
    ]


def test_shared_memory_of_others_stays(tmp_path: Path) -> None:
    (tmp_path / "nccl-abc").write_text("x")
    assert remove_leftovers(tmp_path, os.getuid() + 1) == []
    assert remove_leftovers(tmp_path / "absent", os.getuid()) == []
