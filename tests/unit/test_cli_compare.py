"""`shardwright compare`: precisions, GPUs and splits of a model beside each other."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from shardwright.cli.app import app
from shardwright.sizing.precisions import ACCURACY_SOURCE

H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"


def ask(*options: str) -> Result:
    return CliRunner().invoke(app, ["compare", *options])


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    result = ask(
        "Llama-3.1-70B", "--gpu", H100, "--gpu", A100, "--all", "-o", "json",
        "--price", f"{H100}=2.5", "--concurrency", "200",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


def test_every_row_holds_the_load_and_takes_whole_replicas(rows: list[dict[str, Any]]) -> None:
    assert rows
    for row in rows:
        assert row["gpus"] == row["replicas"] * row["tensor"] * row["pipeline"]
        assert 0 < row["weightsGiB"] + row["kvPoolGiB"] < row["gpuGiB"]


def test_fp8_is_offered_where_the_gpu_has_it(rows: list[dict[str, Any]]) -> None:
    weights = {
        product: {row["weights"] for row in rows if row["product"] == product}
        for product in (H100, A100)
    }
    assert "FP8" in weights[H100]
    assert "FP8" not in weights[A100]
    assert "INT4AWQ" in weights[A100]


def test_the_best_row_of_all_is_one(rows: list[dict[str, Any]]) -> None:
    speeds = [row["tokensPerSecondPerGPU"] for row in rows]
    for row in rows:
        assert row["relativeSpeed"] == pytest.approx(row["tokensPerSecondPerGPU"] / max(speeds))
    assert max(row["relativeSpeed"] for row in rows) == 1


def test_published_loss_has_its_source(rows: list[dict[str, Any]]) -> None:
    losses = {row["weights"]: row["accuracyLossPercent"] for row in rows}
    assert losses == {"None": 0.0, "FP8": 0.87, "INT4AWQ": 1.01, "INT8SmoothQuant": 2.75}
    for row in rows:
        assert row["accuracySource"] == (ACCURACY_SOURCE if row["accuracyLossPercent"] else None)


def test_cost_is_the_users_price_and_none_without_one(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["product"] == A100:
            assert row["dollarsPerHour"] is None
            assert row["dollarsPerMillionTokens"] is None
            continue
        assert row["dollarsPerHour"] == pytest.approx(2.5 * row["gpus"])
        tokens_an_hour = row["tokensPerSecondPerGPU"] * row["gpus"] * 3600
        assert row["dollarsPerMillionTokens"] == pytest.approx(
            row["dollarsPerHour"] / tokens_an_hour * 1e6
        )


def test_each_precision_on_each_gpu_marks_one_smallest_and_one_best(
    rows: list[dict[str, Any]],
) -> None:
    for _, some in groupby(rows, key=lambda row: (row["product"], row["weights"])):
        peers = list(some)
        (smallest,) = [row for row in peers if row["fewestGPUs"]]
        assert smallest["gpus"] == min(row["gpus"] for row in peers)
        assert sum(row["best"] for row in peers) == 1


def test_the_table_names_units_sources_and_shows_the_marked_rows() -> None:
    result = ask("Llama-3.1-8B", "--gpu", H100, "--price", f"{H100}=2")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for words in (H100, "GiB a GPU", "ms/token", "tok/s/GPU", "$/h", ACCURACY_SOURCE, "fewest"):
        assert words in text
    assert max(len(line) for line in result.stdout.splitlines()) <= 120
    assert "…" not in result.stdout, "no cut column"


def test_one_kv_precision_halves_the_cache_of_all() -> None:
    def tokens(kv: str) -> set[str]:
        rows = json.loads(
            ask("Llama-3.1-8B", "--gpu", H100, "--kv-cache", kv, "-o", "json").stdout
        )["rows"]
        return {row["kvCache"] for row in rows}

    assert tokens("FP8") == {"FP8"}
    assert tokens("None") == {"None"}


def test_a_checkpoint_that_comes_quantized_is_served_as_it_is() -> None:
    result = ask("gpt-oss-120b", "--gpu", H100, "-o", "json")
    assert result.exit_code == 0, result.output
    assert {row["weights"] for row in json.loads(result.stdout)["rows"]} == {None}


def test_products_and_links_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    nodes = {"nodes": [{"product": H100, "gpus": 8, "nvlink": 2}]}
    file.write_text(yaml.safe_dump(nodes), encoding="utf-8")
    result = ask("Llama-3.1-70B", "--nodes", str(file), "--all", "-o", "json")
    assert result.exit_code == 0, result.output
    assert max(row["tensor"] for row in json.loads(result.stdout)["rows"]) <= 2
    wrong = ask("Llama-3.1-70B", "--nodes", str(file), "--gpu", A100)
    assert wrong.exit_code == 2
    assert f"--gpu {A100}" in wrong.stderr
    assert H100 in wrong.stderr


def test_a_precision_that_no_gpu_has_is_exit_code_one_with_the_reason() -> None:
    result = ask("Llama-3.1-8B", "--gpu", A100, "--weights", "FP8")
    assert result.exit_code == 1
    assert "Not possible" in result.stdout
    assert "FP8" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("no-such-model",), ("no-such-model", "--model-config")),
        (("Llama-3.1-8B", "--gpu", "NVIDIA-X1"), ("--gpu", "NVIDIA-X1")),
        (("Llama-3.1-8B", "--price", "H100"), ("--price H100", "PRODUCT=USD")),
        (("Llama-3.1-8B", "--price", f"{H100}=-1"), ("PRODUCT=USD",)),
        (("Llama-3.1-8B", "--price", f"{H100}=nan"), ("PRODUCT=USD",)),
        (("Llama-3.1-8B", "--gpu", A100, "--price", f"{H100}=2"), ("--price", H100, "--gpu")),
        (("Llama-3.1-8B", "--concurrency", "0"), ("concurrency",)),
    ],
)
def test_bad_input_is_exit_code_two_and_names_the_option(
    options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = ask(*options)
    assert result.exit_code == 2
    for word in words:
        assert word in result.stderr
