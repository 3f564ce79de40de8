"""What every engine runtime must say: image, build steps, serve command, config, what it supports.

Pure data in, pure data out. `runtimes.registry` is the only place that lists the runtimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.resolved import Artifact, Draft, Resolved
from shardwright.runner.contract import (
    STEP_MODEL,
    STORE,
    AdapterServing,
    Command,
    ModelFacts,
    Prepared,
    artifact_folder,
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something cannot be done: a stable CamelCase reason, and what to do about it.

    `source` names the entry of the list of sources that says so, for what a runtime cannot do.
    `fix` has the fields of a spec to change, where the way out is a matter of values: path and
    value, None to leave the field out.
    """

    reason: str
    message: str
    source: str = ""
    fix: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The fetched model that a chain starts from.

    `folder` is where a pod finds its files (absolute, inside the pod). `draft` is what drafts
    tokens for it, where that has files of its own.
    """

    key: str
    commit: str
    folder: str
    facts: ModelFacts
    draft: Draft | None = None


def stored(*asked: ModelSource | Draft | None) -> tuple[str, ...]:
    """Keys of those that lie on the deployment's claim, where they were fetched to.

    What lies on a claim of the user's own has no manifest to be checked by.
    """
    return tuple(
        one.key
        for one in asked
        if one is not None and one.folder == f"{STORE}/{artifact_folder(STEP_MODEL, one.key)}"
    )


@dataclass(frozen=True, slots=True)
class Probe:
    """An HTTP readiness probe."""

    path: str
    port: int
    period_seconds: int
    timeout_seconds: int
    failure_threshold: int


@dataclass(frozen=True, slots=True)
class Serving:
    """What serving pods need besides a command and a configuration file (ServeRequest has each)."""

    launch: str = ""
    health_path: str = "/health"
    prepared: Prepared | None = None


class EngineRuntime(Protocol):
    """One runtime, such as TensorRT-LLM."""

    name: str

    def known_image(self, version: str) -> str | None:
        """The image that holds this version, None when the version is not known."""

    def refuse_spec(
        self,
        spec: LLMDeploymentSpec,
        compute: tuple[int, int] | None,
        settings: Settings | None = None,
    ) -> Refusal | None:
        """Why spec and GPU cannot go together; `compute` is None while no such GPU is known.

        With `settings` a version that only the administrator's image table knows is accepted.
        """

    def refuse_model(
        self,
        spec: LLMDeploymentSpec,
        facts: ModelFacts,
        compute: tuple[int, int] | None = None,
    ) -> Refusal | None:
        """Why this model cannot be served as asked.

        A published checkpoint's own precision is held against `compute`, where that is known.
        """

    def chain(
        self, spec: LLMDeploymentSpec, model: ModelSource, image: str, settings: Settings
    ) -> tuple[Artifact, ...]:
        """The artifacts to be made below the model, in build order; empty if none are needed."""

    def proof_inputs(
        self, spec: LLMDeploymentSpec, model: ModelSource, image: str, serve_key: str
    ) -> Mapping[str, object]:
        """Everything whose change asks for a new proof by a candidate."""

    def serve_command(self, resolved: Resolved, stage: int = 0) -> Command:
        """The command that this pipeline stage of one replica runs.

        Most runtimes start every stage with one command and the placeholders of
        `runner.contract.Command`; a flag that only some stages take depends on `stage`.
        """

    def serve_config(self, resolved: Resolved) -> Mapping[str, Any]:
        """The content of the runtime's own configuration file."""

    def adapters(self, resolved: Resolved) -> AdapterServing | None:
        """How the server is given adapters while it serves; None where it takes none."""

    def readiness(self, resolved: Resolved) -> Probe:
        """How the leader's readiness is asked."""


@runtime_checkable
class Prepares(Protocol):
    """A runtime whose server needs more: a folder of models, or its own way to be asked."""

    def serving(self, resolved: Resolved) -> Serving:
        """What it needs."""


def serving_of(engine: EngineRuntime, resolved: Resolved) -> Serving:
    """What a runtime's serving pods need besides."""
    return engine.serving(resolved) if isinstance(engine, Prepares) else Serving()
