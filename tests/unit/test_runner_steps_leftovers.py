"""Folders of crashed pods are deleted, those of living pods never, by no clock but one's own."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.steps import Volumes

from shardwright.runner.contract import REASON_KILLED, temporary_folder
from shardwright.runner.steps import step, workspace
from shardwright.runner.steps.workspace import (
    ABANDONED_SECONDS,
    BEAT_SECONDS,
    Janitor,
    Workspace,
    WorkspaceLostError,
)

KEY = "0123456789abcdef"


class Clock:
    """The janitor's monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(workspace.time, "monotonic", clock)
    return clock


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def left(store: Path, uid: str, step: str = "engine", *, beat: bool = True) -> Path:
    """What a pod has left: a folder, its beat and half an artifact."""
    folder = store / temporary_folder(step, KEY, uid)
    (folder / "out").mkdir(parents=True)
    (folder / "out/rank0.engine").write_bytes(b"half")
    if beat:
        (folder / "beat").touch()
    return folder


def touch(folder: Path, ns: int) -> None:
    os.utime(folder / "beat", ns=(ns, ns))


def test_a_folder_that_shows_no_life_is_deleted_after_a_while(store: Path, clock: Clock) -> None:
    folder = left(store, "pod-1")
    janitor = Janitor(store, store / "own")
    assert janitor.look()
    clock.now += ABANDONED_SECONDS - 1
    assert janitor.look()
    assert folder.exists()
    clock.now += 1
    assert not janitor.look()
    assert list((store / "shardwright/engine").iterdir()) == []


def test_an_abandoned_folder_is_renamed_before_anything_of_it_is_deleted(
    store: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted under its old name it could be published in the middle of that."""
    folder = left(store, "pod-1")
    deleted: list[str] = []

    def watched(path: Path) -> None:
        assert not folder.exists()
        deleted.extend(item.name for item in path.rglob("*"))

    monkeypatch.setattr(workspace, "discard", watched)
    janitor = Janitor(store, store / "own")
    janitor.look()
    clock.now += ABANDONED_SECONDS
    janitor.look()
    assert "rank0.engine" in deleted


def test_a_folder_that_shows_life_is_never_deleted(store: Path, clock: Clock) -> None:
    folder = left(store, "pod-1")
    janitor = Janitor(store, store / "own")
    for beat in range(100):
        touch(folder, beat)
        janitor.look()
        clock.now += ABANDONED_SECONDS - 1
    assert (folder / "out/rank0.engine").exists()


@pytest.mark.parametrize("off_by", [-86400.0, 0.0, 86400.0])
def test_the_clock_of_the_other_node_does_not_matter(
    store: Path, clock: Clock, off_by: float
) -> None:
    folder = left(store, "pod-1")
    janitor = Janitor(store, store / "own")
    for beat in range(5):
        touch(folder, int((time.time() + off_by + beat) * 1e9))
        janitor.look()
        clock.now += ABANDONED_SECONDS - 1
    assert folder.exists()
    clock.now += 1
    janitor.look()
    assert not folder.exists()


def test_a_pod_that_died_before_its_first_beat_is_noticed(store: Path, clock: Clock) -> None:
    folder = left(store, "pod-1", beat=False)
    janitor = Janitor(store, store / "own")
    janitor.look()
    clock.now += ABANDONED_SECONDS
    janitor.look()
    assert not folder.exists()


def test_a_pod_s_own_folder_and_everything_else_is_left_alone(store: Path, clock: Clock) -> None:
    own = left(store, "pod-1")
    artifact = store / "shardwright/engine" / KEY
    artifact.mkdir()
    others = [
        left(store, "pod-2", step="model"),  # fetches keep their files for the next attempt
        store / "shardwright/engine/.hidden",
        store / "shardwright/engine/.tmp-notes",
    ]
    for path in others:
        path.mkdir(exist_ok=True)
    janitor = Janitor(store, own)
    janitor.look()
    clock.now += 10 * ABANDONED_SECONDS
    janitor.look()
    assert all(path.exists() for path in (own, artifact, *others))


def test_a_deletion_that_was_cut_short_is_ended_by_another(store: Path) -> None:
    dead = store / f"shardwright/checkpoint/.dead-tmp-{KEY}-pod-1"
    dead.mkdir(parents=True)
    (dead / "rest").touch()
    Janitor(store, store / "own").look()
    assert not dead.exists()


def test_there_is_nothing_to_wait_for_when_the_others_live(store: Path, clock: Clock) -> None:
    folder = left(store, "pod-1")
    janitor = Janitor(store, store / "own")
    assert janitor.look()
    touch(folder, 7)
    clock.now += BEAT_SECONDS
    assert not janitor.look()


def test_a_workspace_beats_until_it_is_closed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "BEAT_SECONDS", 0.02)
    space = Workspace(store, "engine", KEY, "pod-1")
    space.open()
    beat = space.folder / "beat"
    touch(space.folder, 1)
    deadline = time.monotonic() + 60
    while beat.stat().st_mtime_ns == 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    space.check()
    space.close()
    assert not space.folder.exists()


def test_a_container_that_starts_again_in_its_pod_begins_anew(store: Path) -> None:
    left(store, "pod-1")
    space = Workspace(store, "engine", KEY, "pod-1")
    space.open()
    assert list(space.out.iterdir()) == []
    space.close()


def test_a_pod_that_was_taken_for_dead_notices(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "BEAT_SECONDS", 0.02)
    space = Workspace(store, "engine", KEY, "pod-1")
    space.open()
    space.folder.rename(store / "elsewhere")
    assert space.lost.wait(60)
    with pytest.raises(WorkspaceLostError, match="taken away"):
        space.check()
    space.close()


def test_a_step_whose_folder_was_taken_away_ends_its_tool_and_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "BEAT_SECONDS", 0.05)
    volumes = Volumes.make(tmp_path)
    request = volumes.checkpoint("--pause", "0.2")
    temporary = volumes.places.store / temporary_folder("checkpoint", request.key, "pod-1")
    elsewhere = volumes.places.store / "shardwright/checkpoint/.dead-pod-1"
    late = tmp_path / "late"
    bury = f"mv {temporary} {elsewhere}; sleep 120; touch {late}"
    commands = volumes.checkpoint().commands[0]
    burying = replace(commands, argv=("sh", "-c", bury))
    report = volumes.run(replace(request, commands=(*request.commands, burying)))
    assert not late.exists(), "the tool came to its own end"
    assert (report.outcome, report.reason) == ("Environment", REASON_KILLED)
    assert "taken away" in report.message
    assert not volumes.folder(request).exists()


def test_a_folder_taken_away_at_the_last_moment_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes = Volumes.make(tmp_path)
    request = volumes.checkpoint()
    real = step.publish

    def late(sealed: Path, *more: object) -> object:
        sealed.parent.rename(volumes.root / "elsewhere")
        return real(sealed, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(step, "publish", late)
    report = volumes.run(request)
    assert (report.outcome, report.reason) == ("Environment", REASON_KILLED)
    assert not volumes.folder(request).exists()
