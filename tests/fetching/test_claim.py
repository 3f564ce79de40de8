"""pvc://: a model in place is looked at, described, and never copied."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.fetching.models import CONFIG, SHARDS, Files, model, wanted
from tests.fetching.volume import Volume

from shardwright.runner.contract import MANIFEST

URI = "pvc://models/llama/tiny"


def put(folder: Path, files: Files) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("mounted", ["store", "source"])
def test_a_model_in_place_is_described_and_not_copied(volume: Volume, mounted: str) -> None:
    files = model()
    put(volume.root / mounted / "llama/tiny", files)
    report = volume.fetch(URI, {})
    assert report.outcome == "Done", report.message
    assert report.facts is not None
    assert report.total_bytes == report.facts.bytes == sum(len(files[name]) for name in SHARDS)
    assert report.commit == ""
    assert [path.name for path in volume.final(URI).iterdir()] == [MANIFEST]
    assert volume.manifest(URI).files == {}
    assert volume.leftovers() == []
    again = volume.fetch(URI, {})
    assert (again.reused, again.facts) == (True, report.facts)


def test_a_model_that_was_replaced_in_place_is_described_anew(volume: Volume) -> None:
    folder = volume.store / "llama/tiny"
    put(folder, wanted(model()))
    first = volume.fetch(URI, {})
    put(folder, wanted(model(2**20)))
    second = volume.fetch(URI, {})
    assert not second.reused
    assert second.facts is not None
    assert second.facts != first.facts
    assert volume.manifest(URI).facts == second.facts


def test_a_hubs_cache_made_of_links_is_read(volume: Volume) -> None:
    files = wanted(model())
    put(volume.store / "blobs", files)
    snapshot = volume.store / "llama/tiny"
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert volume.fetch(URI, {}).outcome == "Done"


def test_what_is_not_there_says_what_was_looked_for(volume: Volume) -> None:
    report = volume.fetch(URI, {})
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")
    assert "llama/tiny/config.json" in report.message


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("config.json", "/srv/nfs/models/config.json", "ModelNotFound"),
        ("config.json", "config.json", "ModelNotFound"),
        ("extra.safetensors", "/srv/nfs/models/extra.safetensors", "ModelIncomplete"),
        ("extra.safetensors", "../tiny/extra.safetensors", "ModelIncomplete"),
    ],
)
def test_a_link_that_leads_nowhere_is_named_as_one(
    volume: Volume, name: str, target: str, reason: str
) -> None:
    """Links of another mount are common, and no other try helps."""
    folder = volume.store / "llama/tiny"
    put(folder, {one: data for one, data in wanted(model()).items() if "index" not in one})
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    report = volume.fetch(URI, {})
    assert (report.outcome, report.reason) == ("Permanent", reason)
    assert name in report.message
    assert "is a link" in report.message


def test_a_link_out_of_the_claim_is_not_followed(volume: Volume) -> None:
    put(volume.root / "elsewhere", wanted(model()))
    (volume.store / "llama").mkdir()
    (volume.store / "llama/tiny").symlink_to(volume.root / "elsewhere")
    report = volume.fetch(URI, {})
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")
    assert "out of the claim" in report.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({SHARDS[0]: model()[SHARDS[0]][:-1]}, "cut off"),
        ({SHARDS[0]: b"version https://git-lfs.github.com/spec/v1\n"}, "no safetensors file"),
        ({"config.json": b"<html>"}, "config.json"),
        ({"config.json": json.dumps({**CONFIG, "architectures": []}).encode()}, "architectures"),
    ],
)
def test_a_model_that_is_not_whole_is_told(volume: Volume, change: Files, words: str) -> None:
    put(volume.store / "llama/tiny", {**wanted(model()), **change})
    report = volume.fetch(URI, {})
    assert (report.outcome, report.reason) == ("Permanent", "ModelIncomplete")
    assert words in report.message
    assert not (volume.final(URI) / MANIFEST).exists()


def test_a_missing_shard_is_told(volume: Volume) -> None:
    files = wanted(model())
    del files[SHARDS[1]]
    put(volume.store / "llama/tiny", files)
    report = volume.fetch(URI, {})
    assert report.reason == "ModelIncomplete"
    assert SHARDS[1] in report.message


def test_pickles_in_place_are_refused(volume: Volume) -> None:
    put(volume.store / "llama/tiny", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    report = volume.fetch(URI, {})
    assert (report.outcome, report.reason) == ("Permanent", "UnsafeWeights")


def test_files_that_this_user_cannot_read_are_told(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(volume.store / "llama/tiny", wanted(model()))
    refused = volume.store / "llama/tiny/config.json"
    opened = os.open

    def refuse(path: str | Path, *arguments: int) -> int:
        # Root, which tests may run as, is refused nothing.
        if Path(path) == refused:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    report = volume.fetch(URI, {})
    assert (report.outcome, report.reason) == ("Permanent", "AccessDenied")
    assert "chmod -R o+rX" in report.message


def test_a_volume_that_fails_is_the_environments_fault(volume: Volume) -> None:
    put(volume.root / "source/llama/tiny", wanted(model()))
    (volume.store / "shardwright").write_text("in the way")
    report = volume.fetch(URI, {})
    assert (report.outcome, report.reason) == ("Environment", "ToolFailed")
    assert "storage failed" in report.message
