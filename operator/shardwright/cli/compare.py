"""`shardwright compare`: one model in several precisions, on several GPUs, split several ways.

Every row holds the asked load with as few replicas as it takes, so that rows can be compared; the
nodes are imaginary ones of eight GPUs, or those of a file. Prices are the user's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwright.api.serving import Backend, EngineSpec, KVPrecision, WeightPrecision
from shardwright.cli import asking, wording
from shardwright.cli.asking import EXIT_BAD_INPUT, EXIT_NONE_POSSIBLE, model_of
from shardwright.cli.comparison import NODES, Row, as_data, compared
from shardwright.cli.reading import BadInputError, nodes_of_file
from shardwright.sizing.constants import UnknownEngineError
from shardwright.sizing.fleet import FleetError, fleet_of_yaml
from shardwright.sizing.model import Model
from shardwright.sizing.precisions import ACCURACY_SOURCE
from shardwright.sizing.question import NodeGroup, Objective, Workload
from shardwright.sizing.shape import EngineSettings, StageMemory

# What most people choose between; --gpu names others.
_USUAL = (
    "NVIDIA-B200",
    "NVIDIA-H200",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-L40S",
)
_GPUS = 8


class CompareOutput(StrEnum):
    """How the rows are written."""

    TEXT = "text"
    JSON = "json"


def compare(  # noqa: PLR0917 - typer reads a command's options from its arguments
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Name, as on the Hugging Face hub.")
    ],
    model_config: asking.ModelConfig = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", help="A product; may be given several times.")
    ] = None,
    nodes: Annotated[
        Path | None, typer.Option("--nodes", help="Take products and links from this file.")
    ] = None,
    weights: Annotated[
        list[WeightPrecision] | None,
        typer.Option("--weights", help="A precision; several times; none: all that make sense."),
    ] = None,
    kv_cache: Annotated[
        KVPrecision, typer.Option("--kv-cache", help="Precision of the KV cache.")
    ] = KVPrecision.NONE,
    objective: Annotated[Objective, typer.Option(help="What is best.")] = Objective.BALANCED,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 64,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 2048,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 512,
    price: Annotated[
        list[str] | None,
        typer.Option(help="PRODUCT=USD per GPU and hour, as you pay; several times."),
    ] = None,
    backend: Annotated[
        Backend | None, typer.Option(help="Of TensorRT-LLM; none: what suits the checkpoint.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every split, not the smallest and the best.")
    ] = False,
    output: Annotated[CompareOutput, typer.Option("--format", "-o")] = CompareOutput.TEXT,
) -> None:
    """Compare precisions, GPUs and splits of a model: memory, GPUs, speed, accuracy, cost.

    Exit code 0 with at least one row, 1 when nothing is possible, 2 when the input is wrong.
    """
    workload = Workload(objective, concurrency, input_len, output_len)
    try:
        prices = read_prices(price or ())
        known = model_of(model, model_config)
        engine = _engine(known, workload, backend)
        groups = _groups(gpu or (), nodes)
        rows, refused = compared(
            known, groups, tuple(weights or ()), kv_cache, workload, engine, prices
        )
    except (BadInputError, UnknownEngineError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    unused = set(prices) - {group.product for group in groups}
    if unused:
        named = ", ".join(sorted(unused))
        typer.echo(f"--price {named}: not among the products compared; add --gpu {named}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT)
    shown = [row for row in rows if every or row.smallest or row.best]
    if output is CompareOutput.JSON:
        data = [as_data(row) for row in shown]
        typer.echo(json.dumps({"model": known.name, "rows": data, "refused": refused}, indent=2))
    else:
        wording.printed(lambda console: show(console, known, workload, engine, shown, refused))
    if not rows:
        raise typer.Exit(EXIT_NONE_POSSIBLE)


def read_prices(given: Sequence[str]) -> dict[str, float]:
    """Prices by product.

    Raises:
        BadInputError: One is not PRODUCT=USD with a price of 0 or more.
    """
    prices: dict[str, float] = {}
    for entry in given:
        product, found, text = entry.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not found or not product or not 0 <= value < float("inf"):
            raise BadInputError(
                f"--price {entry}: write PRODUCT=USD per GPU and hour, such as "
                "NVIDIA-H100-80GB-HBM3=2.50"
            )
        prices[product] = value
    return prices


def _engine(model: Model, workload: Workload, backend: Backend | None) -> EngineSettings:
    """The API's defaults with room for the load; PyTorch for a checkpoint that comes quantized."""
    default = EngineSpec()
    suits = Backend.PYTORCH if model.checkpoint.method else default.backend
    limits = default.limits
    return EngineSettings(
        runtime=default.runtime.value,
        version=default.version,
        backend=(backend or suits or Backend.TENSORRT).value,
        memory_fraction=limits.gpu_memory_fraction,
        max_seq_len=max(limits.max_seq_len, workload.request_len),
        max_num_tokens=limits.max_num_tokens,
        max_batch_size=max(limits.max_batch_size, workload.concurrency),
    )


def _groups(products: Sequence[str], nodes: Path | None) -> tuple[NodeGroup, ...]:
    """One kind of nodes a product."""
    if nodes is not None:
        found = {group.product: group for group in reversed(nodes_of_file(nodes).fleet.groups)}
        missing = [product for product in products if product not in found]
        if missing:
            raise BadInputError(
                f"--gpu {missing[0]}: {nodes} has {', '.join(sorted(found))}; name one of those"
            )
        return tuple(found[product] for product in (products or sorted(found)))
    wanted = list(dict.fromkeys(products or _USUAL))
    entries = [
        {"product": product, "count": NODES, "gpus": _GPUS, "fabric": "RDMA"} for product in wanted
    ]
    try:
        groups = fleet_of_yaml(yaml.safe_dump({"nodes": entries})).groups
    except FleetError as error:
        raise BadInputError(f"--gpu: {error}") from error
    by_product = {group.product: group for group in groups}
    return tuple(by_product[product] for product in wanted)


def show(
    console: Console,
    model: Model,
    workload: Workload,
    engine: EngineSettings,
    rows: Sequence[Row],
    refused: Sequence[str],
) -> None:
    """Print the rows as a table, with what is to be known beside it."""
    console.print(Text(model.name, style="bold"))
    version = f"{engine.runtime} {engine.version} ({engine.backend})"
    console.print(Text(f"Load: {wording.asked(workload)}. Engine: {version}."))
    console.print(
        Text("Every row holds this load with as few replicas as it takes; memory is of one GPU.")
    )
    priced = any(row.dollars_per_hour is not None for row in rows)
    for product in dict.fromkeys(row.candidate.product for row in rows):
        console.print()
        console.print(Text(product, style="bold cyan"))
        console.print(_table([row for row in rows if row.candidate.product == product], priced))
    console.print()
    wording.bullets(console, [f"Not possible: {line}" for line in refused], indent=0)
    wording.bullets(console, list(_below(rows)), indent=0)


def _table(rows: Sequence[Row], priced: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("weights", min_width=15)
    table.add_column("split", min_width=8)
    right = {"GPUs": 10, "GiB a GPU": 21, "ms/token": 8, "tok/s/GPU": 9, "relative": 8, "loss": 6}
    right |= {"$/h": 6, "$/Mtok": 6} if priced else {}
    for name, width in right.items():
        table.add_column(name, justify="right", min_width=width)
    table.add_column("", min_width=12)
    for row in rows:
        table.add_row(*_cells(row, priced=priced))
    return table


def _cells(row: Row, *, priced: bool) -> list[str]:
    one = row.candidate
    stage = wording.tightest(one)
    weights = one.precision.weights
    marks = [word for word, is_so in (("fewest", row.smallest), ("best", row.best)) if is_so]
    cells = [
        "its own" if weights is None else "16-bit" if weights is WeightPrecision.NONE else weights,
        wording.split(one.shape),
        f"{one.gpus} = {one.replicas} × {one.shape.world_size}",
        _memory(stage),
        f"{one.estimate.tpot_seconds * 1000:.1f}",
        f"{one.estimate.tokens_per_second_per_gpu:,.0f}",
        f"{row.relative:.2f}",
        _loss(one.accuracy_loss, weights),
    ]
    if priced:
        cells += [_dollars(row.dollars_per_hour), _dollars(row.dollars_per_million)]
    return [*cells, ", ".join(marks)]


def _memory(stage: StageMemory) -> str:
    held = f"{wording.gib(stage.weights)} + {wording.gib(stage.kv_pool)}"
    return f"{held} of {wording.gib(stage.total)}"


def _loss(loss: float | None, weights: WeightPrecision | None) -> str:
    if weights is WeightPrecision.NONE:
        return "0"
    return "?" if loss is None else f"{loss:.2f} %"


def _dollars(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _below(rows: Sequence[Row]) -> Iterator[str]:
    yield "GPUs: all, = replicas × GPUs of a replica. GiB a GPU: weights + KV cache of the whole."
    yield (
        "relative: output tokens a second of a GPU, the best row of all is 1.00. Speeds are "
        "estimates."
    )
    yield ("fewest, best: of these weights on this GPU, fewest GPUs, and best by the objective.")
    if any(row.candidate.accuracy_loss for row in rows):
        yield (
            f"loss: accuracy, as published: {ACCURACY_SOURCE}; other models differ, the order "
            "seldom does. ? is not published."
        )
    if any(row.dollars_per_hour is not None for row in rows):
        yield "$: your own prices, for all GPUs of the row at this load; – is without a price."
