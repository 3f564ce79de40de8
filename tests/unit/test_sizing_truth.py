"""The memory model against measured rows, and against counts worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.truth import BEYOND, MEASURED, Check, checks, load

from shardwright.api.serving import KVPrecision
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.constants import rows
from shardwright.sizing.kv_cache import Pooling, stage_caches
from shardwright.sizing.partition import Remainder
from shardwright.sizing.shape import Shape
from shardwright.sizing.weights import parameters

ROWS = 18
FACTS = json.loads((Path(__file__).parents[1] / "data" / "model_facts.json").read_text("utf-8"))
CHECKS = list(checks())
FURTHER = list(checks(BEYOND))


@pytest.mark.parametrize(
    "check", [*CHECKS, *FURTHER], ids=lambda check: f"{check.row} {check.what}"
)
def test_a_measured_value_is_met(check: Check) -> None:
    assert check.holds, f"{check.measured} measured, {check.ours} worked out"


def test_tolerances_are_no_wider_than_promised() -> None:
    allowed = {"weightsGiB": 2, "kvTokens": 0.5, "kvPoolGiB": 3}
    for row in (*load(MEASURED)["rows"], *load(BEYOND)["rows"]):
        for check in row["checks"]:
            if check["quantity"] == "activationGiB":
                assert check["toleranceGiB"] <= 0.5
            elif check["quantity"] == "kvPoolGiB" and check["measured"] < 10:
                assert check["toleranceGiB"] <= 1
            elif check["quantity"] in allowed:
                mxfp4 = "gpt-oss" in row["model"]
                stages = row["pipeline"] > 1 and check["quantity"] == "kvTokens"
                limit = 6 if mxfp4 else 3 if stages else allowed[check["quantity"]]
                assert check["tolerancePercent"] <= limit


def test_every_row_is_there_and_at_least_six_inform_no_constant() -> None:
    table = load()
    assert len(table["rows"]) == ROWS
    assert {check.row for check in CHECKS} == {row["id"] for row in table["rows"]}
    assert sum(not row["informs"] for row in table["rows"]) >= 6
    assert sum(not row["informs"] for row in load(BEYOND)["rows"]) > ROWS


def test_every_constant_a_row_informs_is_in_the_table_and_names_its_source() -> None:
    informed = {name.split()[0] for row in load()["rows"] for name in row["informs"]}
    known = {
        "samplerGiB",
        "samplerBytesPerLogit",
        "forwardWidthBytes",
        "forwardHiddenBytes",
        "expertWorkspaceBytes",
        "towerGiB",
        "nonTorchGiB",
        "nonTorchTensorGiB",
        "nonTorchPipelineGiB",
        "graphsGiB",
        "mxfp4",
    }
    assert informed <= known
    for row in rows():
        assert all(row.sources), row.row


def test_no_constant_is_keyed_by_a_model() -> None:
    """Values may name the runs they come from; what selects a row may not."""
    names = {name.lower() for name in ("llama", "qwen", "mixtral", "deepseek", "gemma", "gpt")}
    for row in rows():
        keys = f"{row.row} {row.engine} {row.backend} {row.gpu_class} {row.measured}".lower()
        assert not any(name in keys for name in names), row.row


@pytest.mark.parametrize("fact", FACTS["models"], ids=lambda fact: fact["name"])
def test_parameters_are_those_counted_by_hand(fact: dict[str, Any]) -> None:
    counted = parameters(catalogue_model(fact["name"]))
    # By hand, norms of queries and keys and the like were left out.
    assert 0 <= counted - fact["parameters"] <= 5e-5 * fact["parameters"]


@pytest.mark.parametrize("fact", FACTS["models"], ids=lambda fact: fact["name"])
def test_kv_bytes_of_a_token_are_those_counted_by_hand(fact: dict[str, Any]) -> None:
    pooling = Pooling(block=16, grouped=False, ratio=1)
    model = catalogue_model(fact["name"])
    (cache,) = stage_caches(model, KVPrecision.NONE, Shape(), Remainder.FIRST, pooling)
    assert cache.token_bytes == fact["kvBytesPerToken"]


# Counts that the publishers' repositories show.
PUBLISHED = {
    "google/gemma-2-9b-it": 9_241_705_984,
    "google/gemma-2-27b-it": 27_227_128_320,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "microsoft/phi-2": 2_779_683_840,
    "EleutherAI/gpt-j-6b": 6_050_882_784,
    "openai/gpt-oss-20b": 20_914_757_184,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameters_are_exactly_the_published_ones(name: str, count: int) -> None:
    assert parameters(catalogue_model(name)) == count
