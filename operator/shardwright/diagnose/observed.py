"""What is known of a deployment that does not do well: symptoms, and facts beside them.

A fact that is absent is not known, which is something else than zero. The same model reads a file
that a person wrote and is filled from a live object.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from shardwright.api.model import Model
from shardwright.api.serving import Backend, DType, KVPrecision, WeightPrecision


class Symptom(StrEnum):
    """What somebody sees."""

    LATENCY_FLAT_WITH_TENSOR = "LatencyFlatWithTensor"
    SLOW_SINGLE_REQUEST = "SlowSingleRequest"
    SLOW_FIRST_TOKEN = "SlowFirstToken"  # noqa: S105 - tokens of text
    LITTLE_GAIN_FROM_INT4 = "LittleGainFromINT4"
    LOW_THROUGHPUT = "LowThroughput"
    REQUESTS_QUEUE = "RequestsQueue"
    ACCURACY_COLLAPSE = "AccuracyCollapse"
    ENGINE_FAILS_TO_LOAD = "EngineFailsToLoad"
    OUT_OF_MEMORY = "OutOfMemory"
    HANGS_AT_START = "HangsAtStart"
    WAITS_FOR_GPUS = "WaitsForGPUs"


MEANINGS: dict[Symptom, str] = {
    Symptom.LATENCY_FLAT_WITH_TENSOR: "latency does not fall when `tensor` grows",
    Symptom.SLOW_SINGLE_REQUEST: "one request alone is slow",
    Symptom.SLOW_FIRST_TOKEN: "the first token comes late",
    Symptom.LITTLE_GAIN_FROM_INT4: "INT4 weights bring little under load",
    Symptom.LOW_THROUGHPUT: "few tokens a second although GPUs are there",
    Symptom.REQUESTS_QUEUE: "requests wait, or are preempted, for room in the KV cache",
    Symptom.ACCURACY_COLLAPSE: "answers are much worse than the original model's",
    Symptom.ENGINE_FAILS_TO_LOAD: "the engine is refused or fails when it is loaded",
    Symptom.OUT_OF_MEMORY: "the runtime runs out of memory",
    Symptom.HANGS_AT_START: "ranks start and nothing more happens",
    Symptom.WAITS_FOR_GPUS: "pods stay gated for want of GPUs",
}

Text = Annotated[str, StringConstraints(max_length=65536)]
Compute = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,2}\.[0-9]$")]


class Facts(Model):
    """What is known; leave out what is not."""

    tensor: int | None = Field(default=None, ge=1, description="Tensor-parallel ranks.")
    pipeline: int | None = Field(default=None, ge=1, description="Pipeline stages.")
    replicas: int | None = Field(default=None, ge=0)
    gpu_product: str = Field(default="", description="As the node's label has it.")
    gpus_per_node: int | None = Field(default=None, ge=1)
    nvlink_domain: int | None = Field(
        default=None, ge=0, description="GPUs of a node that share NVLink; 0 for none."
    )
    compute: Compute | None = Field(default=None, description="CUDA compute capability, as 9.0.")
    fabric: str = Field(default="", pattern="^(RDMA|Ethernet)?$", description="Between nodes.")
    backend: Backend | None = None
    version: str = Field(default="", description="Of the runtime.")
    weights: WeightPrecision | None = Field(default=None, description="Precision of the weights.")
    kv_cache: KVPrecision | None = Field(default=None, description="Precision of the KV cache.")
    dtype: DType | None = Field(default=None, description="Type of what is not quantized.")
    model_dtype: DType | None = Field(default=None, description="Type the model was trained in.")
    heads: int | None = Field(default=None, ge=1, description="Attention heads of the model.")
    kv_heads: int | None = Field(default=None, ge=1, description="Key-value heads.")
    experts: int | None = Field(default=None, ge=0, description="Routed experts; 0 for none.")
    concurrency: int | None = Field(default=None, ge=1, description="Requests at once, a replica.")
    request_tokens: int | None = Field(default=None, ge=1, description="Tokens of a request.")
    input_tokens: int | None = Field(default=None, ge=1, description="Tokens of a prompt.")
    kv_tokens: int | None = Field(default=None, ge=0, description="Tokens the KV cache holds.")
    max_batch_size: int | None = Field(default=None, ge=1)
    max_num_tokens: int | None = Field(default=None, ge=1)
    built_for_tensor: int | None = Field(default=None, ge=1, description="Of the engine's files.")
    built_for_pipeline: int | None = Field(default=None, ge=1)
    built_for_product: str = ""
    built_for_version: str = ""
    reasons: Annotated[list[Text], Field(max_length=256)] = Field(
        default_factory=list, description="Reasons of conditions and groups, as status has them."
    )
    message: Text = Field(default="", description="Message of a condition, or the end of a log.")

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability as (major, minor)."""
        if self.compute is None:
            return None
        major, _, minor = self.compute.partition(".")
        return int(major), int(minor)


class Observed(Model):
    """A description: what is seen, and what is known."""

    symptoms: Annotated[list[Symptom], Field(max_length=len(Symptom))] = Field(
        default_factory=list, description="What is seen."
    )
    facts: Facts = Field(default_factory=Facts, description="What is known.")

    def shows(self, *symptoms: Symptom) -> bool:
        """Whether any of these is seen."""
        return any(symptom in self.symptoms for symptom in symptoms)
