"""The spec of an LLMDeployment as frozen pydantic models.

What a user may write is `AskedSpec` (in `asked`), the one source of the CRD's schema; here stands
what both it and a resolved spec are made of, and the resolved one.

Defaults stand here and reach the CRD, so the API server fills them in and the stored object says
what runs. Bounds stand on every list, map and string, since CEL's cost estimate needs them. A field
is here when the operator acts on it, never before: accepted and ignored would be a defect.

The parts live in `serving` (what is served), `running` (where and how) and `scalars` (names,
labels, quantities); this module is where the rest of the operator imports them from.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from shardwright.api.lora import LoRA
from shardwright.api.model import Model, SecretReference
from shardwright.api.rules import Rule
from shardwright.api.running import (
    BuildOn,
    EnvVar,
    Placement,
    PodResources,
    PodSettings,
    Rollout,
    StagePlacement,
    Storage,
    Toleration,
)
from shardwright.api.scalars import DNSLabel, Int, LabelKey, LabelValue, ObjectName, Quantity
from shardwright.api.serving import (
    Backend,
    Build,
    Calibration,
    DType,
    EngineSpec,
    GPUSpec,
    KVPrecision,
    Limits,
    ModelSpec,
    Parallelism,
    Plugins,
    Quantization,
    Runtime,
    WeightPrecision,
)
from shardwright.api.speculative import SpeculationMethod, Speculative

__all__ = [
    "Backend",
    "Build",
    "BuildOn",
    "Calibration",
    "CommonSpec",
    "DNSLabel",
    "DType",
    "EngineSpec",
    "EnvVar",
    "GPUSpec",
    "KVPrecision",
    "LLMDeploymentSpec",
    "LabelKey",
    "LabelValue",
    "Limits",
    "LoRA",
    "Model",
    "ModelSpec",
    "ObjectName",
    "Parallelism",
    "Placement",
    "Plugins",
    "PodResources",
    "PodSettings",
    "Quantity",
    "Quantization",
    "Rollout",
    "Runtime",
    "SecretReference",
    "SpeculationMethod",
    "Speculative",
    "StagePlacement",
    "Storage",
    "Toleration",
    "WeightPrecision",
]


class CommonSpec(Model):
    """The part of a spec that is never left open."""

    model: ModelSpec = Field(description="The model.")
    engine: EngineSpec = Field(default_factory=EngineSpec, description="The engine.")
    lora: LoRA | None = Field(
        default=None, description="Adapters of the model; left out, it takes none."
    )
    speculative: Speculative | None = Field(
        default=None, description="Speculative decoding; left out, there is none."
    )
    replicas: Int = Field(default=1, ge=0, le=1024, description="Replicas; 0 frees every GPU.")
    placement: Placement = Field(default_factory=Placement, description="Where replicas may run.")
    rollout: Rollout = Field(
        default_factory=Rollout, description="How replicas move to a new revision."
    )
    storage: Storage = Field(description="Where models and engines live.")
    pod: PodSettings = Field(default_factory=PodSettings, description="The serving pods.")
    rules: ClassVar[tuple[Rule, ...]] = ()


class LLMDeploymentSpec(CommonSpec):
    """A spec in which nothing is open: what a revision holds, what is built and what runs."""

    gpu: GPUSpec = Field(description="The GPUs.")
    parallelism: Parallelism = Field(
        default_factory=Parallelism, description="How one replica is split."
    )
    quantization: Quantization = Field(
        default_factory=Quantization, description="Precision of weights and KV cache."
    )

    @property
    def world_size(self) -> int:
        """Ranks of one replica: tensor × pipeline."""
        return self.parallelism.tensor * self.parallelism.pipeline
