"""The spec as a user writes it: shape, precision and GPU product may be left to the planner.

`AskedSpec` is the source of the CRD's schema. What it leaves open is chosen once the model's facts
are known; the result is an `LLMDeploymentSpec`, in which nothing is open, and all that renders and
builds works with that one alone.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field, model_validator

from shardwright.api.accuracy import Accuracy
from shardwright.api.model import Model
from shardwright.api.rules import Rule
from shardwright.api.scalars import Int
from shardwright.api.serving import (
    Calibration,
    DType,
    GPUSpec,
    KVPrecision,
    Parallelism,
    Quantization,
    WeightPrecision,
    even_groups,
)
from shardwright.api.spec import CommonSpec, LLMDeploymentSpec, StagePlacement

MAX_TENSOR = 1024
MAX_PIPELINE = 256


class AskedWeights(StrEnum):
    """`WeightPrecision`, or Auto: the planner chooses."""

    AUTO = "Auto"
    NONE = WeightPrecision.NONE.value
    FP8 = WeightPrecision.FP8.value
    INT4_AWQ = WeightPrecision.INT4_AWQ.value
    INT4_GPTQ = WeightPrecision.INT4_GPTQ.value
    INT8_SMOOTHQUANT = WeightPrecision.INT8_SMOOTHQUANT.value
    INT8 = WeightPrecision.INT8.value
    W4A8_AWQ = WeightPrecision.W4A8_AWQ.value
    NVFP4 = WeightPrecision.NVFP4.value


class AskedKVCache(StrEnum):
    """`KVPrecision`, or Auto: the planner chooses."""

    AUTO = "Auto"
    NONE = KVPrecision.NONE.value
    FP8 = KVPrecision.FP8.value
    INT8 = KVPrecision.INT8.value


class Objective(StrEnum):
    """What the planner makes best."""

    LATENCY = "Latency"
    THROUGHPUT = "Throughput"
    BALANCED = "Balanced"
    OFFLINE = "Offline"


def _even(field: str) -> Rule:
    """Groups of a stage's ranks are equally large."""
    return Rule(
        f"!has(self.tensor) || !has(self.{field}) || self.tensor % self.{field} == 0",
        f"{field} must divide tensor: groups need equally many ranks",
        message_expression=f"'{field} %d does not divide tensor %d: groups need equally many "
        f"ranks; use a divisor of %d'.format([self.{field}, self.tensor, self.tensor])",
        field_path=f".{field}",
    )


class AskedParallelism(Model):
    """How one replica is split. World size = tensor × pipeline."""

    tensor: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_TENSOR,
        description="Tensor-parallel ranks: GPUs of one NVLink domain. Left out: chosen.",
    )
    pipeline: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_PIPELINE,
        description="Pipeline-parallel stages: one pod each. Left out: chosen.",
    )
    expert: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_TENSOR,
        description="Of a stage's tensor ranks, how many whole experts are dealt out to; 1 cuts "
        "every expert. Left out: 1 beside a given shape, else chosen.",
    )
    attention_data: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_TENSOR,
        description="Groups of a stage's tensor ranks that run attention each for requests of "
        "their own; 1 splits attention by heads. Left out: 1 beside a given shape, else chosen.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        _even("expert"),
        _even("attentionData"),
    )

    @model_validator(mode="after")
    def _groups_are_even(self) -> AskedParallelism:
        even_groups(self, self.tensor, self.expert, self.attention_data)
        if self.groups > MAX_TENSOR:
            raise ValueError(
                f"expert {self.expert} and attentionData {self.attention_data} both divide tensor "
                f"from {self.groups} on, and it is at most {MAX_TENSOR}; use numbers of which one "
                "divides the other"
            )
        return self

    @property
    def groups(self) -> int:
        """The least number of tensor ranks that all groups divide."""
        return math.lcm(self.expert or 1, self.attention_data or 1)


class AskedQuantization(Model):
    """Precision of weights and KV cache; left out, None beside a given shape and Auto otherwise."""

    weights: AskedWeights | None = Field(
        default=None, description="Precision of the weights; Auto lets the planner choose."
    )
    kv_cache: AskedKVCache | None = Field(
        default=None, description="Precision of the KV cache; Auto lets the planner choose."
    )
    calibration: Calibration = Field(
        default_factory=Calibration, description="Calibration of the quantized weights."
    )
    accuracy: Accuracy | None = Field(
        default=None, description="What a new engine must score before it serves."
    )


class WorkloadSpec(Model):
    """The load that is planned for; beside a given shape it is only compared with the plan."""

    objective: Objective | None = Field(
        default=None,
        description="Latency, Throughput (for each GPU), Balanced (the default) or Offline.",
    )
    concurrency: Int | None = Field(
        default=None, ge=1, le=1048576, description="Requests in flight over all replicas."
    )
    input_len: Int | None = Field(
        default=None, ge=1, le=16777216, description="Tokens of a usual prompt."
    )
    output_len: Int | None = Field(
        default=None, ge=1, le=16777216, description="Tokens of a usual answer."
    )


_TOO_LONG = "workload.inputLen + workload.outputLen exceed engine.limits.maxSeqLen"
_FIX = "raise maxSeqLen or shorten the workload"
_PROMPT = "workload.inputLen exceeds engine.limits.maxInputLen"


class AskedSpec(CommonSpec):
    """What a user asks for."""

    gpu: GPUSpec | None = Field(
        default=None, description="The GPUs. Left out, the planner chooses among the cluster's."
    )
    parallelism: AskedParallelism | None = Field(
        default=None,
        description="How one replica is split. What is left out is chosen once the model is known.",
    )
    quantization: AskedQuantization = Field(
        default_factory=AskedQuantization, description="Precision of weights and KV cache."
    )
    workload: WorkloadSpec | None = Field(
        default=None, description="The load that decides what is chosen for open fields."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.workload) || !has(self.workload.inputLen) || "
            "self.workload.inputLen <= self.engine.limits.maxInputLen",
            f"{_PROMPT}: raise maxInputLen or shorten the workload",
            message_expression=f"'{_PROMPT} %d: raise maxInputLen or shorten the workload'"
            ".format([self.engine.limits.maxInputLen])",
            field_path=".workload",
        ),
        Rule(
            "!has(self.workload) || (has(self.workload.inputLen) ? self.workload.inputLen : 0) + "
            "(has(self.workload.outputLen) ? self.workload.outputLen : 0) "
            "<= self.engine.limits.maxSeqLen",
            f"{_TOO_LONG}: {_FIX}",
            message_expression=f"'{_TOO_LONG} %d: {_FIX}'.format([self.engine.limits.maxSeqLen])",
            field_path=".workload",
        ),
    )

    @model_validator(mode="after")
    def _workload_fits_the_limits(self) -> AskedSpec:
        load, limits = self.workload, self.engine.limits
        if load is None:
            return self
        if (load.input_len or 0) > limits.max_input_len:
            raise ValueError(
                f"{_PROMPT} {limits.max_input_len}: raise maxInputLen or shorten the workload"
            )
        if (load.input_len or 0) + (load.output_len or 0) > limits.max_seq_len:
            raise ValueError(f"{_TOO_LONG} {limits.max_seq_len}: {_FIX}")
        return self

    @property
    def product(self) -> str | None:
        """The GPU product asked for; None while it is open."""
        return self.gpu.product if self.gpu is not None else None

    @property
    def tensor(self) -> int | None:
        """Tensor-parallel ranks; None while they are open."""
        return self.parallelism.tensor if self.parallelism is not None else None

    @property
    def pipeline(self) -> int | None:
        """Pipeline stages; None while they are open."""
        return self.parallelism.pipeline if self.parallelism is not None else None

    @property
    def most_tensor(self) -> int:
        """The largest number of tensor ranks that groups of experts and of attention divide."""
        groups = self.parallelism.groups if self.parallelism is not None else 1
        return MAX_TENSOR // groups * groups

    @property
    def expert(self) -> int | None:
        """Ranks of a stage that experts are dealt out to; None while that is open."""
        given = self.parallelism.expert if self.parallelism is not None else None
        return given or (1 if self._shaped else None)

    @property
    def attention_data(self) -> int | None:
        """Groups of a stage's ranks for attention; None while that is open."""
        given = self.parallelism.attention_data if self.parallelism is not None else None
        return given or (1 if self._shaped else None)

    @property
    def weights(self) -> WeightPrecision | None:
        """Precision of the weights; None while it is open."""
        asked = self.quantization.weights or self._precision_left_out
        return None if asked == AskedWeights.AUTO else WeightPrecision(asked.value)

    @property
    def kv_cache(self) -> KVPrecision | None:
        """Precision of the KV cache; None while it is open."""
        asked = self.quantization.kv_cache or self._precision_left_out
        return None if asked == AskedKVCache.AUTO else KVPrecision(asked.value)

    @property
    def _precision_left_out(self) -> AskedWeights:
        return AskedWeights.NONE if self._shaped else AskedWeights.AUTO

    @property
    def _shaped(self) -> bool:
        return self.tensor is not None and self.pipeline is not None

    @property
    def open(self) -> tuple[str, ...]:
        """The fields that the planner chooses, as the manifest names them."""
        asked = {
            "gpu.product": self.product,
            "parallelism.tensor": self.tensor,
            "parallelism.pipeline": self.pipeline,
            "quantization.weights": self.weights,
            "quantization.kvCache": self.kv_cache,
        }
        return tuple(name for name, value in asked.items() if value is None)

    def filled(
        self,
        *,
        product: str = "",
        tensor: int = 0,
        pipeline: int = 0,
        expert: int = 1,
        attention_data: int = 1,
        weights: WeightPrecision = WeightPrecision.NONE,
        kv_cache: KVPrecision = KVPrecision.NONE,
        dtype: DType | None = None,
        stages: StagePlacement | None = None,
    ) -> LLMDeploymentSpec:
        """The spec with these values in its open fields; what is given stays as it is.

        Args:
            product: GPU product.
            tensor: Tensor-parallel ranks.
            pipeline: Pipeline stages.
            expert: Ranks of a stage that experts are dealt out to.
            attention_data: Groups of a stage's ranks for attention.
            weights: Precision of the weights.
            kv_cache: Precision of the KV cache.
            dtype: Replaces a dtype of Auto.
            stages: Replaces a placement of stages that is Auto.

        Raises:
            ValueError: A field is open and no value is given for it.
        """
        model, placement = self.model, self.placement
        if dtype is not None and model.dtype is DType.AUTO:
            model = model.model_copy(update={"dtype": dtype})
        if stages is not None and placement.pipeline_stages is StagePlacement.AUTO:
            placement = placement.model_copy(update={"pipeline_stages": stages})
        common: dict[str, Any] = {name: getattr(self, name) for name in CommonSpec.model_fields}
        groups = (self.expert or expert, self.attention_data or attention_data)
        return LLMDeploymentSpec(
            **{**common, "model": model, "placement": placement},
            gpu=GPUSpec(product=self.product or product),
            parallelism=Parallelism(
                tensor=self.tensor or tensor,
                pipeline=self.pipeline or pipeline,
                # Absent where neutral, so that writing a 1 makes no new revision.
                expert=groups[0] if groups[0] > 1 else None,
                attention_data=groups[1] if groups[1] > 1 else None,
            ),
            quantization=Quantization(
                weights=self.weights or weights,
                kv_cache=self.kv_cache or kv_cache,
                calibration=self.quantization.calibration,
                accuracy=self.quantization.accuracy,
            ),
        )


def asked_of(spec: LLMDeploymentSpec) -> AskedSpec:
    """A spec without open fields in a user's words."""
    common: dict[str, Any] = {name: getattr(spec, name) for name in CommonSpec.model_fields}
    return AskedSpec(
        **common,
        gpu=spec.gpu,
        parallelism=AskedParallelism(
            tensor=spec.parallelism.tensor,
            pipeline=spec.parallelism.pipeline,
            expert=spec.parallelism.expert,
            attention_data=spec.parallelism.attention_data,
        ),
        quantization=AskedQuantization(
            weights=AskedWeights(spec.quantization.weights.value),
            kv_cache=AskedKVCache(spec.quantization.kv_cache.value),
            calibration=spec.quantization.calibration,
            accuracy=spec.quantization.accuracy,
        ),
    )
