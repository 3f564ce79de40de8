"""`shardwright explain`: why not the others, grouped by reason, with numbers."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from shardwright.cli import asking, wording
from shardwright.cli.asking import EXIT_NONE_POSSIBLE, Answer, answer
from shardwright.cli.rejections import Group, Remark, grouped, total

_SHOWN = 3


def explain(
    file: asking.File,
    nodes: asking.NodesFile = None,
    context: asking.Context = "",
    model_config: asking.ModelConfig = None,
    everything_open: asking.Open = False,
    ttft_seconds: asking.FirstToken = None,
    tpot_seconds: asking.PerToken = None,
    full: Annotated[
        bool, typer.Option("--all", help="Every message, not the closest three of a reason.")
    ] = False,
    kubeconfig: asking.Kubeconfig = "",
) -> None:
    """Say why not the others: what would run and lost, and what cannot run.

    The same question as `plan`, with the same exit codes: 0 with a plan, 1 when none is possible, 2
    when the input is wrong.
    """
    found = answer(
        file,
        nodes,
        context,
        kubeconfig,
        model_config,
        everything_open=everything_open,
        ttft_seconds=ttft_seconds,
        tpot_seconds=tpot_seconds,
    )
    wording.printed(lambda console: show(console, found, None if full else _SHOWN))
    if found.choice.chosen is None:
        raise typer.Exit(EXIT_NONE_POSSIBLE)


def show(console: Console, found: Answer, most: int | None) -> None:
    """Print what was chosen in a line, then every reason with those that came closest."""
    chosen = found.choice.chosen
    groups = grouped(found.choice.rejected, found.manifest.limits)
    console.print(Text(f"{found.manifest.name} ({found.choice.model})", style="bold"))
    console.print(Padding(Text(wording.asked(found.manifest.workload)), (0, 0, 0, 2), expand=False))
    words = f"Chosen: {wording.headline(chosen)}" if chosen else "No plan is possible"
    console.print(Padding(Text(words), (0, 0, 0, 2), expand=False))
    if chosen is not None:
        console.print(
            Padding(Text(f"Speed: {wording.speed(chosen.estimate)}"), (0, 0, 0, 2), expand=False)
        )
        console.print(Padding(Text("Before it serves:"), (0, 0, 0, 2), expand=False))
        wording.bullets(console, wording.steps(chosen), indent=4)
    lost = [group for group in groups if group.possible]
    barred = [group for group in groups if not group.possible]
    _part(console, "Would run, and lost", lost, most)
    _part(console, "Cannot run", barred, most)


def _part(console: Console, heading: str, groups: list[Group], most: int | None) -> None:
    if not groups:
        return
    console.print()
    console.print(Text(f"{heading} ({total(groups)})", style="bold"))
    for group in groups:
        console.print(
            Padding(Text(f"{group.code} ({group.count})", style="cyan"), (0, 0, 0, 2), expand=False)
        )
        wording.bullets(console, [_line(remark) for remark in group.remarks[:most]], indent=4)
        rest = len(group.remarks) - (most or len(group.remarks))
        if rest > 0:
            more = Text(f"… {rest} more of this reason (--all)", style="dim")
            console.print(Padding(more, (0, 0, 0, 4), expand=False))


def _line(remark: Remark) -> str:
    alike = f" (and {remark.count - 1} alike)" if remark.count > 1 else ""
    numbers = f" [{remark.numbers}]" if remark.numbers else ""
    return f"{remark.subject}{alike}: {remark.message}{numbers}"
