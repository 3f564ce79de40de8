"""The command line's table of contents: one line a command."""

from __future__ import annotations

import typer

from shardwright.cli import compare, crd, doctor, explain, memory, plan, run, status

app = typer.Typer(
    name="shardwright",
    help="Serve large language models split over many GPUs, on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("crd")(crd.crd)
app.command("map")(status.fleet_map)
app.command("status")(status.status)
app.command("plan")(plan.plan)
app.command("explain")(explain.explain)
app.command("compare")(compare.compare)
app.command("doctor")(doctor.doctor)
app.command("memory")(memory.memory)


def main() -> None:
    """Entry point of the `shardwright` script."""
    app()
