"""Publishing is one rename that takes nobody's artifact; checking finds every difference."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.steps import tree

from shardwright.runner import publish as publishing
from shardwright.runner.contract import (
    MANIFEST,
    REASON_MANIFEST_MISMATCH,
    REASON_MANIFEST_MISSING,
    FileEntry,
    Manifest,
    artifact_key,
    encode,
)
from shardwright.runner.publish import ContentError, discard, make, publish, seal, settle
from shardwright.runner.verify import (
    MANIFEST_LIMIT_BYTES,
    ArtifactError,
    Wanted,
    check,
    inside,
    read_manifest,
    sha256_of,
)

INPUTS: dict[str, Any] = {"checkpoint": "a"}
KEY = artifact_key("engine", INPUTS)
WANTED = Wanted("engine", KEY, 2)


def nothing() -> None:
    """Between chunks."""


def content(folder: Path, seed: bytes = b"x") -> Path:
    """An engine's files of a world of two, unsealed."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(b'{"a": 1}')
    for rank in range(2):
        (folder / f"rank{rank}.engine").write_bytes(seed * 2_000_000)
    return folder


def sealed(folder: Path, seed: bytes = b"x") -> Path:
    """The same, sealed."""
    content(folder, seed)
    seal(folder, Manifest("engine", KEY, INPUTS, settle(folder, nothing)))
    return folder


def problem(folder: Path, wanted: Wanted = WANTED, **more: Any) -> tuple[str, str]:
    with pytest.raises(ArtifactError) as caught:
        check(folder, wanted, **more)
    return caught.value.reason, str(caught.value)


def test_settling_tells_size_and_hash_of_every_file(tmp_path: Path) -> None:
    folder = content(tmp_path / "out")
    (folder / "lora/0").mkdir(parents=True)
    (folder / "lora/0/adapter.bin").write_bytes(b"abc")
    assert settle(folder, nothing) == {
        "config.json": FileEntry(8, hashlib.sha256(b'{"a": 1}').hexdigest()),
        "lora/0/adapter.bin": FileEntry(3, hashlib.sha256(b"abc").hexdigest()),
        **{
            f"rank{rank}.engine": FileEntry(2_000_000, hashlib.sha256(b"x" * 2_000_000).hexdigest())
            for rank in range(2)
        },
    }


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda out: (out / "link").symlink_to("/etc"), "link is no regular file"),
        (lambda out: os.mkfifo(out / "pipe"), "pipe is no regular file"),
        (lambda out: (out / MANIFEST).write_text("{}"), "only the runner writes it"),
    ],
)
def test_what_no_artifact_may_hold_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], told: str
) -> None:
    folder = content(tmp_path / "out")
    spoil(folder)
    with pytest.raises(ContentError, match=told):
        settle(folder, nothing)


def test_settling_can_be_ended_inside_a_file(tmp_path: Path) -> None:
    folder = content(tmp_path / "out")
    (folder / "large").write_bytes(bytes(20 * 2**20))
    calls: list[int] = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 7:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        settle(folder, stop)


def test_a_whole_artifact_passes_with_all_hashes(tmp_path: Path) -> None:
    manifest = check(sealed(tmp_path / "a"), WANTED, hash_up_to=None)
    assert manifest.total_bytes == 4_000_008


@pytest.mark.parametrize(
    ("spoil", "reason", "told"),
    [
        (
            lambda folder: os.truncate(folder / "rank1.engine", 1_500_000),
            REASON_MANIFEST_MISMATCH,
            "rank1.engine is truncated: 1500000 bytes, the manifest says 2000000 (500000 are",
        ),
        (
            lambda folder: os.truncate(folder / "rank1.engine", 2_000_001),
            REASON_MANIFEST_MISMATCH,
            "rank1.engine has 2000001 bytes, the manifest says 2000000",
        ),
        (
            lambda folder: (folder / "rank0.engine").unlink(),
            REASON_MANIFEST_MISMATCH,
            "rank0.engine is missing",
        ),
        (
            lambda folder: (folder / "config.json").write_bytes(b'{"a": 2}'),
            REASON_MANIFEST_MISMATCH,
            "config.json was changed: SHA-256",
        ),
        (
            lambda folder: (folder / "rank2.engine").write_bytes(b"x"),
            REASON_MANIFEST_MISMATCH,
            "rank2.engine is there, the manifest does not name it",
        ),
        (
            lambda folder: [
                (folder / "rank0.engine").unlink(),
                (folder / "rank0.engine").symlink_to("rank1.engine"),
            ],
            REASON_MANIFEST_MISMATCH,
            "rank0.engine is not a regular file",
        ),
        (
            lambda folder: [(folder / f"rank{rank}.engine").unlink() for rank in range(2)],
            REASON_MANIFEST_MISMATCH,
            "rank0.engine is missing, the manifest has it with 2000000 bytes (and 1 more",
        ),
        (lambda folder: (folder / MANIFEST).unlink(), REASON_MANIFEST_MISSING, "holds no"),
        (
            lambda folder: (folder / MANIFEST).write_text("{"),
            REASON_MANIFEST_MISSING,
            "cannot be read as a manifest",
        ),
        (
            lambda folder: (folder / MANIFEST).write_text("[" * 100_000),
            REASON_MANIFEST_MISSING,
            "cannot be read as a manifest",
        ),
        (
            lambda folder: os.truncate(folder / MANIFEST, MANIFEST_LIMIT_BYTES + 1),
            REASON_MANIFEST_MISSING,
            "no file of at most",
        ),
        (
            lambda folder: [(folder / MANIFEST).unlink(), os.mkfifo(folder / MANIFEST)],
            REASON_MANIFEST_MISSING,
            "no file of at most",
        ),
    ],
)
def test_a_folder_that_is_not_the_artifact_is_refused_with_the_difference(
    tmp_path: Path, spoil: Callable[[Path], object], reason: str, told: str
) -> None:
    folder = sealed(tmp_path / "a")
    spoil(folder)
    found = problem(folder)
    assert found[0] == reason
    assert told in found[1]


def test_a_folder_that_goes_while_it_is_looked_at_is_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A competitor moves a ruin aside between two looks at it."""
    folder = sealed(tmp_path / "a")
    real = Path.read_text

    def late(path: Path, *more: Any, **named: Any) -> str:
        folder.rename(tmp_path / "elsewhere")
        return real(path, *more, **named)

    monkeypatch.setattr(Path, "read_text", late)
    assert problem(folder)[0] == REASON_MANIFEST_MISSING
    monkeypatch.undo()
    (tmp_path / "elsewhere").rename(folder)

    def gone() -> None:
        if folder.exists():
            folder.rename(tmp_path / "elsewhere")

    assert problem(folder, between=gone)[0] == REASON_MANIFEST_MISSING


def test_a_large_file_changed_under_the_same_size_needs_all_hashes(tmp_path: Path) -> None:
    folder = sealed(tmp_path / "a")
    (folder / "rank0.engine").write_bytes(b"y" * 2_000_000)
    check(folder, WANTED)
    assert "rank0.engine was changed" in problem(folder, hash_up_to=None)[1]


def test_an_artifact_of_another_key_step_or_world_is_refused(tmp_path: Path) -> None:
    folder = sealed(tmp_path / "a")
    assert f"asked for engine {'0' * 16}" in problem(folder, Wanted("engine", "0" * 16, 2))[1]
    assert "asked for checkpoint" in problem(folder, Wanted("checkpoint", KEY, 2))[1]
    assert "2 of 5 files are missing, first rank2" in problem(folder, Wanted("engine", KEY, 4))[1]


def test_a_manifest_s_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"abc")
    entry = FileEntry(3, sha256_of(tmp_path / "secret"))
    for name in ("../secret", str(tmp_path / "secret"), "a/../../secret", ""):
        folder = tmp_path / "a"
        folder.mkdir(exist_ok=True)
        (folder / MANIFEST).write_text(encode(Manifest("engine", KEY, INPUTS, {name: entry})))
        with pytest.raises(ArtifactError, match="malformed"):
            read_manifest(folder)
        assert not inside(name)
    assert inside("lora/0/adapter.bin")


def test_publishing_is_one_rename(tmp_path: Path) -> None:
    work, final = sealed(tmp_path / "work/out"), tmp_path / "store/engine/key"
    wanted = tree(work)
    assert publish(work, final, WANTED, tmp_path / "work") is None
    assert tree(final) == wanted
    assert not work.exists()


def test_the_loser_takes_the_winner_s_artifact_and_leaves_it_alone(tmp_path: Path) -> None:
    final = sealed(tmp_path / "store/key", b"w")
    wanted = tree(final)
    work = sealed(tmp_path / "work/out", b"l")
    there = publish(work, final, WANTED, tmp_path / "work")
    assert there == read_manifest(final)
    assert tree(final) == wanted


@pytest.mark.parametrize("ruin", ["empty", "half", "file", "no manifest"])
def test_a_ruin_is_moved_aside(tmp_path: Path, ruin: str) -> None:
    final = tmp_path / "store/key"
    final.parent.mkdir()
    if ruin == "file":
        final.write_text("x")
    elif ruin == "empty":
        final.mkdir()
    else:
        sealed(final, b"r")
        (final / ("rank0.engine" if ruin == "half" else MANIFEST)).unlink()
    work = sealed(tmp_path / "work/out")
    assert publish(work, final, WANTED, tmp_path / "work") is None
    check(final, WANTED, hash_up_to=None)


def test_what_was_published_while_a_ruin_was_judged_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both saw the ruin; the other one was faster with taking it away and publishing."""
    final = tmp_path / "store/key"
    final.mkdir(parents=True)
    (final / "rest").touch()
    theirs = sealed(tmp_path / "theirs", b"w")
    identity = theirs.stat().st_ino
    judge = check
    seen: list[Path] = []

    def slow(folder: Path, wanted: Wanted) -> Manifest:
        try:
            return judge(folder, wanted)
        finally:
            if not seen:
                seen.append(folder)
                discard(final)
                theirs.rename(final)

    monkeypatch.setattr(publishing, "check", slow)
    work = sealed(tmp_path / "work/out", b"l")
    there = publish(work, final, WANTED, tmp_path / "work")
    assert there is not None
    assert final.stat().st_ino == identity
    check(final, WANTED, hash_up_to=None)


def test_many_publish_over_a_ruin_and_one_artifact_stays(tmp_path: Path) -> None:
    final = tmp_path / "store/key"
    final.mkdir(parents=True)
    (final / "rest").touch()
    works = [sealed(tmp_path / f"work-{number}/out") for number in range(6)]
    results: list[Manifest | None] = []
    start = threading.Barrier(len(works))

    def run(work: Path) -> None:
        start.wait()
        results.append(publish(work, final, WANTED, work.parent))

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(works)
    check(final, WANTED, hash_up_to=None)


def test_a_rename_whose_answer_was_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system did it, and says on the repeated call that there is no such folder."""
    real = os.rename

    def lossy(source: Path, target: Path) -> None:
        real(source, target)
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(source))

    monkeypatch.setattr(publishing.os, "rename", lossy)
    work, final = sealed(tmp_path / "work/out"), tmp_path / "store/key"
    assert publish(work, final, WANTED, tmp_path / "work") is None
    check(final, WANTED)


def test_a_folder_that_was_taken_away_cannot_be_published(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "gone", tmp_path / "store/key", WANTED, tmp_path)
    assert not (tmp_path / "store").exists()


def test_a_storage_failure_is_not_taken_for_a_competitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, "input/output error", str(source))

    monkeypatch.setattr(publishing.os, "rename", broken)
    work = sealed(tmp_path / "work/out")
    with pytest.raises(OSError, match="input/output error"):
        publish(work, tmp_path / "store/key", WANTED, tmp_path / "work")


def test_deleting_follows_no_link_and_minds_no_absence(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    (tmp_path / "link").symlink_to("kept")
    make(tmp_path / "folder/sub")
    (tmp_path / "folder/sub/link").symlink_to(tmp_path / "kept")
    for name in ("link", "folder", "absent"):
        discard(tmp_path / name)
    assert tree(tmp_path) == {"kept": None, "kept/file": b""}
