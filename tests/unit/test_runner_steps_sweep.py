"""Sweeps of the real runner do what the sandbox's player does, and may be cut short anywhere."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.steps import report_of, tree

from shardwright.runner.contract import (
    ENV_REQUEST,
    REASON_KILLED,
    REASON_MANIFEST_MISSING,
    SWEEP_PURGE,
    SWEEP_RESTORE,
    SWEEP_TRASH,
    SWEEPS,
    SweepRequest,
    encode,
    sweep_folders,
)
from shardwright.runner.steps.stop import Stop
from shardwright.runner.steps.sweep import sweep
from shardwright_sandbox.player.sweep import sweep as played

KEY, STAMP = "0123456789abcdef", "17959536000000000"


def request(action: str) -> SweepRequest:
    return SweepRequest(action, "engine", KEY, STAMP)


def fill(folder: Path, files: int = 3) -> Path:
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"rank{number}.engine").write_text(folder.name)
    return folder


def lay(store: Path, there: tuple[bool, bool, bool]) -> Path:
    """A claim on which some of the three folders are: live, trash, purged."""
    store.mkdir()
    for folder, present in zip(sweep_folders(request(SWEEP_TRASH)), there, strict=True):
        if present:
            fill(store / folder)
    return store


def files_of(store: Path) -> dict[str, object]:
    return {name: content for name, content in tree(store).items() if content is not None}


@pytest.mark.parametrize("action", SWEEPS)
@pytest.mark.parametrize("number", range(8))
def test_a_sweep_does_what_the_sandbox_plays(tmp_path: Path, action: str, number: int) -> None:
    there = (bool(number & 1), bool(number & 2), bool(number & 4))
    ours, theirs = lay(tmp_path / "ours", there), lay(tmp_path / "theirs", there)
    report, expected = sweep(request(action), ours, Stop()), played(request(action), theirs)
    assert (report.outcome, report.reason) == (expected.outcome, expected.reason)
    assert files_of(ours) == files_of(theirs)
    assert (report.step, report.key) == ("engine", KEY)


@given(actions=st.lists(st.sampled_from(SWEEPS), max_size=8))
@settings(max_examples=40, deadline=None)
def test_any_row_of_sweeps_does_what_the_sandbox_plays(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    root = tmp_path_factory.mktemp("row")
    ours, theirs = (lay(root / name, (True, False, False)) for name in ("ours", "theirs"))
    for action in actions:
        report, expected = sweep(request(action), ours, Stop()), played(request(action), theirs)
        assert (report.outcome, report.reason) == (expected.outcome, expected.reason)
        assert files_of(ours) == files_of(theirs)


def test_trash_and_back_leaves_the_artifact_as_it_was(tmp_path: Path) -> None:
    store = lay(tmp_path / "store", (True, False, False))
    before = files_of(store)
    assert sweep(request(SWEEP_TRASH), store, Stop()).outcome == "Done"
    assert all(name.startswith("shardwright/trash/") for name in files_of(store))
    assert sweep(request(SWEEP_RESTORE), store, Stop()).outcome == "Done"
    assert files_of(store) == before


def test_what_is_in_neither_place_cannot_come_back(tmp_path: Path) -> None:
    report = sweep(request(SWEEP_RESTORE), lay(tmp_path / "store", (False,) * 3), Stop())
    assert (report.outcome, report.reason) == ("Permanent", REASON_MANIFEST_MISSING)
    assert f"engine-{KEY}-{STAMP}" in report.message


@pytest.mark.parametrize(
    "bad",
    [
        SweepRequest("Burn", "engine", KEY, STAMP),
        SweepRequest(SWEEP_PURGE, "../..", KEY, STAMP),
        SweepRequest(SWEEP_PURGE, "engine", "../../../etc", STAMP),
        SweepRequest(SWEEP_PURGE, "engine", KEY, "../1"),
    ],
)
def test_a_sweep_that_could_name_anything_else_is_refused(
    tmp_path: Path, bad: SweepRequest
) -> None:
    store = lay(tmp_path / "store", (True, True, True))
    before = files_of(store)
    assert sweep(bad, store, Stop()).outcome == "Environment"
    assert files_of(store) == before


def test_a_link_in_the_trash_is_not_followed(tmp_path: Path) -> None:
    store = lay(tmp_path / "store", (False, True, False))
    kept = fill(tmp_path / "kept")
    trash = store / sweep_folders(request(SWEEP_PURGE))[1]
    (trash / "link").symlink_to(kept)
    assert sweep(request(SWEEP_PURGE), store, Stop()).outcome == "Done"
    assert len(list(kept.iterdir())) == 3
    assert files_of(store) == {}


def test_a_purge_that_is_told_to_end_says_so_and_is_resumed(tmp_path: Path) -> None:
    store = lay(tmp_path / "store", (False, True, False))
    stop = Stop()
    stop.set()
    report = sweep(request(SWEEP_PURGE), store, stop)
    assert (report.outcome, report.reason) == ("Environment", REASON_KILLED)
    assert sweep(request(SWEEP_RESTORE), store, Stop()).reason == REASON_MANIFEST_MISSING
    assert sweep(request(SWEEP_PURGE), store, Stop()).outcome == "Done"
    assert files_of(store) == {}


def test_a_claim_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    report = sweep(request(SWEEP_TRASH), tmp_path / "store", Stop())
    assert report.outcome == "Environment"
    assert not (tmp_path / "store").exists()


PROGRAM = (
    "import os, sys; from pathlib import Path;"
    "from shardwright.runner.contract import *;"
    "from shardwright.runner.steps.main import sweep_main;"
    "from shardwright.runner.steps.request import Places;"
    f"asked = decode(SweepRequest, os.environ[{ENV_REQUEST!r}]);"
    "sys.exit(sweep_main(asked, Places(Path(sys.argv[1])), Path(sys.argv[2])))"
)


def start(action: str, store: Path, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(store), str(log)],
        env={**os.environ, ENV_REQUEST: encode(request(action))},
        stdout=subprocess.DEVNULL,
    )


def test_a_purge_killed_at_random_moments_is_ended_by_the_next(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311 - moments, no secrets
    store = lay(tmp_path / "store", (False, False, False))
    _, trash, purged = (store / name for name in sweep_folders(request(SWEEP_PURGE)))
    fill(trash, files=4000)
    log = tmp_path / "log"

    def there() -> int:
        found = 0
        for folder in (trash, purged):
            with suppress(FileNotFoundError):  # renamed or gone by now
                found += len(list(folder.iterdir()))
        return found

    for _ in range(4):
        before = there()
        with start(SWEEP_PURGE, store, log) as process:
            while there() == before and process.poll() is None:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        # Whole in the trash, or in part under the name of what is deleted: never in part there.
        assert not trash.exists() or not purged.exists()
        assert not trash.exists() or there() == 4000
    with start(SWEEP_PURGE, store, log) as process:
        assert process.wait(60) == 0
    assert report_of(log).outcome == "Done"
    assert files_of(store) == {}


def test_two_restores_at_once_do_no_harm(tmp_path: Path) -> None:
    store = lay(tmp_path / "store", (False, True, False))
    logs = [tmp_path / f"log-{which}" for which in "ab"]
    processes = [start(SWEEP_RESTORE, store, log) for log in logs]
    for process in processes:
        with process:
            assert process.wait(60) == 0
    assert {report_of(log).outcome for log in logs} == {"Done"}
    live = store / sweep_folders(request(SWEEP_RESTORE))[0]
    assert len(list(live.iterdir())) == 3
