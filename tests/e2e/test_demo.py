"""The demo checks itself: here only that it ends well, says what it promises, and can fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.e2e


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shardwright_sandbox.demo", "--state", str(folder), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "sandbox"), "COLUMNS": "80"},
    )


def test_the_demo_shows_what_it_promises_without_a_terminal_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "demo"
    done = run(folder, "--pace", "0.6", "--limit", "300")
    assert done.returncode == 0, done.stdout + done.stderr
    words = re.findall(r"^ *[0-9.]+ s (\w+)", done.stdout, flags=re.MULTILINE)
    order = ["apply", "fetch", "checkpoint", "build", "prove", "place", "proven", "ready"]
    assert [word for word in words if word in order][:8] == order
    text = " ".join(done.stdout.split())
    assert "parallelism.tensor 8 → 4, parallelism.pipeline 2 → 4" in text
    assert "gpu.product NVIDIA-H100-80GB-HBM3 → NVIDIA-H200" in text
    assert "refused PrecisionNotSupported: quantization.weights FP8" in text
    assert "│h200-3 │8×H200 │ 12 13 14 15 · · · · │r0 s3 │" in text
    assert "\x1b[" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert not folder.exists()


def test_the_demo_fails_when_something_does_not_happen_in_time_and_still_cleans_up(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "demo"
    done = run(folder, "--limit", "0.01")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The demo failed: TP8 × PP2 on H100: not done within 0 s" in done.stdout
    assert not folder.exists()
