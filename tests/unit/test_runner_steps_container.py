"""The runner as process 1 of a container: it gets signals, reaps orphans, and all ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.steps import Volumes, report_of, with_command

from shardwright.runner.contract import REASON_KILLED

# A process namespace of its own, as a container has; what starts it dies with it and it with that.
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    probe = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no process namespaces here: {probe.stderr.strip()}")
    return Volumes.make(tmp_path)


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def inner_pid(outer: int) -> int:
    """The process that `unshare` has started, as this side numbers it."""
    children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    return int(children[0])


def test_a_step_is_done_as_process_1(volumes: Volumes, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with volumes.process(volumes.checkpoint(), "pod-1", log, *CONTAINER) as process:
        assert process.wait(60) == 0
    assert report_of(log).outcome == "Done"


def test_process_1_takes_sigterm_and_ends_its_tool(volumes: Volumes, tmp_path: Path) -> None:
    mark, log = tmp_path / "ran", tmp_path / "log"
    request = volumes.checkpoint("--mark", str(mark), "--pause", "120")
    with volumes.process(request, "pod-1", log, *CONTAINER) as process:
        wait_until(mark.exists)
        os.kill(inner_pid(process.pid), signal.SIGTERM)
        assert process.wait(60) == 1
    assert report_of(log).reason == REASON_KILLED
    assert volumes.temporary() == []


def test_what_left_the_tool_s_session_is_ended_too(volumes: Volumes, tmp_path: Path) -> None:
    """A daemon of the tool's would write into the artifact while it is hashed, and after."""
    log = tmp_path / "log"
    first = volumes.checkpoint()
    daemon = (
        'setsid sh -c \'trap "" TERM HUP; while :; do echo x >> {out}/config.json; sleep 0.01;'
        " done' </dev/null >/dev/null 2>&1 & until [ -s {out}/config.json ]; do sleep 0.01; done;"
        " cp {out}/config.json {scratch}/seen"
    )
    commands = (*with_command(first, "sh", "-c", daemon).commands, *first.commands)
    with volumes.process(replace(first, commands=commands), "pod-1", log, *CONTAINER) as process:
        assert process.wait(60) == 0
    assert report_of(log).outcome == "Done"
    assert "x" in (volumes.places.scratch / "seen").read_text()
    size = (volumes.folder(first) / "config.json").stat().st_size
    assert volumes.manifest(first).files["config.json"].size == size


def test_orphans_are_reaped_while_the_tool_runs(volumes: Volumes, tmp_path: Path) -> None:
    log, counted = tmp_path / "log", tmp_path / "zombies"
    first = volumes.checkpoint()
    # Each inner shell leaves a child behind that ends soon: without an init they stay as zombies.
    orphans = (
        "for i in $(seq 30); do (sh -c 'sleep 0.05 & exit') ; done; sleep 0.5;"
        "for i in $(seq 600); do"
        " left=$(grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l);"
        f" [ $left -le 1 ] && break; sleep 0.1; done; echo $left > {counted}"
    )
    commands = (*with_command(first, "sh", "-c", orphans).commands, *first.commands)
    with volumes.process(replace(first, commands=commands), "pod-1", log, *CONTAINER) as process:
        assert process.wait(60) == 0
    assert int(counted.read_text()) <= 1


def test_everything_ends_with_a_killed_container(volumes: Volumes, tmp_path: Path) -> None:
    mark, log = tmp_path / "ran", tmp_path / "log"
    request = volumes.checkpoint("--mark", str(mark), "--pause", "120")
    with volumes.process(request, "pod-1", log, *CONTAINER) as process:
        wait_until(mark.exists)
        inner = inner_pid(process.pid)
        process.kill()
    wait_until(lambda: not Path(f"/proc/{inner}").exists())
    assert not volumes.folder(request).exists()
    assert not log.exists()
