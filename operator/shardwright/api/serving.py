"""What is served: the model, the engine, the GPUs, the split and the precision.

Most of these decide what is built. Which change rebuilds what is in `changes.py`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from shardwright.api.accuracy import Accuracy
from shardwright.api.engines import DEFAULT_BACKENDS, with_defaults
from shardwright.api.model import Model, SecretReference
from shardwright.api.plain import plain
from shardwright.api.rules import Rule
from shardwright.api.scalars import Bool, Float, Int, LabelValue


class Runtime(StrEnum):
    """Which engine runtime serves the model."""

    TENSORRT_LLM = "TensorRTLLM"
    VLLM = "VLLM"
    SGLANG = "SGLang"
    TRITON = "Triton"
    NIM = "NIM"


class Backend(StrEnum):
    """TensorRT compiles an engine for one shape and GPU; PyTorch starts from the checkpoint."""

    TENSORRT = "TensorRT"
    PYTORCH = "PyTorch"


class WeightPrecision(StrEnum):
    """What the weights are quantized to; `None` leaves them in the model's 16-bit type."""

    NONE = "None"
    FP8 = "FP8"
    INT4_AWQ = "INT4AWQ"
    INT4_GPTQ = "INT4GPTQ"
    INT8_SMOOTHQUANT = "INT8SmoothQuant"
    INT8 = "INT8"
    W4A8_AWQ = "W4A8AWQ"
    NVFP4 = "NVFP4"


class KVPrecision(StrEnum):
    """What the KV cache is stored in, independent of the weights."""

    NONE = "None"
    FP8 = "FP8"
    INT8 = "INT8"


class DType(StrEnum):
    """The 16-bit type of what is not quantized; Auto takes the model's own."""

    AUTO = "Auto"
    BF16 = "BF16"
    FP16 = "FP16"


URI = (
    r"^(hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9._/-]+)?"
    r"|pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9._/-]+"
    r"|s3://[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._/-]+"
    r"|oci://[A-Za-z0-9.:-]+/[A-Za-z0-9._/-]+([:@][A-Za-z0-9._:-]+)?)$"
)
URI_FORMS = (
    "write hf://org/name@revision, pvc://claim/path, s3://bucket/prefix or "
    "oci://registry/repository:tag"
)


URI_LENGTH = 512
URI_RULES: tuple[Rule, ...] = (
    Rule(
        f"self.uri.matches('{URI}')",
        URI_FORMS,
        message_expression=f"'uri %s: {URI_FORMS}'.format([self.uri])",
        field_path=".uri",
    ),
    Rule(
        "!self.uri.contains('..')",
        "uri must not contain '..': a path stays inside its claim, bucket or repository",
        field_path=".uri",
    ),
)


def check_uri(uri: str) -> None:
    """Do nothing if a uri has one of the known forms.

    Raises:
        ValueError: It has none, or leads out of its place.
    """
    if not re.fullmatch(URI[1:-1], uri):
        raise ValueError(f"uri {uri}: {URI_FORMS}")
    if ".." in uri:
        raise ValueError(
            "uri must not contain '..': a path stays inside its claim, bucket or repository"
        )


class ModelSpec(Model):
    """Which model is served, and where its files come from."""

    uri: Annotated[str, StringConstraints(min_length=1, max_length=URI_LENGTH)] = Field(
        description="hf://org/name@revision, pvc://claim/path, s3://bucket/prefix or "
        "oci://registry/repository:tag. A name that moves, such as @main, is resolved once."
    )
    served_name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=128),
    ] = Field(default="model", description="The model id in the OpenAI-style API.")
    secret_ref: SecretReference | None = Field(
        default=None,
        description="Credentials for fetching: HF_TOKEN, or the usual keys of s3 and oci clients.",
    )
    dtype: DType = Field(
        default=DType.AUTO, description="Type of the weights that are not quantized."
    )
    trust_remote_code: Bool = Field(
        default=False, description="Let the runtime execute code from the model's folder."
    )
    rules: ClassVar[tuple[Rule, ...]] = URI_RULES

    @model_validator(mode="after")
    def _uri_has_a_known_form(self) -> ModelSpec:
        check_uri(self.uri)
        return self


class Limits(Model):
    """Build and run limits: an engine is compiled for them."""

    max_batch_size: Int = Field(default=64, ge=1, le=65536, description="Requests in flight.")
    max_num_tokens: Int = Field(
        default=8192, ge=1, le=4194304, description="Tokens in one forward pass, padding left out."
    )
    max_input_len: Int = Field(
        default=4096,
        ge=1,
        le=16777216,
        description="Tokens of one prompt. VLLM, SGLang and NIM have no such limit: there it "
        "is only planned with.",
    )
    max_seq_len: Int = Field(
        default=8192, ge=1, le=16777216, description="Tokens of one request: prompt and output."
    )
    gpu_memory_fraction: Float = Field(
        default=0.9,
        gt=0,
        lt=1,
        description="TensorRTLLM: share of the memory left after loading that the KV cache takes. "
        "VLLM, NIM: share of the whole GPU for weights, activations and KV cache. SGLang: share of "
        "the whole GPU for weights and KV cache.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxInputLen <= self.maxSeqLen",
            "maxInputLen must not exceed maxSeqLen: a prompt counts toward the whole sequence",
            message_expression="'maxInputLen %d exceeds maxSeqLen %d: a prompt counts toward the "
            "whole sequence; raise maxSeqLen or lower maxInputLen'"
            ".format([self.maxInputLen, self.maxSeqLen])",
            field_path=".maxInputLen",
        ),
        Rule(
            "self.maxBatchSize <= self.maxNumTokens",
            "maxBatchSize must not exceed maxNumTokens: each request in flight takes a token",
            message_expression="'maxBatchSize %d exceeds maxNumTokens %d: each request in flight "
            "takes at least one token of a forward pass; raise maxNumTokens or lower maxBatchSize'"
            ".format([self.maxBatchSize, self.maxNumTokens])",
            field_path=".maxBatchSize",
        ),
    )

    @model_validator(mode="after")
    def _limits_agree(self) -> Limits:
        if self.max_input_len > self.max_seq_len:
            raise ValueError(
                f"maxInputLen {self.max_input_len} exceeds maxSeqLen {self.max_seq_len}: raise "
                "maxSeqLen or lower maxInputLen"
            )
        if self.max_batch_size > self.max_num_tokens:
            raise ValueError(
                f"maxBatchSize {self.max_batch_size} exceeds maxNumTokens {self.max_num_tokens}: "
                "raise maxNumTokens or lower maxBatchSize"
            )
        return self


class Plugins(Model):
    """Switches of the engine builder that change speed or memory, not results."""

    gemm: Literal["auto", "float16", "bfloat16", "fp8", "disable"] = Field(
        default="auto", description="--gemm_plugin of trtllm-build."
    )
    paged_context_fmha: Bool = Field(
        default=True,
        alias="pagedContextFMHA",
        description="--use_paged_context_fmha: needed for KV reuse and chunked prefill.",
    )


class Build(Model):
    """How the engine is built."""

    workers: Int = Field(
        default=1,
        ge=1,
        le=64,
        description="Ranks built at the same time; each takes one GPU of the build step.",
    )
    plugins: Plugins = Field(default_factory=Plugins, description="Builder switches.")


_NO_BACKEND = f"only {' and '.join(sorted(DEFAULT_BACKENDS))} have backends; leave it out"


class EngineSpec(Model):
    """Which runtime serves, in which version, built how."""

    runtime: Runtime = Field(default=Runtime.TENSORRT_LLM, description="The engine runtime.")
    version: Annotated[
        str,
        StringConstraints(
            pattern=r"^[0-9]+\.[0-9]+\.[0-9]+((rc|\.post|a|b)[0-9]+)*$", max_length=32
        ),
    ] = Field(
        default="",
        description="Version of the runtime; for Triton, of the TensorRT-LLM in its image. Left "
        "out: the one that ran before, at first the newest that is recorded.",
        json_schema_extra={"x-filled-in": True},
    )
    backend: Backend | None = Field(
        default=None,
        description="TensorRTLLM, Triton: TensorRT builds an engine (the default; versions up to "
        "1.2), PyTorch needs no build.",
    )
    image: (
        Annotated[
            str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=512)
        ]
        | None
    ) = Field(default=None, description="Replaces the image known for runtime and version.")
    limits: Limits = Field(default_factory=Limits, description="Build and run limits.")
    build: Build = Field(default_factory=Build, description="Build options.")
    config: Annotated[dict[str, Any], Field(max_length=64), AfterValidator(plain)] = Field(
        default_factory=dict,
        description="Passed on to the runtime's own configuration file, checked against the keys "
        "that this version knows. VLLM, SGLang and NIM: long flags without their dashes.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.backend) || self.runtime in {sorted(DEFAULT_BACKENDS)}",
            _NO_BACKEND,
            message_expression=f"'backend %s with runtime %s: {_NO_BACKEND}'"
            ".format([self.backend, self.runtime])",
            field_path=".backend",
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _what_goes_by_the_runtime(cls, raw: object) -> object:
        return with_defaults(raw, Runtime.TENSORRT_LLM) if isinstance(raw, dict) else raw

    @model_validator(mode="after")
    def _a_backend_where_there_are_several(self) -> EngineSpec:
        if self.backend is not None and self.runtime not in DEFAULT_BACKENDS:
            raise ValueError(f"backend {self.backend} with runtime {self.runtime}: {_NO_BACKEND}")
        return self


class GPUSpec(Model):
    """Which GPUs the pods ask for."""

    product: LabelValue = Field(
        min_length=1,
        description="As GPU Feature Discovery labels it, for example NVIDIA-H100-80GB-HBM3.",
    )


Split = TypeVar("Split")


def even_groups(
    split: Split, tensor: int | None, expert: int | None, attention_data: int | None
) -> Split:
    """The split itself, if groups of experts and of attention have equally many ranks.

    Raises:
        ValueError: A number of groups does not divide the tensor ranks.
    """
    for name, groups in (("expert", expert), ("attentionData", attention_data)):
        if groups and tensor and tensor % groups:
            raise ValueError(
                f"{name} {groups} does not divide tensor {tensor}: groups need equally many ranks; "
                f"use a divisor of {tensor}"
            )
    return split


class Parallelism(Model):
    """How one replica is split. World size = tensor × pipeline.

    Groups of experts and of attention are made of a stage's tensor ranks and take no GPUs of their
    own. `expert` and `attentionData` are absent where they are 1.
    """

    tensor: Int = Field(
        default=1, ge=1, le=1024, description="Tensor-parallel ranks: GPUs of one NVLink domain."
    )
    pipeline: Int = Field(
        default=1, ge=1, le=256, description="Pipeline-parallel stages: one pod each."
    )
    expert: Int | None = Field(default=None, ge=1, le=1024)
    attention_data: Int | None = Field(default=None, ge=1, le=1024)

    @model_validator(mode="after")
    def _groups_are_even(self) -> Parallelism:
        return even_groups(self, self.tensor, self.expert, self.attention_data)

    @property
    def expert_groups(self) -> int:
        """Ranks of a stage that whole experts are dealt out to; 1 cuts every expert."""
        return self.expert or 1

    @property
    def attention_groups(self) -> int:
        """Groups of a stage's ranks that run attention each for requests of their own."""
        return self.attention_data or 1

    @property
    def attention_ranks(self) -> int:
        """Ranks that share the attention heads of one group."""
        return self.tensor // self.attention_groups


class Calibration(Model):
    """Data that fixes the scales of quantized weights and activations."""

    dataset: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=256)
    ] = Field(default="cnn_dailymail", description="Data set's name, or a path on the claim.")
    samples: Int = Field(default=512, ge=1, le=65536, description="Samples drawn.")
    batch_size: Int = Field(default=1, ge=1, le=1024, description="Samples at a time.")
    max_seq_len: Int = Field(default=512, ge=1, le=131072, description="Tokens of a sample.")
    group_size: Int = Field(
        default=128, ge=1, le=1024, description="Weights that share a scale (AWQ)."
    )


class Quantization(Model):
    """Precision of weights and KV cache."""

    weights: WeightPrecision = Field(
        default=WeightPrecision.NONE, description="Precision of the weights."
    )
    kv_cache: KVPrecision = Field(
        default=KVPrecision.NONE, description="Precision of the KV cache."
    )
    calibration: Calibration = Field(
        default_factory=Calibration, description="Calibration of the quantized weights."
    )
    accuracy: Accuracy | None = Field(
        default=None, description="What a new engine must score before it serves."
    )
