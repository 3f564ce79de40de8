"""`shardwright status` and `shardwright map`: what a deployment is doing, and where it runs.

Both only read, with the rights of whoever calls them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.api.status import BenchmarkStatus, LLMDeploymentStatus
from shardwright.apply.client import connect
from shardwright.apply.errors import ClusterError
from shardwright.cli.fleetmap import draw
from shardwright.observe.nodes import node_view
from shardwright.observe.projections import deployment_view, pod_view
from shardwright.observe.world import DeploymentView

POLL_SECONDS = 0.5

Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Which cluster.")
]


def fleet_map(kubeconfig: Kubeconfig = "") -> None:
    """Draw nodes × GPUs with the replica, stage and ranks on each."""
    asyncio.run(_map(kubeconfig))


async def _map(kubeconfig: str) -> None:
    console = Console()
    async with connect(kubeconfig) as cluster:
        nodes = [node_view(body, Settings()) for body in (await cluster.list("Node")).items]
        pods = [pod_view(body) for body in (await cluster.list("Pod")).items]
    draw(console, nodes, pods)


def status(
    name: Annotated[str, typer.Argument(help="Name of the LLMDeployment.")],
    namespace: Namespace = "default",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow until Ready or Stalled.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Give up after so many seconds.")] = 3600,
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show conditions and groups; with --watch every turn until it is Ready (exit code 0).

    Compares generations, so a Ready of an older spec does not count. Exit code 1 when Stalled or
    out of time.
    """
    try:
        good = asyncio.run(_status(name, namespace, kubeconfig, timeout if watch else 0))
    except ClusterError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    if watch and not good:
        raise typer.Exit(1)


async def _status(name: str, namespace: str, kubeconfig: str, seconds: float) -> bool:
    console = Console()
    ends = time.monotonic() + seconds
    shown: set[tuple[str, str, str, str]] = set()
    async with connect(kubeconfig) as cluster:
        while True:
            view = deployment_view(await cluster.get("LLMDeployment", namespace, name))
            state = LLMDeploymentStatus.model_validate(view.status)
            if not seconds:
                _table(console, view, state)
                return _is(state, view, "Ready")
            for line in turns(state, shown):
                # A line is a turn, whatever reads it: a terminal breaks it by itself.
                stamp = f"[dim]{datetime.now(UTC):%H:%M:%S}[/dim]"
                console.print(f"{stamp} {line}", highlight=False, soft_wrap=True)
            if _is(state, view, "Ready"):
                return True
            if _is(state, view, "Stalled") or time.monotonic() > ends:
                return False
            await asyncio.sleep(POLL_SECONDS)


def _is(state: LLMDeploymentStatus, view: DeploymentView, kind: str) -> bool:
    return state.observed_generation == view.generation and any(
        item.type == kind and item.status == "True" for item in state.conditions
    )


def turns(state: LLMDeploymentStatus, shown: set[tuple[str, str, str, str]]) -> Iterable[str]:
    """Condition turns that were not printed yet, as lines with rich's markup.

    What several conditions say in the same words is written out once.
    """
    told: set[str] = set()
    for item in state.conditions:
        if item.type in ("Reconciling", "Stalled") and item.status != "True":
            continue
        if item.type == "Reconciling":
            continue
        turn = (item.type, item.status, item.reason, item.message)
        if turn in shown:
            continue
        shown.add(turn)
        colour = {"True": "green", "False": "yellow"}.get(item.status, "dim")
        if item.type == "Stalled":
            colour = "red"
        words = "" if item.message in told else f": {escape(item.message)}"
        told.add(item.message)
        yield f"[{colour}]{item.type}={item.status}[/{colour}] {item.reason}{words}"


def _table(console: Console, view: DeploymentView, state: LLMDeploymentStatus) -> None:
    asked = view.spec.get("replicas", LLMDeploymentSpec.model_fields["replicas"].default)
    console.print(
        f"{view.namespace}/{view.name}  generation {view.generation}, observed "
        f"{state.observed_generation}  ready {state.ready_replicas} of {asked}",
        highlight=False,
    )
    conditions = Table("condition", "status", "reason", _whole("message"))
    told: dict[str, str] = {}
    for item in state.conditions:
        first = told.setdefault(item.message, item.type)
        words = escape(item.message) if first == item.type else f"[dim]as {first}[/dim]"
        conditions.add_row(item.type, item.status, item.reason, words)
    console.print(conditions)
    for line in engine_lines(state):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if state.groups:
        console.print(_groups(state))
    for adapter in state.adapters:
        said = f": {adapter.message}" if adapter.message else ""
        console.print(
            f"adapter {adapter.name}: {adapter.state}, loaded on {adapter.loaded_on} leaders{said}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    if state.benchmark is not None:
        console.print(benchmark_line(state.benchmark, _serving(state)), markup=False)
    for one in state.advice:
        console.print(
            f"{one.reason} ({one.since} to {one.until}): {one.message}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def engine_lines(state: LLMDeploymentStatus) -> Iterable[str]:
    """What serves, and what comes in its place and why: a line each, none of what is not there."""
    if state.engine is None:
        return
    now, coming = state.engine.serving, state.engine.next
    if now.revision:
        yield f"serves: {now.key}, revision {now.revision}"
    if coming is not None:
        why = f", for {coming.reason}" if coming.reason else ""
        yield f"comes: {coming.key}, revision {coming.revision} ({coming.step}{why})"


def _groups(state: LLMDeploymentStatus) -> Table:
    groups = Table(
        *("replica", "incarnation", _whole("revision"), "role", "state", "restarts"),
        _whole("nodes"),
    )
    for group in state.groups:
        groups.add_row(
            str(group.index),
            str(group.incarnation),
            group.revision,
            group.role,
            group.state,
            str(group.restarts),
            ", ".join(group.nodes),
        )
    return groups


def _serving(state: LLMDeploymentStatus) -> str:
    return "" if state.engine is None else state.engine.serving.revision


def benchmark_line(run: BenchmarkStatus, serving: str) -> str:
    """What was measured last, and whether it is of the revision that serves.

    Args:
        run: As status has it; anybody who may write there wrote it.
        serving: The revision that serves; empty where none does.
    """
    best = max((point.tokens_per_second for point in run.points), default=0.0)
    knee = f"knee at {run.knee} requests at once" if run.knee else "no knee seen"
    said = (
        f"benchmark of {run.date}: at most {best:,.0f} output tokens a second of a replica, {knee} "
        f"({run.input_len} tokens in, {run.output_len} out, {run.tool})"
    )
    if run.revision != serving:
        now = f"{serving} serves now" if serving else "none serves now"
        said += f"; it is of revision {run.revision}, {now}: measure again"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in said)


def _whole(header: str) -> Column:
    """A column whose long words are broken, not cut: keys and names are there to be copied."""
    return Column(header, overflow="fold")
