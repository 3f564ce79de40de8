"""`shardwright plan`: the right shape for a manifest on given nodes, before a GPU is taken.

Without a cluster by default: the nodes come from a file. Nothing is written but --output.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from shardwright.cli import asking, wording
from shardwright.cli.asking import EXIT_BAD_INPUT, EXIT_NONE_POSSIBLE, Answer, answer
from shardwright.cli.second_opinion import (
    TIMEOUT_SECONDS,
    NotCoveredError,
    Opinion,
    opinions,
    question_of,
)
from shardwright.cli.sections import Heard, sections
from shardwright.picture.html import html
from shardwright.picture.scene import Scene
from shardwright.picture.seating import scene_of
from shardwright.picture.svg import svg
from shardwright.picture.text import draw
from shardwright.sizing.result import Candidate, to_data


class PlanOutput(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    SVG = "svg"
    HTML = "html"


def plan(  # noqa: PLR0917 - typer makes options of arguments
    file: asking.File,
    nodes: asking.NodesFile = None,
    context: asking.Context = "",
    output: Annotated[
        PlanOutput, typer.Option("--format", "-o", help="How the plan is written.")
    ] = PlanOutput.TEXT,
    path: Annotated[
        Path | None, typer.Option("--output", help="Write this file instead of printing.")
    ] = None,
    model_config: asking.ModelConfig = None,
    everything_open: asking.Open = False,
    ttft_seconds: asking.FirstToken = None,
    tpot_seconds: asking.PerToken = None,
    second_opinion: Annotated[
        bool,
        typer.Option("--second-opinion", help="Ask aiconfigurator too, where it is installed."),
    ] = False,
    second_opinion_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for each of its answers.")
    ] = TIMEOUT_SECONDS,
    kubeconfig: asking.Kubeconfig = "",
) -> None:
    """Choose precision, split, replicas and GPU for a manifest, with reasons and memory.

    FILE may leave out parallelism, quantization, gpu and replicas; what it gives is kept. Exit code
    0 with a plan, 1 when none is possible, 2 when the input is wrong.
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
    heard = _heard(found, second_opinion_timeout) if second_opinion else ()
    text = render(found, output, heard)
    if text is None:
        show(Console(stderr=True), found, heard)
        typer.echo(f"no plan is possible, so there is no {output} to draw", err=True)
    elif path is not None:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            typer.echo(f"--output {path}: {error.strerror}", err=True)
            raise typer.Exit(EXIT_BAD_INPUT) from error
        typer.echo(f"wrote {path}", err=True)
    elif output is PlanOutput.TEXT:
        wording.printed(lambda console: show(console, found, heard))
    else:
        typer.echo(text, nl=False)
    if found.choice.chosen is None:
        raise typer.Exit(EXIT_NONE_POSSIBLE)


def render(found: Answer, output: PlanOutput, heard: Heard = ()) -> str | None:
    """The answer as text; None for a picture of no plan."""
    choice = found.choice
    if output in (PlanOutput.JSON, PlanOutput.YAML):
        data: dict[str, Any] = to_data(choice)
        if heard:
            data["secondOpinion"] = [
                {"about": about, **asdict(opinion)} for about, _, opinion in heard
            ]
        if output is PlanOutput.JSON:
            return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    if output is PlanOutput.TEXT:
        return wording.plain(lambda console: show(console, found, heard))
    if choice.chosen is None:
        return None
    scene = _scene(found, choice.chosen)
    return svg(scene) if output is PlanOutput.SVG else html(scene, sections(found, heard))


def _scene(found: Answer, chosen: Candidate) -> Scene:
    return scene_of(
        chosen,
        found.nodes.fleet,
        found.manifest.workload,
        wording.title(found.manifest.name, chosen),
        names=found.nodes.names,
        notes=("One way to stand; the placer decides from what is free then.",),
    )


def show(console: Console, found: Answer, heard: Heard = ()) -> None:
    """Print the plan for people."""
    chosen = found.choice.chosen
    console.print(Text(f"{found.manifest.name} ({found.choice.model})", style="bold"))
    for section in sections(found, heard):
        console.print()
        console.print(Text(section.heading, style="bold"))
        for line in (*section.paragraphs, *section.code):
            console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
        wording.bullets(console, section.items)
    if chosen is not None:
        console.print()
        console.print(draw(_scene(found, chosen)))


def _heard(found: Answer, timeout: float) -> Heard:
    """Ask about the chosen plan and the runner-up."""
    asked: list[tuple[str, Candidate, Opinion | dict[str, Any]]] = []
    for about, candidate in (
        ("chosen", found.choice.chosen),
        ("runner-up", found.choice.runner_up),
    ):
        if candidate is None:
            continue
        try:
            asked.append(
                (
                    about,
                    candidate,
                    question_of(
                        found.config(),
                        found.model,
                        candidate,
                        found.manifest.workload,
                        found.manifest.engine,
                    ),
                )
            )
        except NotCoveredError as error:
            asked.append((about, candidate, Opinion(why_not=str(error))))
    questions = [one for _, _, one in asked if isinstance(one, dict)]
    answers = iter(opinions(questions, timeout))
    return [
        (about, candidate, next(answers) if isinstance(one, dict) else one)
        for about, candidate, one in asked
    ]
