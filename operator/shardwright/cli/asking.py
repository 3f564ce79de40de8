"""The question that `plan` and `explain` share: manifest, nodes and model, put together."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.apply.errors import ClusterError
from shardwright.cli.manifest import Manifest, read_manifest
from shardwright.cli.reading import (
    BadInputError,
    Nodes,
    nodes_of_cluster,
    nodes_of_file,
    read_text,
)
from shardwright.sizing.catalogue import UnknownModelError, catalogue_model
from shardwright.sizing.choose import choose
from shardwright.sizing.config_json import ConfigError, load_json, model_from_config
from shardwright.sizing.constants import UnknownEngineError
from shardwright.sizing.hardware import UnknownHardwareError
from shardwright.sizing.model import Model
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
        text = resources.files("shardwright.sizing").joinpath("data/models.json").read_text("utf-8")
        config: Mapping[str, Any] = json.loads(text)["models"][self.model.name]["config"]
        return config


def answer(
    file: Path,
    nodes_file: Path | None,
    context: str,
    kubeconfig: str,
    model_config: Path | None,
    *,
    everything_open: bool,
) -> Answer:
    """Read everything, and choose.

    Raises:
        typer.Exit: With code 2, after saying what is wrong.
    """
    try:
        manifest = read_manifest(read_text(file), str(file), everything_open=everything_open)
        nodes = _nodes(nodes_file, context, kubeconfig)
        model = model_of(manifest.uri, model_config)
        choice = choose(model, nodes.fleet, manifest.workload, manifest.engine, manifest.limits)
    except (BadInputError, ClusterError, UnknownEngineError, UnknownHardwareError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    return Answer(manifest, nodes, model, choice, model_config)


def _nodes(nodes_file: Path | None, context: str, kubeconfig: str) -> Nodes:
    if (nodes_file is None) == (not context):
        raise BadInputError(
            "give the nodes to plan for: either --nodes FILE (no cluster is asked), or --context "
            "NAME to read a cluster's"
        )
    if nodes_file is not None:
        return nodes_of_file(nodes_file)
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
