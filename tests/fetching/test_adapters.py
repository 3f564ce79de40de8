"""An adapter is fetched like a model: its two files, pinned and described; no pickle, no code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fetching.hub_server import REPOSITORY, HubServer
from tests.fetching.volume import Volume
from tests.support.adapters import adapter, write

from shardwright.runner.contract import STEP_ADAPTER

URI = f"hf://{REPOSITORY}@main"
SIZES = {"q_proj": (64, 64), "v_proj": (64, 32)}
FILES = adapter(SIZES)


@pytest.fixture
def adapters(volume: Volume) -> Volume:
    volume.step = STEP_ADAPTER
    return volume


def test_an_adapter_is_whole_pinned_and_described(hub: HubServer, adapters: Volume) -> None:
    more = {"LICENSE": b"MIT\n", "README.md": b"#", "tokenizer.json": b"{}", "optimizer.pt": b"p"}
    commit = hub.push({**FILES, **more})
    report = adapters.fetch(URI, {"HF_ENDPOINT": hub.url})
    assert report.outcome == "Done", report.message
    assert (report.step, report.commit, report.facts) == (STEP_ADAPTER, commit, None)
    assert report.adapter is not None
    assert (report.adapter.rank, report.adapter.sizes) == (8, SIZES)
    assert adapters.files(URI) == {**FILES, "LICENSE": b"MIT\n"}
    assert adapters.manifest(URI).adapter == report.adapter
    again = adapters.fetch(URI, {"HF_ENDPOINT": hub.url})
    assert (again.reused, again.adapter) == (True, report.adapter)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"adapter_model.safetensors": b""}, "ModelNotFound"),
        ({"adapter_config.json": b"{}"}, "ModelNotFound"),
        ({"adapter_config.json": b"{}", "adapter_model.bin": b"pickle"}, "UnsafeWeights"),
        ({**FILES, "adapter_config.json": b"["}, "AdapterInvalid"),
        ({**FILES, "adapter_model.safetensors": b"short"}, "AdapterInvalid"),
    ],
)
def test_what_is_no_adapter_fails_for_good(
    hub: HubServer, adapters: Volume, files: dict[str, bytes], reason: str
) -> None:
    hub.push(files)
    report = adapters.fetch(URI, {"HF_ENDPOINT": hub.url})
    assert (report.outcome, report.reason) == ("Permanent", reason), report.message


def test_an_adapter_in_place_is_described_and_not_copied(adapters: Volume) -> None:
    write(adapters.store / "lora/legal", FILES)
    report = adapters.fetch("pvc://models/lora/legal", {})
    assert report.outcome == "Done", report.message
    assert report.adapter is not None
    assert report.total_bytes == report.adapter.bytes > 0
    assert adapters.manifest("pvc://models/lora/legal").files == {}


def test_an_adapter_that_is_not_in_place_is_told(adapters: Volume, tmp_path: Path) -> None:
    report = adapters.fetch("pvc://models/lora/none", {})
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")
    assert "adapter_config.json" in report.message
    write(tmp_path / "outside", FILES)
    (adapters.store / "lora").mkdir(parents=True)
    (adapters.store / "lora/link").symlink_to(tmp_path / "outside")
    assert "out of the claim" in adapters.fetch("pvc://models/lora/link", {}).message
