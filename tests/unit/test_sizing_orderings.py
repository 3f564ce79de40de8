"""Twenty published measurements: both sides of each are estimated and must come out in its order.

The rows stand in tests/data/performance_orderings.json with their sources. None is marked as not
expressible.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.evaluate import Evaluation, evaluate
from shardwright.sizing.fleet import memory_of
from shardwright.sizing.hardware import hardware
from shardwright.sizing.pools import Pool
from shardwright.sizing.question import Fabric, FabricKind, NodeGroup, Workload
from shardwright.sizing.shape import EngineSettings, GPUMemory, Precision, Shape

DATA = json.loads(
    (Path(__file__).parents[1] / "data" / "performance_orderings.json").read_text("utf-8")
)
ROWS: list[dict[str, Any]] = DATA["rows"]
NOT_EXPRESSIBLE: dict[str, str] = {}

ENGINES = {
    "TensorRTLLM": EngineSettings(
        "TensorRTLLM", "1.0.0", "PyTorch", max_seq_len=32768, max_batch_size=2048
    ),
    "VLLM": EngineSettings("VLLM", "0.19.0", max_seq_len=8192, max_batch_size=1024),
}
NVLINK = {"NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": 0, "NVIDIA-H100-PCIe": 0}


def _pool(asked: Mapping[str, Any]) -> Pool:
    product = asked["product"]
    gpus = asked.get("gpus", 8)
    fabric = asked.get("fabric", {"kind": "RDMA", "gigabytesPerSecond": 50})
    group = NodeGroup(
        name="nodes",
        product=product,
        nodes=asked.get("nodes", 1),
        gpus_per_node=gpus,
        free_gpus=gpus,
        nvlink_size=NVLINK.get(product, gpus),
        memory_bytes=memory_of(product),
        fabric=Fabric(FabricKind(fabric["kind"]), fabric["gigabytesPerSecond"]),
    )
    memory = GPUMemory(group.memory_bytes, product)
    return Pool(product, hardware(product), (group,), memory)


def _evaluate(asked: Mapping[str, Any]) -> Evaluation:
    weights = asked["weights"]
    run = functools.partial(
        evaluate,
        catalogue_model(asked["model"]),
        _pool(asked),
        Workload(input_len=asked["input"], output_len=asked["output"]),
        ENGINES[asked.get("engine", "TensorRTLLM")],
        precision=Precision(
            None if weights == "Checkpoint" else WeightPrecision(weights),
            KVPrecision(asked["kvCache"]),
        ),
        shape=Shape(
            asked.get("tensor", 1),
            asked.get("pipeline", 1),
            asked.get("expert", 1),
            asked.get("attentionData", 1),
        ),
    )
    found = run(batch=asked.get("batch"))
    most = asked.get("batchUpTo")
    return run(batch=min(most, found.estimate.capacity)) if most else found


def _metric(name: str, found: Evaluation) -> float:
    return {
        "perGPU": found.estimate.tokens_per_second_per_gpu,
        "total": found.estimate.tokens_per_second,
        "user": 1 / found.estimate.tpot_seconds,
        "kvTokens": float(found.memory.kv_tokens),
    }[name]


def _measure(row: Mapping[str, Any], check: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    return _metric(check["metric"], _evaluate({**row["common"], **check, **config}))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_estimates_come_out_in_the_measured_order(row: dict[str, Any]) -> None:
    assert row["id"] not in NOT_EXPRESSIBLE
    for check in row["checks"]:
        if "grows" in check:
            small, large = (
                _measure(row, check, first) / _measure(row, check, second)
                for first, second in check["grows"]
            )
            assert 1 < small < large, row["rule"]
            continue
        values = [_measure(row, check, config) for config in check["order"]]
        for better, worse in pairwise(values):
            ratio = better / worse
            if check.get("ties"):
                assert ratio >= 1, (row["rule"], check, values)
            else:
                assert ratio > 1, (row["rule"], check, values)
            assert ratio >= check.get("atLeast", 0), (row["rule"], check, values)
            assert ratio <= check.get("atMost", float("inf")), (row["rule"], check, values)


def test_all_twenty_rows_are_there_with_their_sources() -> None:
    assert [row["id"] for row in ROWS] == [f"p{number:02}" for number in range(1, 21)]
    assert all(row["source"] and row["rule"] and row["measured"] and row["checks"] for row in ROWS)
    assert len(NOT_EXPRESSIBLE) <= 2


def test_an_order_turned_round_is_noticed() -> None:
    for row in ROWS:
        for check in row["checks"]:
            if "order" in check and not check.get("ties"):
                values = [_measure(row, check, config) for config in reversed(check["order"])]
                assert any(first < second for first, second in pairwise(values)), row["id"]
