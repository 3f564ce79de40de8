"""Groups of two pods over real Open MPI: each its own network, host name, process 1 and /dev/shm.

What a rank runs is `serve_engine.py`: real MPI calls, no weights.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runner.serve_world import (
    GATE,
    HERE,
    HTTP,
    SECONDS,
    Pod,
    World,
    eventually,
    in_space,
    needs_mpi,
    needs_root,
    python,
    world,
)

from shardwright.runner.contract import Command
from shardwright.runner.serve.inflight import in_flight, read_table

pytestmark = [needs_mpi, pytest.mark.timeout(600)]

ENGINE = (python(), str(HERE / "serve_engine.py"), str(HTTP))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[World]:
    """A world of two stages with two tensor ranks each; nothing started."""
    with world(tmp_path, 2, 2, ENGINE) as made:
        yield made


def up(group: World) -> None:
    group.start(0)
    group.start(1)
    group.ready()


def generate(group: World, tokens: int) -> str:
    body = json.dumps({"prompt": "x", "max_tokens": tokens}).encode()
    asked = urllib.request.Request(
        f"http://{group.address(0)}:{HTTP}/v1/completions",
        body,
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:  # noqa: S310 - our own pod
        found: str = json.loads(answer.read())["choices"][0]["text"]
        return found


def test_ranks_form_one_world_without_ssh_in_the_order_that_engines_expect(group: World) -> None:
    up(group)
    leader, worker = group.pods
    # Sums over four ranks: 1 + 2 + 3 + 4. No rank is missing, none is there twice.
    assert generate(group, 3) == "10 10 10"
    table = [
        (row["rank"], row["stage"], row["tensorRank"], row["pod"], row["node"], row["gpu"])
        for row in leader.status()["ranks"]
    ]
    assert table == [
        (0, 0, 0, "m-0", "node-0", "4"),
        (1, 0, 1, "m-0", "node-0", "5"),
        (2, 1, 0, "m-1", "node-1", "4"),
        (3, 1, 1, "m-1", "node-1", "5"),
    ]
    assert leader.status()["stagesConnected"] == [0, 1]
    wanted = {"0": "RDMA", "1": "RDMA"}
    eventually(lambda: links(leader) == wanted, says=lambda: str(links(leader)))
    assert [row["rank"] for row in worker.status()["ranks"]] == [2, 3]
    # Each pod's log has its own ranks.
    leader.wait_for("[rank 0] loaded rank 0 of 4")
    worker.wait_for("[rank 3] loaded rank 3 of 4")
    assert "[rank 3]" not in leader.log()
    for pod in group.pods:
        assert group.token not in pod.log()


def links(leader: Pod) -> dict[str, str]:
    """What each stage says it reaches the others over."""
    return {stage: found["pipeline"] for stage, found in leader.status()["links"].items()}


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_killed_rank_ends_the_whole_group_and_is_named(group: World, rank: int) -> None:
    up(group)
    kept = group.spaces()
    os.kill(group.pods[rank // 2].engine(rank), signal.SIGSEGV)
    own, other = group.pods[rank // 2].end(), group.pods[1 - rank // 2].end()
    assert (own.outcome, own.reason, own.rank) == ("Environment", "RankFailed", rank)
    assert own.message == f"rank {rank} was ended by SIGSEGV"
    assert f"loaded rank {rank} of 4" in own.log_tail
    assert (other.reason, other.rank) == ("PeerLost", -1)
    assert f"stage {rank // 2}, rank {rank} went first: RankFailed" in other.message
    assert [in_space(space) for space in kept] == [[], []]


def test_a_stopped_rank_is_found_by_its_silence_and_named(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2, ENGINE, hang_seconds=10) as group:
        up(group)
        kept = group.spaces()
        os.kill(group.pods[1].engine(3), signal.SIGSTOP)
        own, other = group.pods[1].end(), group.pods[0].end()
        assert (own.reason, own.rank) == ("RankHung", 3)
        assert "no token was generated and no counter moved" in own.message
        assert "loaded rank 3 of 4" in own.log_tail
        assert "stage 1, rank 3 went first: RankHung" in other.message
        assert [in_space(space) for space in kept] == [[], []]


def test_a_rank_that_crashes_at_its_start_is_named_with_its_log(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '2':\n"
        "    raise ValueError('weights of layer 7 are missing')\n"
        "time.sleep(600)\n"
    )
    with world(tmp_path, 2, 2, (python(), "-c", code)) as group:
        group.start(0)
        group.start(1)
        own, other = group.pods[1].end(), group.pods[0].end()
        assert (own.reason, own.rank) == ("RankFailed", 2)
        assert own.log_tail.endswith("ValueError: weights of layer 7 are missing")
        assert other.reason == "PeerLost"


@pytest.mark.parametrize("stage", [0, 1])
def test_a_killed_runner_is_a_lost_peer_for_the_other_and_leaves_nothing(
    group: World, stage: int
) -> None:
    up(group)
    kept = group.spaces()
    group.pods[stage].signal(signal.SIGKILL)
    other = group.pods[1 - stage].end()
    assert other.reason == "PeerLost"
    assert f"lost stage {stage}" in other.message
    group.pods[stage].process.wait(SECONDS)
    assert [in_space(space) for space in kept] == [[], []]


def test_a_pod_that_is_cut_off_ends_and_so_does_the_other(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2, ENGINE, peer_timeout_seconds=6) as group:
        up(group)
        kept = group.spaces()
        group.cut(1)
        reports = [pod.end() for pod in group.pods]
        assert [report.reason for report in reports] == ["PeerLost", "PeerLost"]
        assert [in_space(space) for space in kept] == [[], []]


def test_a_killed_agent_ends_the_group(group: World) -> None:
    up(group)
    kept = group.spaces()
    [agent] = group.pods[0].running("/mpi-agent")
    os.kill(agent, signal.SIGKILL)
    reports = [pod.end() for pod in group.pods]
    assert {report.outcome for report in reports} == {"Environment"}
    assert [in_space(space) for space in kept] == [[], []]


def test_a_slow_peer_is_waited_for_and_nothing_is_restarted(group: World) -> None:
    leader = group.start(0)
    eventually(lambda: leader.get("/healthz")[0] == 200)
    time.sleep(6)
    code, why = leader.get("/readyz")
    assert (code, why) == (503, "not ready: meeting: waiting for stages [1]\n")
    assert leader.process.poll() is None
    group.start(1)
    group.ready()
    assert generate(group, 1) == "10"
    # Once, and again after half a minute.
    assert {line["waited_for"] for line in leader.said("waiting")} == {"stages [1]"}


def test_a_peer_that_never_comes_ends_the_wait_at_its_deadline(tmp_path: Path) -> None:
    with world(tmp_path, 2, 2, ENGINE, peer_deadline_seconds=2) as group:
        report = group.start(0).end()
        assert report.reason == "PeerLost"
        assert "lost stage 1: not there within 2 s" in report.message


def test_a_pod_with_another_token_or_of_another_incarnation_is_not_let_in(group: World) -> None:
    leader = group.start(0)
    wrong = group.start(1, token="f" * 64)
    eventually(lambda: "does not know this incarnation's token" in wrong.log())
    wrong.signal(signal.SIGKILL)
    wrong.process.wait(SECONDS)
    older = group.start(1, incarnation=2)
    eventually(lambda: "its incarnation differs" in older.log(), says=older.log)
    assert leader.status()["stagesConnected"] == [0]
    assert leader.get("/readyz")[0] == 503
    for pod in group.pods:
        assert group.token not in pod.log()
        assert "f" * 64 not in pod.log()


def clients(group: World, count: int, tokens: int) -> tuple[list[threading.Thread], list[str]]:
    """Requests under way; the list fills with their answers or errors."""
    found: list[str] = []

    def one() -> None:
        try:
            found.append(generate(group, tokens))
        except OSError as error:
            found.append(f"failed: {error}")

    threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, found


@pytest.mark.parametrize("told", ["leader", "worker", "both"])
def test_a_drain_takes_the_group_out_first_and_lets_running_requests_finish(
    tmp_path: Path, told: str
) -> None:
    with world(tmp_path, 2, 2, ENGINE, drain_timeout_seconds=600) as group:
        drained(group, told, tmp_path / "gate")


def drained(group: World, told: str, gate: Path) -> None:
    group.environment = {GATE: str(gate)}
    up(group)
    leader, worker = group.pods
    kept = group.spaces()
    threads, found = clients(group, 8, 20)
    leader.wait_for("waits at the gate", len(threads))
    table = Path(f"/proc/{leader.init}/net/tcp")
    assert in_flight(read_table(table.read_text()), HTTP) >= len(threads)
    if told in ("worker", "both"):
        worker.signal(signal.SIGTERM)
    if told in ("leader", "both"):
        leader.signal(signal.SIGTERM)
    eventually(lambda: leader.get("/readyz")[0] == 503)
    assert leader.get("/healthz")[0] == 200
    assert worker.process.poll() is None
    assert found == []
    gate.touch()
    for thread in threads:
        thread.join(SECONDS)
    assert found == [" ".join(["10"] * 20)] * 8
    assert [pod.end().outcome for pod in group.pods] == ["Done", "Done"]
    assert [pod.process.returncode for pod in group.pods] == [0, 0]
    assert [in_space(space) for space in kept] == [[], []]


def test_a_pod_told_to_end_while_it_waits_ends_at_once(tmp_path: Path) -> None:
    waits = {"peer_deadline_seconds": 600, "drain_timeout_seconds": 600}
    with world(tmp_path, 2, 2, ENGINE, **waits) as group:
        leader = group.start(0)
        eventually(lambda: leader.get("/healthz")[0] == 200)
        leader.signal(signal.SIGTERM)
        # Long before either of them.
        assert leader.end().outcome == "Done"


def test_shared_memory_of_a_killed_group_is_removed_before_the_pod_ends(group: World) -> None:
    up(group)
    leader = group.pods[0]
    inside = Path(f"/proc/{leader.init}/root/dev/shm")
    (inside / "nccl-leftover").write_text("x" * 1000)
    os.kill(leader.engine(1), signal.SIGKILL)
    assert leader.end().reason == "Killed"
    [removed] = leader.said("shared memory of ended ranks was removed")
    assert "nccl-leftover" in removed["names"]


@needs_root
@pytest.mark.parametrize(
    ("tool", "first"), [("vllm", "--node-rank"), ("sglang", "--dist-init-addr")]
)
def test_engines_that_need_no_mpi_go_through_the_same_waiting_health_and_drain(
    tmp_path: Path, tool: str, first: str
) -> None:
    code = (
        "import http.server, sys\n"
        "print('argv', *sys.argv[1:], flush=True)\n"
        f"sys.argv = ['e', '{HTTP}']\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import serve_engine\n"
        f"serve_engine.main({HTTP})\n"
    )
    flags = {
        "vllm": ("--nnodes", "{stages}", "--node-rank", "{stage}", "--master-addr", "{leader}"),
        "sglang": (
            "--nnodes",
            "{stages}",
            "--node-rank",
            "{stage}",
            "--dist-init-addr",
            "{leader}:5",
        ),
    }[tool]
    command = Command(tool, (python(), "-c", code, *flags))
    with world(tmp_path, 2, 2, (), command=command) as group:
        leader = group.start(0)
        time.sleep(2)
        assert "[rank" not in leader.log()
        worker = group.start(1)
        group.ready()
        leader.wait_for(first)
        wanted = "--node-rank 0" if tool == "vllm" else "--dist-init-addr m-0.m-ranks.test.svc:5"
        assert wanted in leader.log()
        worker.wait_for("--node-rank 1")
        assert [row["rank"] for row in leader.status()["ranks"]] == [0, 1, 2, 3]
        worker.signal(signal.SIGTERM)
        assert [pod.end().outcome for pod in group.pods] == ["Done", "Done"]


def test_a_server_of_one_stage_that_dies_ends_the_other_stage(tmp_path: Path) -> None:
    command = Command("vllm", (python(), str(HERE / "serve_engine.py"), str(HTTP)))
    with world(tmp_path, 1, 2, (), command=command) as group:
        up(group)
        kept = group.spaces()
        [victim] = group.pods[1].running("serve_engine.py")
        os.kill(victim, signal.SIGKILL)
        own, other = group.pods[1].end(), group.pods[0].end()
        assert (own.reason, own.message) == ("Killed", "the engine's server was ended by SIGKILL")
        assert "stage 1 went first: Killed" in other.message
        assert [in_space(space) for space in kept] == [[], []]
