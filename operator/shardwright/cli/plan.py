"""`shardwright plan`: the right shape for a manifest on given nodes, before a GPU is taken.

Without a cluster by default: the nodes come from a file. Nothing is written but --output.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
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
from shardwright.cli.rejections import grouped
from shardwright.cli.second_opinion import (
    TIMEOUT_SECONDS,
    NotCoveredError,
    Opinion,
    opinions,
    question_of,
)
from shardwright.picture.html import Section, html
from shardwright.picture.scene import Part, Scene
from shardwright.picture.seating import memory_of, scene_of
from shardwright.picture.svg import svg
from shardwright.picture.text import draw
from shardwright.sizing.precisions import ACCURACY_SOURCE
from shardwright.sizing.result import Candidate, to_data

_FILE_WIDTH = 120
_NOT_POSSIBLE_SHOWN = 8


class PlanOutput(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"
    SVG = "svg"
    HTML = "html"


def plan(
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
    found = answer(file, nodes, context, kubeconfig, model_config, everything_open=everything_open)
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
        show(wording.console(), found, heard)
    else:
        typer.echo(text, nl=False)
    if found.choice.chosen is None:
        raise typer.Exit(EXIT_NONE_POSSIBLE)


Heard = Sequence[tuple[str, Candidate, Opinion]]


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
        written = io.StringIO()
        show(Console(width=_FILE_WIDTH, no_color=True, file=written), found, heard)
        return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"
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


def sections(found: Answer, heard: Heard = ()) -> list[Section]:
    """What is said, for terminal and page alike."""
    choice, chosen = found.choice, found.choice.chosen
    parts = [
        Section(
            "Asked",
            (wording.asked(found.manifest.workload) + ".",),
            (
                f"Nodes ({found.nodes.source}): {wording.fleet(found.nodes.fleet)}",
                *_fixed(found),
                *found.manifest.notes,
            ),
        )
    ]
    if chosen is None:
        parts.append(_not_possible(found))
    else:
        parts.append(_chosen(found, chosen))
        parts.append(Section("Why this one", items=chosen.reasons))
        parts.append(_runner_up(found))
        parts.append(Section("What would change the choice", items=_changes(found)))
        if heard:
            parts.append(_second(heard))
        parts.append(
            Section("To use it, in the manifest's spec", code=tuple(_to_use(found, chosen)))
        )
    if choice.notes:
        parts.append(Section("Limits of this answer", items=choice.notes))
    return parts


def _fixed(found: Answer) -> Iterator[str]:
    fixed = {
        name: value
        for name, value in asdict(found.manifest.limits).items()
        if value is not None and name != "weight_bits"
    }
    if fixed:
        told = ", ".join(f"{_camel(name)} {value}" for name, value in fixed.items())
        yield f"Fixed by the manifest: {told} (--open plans them anew)"


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def _chosen(found: Answer, chosen: Candidate) -> Section:
    workload = found.manifest.workload
    stage = wording.tightest(chosen)
    held = dict(memory_of(stage, chosen, workload).parts)
    where = "" if chosen.shape.pipeline == 1 else f" of stage {stage.stage}, the tightest"
    facts = [
        f"Speed, estimated: {wording.speed(chosen.estimate)}",
        f"Room: {wording.room(chosen, workload, found.manifest.engine.max_batch_size)}",
        (
            f"Memory left: of the {wording.gib(stage.total)} GiB of a GPU{where}, "
            f"{wording.gib(stage.kv_pool)} are KV cache; the asked load fills "
            f"{wording.gib(held[Part.KV_USED])} and leaves {wording.gib(held[Part.KV_SPARE])} "
            f"spare; {wording.gib(held[Part.FREE])} stay free"
        ),
    ]
    if chosen.accuracy_loss:
        facts.append(f"Accuracy: {chosen.accuracy_loss:g} % lost ({ACCURACY_SOURCE})")
    return Section(f"Chosen: {wording.headline(chosen)}", items=tuple(facts))


def _runner_up(found: Answer) -> Section:
    second, engine = found.choice.runner_up, found.manifest.engine
    if second is None:
        return Section("Runner-up: none", ("Nothing else is possible with what is fixed.",))
    return Section(
        f"Runner-up: {wording.headline(second)}",
        items=(
            f"Speed, estimated: {wording.speed(second.estimate)}",
            f"Room: {wording.room(second, found.manifest.workload, engine.max_batch_size)}",
            *(f"Not chosen: {reason}" for reason in second.reasons),
        ),
    )


def _changes(found: Answer) -> tuple[str, ...]:
    return found.choice.would_change or (
        "nothing that was tried: other objectives choose the same",
    )


def _not_possible(found: Answer) -> Section:
    items = [
        f"{group.code}: {remark.message} ({remark.subject})"
        for group in grouped(found.choice.rejected)
        for remark in group.remarks[:1]
    ]
    more = len(items) - _NOT_POSSIBLE_SHOWN
    if more > 0:
        items = [*items[:_NOT_POSSIBLE_SHOWN], f"{more} more reasons: `shardwright explain`"]
    return Section("No plan is possible", items=tuple(items))


def _to_use(found: Answer, chosen: Candidate) -> Iterator[str]:
    """Fields for the manifest, one a line."""
    shape = chosen.shape
    ranks = {"tensor": shape.tensor, "pipeline": shape.pipeline}
    if shape.expert > 1:
        ranks["expert"] = shape.expert
    if shape.attention_data > 1:
        ranks["attentionData"] = shape.attention_data
    weights = chosen.precision.weights
    precision = {
        # a checkpoint's own precision is what a spec says nothing about
        "weights": "None" if weights is None else weights.value,
        "kvCache": chosen.precision.kv_cache.value,
    }
    needed = min(chosen.replicas_needed, chosen.replicas)
    yield f"gpu: {{product: {chosen.product}}}"
    yield f"parallelism: {_flow(ranks)}"
    yield f"quantization: {_flow(precision)}"
    yield f"replicas: {needed}  # hold what is asked; the free GPUs hold {chosen.replicas}"
    if weights is None:
        yield "# the checkpoint comes quantized, and is served as it is"
    if found.manifest.engine.max_batch_size < chosen.estimate.batch:
        yield f"# engine.limits.maxBatchSize {found.manifest.engine.max_batch_size} is the limit"


def _flow(values: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in values.items()) + "}"


def _second(heard: Heard) -> Section:
    items = []
    for about, candidate, opinion in heard:
        if opinion.why_not:
            items.append(f"{about}: no answer, {opinion.why_not}")
            continue
        ours = candidate.estimate
        rate = opinion.tokens_per_second_per_gpu
        told = "" if rate is None else f", {rate:,.0f} tokens/s a GPU"
        warned = f"; it warns: {opinion.warning}" if opinion.warning else ""
        items.append(
            f"{about}: {opinion.tool} says first token after {opinion.ttft_ms:,.0f} ms, "
            f"{opinion.tpot_ms:.1f} ms a token{told} (ours: {ours.ttft_seconds * 1000:,.0f} ms, "
            f"{ours.tpot_seconds * 1000:.1f} ms, {ours.tokens_per_second_per_gpu:,.0f}){warned}"
        )
    return Section("Second opinion (evidence, it decides nothing)", items=tuple(items))


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
