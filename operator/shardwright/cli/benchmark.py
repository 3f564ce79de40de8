"""`shardwright benchmark`: measure a serving replica with its runtime's own benchmark."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.api import names
from shardwright.api.speculative import DEFAULT_DRAFT_LEN, SpeculationMethod
from shardwright.api.status import BenchmarkPoint, BenchmarkStatus
from shardwright.apply.client import Cluster, connect
from shardwright.apply.errors import ClusterError, Conflict
from shardwright.benchmark.advice import advice, knee_of
from shardwright.benchmark.job import (
    JobError,
    benchmark_job,
    concurrencies,
    points_of,
    served_by,
)
from shardwright.benchmark.results import Run
from shardwright.benchmark.tools import TOOLS
from shardwright.cli.asking import EXIT_BAD_INPUT

POLL_SECONDS = 2.0


def benchmark(
    name: Annotated[str, typer.Argument(help="Name of the LLMDeployment.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where results are written.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")] = "default",
    concurrency: Annotated[
        str, typer.Option(help="Requests at once, up to 16 rising numbers.")
    ] = "1,2,4,8,16,32,64,128",
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 2048,
    output_len: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 512,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds.")] = 7200,
    write_status: Annotated[
        bool, typer.Option("--status/--no-status", help="Write status.benchmark too.")
    ] = True,
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Which cluster.")
    ] = "",
) -> None:
    """Measure a serving replica: tokens a second, TTFT and TPOT by concurrency.

    A Job with no GPU runs the runtime's own benchmark against one leader. That replica serves
    others meanwhile, so measure when it is quiet. Exit code 1 when it cannot be measured, 2 when
    the input is wrong.
    """
    try:
        at_once = concurrencies(concurrency)
    except JobError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    lengths = (input_len, output_len)
    try:
        run = asyncio.run(_measured(kubeconfig, namespace, name, lengths, at_once, timeout))
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


async def _measured(
    kubeconfig: str,
    namespace: str,
    name: str,
    lengths: tuple[int, int],
    at_once: tuple[int, ...],
    seconds: float,
) -> Run:
    async with connect(kubeconfig) as cluster:
        body = await cluster.get(names.KIND, namespace, name)
        runtime = str(body["spec"].get("engine", {}).get("runtime", "TensorRTLLM"))
        leader = await _leader(cluster, namespace, name)
        started = datetime.now(UTC)
        called = f"{name}-benchmark-{started:%y%m%d%H%M%S}"
        drafted = _draft_len(body)
        job = benchmark_job(leader, called, runtime, lengths, at_once, drafted)
        await cluster.create("Job", job)
        job_name = str(job["metadata"]["name"])
        typer.echo(f"Job {namespace}/{job_name} measures pod {leader['metadata']['name']}")
        points = points_of(await _ended(cluster, namespace, job_name, seconds))
    served = served_by(leader)
    spec = body["spec"]
    return Run(
        name=name,
        revision=served.revision,
        date=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        tool=f"{TOOLS[runtime].contract} of {leader['spec']['containers'][0]['image']}",
        input_len=lengths[0],
        output_len=lengths[1],
        runtime=runtime,
        weights=str(spec.get("quantization", {}).get("weights", "None")),
        product=served.product,
        tensor=served.tensor,
        pipeline=served.pipeline,
        points=points,
        max_batch_size=int(spec.get("engine", {}).get("limits", {}).get("maxBatchSize", 0)),
        draft_len=drafted,
        draft_cost=_draft_cost(body),
    )


def _draft_len(body: dict[str, Any]) -> int:
    asked = body["spec"].get("speculative")
    return 0 if asked is None else int(asked.get("maxDraftLen", DEFAULT_DRAFT_LEN))


def _draft_cost(body: dict[str, Any]) -> float | None:
    """What a drafted token costs, as a share of a pass of the model: by weights, as status has it.

    Words looked up in the text cost nothing. Heads draft all their tokens in the one pass.
    """
    method = body["spec"].get("speculative", {}).get("method", "")
    if method in (SpeculationMethod.NGRAM, SpeculationMethod.MEDUSA):
        return 0.0
    stages = body.get("status", {}).get("plan", {}).get("perGPU", ())
    draft, model = (
        sum(float(one.get(key, 0)) for one in stages) for key in ("draftGiB", "weightsGiB")
    )
    return round(draft / model, 4) if method and draft and model else None


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
        advice=advice(run),
    )


async def _leader(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """A leader that serves and is ready.

    Raises:
        JobError: There is none.
    """
    selector = f"{names.LABEL_DEPLOYMENT}={name},{names.LABEL_SERVING}=true"
    found = (await cluster.list("Pod", namespace, labels=selector)).items
    ready = [
        pod
        for pod in found
        if any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in pod.get("status", {}).get("conditions", ())
        )
    ]
    if not ready:
        raise JobError(f"no replica of {namespace}/{name} serves: shardwright status {name}")
    first: dict[str, Any] = min(ready, key=lambda pod: str(pod["metadata"]["name"]))
    return first


async def _ended(cluster: Cluster, namespace: str, job: str, seconds: float) -> str:
    """The termination message of the Job's pod.

    Raises:
        JobError: It has not ended in time.
    """
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        labels = f"batch.kubernetes.io/job-name={job}"
        for pod in (await cluster.list("Pod", namespace, labels=labels)).items:
            for status in pod.get("status", {}).get("containerStatuses", ()):
                over = status.get("state", {}).get("terminated")
                if over is not None:
                    return str(over.get("message") or "")
        await asyncio.sleep(POLL_SECONDS)
    raise JobError(f"Job {namespace}/{job} has not ended in {seconds:.0f} s; it goes on running")
