"""What an accepted spec was resolved to: the content of a revision.

A revision holds everything that rendering needs, so that a group broken a month later comes back
exactly as it was, whatever the defaults, image tables or settings have become since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.api.asked import AskedSpec
from shardwright.api.settings import FabricProfile
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.world import Resources
from shardwright.runner.contract import Command, ModelFacts


@dataclass(frozen=True, slots=True)
class Artifact:
    """One link of the chain: what a step makes, from what, with which tools, on what.

    `source_key` is the key of the artifact it is made from ("" for the model), `also` keys of
    models on the claim that it reads beside that. `gpus` is what the step needs on one node of
    `product` (0 GPUs: any node).
    """

    step: str
    key: str
    inputs: Mapping[str, object]
    source_key: str
    image: str
    commands: tuple[Command, ...]
    expected_files: tuple[str, ...]
    gpus: int
    product: str
    resources: Resources
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerBeside:
    """A server that a measurement starts in its own pod: its image, call, and what it needs.

    `config` is the content of the server's own configuration file; the pod's part that the tool
    needs is the rest of the measurement's `resources`.
    """

    image: str
    command: Command
    config: Mapping[str, Any]
    served_name: str
    health_path: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class Score(Artifact):
    """A measurement: it leaves no files, its record holds the score.

    `config` is the content of the tool's own configuration file. With `asks_leader` the tool asks a
    replica that serves the artifact, else a copy of its own is loaded from the folder `loads`
    (absolute, inside the pod): by the tool, or by the server `beside` it, which it asks.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    asks_leader: bool = False
    loads: str = ""
    beside: ServerBeside | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """What the accuracy gate of a spec measures.

    `score` is of what is served; `baseline` of the unquantized model, None where nothing is
    compared or the user gave its score. `loads_key` is the key of the proof without the gate: that
    it loads and answers, which other deployments may have found before.
    """

    score: Score
    baseline: Score | None
    loads_key: str
    loads_inputs: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class StageRoom:
    """Bytes that one GPU of a pipeline stage holds, and the tokens that its KV cache takes.

    `activation` is the peak of a forward pass, `runtime` what context, communication buffers and
    graphs take, `lora` the slots of adapters, `draft` the weights of what drafts tokens; `kv_cache`
    is what is left, negative when it does not fit.
    """

    stage: int
    layers: int
    weights: int
    activation: int
    runtime: int
    kv_cache: int
    kv_tokens: int
    lora: int = 0
    draft: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """The memory plan of one replica; `constants` names the row of engine constants it rests on."""

    stages: tuple[StageRoom, ...]
    constants: str

    @property
    def kv_tokens(self) -> int:
        """Tokens that the whole replica holds: the smallest of its stages decides."""
        return min(stage.kv_tokens for stage in self.stages)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the planner said when it filled a spec's open fields.

    Attributes:
        replicas: For how many replicas it planned.
        runner_up: What came second, in words; empty when nothing else was possible.
        all_free: What it would have chosen had every GPU been free, in words: a later answer that
            differs from it says that the cluster has become another.
    """

    replicas: int
    runner_up: str
    all_free: str


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafts tokens, if it has files of its own: its fetch's key, its commit, its folder."""

    key: str
    commit: str
    folder: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec with everything that is not in it: image, commit, facts, keys, profiles.

    `spec` has no open fields; where the user left some open, `asked` is the user's own and `chosen`
    what the planner said. `artifacts` is the chain in build order: the model, what drafts for it
    if anything does, what is made of them. `serve_step` and `serve_key` name the artifact the
    runtime loads. `proof_key` is the key under which its proof is recorded. `room` is None where
    the model's sizes are not known, `gate` where no accuracy is asked for. `version_given` tells
    whether the user wrote the engine's version down or left it out; None where an earlier operator
    did not note it.
    """

    spec: LLMDeploymentSpec
    claim_uid: str
    image: str
    commit: str
    facts: ModelFacts
    artifacts: tuple[Artifact, ...]
    serve_step: str
    serve_key: str
    proof_key: str
    proof_inputs: Mapping[str, object]
    levels: tuple[str, ...] = ()
    fabric: FabricProfile | None = None
    restarted_at: str = ""
    reasons: tuple[str, ...] = field(default=())
    asked: AskedSpec | None = None
    chosen: Chosen | None = None
    room: Room | None = None
    gate: Gate | None = None
    draft: Draft | None = None
    version_given: bool | None = None

    @property
    def tensor(self) -> int:
        """Tensor-parallel ranks: GPUs of one stage's pod."""
        return self.spec.parallelism.tensor

    @property
    def pipeline(self) -> int:
        """Pipeline-parallel stages: pods of one replica."""
        return self.spec.parallelism.pipeline

    @property
    def world_size(self) -> int:
        """Ranks of one replica."""
        return self.spec.world_size

    @property
    def model_key(self) -> str:
        """Key of the fetched model."""
        return self.artifacts[0].key

    @property
    def also(self) -> tuple[str, ...]:
        """Keys of what serving needs beside `serve_key`."""
        return (self.draft.key,) if self.draft is not None else ()
