"""Constants worked out again from the rows that inform them, and from no others.

The tolerances of the truth table are wider than what a constant may be off by: a sampler that is
5 % too large still meets every row. Here each measured constant must be what its rows give, to the
last digit that the table keeps; and what a row does not say it informs, this file does not read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pytest
from tests.support.truth import load

from shardwright.sizing.catalogue import catalogue_model

GIB = 2**30
SEQUENCES = 1024
# What rows of the truth table do not have: llm-d/llm-d-benchmark,
# config_explorer/empirical-vllm-memory-results.md (vLLM <=0.16, H100-80GB), GiB of activation of
# Llama-3.1-8B; vllm-project/vllm#33155, alvarobartt/hf-mem#60, GiB of the checkpoint's files.
LLAMA_8B_BEFORE_017 = 4.76
GPT_OSS_FILES = 65_248_815_744 / GIB
H100 = 79.19
FRACTION = 0.95


def constant(row: str, name: str) -> float:
    rows = {one["id"]: one for one in _table()["rows"]}
    return float(rows[row]["values"][name]["value"])


def _table() -> Mapping[str, Any]:
    text = resources.files("shardwright.sizing").joinpath("data/memory_constants.json").read_text()
    table: Mapping[str, Any] = json.loads(text)
    return table


class Rows:
    """The truth table, which notes what was read of it."""

    def __init__(self) -> None:
        self._rows = {row["id"]: row for row in load()["rows"]}
        self.read: set[str] = set()

    def __call__(self, row: str, quantity: str) -> float:
        self.read.add(row)
        (found,) = [c["measured"] for c in self._rows[row]["checks"] if c["quantity"] == quantity]
        return float(found)

    def vocabulary(self, row: str) -> int:
        self.read.add(row)
        return catalogue_model(self._rows[row]["model"]).vocabulary

    def informs(self, row: str) -> list[str]:
        return [name.split()[0] for name in self._rows[row]["informs"]]


def slope(activations: tuple[float, float], vocabularies: tuple[int, int]) -> float:
    """Bytes of a logit, from two runs of the sampler."""
    wide, narrow = activations
    return (wide - narrow) * GIB / SEQUENCES / (vocabularies[0] - vocabularies[1])


def per_logit(rows: Rows) -> float:
    return slope(
        (rows("o10", "activationGiB"), rows("o02", "activationGiB")),
        (rows.vocabulary("o10"), rows.vocabulary("o02")),
    )


def sampler(rows: Rows) -> float:
    logits = per_logit(rows) * SEQUENCES * rows.vocabulary("o02")
    return rows("o02", "activationGiB") - logits / GIB


def per_logit_before(rows: Rows) -> float:
    return slope(
        (rows("o16", "activationGiB"), LLAMA_8B_BEFORE_017),
        (rows.vocabulary("o16"), catalogue_model("meta-llama/Llama-3.1-8B").vocabulary),
    )


def sampler_before(rows: Rows) -> float:
    logits = per_logit_before(rows) * SEQUENCES * rows.vocabulary("o16")
    return rows("o16", "activationGiB") - logits / GIB


def tower(rows: Rows) -> float:
    """What the sampler leaves unexplained of a multimodal run."""
    new = "vllm-0.17-0.19"
    logits = constant(new, "samplerBytesPerLogit") * SEQUENCES * rows.vocabulary("o15")
    return rows("o15", "activationGiB") - constant(new, "samplerGiB") - logits / GIB


def over_pipeline(rows: Rows) -> float:
    """What the fraction leaves beside weights, activation and cache on the first stage."""
    held = ("weightsGiB", "activationGiB", "kvPoolGiB")
    return FRACTION * H100 - sum(rows("o06", quantity) for quantity in held)


@dataclass(frozen=True)
class Derived:
    """A constant, how it comes from rows, and how far rounding may take it."""

    name: str
    table_rows: tuple[str, ...]
    value: Callable[[Rows], float]
    rounding: float


NEW = ("vllm-0.17-0.19", "vllm-0.20", "vllm-0.21")
DERIVED = (
    Derived("samplerBytesPerLogit", NEW, per_logit, 0.05),
    Derived("samplerGiB", NEW, sampler, 0.0015),
    Derived("samplerBytesPerLogit", ("vllm-0.16",), per_logit_before, 0.05),
    Derived("samplerGiB", ("vllm-0.16",), sampler_before, 0.0015),
    Derived("towerGiB", (*NEW, "vllm-0.16"), tower, 0.005),
    Derived("nonTorchGiB", NEW, lambda rows: rows("o03", "runtimeGiB"), 0.0),
    Derived(
        "nonTorchTensorGiB",
        NEW,
        lambda rows: (rows("o05", "runtimeGiB") + rows("o08", "runtimeGiB")) / 2,
        0.005,
    ),
    # A difference of four figures of two decimals each.
    Derived("nonTorchPipelineGiB", NEW, over_pipeline, 0.02),
)
IDS = [f"{one.name} of {one.table_rows[0]}" for one in DERIVED]


@pytest.mark.parametrize("one", DERIVED, ids=IDS)
def test_a_constant_is_what_its_rows_give(one: Derived) -> None:
    found = one.value(Rows())
    for row in one.table_rows:
        assert constant(row, one.name) == pytest.approx(found, abs=one.rounding + 1e-9), row


@pytest.mark.parametrize("one", DERIVED, ids=IDS)
def test_only_rows_that_say_so_are_read(one: Derived) -> None:
    rows = Rows()
    one.value(rows)
    assert rows.read
    for row in rows.read:
        assert one.name in rows.informs(row), row


def test_mxfp4_grows_by_what_its_row_shows() -> None:
    rows = Rows()
    (entry,) = _table()["formats"]
    assert entry["ratio"] == pytest.approx(rows("o16", "weightsGiB") / GPT_OSS_FILES, abs=0.001)
    assert "mxfp4" in rows.informs("o16")


# What its publisher gives as one figure, in GiB: of the 58 runs of llm-d-planner, and for vLLM
# before 0.17 its own constants.
PUBLISHED = {
    "contextGiB": 0.51,
    "contextTensorGiB": 1.5,
    "graphsGiB": 1.0,
    "nonTorchPipelineGiB": 0.07,
}
PUBLISHED_BEFORE = {"nonTorchGiB": 0.15, "nonTorchTensorGiB": 0.55}


def test_every_measured_constant_is_worked_out_here_or_stands_as_it_was_published() -> None:
    """A new measured constant needs its derivation too."""
    worked_out = {(row, one.name) for one in DERIVED for row in one.table_rows}
    for row in _table()["rows"]:
        for name, entry in row["values"].items():
            if entry["basis"] == "measured" and name in PUBLISHED:
                assert entry["value"] == PUBLISHED[name], (row["id"], name)
            elif entry["basis"] == "measured":
                assert (row["id"], name) in worked_out
            elif entry["basis"] == "published":
                assert entry["value"] == PUBLISHED_BEFORE[name], (row["id"], name)


def test_tensorrt_llm_s_rest_is_what_its_published_log_leaves() -> None:
    """NVIDIA's page on memory, in MiB: engine 6695, context 1134, buffers 43, decoder 180."""
    free = 63.44 / 0.9
    buffers = (43 + 180) / 1024
    rest = 79.10 - free - (6695 + 1134) / 1024 - buffers
    for row in ("tensorrt-llm-tensorrt", "tensorrt-llm-pytorch"):
        assert constant(row, "samplerGiB") == pytest.approx(buffers, abs=0.005)
        assert constant(row, "nonTorchGiB") == pytest.approx(rest, abs=0.01)


def test_what_is_counted_from_sizes_stands_as_its_sizes_say() -> None:
    """16-bit elements: gate, up and their product; residual, norm, attention in and out."""
    for row in _table()["rows"]:
        assert row["values"]["forwardWidthBytes"]["value"] == 3 * 2
        assert row["values"]["forwardHiddenBytes"]["value"] == 4 * 2
        assert row["values"]["expertWorkspaceBytes"]["value"] == 2
