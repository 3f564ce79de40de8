"""`shardwright doctor`: from symptoms to causes and remedies, of a live or a described object."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from shardwright.api.asked import AskedSpec
from shardwright.api.settings import Settings
from shardwright.api.status import LLMDeploymentStatus
from shardwright.api.yamltext import load
from shardwright.apply.errors import ClusterError
from shardwright.cli import wording
from shardwright.cli.reading import BadInputError, faults, read_text
from shardwright.diagnose.doctor import Diagnosis, diagnose
from shardwright.diagnose.finding import Finding, Fit
from shardwright.diagnose.live import observed_of
from shardwright.diagnose.observed import MEANINGS, Observed, Symptom
from shardwright.observe.nodes import node_view
from shardwright.observe.projections import deployment_view

_COLOURS = {Fit.SHOWN: "red", Fit.POSSIBLE: "yellow", Fit.RULED_OUT: "dim"}
_WORDS = {Fit.SHOWN: "The facts show it", Fit.POSSIBLE: "Possible"}


class DoctorOutput(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"


def doctor(
    name: Annotated[
        str, typer.Argument(help="Name of the LLMDeployment; none with --describe.")
    ] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace.")] = "default",
    describe: Annotated[
        Path | None,
        typer.Option("--describe", help="YAML with symptoms and facts, instead of a live object."),
    ] = None,
    symptom: Annotated[
        list[Symptom] | None,
        typer.Option("--symptom", "-s", help="What you see; may be given several times."),
    ] = None,
    output: Annotated[DoctorOutput, typer.Option("--output", "-o")] = DoctorOutput.TEXT,
    kubeconfig: Annotated[
        str, typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Which cluster.")
    ] = "",
) -> None:
    """Name causes and remedies for what a deployment suffers from.

    Exit code 0 when a cause was named or nothing is wrong, 1 when no rule knows a cause of what is
    seen, 2 when the input is wrong or the object cannot be read.
    """
    told = symptom or []
    if bool(name) == (describe is not None):
        typer.echo("give either the NAME of an LLMDeployment or --describe FILE", err=True)
        raise typer.Exit(2)
    try:
        observed = (
            described(read_text(describe), str(describe), told)
            if describe is not None
            else asyncio.run(_live(name, namespace, kubeconfig, told))
        )
    except (BadInputError, ClusterError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    diagnosis = diagnose(observed)
    if output is DoctorOutput.JSON:
        typer.echo(json.dumps(as_data(observed, diagnosis), indent=2, ensure_ascii=False))
    else:
        wording.printed(lambda console: show(console, observed, diagnosis))
    if observed.symptoms and not diagnosis.causes:
        raise typer.Exit(1)


def described(text: str, source: str, told: list[Symptom]) -> Observed:
    """Read a description.

    Raises:
        BadInputError: No YAML, or an unknown field, symptom or value; the message names it.
    """
    try:
        raw = load(text)
    except yaml.YAMLError as error:
        raise BadInputError(f"{source}: no YAML: {error}") from error
    if not isinstance(raw, dict):
        raise BadInputError(f"{source}: expected a map with the keys symptoms and facts")
    try:
        observed = Observed.read(raw)
    except ValidationError as error:
        raise BadInputError(faults(error, Observed, source)) from error
    return observed.model_copy(
        update={"symptoms": list(dict.fromkeys([*observed.symptoms, *told]))}
    )


async def _live(name: str, namespace: str, kubeconfig: str, told: list[Symptom]) -> Observed:
    # Only here: the client takes a second to import, and a description needs none.
    from shardwright.apply.client import connect  # noqa: PLC0415

    async with connect(kubeconfig) as cluster:
        view = deployment_view(await cluster.get("LLMDeployment", namespace, name))
        nodes = [node_view(body, Settings()) for body in (await cluster.list("Node")).items]
    try:
        return observed_of(view, nodes, told)
    except ValidationError as error:
        part = LLMDeploymentStatus if error.title == LLMDeploymentStatus.__name__ else AskedSpec
        root = "status" if part is LLMDeploymentStatus else "spec"
        raise BadInputError(faults(error, part, f"{namespace}/{name}", root)) from error


def show(console: Console, observed: Observed, diagnosis: Diagnosis) -> None:
    """Print what is seen, its causes with their remedies, and what was ruled out."""
    for symptom in observed.symptoms:
        console.print(f"Seen: [bold]{symptom}[/bold], {MEANINGS[symptom]}.", highlight=False)
    if not observed.symptoms and not diagnosis.causes:
        console.print(
            "Nothing is seen, and no fact shows a cause. Name what you see with --symptom:"
        )
        for symptom, meaning in MEANINGS.items():
            console.print(f"  {symptom}: {meaning}", highlight=False)
    for number, finding in enumerate(diagnosis.causes, start=1):
        console.print()
        _finding(console, number, finding)
    if observed.symptoms and not diagnosis.causes:
        console.print("\nNo rule knows a cause that fits these facts.")
    if diagnosis.ruled_out:
        console.print("\nLooked at and ruled out:")
        for finding in diagnosis.ruled_out:
            words = Text(f"{finding.rule}: {'; '.join(finding.evidence)}", style="dim")
            console.print(Padding(words, (0, 0, 0, 2), expand=False))


def _finding(console: Console, number: int, finding: Finding) -> None:
    title = Text(f"{number}. {finding.rule}", style="bold")
    title.append(f"  {_WORDS[finding.fit]}", style=_COLOURS[finding.fit])
    console.print(title)
    indent = (0, 0, 0, 3)
    console.print(Padding(Text(finding.cause), indent, expand=False))
    for fact in finding.evidence:
        console.print(Padding(Text(f"Fact: {fact}.".replace("..", ".")), indent, expand=False))
    for remedy in finding.remedies:
        console.print(Padding(Text(f"→ {remedy}", style="green"), indent, expand=False))
    if finding.source:
        console.print(Padding(Text(f"Source: {finding.source}", style="dim"), indent, expand=False))


def as_data(observed: Observed, diagnosis: Diagnosis) -> dict[str, Any]:
    """The answer as plain data."""
    return {
        "symptoms": [symptom.value for symptom in observed.symptoms],
        "findings": [
            {
                "rule": finding.rule,
                "fit": finding.fit.value,
                "cause": finding.cause,
                "evidence": list(finding.evidence),
                "remedies": list(finding.remedies),
                "source": finding.source,
            }
            for finding in diagnosis.findings
        ],
    }
