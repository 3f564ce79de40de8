"""`shardwright benchmark`: measure a serving replica with its runtime's own benchmark."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shardwright.api import names
from shardwright.api.status import BenchmarkPoint, BenchmarkStatus
from shardwright.apply.client import connect
from shardwright.apply.errors import ClusterError, Conflict
from shardwright.benchmark.advice import advice, knee_of
from shardwright.benchmark.job import JobError, concurrencies
from shardwright.benchmark.results import Run
from shardwright.cli.asking import EXIT_BAD_INPUT
from shardwright.cli.measuring import Asked, measured

# What status keeps of an advice: an error's beginning tells the point, its end the cause.
_LONGEST_ADVICE = 600
_MOST_ADVICE = 8


class ToolName(StrEnum):
    """What measures: the benchmark in the runtime's image, or aiperf in an image of its own."""

    OWN = "own"
    AIPERF = "aiperf"


def benchmark(
    name: Annotated[str, typer.Argument(help="Name of the LLMDeployment.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where results are written.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")] = "default",
    *,
    concurrency: Annotated[
        str, typer.Option(help="Requests at once, up to 16 rising numbers.")
    ] = "1,2,4,8,16,32,64,128",
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 2048,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 512,
    tool: Annotated[
        ToolName, typer.Option(help="The runtime's own benchmark, or aiperf.")
    ] = ToolName.OWN,
    image: Annotated[str, typer.Option(help="An image that has aiperf.")] = "",
    timeout: Annotated[
        int,
        typer.Option(min=0, help="Seconds that all points may take; 0 goes by the points asked."),
    ] = 0,
    write_status: Annotated[
        bool, typer.Option("--status/--no-status", help="Write status.benchmark too.")
    ] = True,
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Which cluster.")
    ] = "",
) -> None:
    """Measure a serving replica: tokens a second, TTFT and TPOT by concurrency.

    A Job with no GPU runs the runtime's own benchmark against one leader. That replica serves
    others meanwhile, so measure when it is quiet. Exit code 1 when it cannot be measured, or not
    at each concurrency (what was measured is written all the same), 2 when the input is wrong.
    """
    try:
        at_once = concurrencies(concurrency)
    except JobError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    lengths = (input_len, output_len)
    asked = Asked(namespace, name, lengths, at_once, timeout, tool.value, image)
    try:
        run = asyncio.run(_measured(kubeconfig, asked))
    except (ClusterError, JobError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    output.write_text(run.dump(), encoding="utf-8")
    if write_status:
        try:
            asyncio.run(_told(kubeconfig, namespace, run))
        except ClusterError as error:
            typer.echo(f"status.benchmark was not written: {error}", err=True)
    typer.echo(f"wrote {output}; draw it with: shardwright plot {output} -o benchmark.svg")
    for line in advice(run):
        typer.echo(f"· {line}")
    if len(run.points) < len(at_once):
        raise typer.Exit(1)


async def _measured(kubeconfig: str, asked: Asked) -> Run:
    async with connect(kubeconfig) as cluster:
        return await measured(cluster, asked, lambda line: typer.echo(line, err=True))


async def _told(kubeconfig: str, namespace: str, run: Run) -> None:
    """Write the run into the deployment's status, under a field manager of its own.

    Raises:
        ClusterError: It may not be written, or the object moves on each time.
    """
    async with connect(kubeconfig) as cluster:
        for last in (False, False, True):
            body = await cluster.get(names.KIND, namespace, run.name)
            found = body["metadata"]
            meta = {key: found[key] for key in ("name", "namespace", "uid", "resourceVersion")}
            status = {"benchmark": status_of(run).model_dump(by_alias=True, exclude_none=True)}
            told = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": meta}
            try:
                await cluster.apply_status(
                    names.KIND, {**told, "status": status}, manager=names.MANAGER_BENCHMARK
                )
            except Conflict:
                if last:
                    raise
            else:
                return


def status_of(run: Run) -> BenchmarkStatus:
    """A run as status has it."""
    found = knee_of(run)
    return BenchmarkStatus(
        revision=run.revision,
        date=run.date,
        tool=run.tool,
        input_len=run.input_len,
        output_len=run.output_len,
        points=[BenchmarkPoint(**asdict(point)) for point in run.points],
        knee=found.concurrency if found else 0,
        advice=[_short(line) for line in advice(run)[:_MOST_ADVICE]],
    )


def _short(text: str) -> str:
    if len(text) <= _LONGEST_ADVICE:
        return text
    head = _LONGEST_ADVICE // 3
    return f"{text[:head]} […] {text[-(_LONGEST_ADVICE - head - 5) :]}"
