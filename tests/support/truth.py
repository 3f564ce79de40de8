"""Measured memory against the model's: the rows of tests/data/memory_*.json, as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.config_quantization import checkpoint_precision
from shardwright.sizing.config_reader import Reader
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.model import Model
from shardwright.sizing.shape import EngineSettings, GPUMemory, MemoryPlan, Precision, Shape

GIB = 2**30
FOLDER = Path(__file__).parents[1] / "data"
MEASURED = FOLDER / "memory_measured.json"
# Runs from which no constant was taken.
BEYOND = FOLDER / "memory_beyond.json"


@dataclass(frozen=True)
class Check:
    """One measured value beside ours.

    Attributes:
        row: Of the file.
        model: Its name.
        what: Quantity, with the stage where there are several.
        measured: In GiB or tokens.
        ours: The same.
        error: In per cent or GiB, signed.
        tolerance: In the same unit.
        unit: `%` or `GiB`.
        informs: Constants that the row was used for.
    """

    row: str
    model: str
    what: str
    measured: float
    ours: float
    error: float
    tolerance: float
    unit: str
    informs: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether ours is within the tolerance."""
        return abs(self.error) <= self.tolerance


def load(file: Path = MEASURED) -> Mapping[str, Any]:
    """One of the files."""
    table: Mapping[str, Any] = json.loads(file.read_text("utf-8"))
    return table


def model_of(row: Mapping[str, Any]) -> Model:
    """The row's model, quantized as its checkpoint was."""
    model = catalogue_model(row["model"])
    if "quantization" not in row:
        return model
    section = Reader({"quantization_config": row["quantization"]})
    return replace(model, checkpoint=checkpoint_precision(section, section))


def plan(
    table: Mapping[str, Any], row: Mapping[str, Any], pool: list[float] | None = None
) -> MemoryPlan:
    """The memory plan of a row; `pool` in GiB replaces the pool."""
    weights = None if row["weights"] == "CHECKPOINT" else WeightPrecision[row["weights"]]
    engine = row["engine"]
    return plan_memory(
        model_of(row),
        Shape(tensor=row["tensor"], pipeline=row["pipeline"]),
        Precision(weights, KVPrecision[row["kvCache"]]),
        EngineSettings(
            runtime="VLLM",
            version=engine["version"],
            memory_fraction=engine["memoryFraction"],
            max_seq_len=engine["maxSeqLen"],
            max_num_tokens=engine["maxNumTokens"],
            max_batch_size=engine["maxBatchSize"],
        ),
        GPUMemory(round(table["gpuGiB"] * GIB), table["product"]),
        kv_pool=[round(value * GIB) for value in pool] if pool else None,
    )


def checks(file: Path = MEASURED) -> Iterator[Check]:
    """Every measured value of a file with ours."""
    table = load(file)
    for row in table["rows"]:
        for check in row["checks"]:
            yield _check(table, row, check)


def _check(table: Mapping[str, Any], row: Mapping[str, Any], check: Mapping[str, Any]) -> Check:
    found = plan(table, row, check.get("poolGiB"))
    quantity, measured = check["quantity"], float(check["measured"])
    if quantity == "kvTokens":
        ours = float(found.kv_tokens)
        given = check.get("poolGiB")
        what = f"KV tokens from a pool of {given[0]} GiB" if given else "KV tokens"
    else:
        stage = found.stages[check["stage"]]
        ours = {
            "weightsGiB": stage.weights,
            "activationGiB": stage.activation,
            "runtimeGiB": stage.runtime,
            "kvPoolGiB": stage.kv_pool,
        }[quantity] / GIB
        what = {
            "weightsGiB": "weights",
            "activationGiB": "activation",
            "runtimeGiB": "non-torch",
            "kvPoolGiB": "KV pool",
        }[quantity]
        what += f", stage {stage.stage}" if row["pipeline"] > 1 else ""
    relative = "tolerancePercent" in check
    return Check(
        row=row["id"],
        model=row.get("served", row["model"]).rpartition("/")[2],
        what=what,
        measured=measured,
        ours=ours,
        error=(ours / measured - 1) * 100 if relative else ours - measured,
        tolerance=check["tolerancePercent"] if relative else check["toleranceGiB"],
        unit="%" if relative else "GiB",
        informs=tuple(row["informs"]),
    )


def draw(found: list[Check], title: str) -> Table:
    """The checks of one file, a line each."""
    table = Table(title=title, title_justify="left")
    for name in ("row", "model", "quantity", "measured", "ours", "error", "allowed", "", "informs"):
        table.add_column(name, justify="right" if name in ("measured", "ours", "error") else "left")
    last = ""
    for check in found:
        tokens = "tokens" in check.what
        again = check.row == last
        table.add_row(
            "" if again else check.row,
            "" if again else check.model,
            check.what,
            f"{check.measured:,.0f}" if tokens else f"{check.measured:.2f}",
            f"{check.ours:,.0f}" if tokens else f"{check.ours:.2f}",
            f"{check.error:+.2f} {check.unit}",
            f"±{check.tolerance:g} {check.unit}",
            "ok" if check.holds else "OUT",
            "" if again else ", ".join(check.informs) or "nothing",
        )
        last = check.row
    return table


def main() -> None:
    """Print the tables; exit code 1 when a value is outside its tolerance."""
    console = Console(width=170)
    measured, beyond = list(checks()), list(checks(BEYOND))
    console.print(draw(measured, "Memory per GPU: measured (vLLM logs) and ours"))
    console.print(draw(beyond, "Further runs, none of which fixed a constant"))
    free = sorted({check.row for check in measured if not check.informs})
    console.print(f"{len(free)} of the first rows inform no constant: {', '.join(free)}")
    outside = [check for check in (*measured, *beyond) if not check.holds]
    if outside:
        raise SystemExit(f"{len(outside)} values are outside their tolerance")
    console.print(f"all {len(measured) + len(beyond)} values are within their tolerance")


if __name__ == "__main__":
    main()
