"""What an accepted spec was resolved to: the content of a revision.

A revision holds everything that rendering needs, so that a group broken a month later comes back
exactly as it was, whatever the defaults, image tables or settings have become since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright.api.settings import FabricProfile
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.world import Resources
from shardwright.runner.contract import Command, ModelFacts


@dataclass(frozen=True, slots=True)
class Artifact:
    """One link of the chain: what a step makes, from what, with which tools, on what.

    `source_key` is the key of the artifact it is made from ("" for the model). `gpus` is what the
    step needs on one node of `product` (0 GPUs: any node).
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


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec with everything that is not in it: image, commit, facts, keys, profiles.

    `artifacts` is the chain in build order, the model first. `serve_step` and `serve_key` name the
    artifact the runtime loads. `proof_key` is the key under which its proof is recorded.
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

    @property
    def tensor(self) -> int:
        """Tensor-parallel ranks: GPUs of one stage's pod."""
        return self.spec.parallelism.tensor

    @property
    def pipeline(self) -> int:
        """Pipeline-parallel stages: pods of one replica."""
        return self.spec.parallelism.pipeline

    @property
    def model_key(self) -> str:
        """Key of the fetched model."""
        return self.artifacts[0].key
