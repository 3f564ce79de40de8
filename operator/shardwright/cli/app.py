"""The command line's table of contents: one line a command, imported when it is asked for.

Most of what commands need takes a second to import: kopf and Kubernetes' client, which only some of
them use. Help, and every command, wait for no module that they have no use for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is.

    Attributes:
        module: Name below `shardwright.cli`.
        function: Its name there.
        help: First sentence of its docstring, as the list of commands shows it.
    """

    module: str
    function: str
    help: str

    def load(self) -> Callable[..., None]:
        """The command's function, its module imported."""
        found: Callable[..., None] = getattr(
            importlib.import_module(f"shardwright.cli.{self.module}"), self.function
        )
        return found


COMMANDS: Mapping[str, Entry] = {
    "run": Entry("run", "run", "Run the operator until SIGTERM."),
    "crd": Entry(
        "crd",
        "crd",
        "Print the CustomResourceDefinition that the models describe, or compare it with its file.",
    ),
    "map": Entry(
        "status", "fleet_map", "Draw nodes × GPUs with the replica, stage and ranks on each."
    ),
    "status": Entry(
        "status",
        "status",
        "Show conditions and groups; with --watch every turn until it is Ready (exit code 0).",
    ),
    "plan": Entry(
        "plan",
        "plan",
        "Choose precision, split, replicas and GPU for a manifest, with reasons and memory.",
    ),
    "explain": Entry(
        "explain",
        "explain",
        "Say why not the others: what would run and lost, and what cannot run.",
    ),
    "compare": Entry(
        "compare",
        "compare",
        "Compare precisions, GPUs and splits of a model: memory, GPUs, speed, accuracy, cost.",
    ),
    "compare-runs": Entry(
        "runs",
        "compare_runs",
        "Compare measured runs in one table: by runtime, precision, split and concurrency.",
    ),
    "benchmark": Entry(
        "benchmark",
        "benchmark",
        "Measure a serving replica: tokens a second, TTFT and TPOT by concurrency.",
    ),
    "plot": Entry(
        "runs",
        "plot",
        "Draw measured runs: throughput and latencies by concurrency, with the knee marked.",
    ),
    "doctor": Entry(
        "doctor", "doctor", "Name causes and remedies for what a deployment suffers from."
    ),
    "memory": Entry(
        "memory",
        "memory",
        "Show what one shape of a model takes on every GPU, and the KV cache that is left.",
    ),
}


class LazyGroup(TyperGroup):
    """A group whose commands stand in the help by name and are loaded when one is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own types
        """Find the command that is called, the real one in place of the list's entry."""
        entry = COMMANDS.get(args[0]) if args else None
        if entry is not None:
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(args[0])(entry.load())
            self.commands[args[0]] = typer.main.get_command(alone)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="shardwright",
    cls=LazyGroup,
    help="Serve large language models split over many GPUs, on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _listed() -> None:
    """Stand in the list of commands; `LazyGroup` calls the real one."""


for _name, _entry in COMMANDS.items():
    app.command(_name, help=_entry.help)(_listed)


def main() -> None:
    """Entry point of the `shardwright` script."""
    app()
