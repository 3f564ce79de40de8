"""The question that `plan` and `explain` share: manifest, nodes and model, put together."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.apply.errors import ClusterError
from shardwright.cli.manifest import Manifest, read_manifest
from shardwright.cli.reading import BadInputError, Nodes, nodes_of_file, read_text
from shardwright.plan.question import headline
from shardwright.sizing.catalogue import UnknownModelError, catalogue_config, catalogue_model
from shardwright.sizing.choose import choose
from shardwright.sizing.config_json import ConfigError, load_json, model_from_config
from shardwright.sizing.constants import UnknownEngineError
from shardwright.sizing.hardware import UnknownHardwareError
from shardwright.sizing.model import Model
from shardwright.sizing.question import Workload
from shardwright.sizing.result import Choice

EXIT_NONE_POSSIBLE = 1
EXIT_BAD_INPUT = 2

_HUB = re.compile(r"hf://([^@]+)(?:@.*)?")

File = Annotated[Path, typer.Argument(metavar="FILE", help="An LLMDeployment as YAML.")]
NodesFile = Annotated[
    Path | None,
    typer.Option(
        "--nodes",
        help="Nodes as YAML: what `kubectl get nodes -o yaml` prints, or a list of "
        "{product, count, gpus}.",
    ),
]
Context = Annotated[
    str, typer.Option("--context", help="Read nodes and pods from this context of the kubeconfig.")
]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", envvar="KUBECONFIG", help="Where --context is looked up.")
]
ModelConfig = Annotated[
    Path | None,
    typer.Option("--model-config", help="The model's config.json, for one without an entry here."),
]
Open = Annotated[
    bool,
    typer.Option("--open", help="Plan parallelism, quantization, gpu and replicas anew."),
]
FirstToken = Annotated[
    float | None,
    typer.Option("--ttft-seconds", min=0.0, help="Longest wanted time to the first token."),
]
PerToken = Annotated[
    float | None,
    typer.Option("--tpot-seconds", min=0.0, help="Longest wanted time between two tokens."),
]


@dataclass(frozen=True, slots=True)
class Answer:
    """A choice with what it was asked of."""

    manifest: Manifest
    nodes: Nodes
    model: Model
    choice: Choice
    model_config: Path | None = None

    def config(self) -> Mapping[str, Any]:
        """The model's config.json, or the sizes that the catalogue keeps of it."""
        if self.model_config is not None:
            return load_json(read_text(self.model_config))
        return catalogue_config(self.model.name)


def answer(
    file: Path,
    nodes_file: Path | None,
    context: str,
    kubeconfig: str,
    model_config: Path | None,
    *,
    everything_open: bool,
    ttft_seconds: float | None = None,
    tpot_seconds: float | None = None,
) -> Answer:
    """Read everything, and choose.

    Args:
        file: The manifest.
        nodes_file: Nodes as YAML; None reads them from `context`.
        context: Of the kubeconfig; empty with `nodes_file`.
        kubeconfig: Its path; empty takes the usual one.
        model_config: The model's config.json; None takes the catalogue's.
        everything_open: Whether what the manifest fixes is planned all the same.
        ttft_seconds: Wanted time to the first token; None for no target.
        tpot_seconds: Wanted time between two tokens; None for no target.

    Raises:
        typer.Exit: With code 2, after saying what is wrong.
    """
    try:
        manifest = read_manifest(read_text(file), str(file), everything_open=everything_open)
        manifest = replace(manifest, workload=_wanted(manifest, ttft_seconds, tpot_seconds))
        nodes = _nodes(nodes_file, context, kubeconfig)
        model = model_of(manifest.uri, model_config)
        manifest = _with_draft(manifest, model)
        choice = _chosen(manifest, nodes, model)
    except (BadInputError, ClusterError, UnknownEngineError, UnknownHardwareError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    return Answer(manifest, nodes, model, choice, model_config)


def _wanted(manifest: Manifest, ttft: float | None, tpot: float | None) -> Workload:
    try:
        return replace(manifest.workload, ttft_seconds=ttft, tpot_seconds=tpot)
    except ValueError as error:
        raise BadInputError(str(error)) from error


def _with_draft(manifest: Manifest, model: Model) -> Manifest:
    """The manifest with the sizes of what drafts tokens, or a note that they are not counted.

    Raises:
        BadInputError: The model is to draft with layers that it has not.
    """
    if manifest.engine.own_draft and not model.draft_layers:
        raise BadInputError(
            f"spec.speculative.method MTP: {model.name} has no multi-token-prediction layers in "
            "its config.json; use another method"
        )
    if not manifest.draft_uri:
        return manifest
    try:
        draft = model_of(manifest.draft_uri, None)
    except BadInputError:
        note = (
            f"speculative.model.uri {manifest.draft_uri}: its sizes are not known here, so its "
            "memory is not counted; the operator counts it once it is fetched"
        )
        return replace(manifest, notes=(*manifest.notes, note))
    return replace(manifest, engine=replace(manifest.engine, draft=draft))


def _chosen(manifest: Manifest, nodes: Nodes, model: Model) -> Choice:
    """The choice; where replicas are left out, with what a cluster would make of that.

    Raises:
        BadInputError: It would fit, and the operator takes no such spec.
    """
    choice = choose(model, nodes.fleet, manifest.workload, manifest.engine, manifest.limits)
    if choice.chosen is not None and manifest.refused:
        raise BadInputError(f"{manifest.name}: the operator refuses it, {manifest.refused}")
    if not manifest.replicas_left_out or choice.chosen is None:
        return choice
    one = replace(manifest.limits, replicas=1)
    there = choose(model, nodes.fleet, manifest.workload, manifest.engine, one).chosen
    if there is None or headline(there) == headline(choice.chosen):
        return choice
    note = (
        "replicas is left out, so their number is planned too; a cluster fills in 1, and for one "
        f"replica {headline(there)} would be chosen: write replicas into the manifest"
    )
    return replace(choice, notes=(*choice.notes, note))


def _nodes(nodes_file: Path | None, context: str, kubeconfig: str) -> Nodes:
    if (nodes_file is None) == (not context):
        raise BadInputError(
            "give the nodes to plan for: either --nodes FILE (no cluster is asked), or --context "
            "NAME to read a cluster's"
        )
    if nodes_file is not None:
        return nodes_of_file(nodes_file)
    # Only here: the client takes a second to import, and most questions are about a file.
    from shardwright.cli.cluster import nodes_of_cluster  # noqa: PLC0415

    return asyncio.run(nodes_of_cluster(kubeconfig, context))


def model_of(name: str, config: Path | None) -> Model:
    """A model from its config.json, or by its uri or name from the catalogue.

    Raises:
        BadInputError: The file is no config that is understood, or the name is not known.
    """
    hub = _HUB.fullmatch(name)
    short = hub[1] if hub else name
    if config is not None:
        try:
            return model_from_config(load_json(read_text(config)), name=short)
        except ConfigError as error:
            raise BadInputError(f"{config}: {error}") from error
    if "://" in short:
        raise BadInputError(
            f"spec.model.uri {name}: sizes are only known of models on the Hugging Face hub; give "
            "the model's config.json with --model-config FILE"
        )
    try:
        return catalogue_model(short)
    except UnknownModelError as error:
        raise BadInputError(str(error)) from error
