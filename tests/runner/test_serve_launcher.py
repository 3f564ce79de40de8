"""Launchers that leave their ranks behind: the runner ends `mpirun` and all that is below it.

`trtllm-llmapi-launch` is a shell script: rank 0 runs the server in the background, every rank its
worker, and a signal ends the shell alone (NVIDIA/TensorRT-LLM, tensorrt_llm/llmapi). The pods here
have no process namespace, so that no kernel ends for the runner what it has left.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.runner.serve_world import HERE, HTTP, Pod, World, eventually, needs_mpi, python, world

from shardwright.runner.processes import all_processes, below

pytestmark = [needs_mpi, pytest.mark.timeout(600)]

ENGINE = f"{python()} {HERE / 'serve_engine.py'} {HTTP}"
LAUNCHERS = {
    "signal ends the shell alone": f"{ENGINE} & wait",
    "ranks in sessions of their own": f"setsid {ENGINE} & wait",
    "ranks deaf to SIGTERM": f"env ENGINE_DEAF=1 setsid {ENGINE} & wait",
    "ranks whose parent has ended": f"(setsid {ENGINE} &) ; exec sleep 1000",
}


@contextmanager
def launched(folder: Path, script: str, **pace: float) -> Iterator[World]:
    """A group of 2 × 2 ranks, each below a shell of its own; ready."""
    with world(folder, 2, 2, ("sh", "-c", script), drain_timeout_seconds=5) as group:
        group.own_processes = False
        group.pace = {**group.pace, **pace}
        group.start(0)
        group.start(1)
        group.ready()
        yield group


def engines(group: World) -> list[int]:
    """Process ids of the ranks themselves."""
    return [
        pid
        for pid, words in group.left().items()
        if "serve_engine.py" in words and not words.startswith("sh ")
    ]


@pytest.mark.parametrize("script", LAUNCHERS.values(), ids=LAUNCHERS)
def test_after_sigterm_nothing_below_mpirun_is_left(tmp_path: Path, script: str) -> None:
    with launched(tmp_path, script) as group:
        assert len(engines(group)) == 4
        group.pods[0].signal(signal.SIGTERM)
        group.pods[1].signal(signal.SIGTERM)
        assert [pod.end().outcome for pod in group.pods] == ["Done", "Done"]
        # Not eventually: the runner's own end is the promise that the GPUs are free.
        assert group.left() == {}


def test_ranks_that_listen_end_before_they_are_killed(tmp_path: Path) -> None:
    """SIGTERM reaches the ranks below a shell that passes nothing on."""
    # Before it comes to SIGKILL, the test has failed.
    with launched(tmp_path, LAUNCHERS["signal ends the shell alone"], end=600.0) as group:
        group.pods[0].signal(signal.SIGTERM)
        assert [pod.end().outcome for pod in group.pods] == ["Done", "Done"]
        assert group.left() == {}


def test_a_killed_launcher_takes_its_rank_and_the_group_along(tmp_path: Path) -> None:
    with launched(tmp_path, LAUNCHERS["ranks deaf to SIGTERM"]) as group:
        runner = group.pods[1].process.pid
        shells = {
            process.pid
            for process in below(runner, all_processes())
            if group.left().get(process.pid, "").startswith("sh ")
        }
        os.kill(min(shells), signal.SIGKILL)
        own, other = group.pods[1].end(), group.pods[0].end()
        assert own.reason == "Killed"
        assert other.reason == "PeerLost"
        assert group.left() == {}


@pytest.mark.parametrize("serving", [False, True], ids=["at its start", "while it serves"])
def test_a_server_that_fails_beside_ranks_that_stay_is_named_with_its_log(
    tmp_path: Path, serving: bool
) -> None:
    """As `trtllm-llmapi-launch` does: rank 0 runs the server in the background, the ranks stay."""
    said = "echo 'trtllm-serve: error: unrecognized arguments: --tp_sise' >&2; exit 2"
    (tmp_path / "trtllm-serve").write_text(
        f"#!/bin/sh\nwhile [ ! -e $1 ]; do sleep 0.1; done; {said}\n"
    )
    # Nothing answers at the engine's own port before it serves.
    ranks = ENGINE if serving else ENGINE.replace(str(HTTP), "8199")
    (tmp_path / "trtllm-llmapi-launch").write_text(
        f'#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 0 ] && "$@" &\n{ranks}\n'
    )
    for name in ("trtllm-serve", "trtllm-llmapi-launch"):
        (tmp_path / name).chmod(0o755)
    fails = tmp_path / "fails"
    argv = tuple(str(tmp_path / name) for name in ("trtllm-llmapi-launch", "trtllm-serve"))
    with world(tmp_path, 2, 2, (*argv, str(fails))) as group:
        group.own_processes = False
        leader, worker = group.start(0), group.start(1)
        if serving:
            group.ready()
        else:
            eventually(lambda: len(engines(group)) == 4, says=group.logs)
        looked_at(leader, group)
        fails.touch()
        own, other = leader.end(), worker.end()
        assert (own.outcome, own.reason, own.rank) == ("Permanent", "UnknownFlag", 0)
        assert "--tp_sise" in own.log_tail
        assert "UnknownFlag" in other.message
        assert group.left() == {}


def looked_at(leader: Pod, group: World) -> None:
    """Wait until the runner has had a whole look at its processes since the server runs."""

    def used() -> list[float]:
        return [row["cpuSeconds"] for row in leader.status()["ranks"]]

    eventually(lambda: any("/trtllm-serve " in one for one in group.left().values()))
    # The page changes in the middle of a look.
    for _ in range(2):
        before = used()
        eventually(lambda before=before: used() != before, says=group.logs)


def test_a_killed_mpirun_leaves_no_rank_on_any_stage(tmp_path: Path) -> None:
    with launched(tmp_path, LAUNCHERS["ranks deaf to SIGTERM"]) as group:
        mpirun = [pid for pid, words in group.left().items() if words.startswith("mpirun ")]
        os.kill(mpirun[0], signal.SIGKILL)
        assert {pod.end().outcome for pod in group.pods} == {"Environment"}
        assert group.left() == {}
