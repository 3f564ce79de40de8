"""Where and how it runs: placement, rollout, storage and the pods' settings.

None of these but the storage is part of an engine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, model_validator

from shardwright.api.model import Model, SecretReference
from shardwright.api.rules import Rule
from shardwright.api.scalars import (
    LABEL_KEY_FORM,
    Int,
    LabelKey,
    LabelValue,
    NullsDropped,
    ObjectName,
    OptionalLabelKey,
    OptionalObjectName,
    Quantity,
    unique_by,
)


class StagePlacement(StrEnum):
    """Spread puts pipeline stages on different nodes, Pack lets them share one."""

    AUTO = "Auto"
    SPREAD = "Spread"
    PACK = "Pack"


class BuildOn(StrEnum):
    """Whose GPUs builds and candidates may use when none are free."""

    SPARE_GPUS = "SpareGPUs"
    BORROW = "Borrow"


class Toleration(Model):
    """A taint that pods and step Jobs tolerate, as in a Pod."""

    key: OptionalLabelKey = Field(
        default="", description="Taint key; empty with operator Exists tolerates all."
    )
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="How value is used.")
    value: LabelValue = Field(default="", description="Taint value for Equal.")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="", description="Empty tolerates every effect."
    )
    toleration_seconds: Int | None = Field(
        default=None, ge=0, le=86400, description="How long a NoExecute taint is endured."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.operator != 'Exists' || self.value == ''",
            "value must be empty when operator is Exists",
            message_expression="'value %s is not looked at when operator is Exists: leave it out, "
            "or use operator Equal'.format([self.value])",
            field_path=".value",
        ),
        Rule(
            "self.operator == 'Exists' || self.key != ''",
            "operator must be Exists when key is empty: only together they tolerate every taint",
            field_path=".operator",
        ),
        Rule(
            "!has(self.tolerationSeconds) || self.effect == 'NoExecute'",
            "tolerationSeconds needs effect NoExecute: the other effects evict nobody",
            field_path=".tolerationSeconds",
        ),
    )

    @model_validator(mode="after")
    def _as_a_pod_takes_it(self) -> Toleration:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f"value {self.value} is not looked at when operator is Exists: leave it out, or "
                "use operator Equal"
            )
        if self.operator != "Exists" and not self.key:
            raise ValueError(
                "operator must be Exists when key is empty: only together they tolerate every taint"
            )
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError(
                "tolerationSeconds needs effect NoExecute: the other effects evict nobody"
            )
        return self


class Placement(Model):
    """Where replicas may run."""

    pipeline_stages: StagePlacement = Field(
        default=StagePlacement.AUTO, description="Whether stages may share a node."
    )
    levels: Annotated[list[LabelKey], Field(max_length=8)] = Field(
        default_factory=list,
        description="Node labels of the network's levels, nearest first; empty takes the chart's.",
    )
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = Field(
        default_factory=list, description="For pods and step Jobs alike."
    )
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16), NullsDropped] = (
        Field(
            default_factory=dict,
            description="Nodes must carry these labels.",
            json_schema_extra={"x-key-form": LABEL_KEY_FORM},
        )
    )


class Rollout(Model):
    """How replicas move over to a new revision."""

    max_surge: Int = Field(default=0, ge=0, le=64, description="Replicas above spec.replicas.")
    max_unavailable: Int = Field(
        default=1, ge=0, le=64, description="Replicas that may be down at a time."
    )
    build_on: BuildOn = Field(
        default=BuildOn.SPARE_GPUS,
        description="Whether a candidate may take a serving replica's GPUs when none are free.",
    )
    drain_timeout_seconds: Int = Field(
        default=120, ge=1, le=3600, description="Time for running requests before a pod ends."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxSurge + self.maxUnavailable > 0",
            "maxSurge and maxUnavailable cannot both be 0: no replica could ever be replaced",
            field_path=".maxUnavailable",
        ),
    )

    @model_validator(mode="after")
    def _some_room(self) -> Rollout:
        if self.max_surge + self.max_unavailable == 0:
            raise ValueError(
                "maxSurge and maxUnavailable cannot both be 0: no replica could ever be replaced"
            )
        return self


class Storage(Model):
    """The volume on which models, checkpoints and engines live."""

    claim_name: ObjectName = Field(
        description="PersistentVolumeClaim of this namespace; ReadWriteMany unless all pods share "
        "one node."
    )


class PodResources(Model):
    """CPU, host memory and scratch of one stage's pod; GPUs follow from parallelism."""

    cpu: Quantity = Field(default="8", description="CPU request and limit.")
    memory: Quantity = Field(
        default="64Gi", description="Host memory request and limit, /dev/shm included."
    )
    ephemeral_storage: Quantity = Field(
        default="20Gi", description="Scratch: caches, logs and temporary files."
    )


class EnvVar(Model):
    """One environment variable of the serving containers."""

    name: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)
    ] = Field(description="Name of the variable.")
    value: Annotated[str, StringConstraints(max_length=4096)] = Field(
        default="", description="Its value."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!self.name.startsWith('SHARDWRIGHT_')",
            "names that start with SHARDWRIGHT_ are the operator's own; choose another",
            message_expression="'env %s: names that start with SHARDWRIGHT_ are the operator\\'s "
            "own; choose another'.format([self.name])",
            field_path=".name",
        ),
    )

    @model_validator(mode="after")
    def _not_ours(self) -> EnvVar:
        if self.name.startswith("SHARDWRIGHT_"):
            raise ValueError(
                f"env {self.name}: names that start with SHARDWRIGHT_ are the operator's own"
            )
        return self


class PodSettings(Model):
    """Settings of the serving pods that change neither model nor engine."""

    resources: PodResources = Field(default_factory=PodResources, description="Per stage's pod.")
    shm_size: Quantity = Field(
        default="16Gi", description="Size of /dev/shm, counted in the memory limit."
    )
    priority_class_name: OptionalObjectName = Field(
        default="", description="PriorityClass of pods and step Jobs."
    )
    image_pull_secrets: Annotated[list[SecretReference], Field(max_length=8), unique_by("name")] = (
        Field(
            default_factory=list,
            description="For pods and step Jobs.",
            json_schema_extra={"x-list-map-keys": ["name"]},
        )
    )
    service_account_name: OptionalObjectName = Field(
        default="", description="ServiceAccount of the pods; no token is mounted."
    )
    fabric_profile: Annotated[
        str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=63)
    ] = Field(
        default="",
        description="Network profile of the chart's values (InfiniBand, RDMA, NCCL settings).",
    )
    env: Annotated[list[EnvVar], Field(max_length=64), unique_by("name")] = Field(
        default_factory=list,
        description="Further environment variables.",
        json_schema_extra={"x-list-map-keys": ["name"]},
    )
    annotations: Annotated[
        dict[LabelKey, Annotated[str, StringConstraints(max_length=4096)]],
        Field(max_length=32),
        NullsDropped,
    ] = Field(
        default_factory=dict,
        description="Annotations of the serving pods.",
        json_schema_extra={"x-key-form": LABEL_KEY_FORM},
    )
