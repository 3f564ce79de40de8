"""`shardwright plot` and `shardwright compare-runs`: measured runs as a picture and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwright.benchmark.advice import advice, knee_of
from shardwright.benchmark.plot import plot as drawn
from shardwright.benchmark.results import Point, ResultsError, Run, read_run
from shardwright.cli import wording
from shardwright.cli.asking import EXIT_BAD_INPUT

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Results of `shardwright benchmark`.")
]


def plot(
    files: Files,
    output: Annotated[Path, typer.Option("--output", "-o", help="The SVG file to write.")],
) -> None:
    """Draw measured runs: throughput and latencies by concurrency, with the knee marked.

    Exit code 2 when a file holds no results, or there are more than six.
    """
    try:
        text = drawn(runs_of(files))
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    output.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {output}")


def compare_runs(files: Files) -> None:
    """Compare measured runs in one table: by runtime, precision, split and concurrency.

    What `shardwright compare` estimates, this has measured. Exit code 2 when a file holds no
    results.
    """
    try:
        runs = runs_of(files)
    except ResultsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    wording.printed(lambda console: show(console, runs))


def runs_of(files: Sequence[Path]) -> list[Run]:
    """The runs in these files.

    Raises:
        ResultsError: One cannot be read, or holds no results.
    """
    found = []
    for path in files:
        try:
            found.append(read_run(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path}: {error}") from error
    return found


def show(console: Console, runs: Sequence[Run]) -> None:
    """Print one row for each run and concurrency; runs side by side at each concurrency."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("at once", "run", "runtime", "weights", "split"):
        table.add_column(name, justify="right" if name == "at once" else "left")
    for name in ("tok/s", "tok/s/GPU", "TTFT ms", "TTFT p99", "TPOT ms", "TPOT p99", "KV"):
        table.add_column(name, justify="right")
    table.add_column("")
    best = {
        at: max(point.tokens_per_second / run.gpus for run, point in _at(runs, at))
        for at in {point.concurrency for run in runs for point in run.points}
    }
    for at in sorted(best):
        for run, point in _at(runs, at):
            each = point.tokens_per_second / run.gpus
            found = knee_of(run)
            marks = ["knee"] if found == point else []
            marks += ["best a GPU"] if len(runs) > 1 and each == best[at] else []
            split = f"TP {run.tensor}" + (f" × PP {run.pipeline}" if run.pipeline > 1 else "")
            table.add_row(
                *(str(at), run.name, run.runtime, run.weights, split),
                f"{point.tokens_per_second:,.0f}",
                f"{each:,.0f}",
                f"{point.ttft_ms:,.0f}",
                f"{point.ttft_p99_ms:,.0f}",
                f"{point.tpot_ms:.1f}",
                f"{point.tpot_p99_ms:.1f}",
                "–" if point.kv_cache is None else f"{point.kv_cache * 100:.0f} %",
                ", ".join(marks),
            )
    console.print(table)
    lengths = {(run.input_len, run.output_len) for run in runs}
    if len(lengths) > 1:
        told = ", ".join(f"{given} in and {out} out" for given, out in sorted(lengths))
        console.print(Text(f"These were measured with different lengths: {told} tokens."))
    for run in runs:
        console.print()
        console.print(Text(f"{run.name}, revision {run.revision}, by {run.tool}, {run.date}"))
        wording.bullets(console, advice(run), indent=0)


def _at(runs: Sequence[Run], concurrency: int) -> list[tuple[Run, Point]]:
    return [
        (run, point) for run in runs for point in run.points if point.concurrency == concurrency
    ]
