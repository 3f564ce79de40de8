"""However a step's pod dies, the volume holds the whole artifact or nothing that counts."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.steps import Volumes, report_of, with_command

from shardwright.runner.contract import (
    MANIFEST,
    REASON_DISK_FULL,
    Report,
    StepRequest,
    artifact_key,
)
from shardwright.runner.steps import workspace
from shardwright.runner.verify import ArtifactError, Wanted, check

# The tool writes four rank files in this time; starting, hashing and publishing take about as long.
PAUSE_SECONDS = 0.3
# Longer than a whole step takes on a machine with nothing else to do.
LATEST_SECONDS = 1.2


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.make(tmp_path).with_checkpoint()


def kill_pod(process: subprocess.Popen[bytes], mark: Path) -> None:
    """As the kernel ends a container: every process of it at once."""
    process.kill()
    process.wait()
    for pid in mark.read_text().split() if mark.exists() else ():
        try:
            os.killpg(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def counts(volumes: Volumes, request: StepRequest) -> bool:
    """Whether there is an artifact; a folder of its name that is none must not be."""
    folder = volumes.folder(request)
    if not folder.exists():
        return False
    check(folder, Wanted(request.step, request.key, 4), hash_up_to=None)
    return True


@contextmanager
def pod(volumes: Volumes, request: StepRequest, number: int) -> Iterator[Path]:
    """A pod that is killed at the end of the block; gives the file that its tool marks."""
    mark, log = volumes.root / f"mark-{number}", volumes.root / f"log-{number}"
    first = request.commands[0]
    marked = replace(first, argv=(*first.argv, "--mark", str(mark)))
    process = volumes.process(replace(request, commands=(marked,)), f"pod-{number}", log)
    try:
        yield mark
    finally:
        kill_pod(process, mark)


def killed_at(volumes: Volumes, request: StepRequest, seconds: float, number: int) -> bool:
    """Start a pod, kill it after so long; whether there is an artifact then."""
    with pod(volumes, request, number):
        time.sleep(seconds)
    return counts(volumes, request)


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kills(volumes: Volumes, seed: int, rounds: int) -> list[bool]:
    """Kill pods of the same key at random moments; after each, whether there is an artifact."""
    chance = random.Random(seed)  # noqa: S311 - moments, no secrets
    request = volumes.engine("--pause", str(PAUSE_SECONDS), "--bytes", "200000")
    seen: list[bool] = []
    for number in range(rounds):
        there = killed_at(volumes, request, chance.uniform(0.05, LATEST_SECONDS), number)
        # Once published it stays, whatever is killed later.
        assert there or not any(seen)
        seen.append(there)
    report = volumes.run(request, "last")
    assert report.outcome == "Done"
    assert report.reused is any(seen)
    assert counts(volumes, request)
    return seen


def test_a_builder_killed_at_random_moments_leaves_no_half_artifact(volumes: Volumes) -> None:
    kills(volumes, seed=1, rounds=4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_many_builders_killed_at_random_moments_leave_no_half_artifact(
    volumes: Volumes, seed: int
) -> None:
    kills(volumes, seed=100 + seed, rounds=20)


def test_what_killed_builders_leave_is_deleted_by_a_later_step(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pod(volumes, volumes.engine("--pause", "60"), 1) as mark:
        wait_until(mark.exists)
    assert len(volumes.temporary()) == 1
    monkeypatch.setattr(workspace, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(workspace, "ABANDONED_SECONDS", 0.3)
    patient = volumes.engine()
    # A tool that takes as long as it takes until they are deleted.
    look = "for i in $(seq 600); do ls -A {out}/../.. | grep -q pod-1 || exit 0; sleep 0.1; done"
    waits = with_command(patient, "sh", "-c", look).commands
    patient = replace(patient, commands=(*patient.commands, *waits))
    assert volumes.run(patient, "pod-2").outcome == "Done"
    assert volumes.temporary() == []


def race(volumes: Volumes, number: int) -> tuple[StepRequest, list[Report]]:
    """Two pods whose tools end at the same moment; their reports."""
    ready, start = volumes.root / f"ready-{number}", volumes.root / f"start-{number}"
    wait = f"echo x >> {ready}; while [ ! -e {start} ]; do sleep 0.01; done"
    base = volumes.engine()
    both = with_command(base, "sh", "-c", wait).commands
    inputs = {**base.inputs, "round": number}
    request = replace(
        base,
        inputs=inputs,
        key=artifact_key(base.step, inputs),
        commands=(*base.commands, *both),
    )
    logs = [volumes.root / f"log-{number}-{which}" for which in "ab"]
    with ExitStack() as stack:
        for which, log in zip("ab", logs, strict=True):
            # leaving the block waits for it, also when the test fails
            stack.enter_context(volumes.process(request, f"pod-{number}-{which}", log))
        stack.callback(start.touch)
        wait_until(lambda: ready.exists() and len(ready.read_text().split()) == 2)
    return request, [report_of(log) for log in logs]


@pytest.mark.parametrize("number", range(3))
def test_two_that_publish_the_same_key_at_once_make_one_artifact(
    volumes: Volumes, number: int
) -> None:
    request, reports = race(volumes, number)
    assert {report.outcome for report in reports} == {"Done"}
    assert sorted(report.reused for report in reports) == [False, True]
    assert counts(volumes, request)
    assert volumes.temporary() == []


def test_two_deployments_that_need_one_key_build_it_once(volumes: Volumes, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for deployment in ("first", "second"):
        request = replace(volumes.engine("--mark", str(mark)), deployment=deployment)
        assert volumes.run(request, f"pod-{deployment}").outcome == "Done"
    assert len(mark.read_text().split()) == 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Volumes]:
    """Volumes whose store has room for 2 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small volume needs root")
    volumes = Volumes.make(tmp_path)
    store = str(volumes.places.store)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", store]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield volumes
    finally:
        # lazily: a thread of the step may still look at it
        subprocess.run(["umount", "--lazy", store], check=True)


def test_a_tool_that_fills_the_claim_is_reported_with_what_is_free(small: Volumes) -> None:
    request = small.checkpoint("--bytes", "1000000")
    report = small.run(request)
    assert (report.outcome, report.reason) == ("Environment", REASON_DISK_FULL)
    assert "No space left on device" in report.message
    assert "the claim has 0.0 GiB free" in report.message
    assert "No space left on device" in report.log_tail
    assert not small.folder(request).exists()
    assert small.temporary() == []


def filling(volumes: Volumes) -> StepRequest:
    """A checkpoint after whose tools not one byte is free."""
    request = volumes.checkpoint()
    fill = "dd if=/dev/zero of={out}/pad bs=4096 2>/dev/null; true"
    more = with_command(request, "sh", "-c", fill).commands
    return replace(request, commands=(*request.commands, *more))


def test_a_claim_too_full_for_the_manifest_publishes_nothing(small: Volumes) -> None:
    report = small.run(filling(small))
    assert (report.outcome, report.reason) == ("Environment", REASON_DISK_FULL)
    assert MANIFEST in report.message
    assert "; 0 bytes are free" in report.message
    request = small.checkpoint()
    assert not small.folder(request).exists()
    assert small.temporary() == []
    assert small.run(request, "pod-2").outcome == "Done"


def leave_ruin(volumes: Volumes, request: StepRequest) -> None:
    """What a pod that crashed on this claim has left: most of its room."""
    ruin = volumes.places.store / "shardwright/checkpoint" / f".tmp-{request.key}-dead"
    (ruin / "out").mkdir(parents=True)
    (ruin / "beat").touch()
    (ruin / "out/rank0.safetensors").write_bytes(bytes(1_600_000))


@pytest.mark.parametrize("who", ["tool", "runner"])
def test_a_full_claim_is_reported_only_after_ruins_were_looked_for(
    small: Volumes, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Attempts follow each other within seconds: each would find the disk as full as the last."""
    monkeypatch.setattr(workspace, "BEAT_SECONDS", 0.05)
    finish = workspace.Janitor.finish

    def late(janitor: workspace.Janitor, stopped: Callable[[], bool]) -> None:
        """Long abandoned is the ruin only now: room made before the failure would fail nobody."""
        wait_until(lambda: bool(janitor._watched))
        for seen in janitor._watched.values():
            seen.since -= workspace.ABANDONED_SECONDS
        finish(janitor, stopped)

    monkeypatch.setattr(workspace.Janitor, "finish", late)
    request = small.checkpoint("--bytes", "200000") if who == "tool" else filling(small)
    leave_ruin(small, request)
    assert small.run(request).reason == REASON_DISK_FULL
    assert small.temporary() == []
    assert small.run(small.checkpoint("--bytes", "200000"), "pod-2").outcome == "Done"


def test_a_half_artifact_would_be_noticed_by_these_tests(volumes: Volumes) -> None:
    request = volumes.engine()
    assert volumes.run(request).outcome == "Done"
    (volumes.folder(request) / "rank3.engine").write_bytes(bytes(1000)[:-1])
    with pytest.raises(ArtifactError, match=r"rank3\.engine is truncated"):
        counts(volumes, request)
