"""What nvidia-smi tells is read strictly; a product label is compared as its maker writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.runner.gpus import (
    GPU,
    GPUError,
    manifest_entry,
    read_gpus,
    same_product,
    visible_gpus,
)
from shardwright.runner.versions import tool_versions

H100 = GPU(0, "NVIDIA H100 80GB HBM3", "9.0", "570.86.15")


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put an nvidia-smi of this content onto the path."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_gpus_are_read_as_nvidia_smi_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(
        tmp_path,
        monkeypatch,
        'test "$1 $2" = "--query-gpu=index,name,compute_cap,driver_version --format=csv,noheader"'
        " || exit 9\n"
        "echo '0, NVIDIA H100 80GB HBM3, 9.0, 570.86.15'\n"
        "echo '1, NVIDIA H100 80GB HBM3, 9.0, 570.86.15'",
    )
    found = visible_gpus()
    assert found == (H100, GPU(1, H100.name, "9.0", "570.86.15"))
    assert found[0].product == "NVIDIA-H100-80GB-HBM3"


def test_a_pod_without_nvidia_smi_knows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() is None


def test_a_pod_without_gpus_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "echo 'No devices were found'; exit 6")
    assert visible_gpus() == ()


def test_a_driver_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    smi(tmp_path, monkeypatch, f'echo "{said}"; exit 9')
    with pytest.raises(GPUError, match="couldn't communicate"):
        visible_gpus()


@pytest.mark.parametrize("text", ["0, H100, 9.0", "x, H100, 9.0, 570", "<html>"])
def test_another_answer_is_an_error(text: str) -> None:
    with pytest.raises(GPUError, match="expected index"):
        read_gpus(text)


@pytest.mark.parametrize(
    ("label", "name", "same"),
    [
        # labels of GPU Feature Discovery
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA H100 PCIe", False),
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA H200", False),
        ("Tesla-T4", "Tesla T4", True),
        ("Tesla-T4", "NVIDIA A10", False),
        # labels of Google's nodes
        ("nvidia-h100-80gb", "NVIDIA H100 80GB HBM3", True),
        ("nvidia-h100-mega-80gb", "NVIDIA H100 80GB HBM3", True),
        ("nvidia-h200-141gb", "NVIDIA H200", True),
        ("nvidia-tesla-t4", "Tesla T4", True),
        ("nvidia-l4", "NVIDIA L4", True),
        ("nvidia-l4", "NVIDIA L40S", False),
        ("nvidia-h100-80gb", "NVIDIA H200", False),
        # a label that says nothing of the product
        ("pool-a", "NVIDIA H200", True),
    ],
)
def test_a_label_is_compared_with_the_gpu(label: str, name: str, same: bool) -> None:
    assert same_product(label, GPU(0, name, "9.0", "570")) is same


def test_a_manifest_says_what_was_seen_rather_than_what_was_promised() -> None:
    assert manifest_entry((H100,), "nvidia-h100-80gb") == {
        "product": "NVIDIA-H100-80GB-HBM3",
        "compute": "9.0",
        "driver": "570.86.15",
    }
    assert manifest_entry(None, "nvidia-h100-80gb") == {"product": "nvidia-h100-80gb"}
    assert manifest_entry(None, "") == {}


def test_versions_come_from_package_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("tensorrt_llm", "1.2.1"), ("tensorrt_cu13", "10.14.1.48")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = tool_versions()
    assert found["tensorrt_llm"] == "1.2.1"
    assert found["tensorrt"] == "10.14.1.48"
    assert "modelopt" not in found
