"""The status of an LLMDeployment: the contract with kstatus, Helm, Argo CD, autoscalers and people.

Written by one exit path, only when it changes. `observedGeneration` is the generation that was
fully evaluated, and is written in the same call as the conditions.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from shardwright.api.spec import Model


class StatusModel(Model):
    """Like a spec model, but unknown fields are dropped: an older operator wrote them."""

    model_config = ConfigDict(extra="ignore")


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(StatusModel):
    """metav1.Condition."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316)]
    status: ConditionStatus
    observed_generation: int = Field(default=0, ge=0)
    last_transition_time: Annotated[str, StringConstraints(max_length=32)] = Field(
        json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[
        str,
        StringConstraints(
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", min_length=1, max_length=1024
        ),
    ]
    message: Annotated[str, StringConstraints(max_length=32768)]


class StageMemory(StatusModel):
    """What one GPU of a stage holds, in GiB, and the tokens that its KV cache takes."""

    stage: int
    layers: int
    weights_gib: float = Field(alias="weightsGiB")
    activation_gib: float = Field(default=0.0, alias="activationGiB")
    runtime_gib: float = Field(default=0.0, alias="runtimeGiB")
    lora_gib: float = Field(
        default=0.0, alias="loraGiB", description="Slots of adapters, loaded or not."
    )
    draft_gib: float = Field(
        default=0.0, alias="draftGiB", description="Weights of what drafts tokens."
    )
    kv_cache_gib: float = Field(
        default=0.0, alias="kvCacheGiB", description="What is left; below 0 it does not fit."
    )
    kv_tokens: int = 0


class PlanStatus(StatusModel):
    """The shape that was resolved from the spec, what its GPUs hold, and why it is as it is."""

    world_size: int = 0
    gpus: int = Field(default=0, description="GPUs of all replicas: tensor × pipeline × replicas.")
    tensor: int = 0
    pipeline: int = 0
    expert: int | None = Field(
        default=None, description="Ranks of a stage that experts are dealt out to, where above 1."
    )
    attention_data: int | None = Field(
        default=None, description="Groups of a stage's ranks for attention, where above 1."
    )
    gpu_product: str = Field(default="", alias="gpuProduct")
    weights: str = Field(default="", description="Precision of the weights.")
    kv_cache: str = Field(default="", description="Precision of the KV cache.")
    chosen: list[str] = Field(
        default_factory=list, description="Fields that the spec leaves open and the planner chose."
    )
    engine: str = Field(default="", description="Runtime, version and backend.")
    image: str = ""
    commit: str = Field(default="", description="The model's commit that its uri was resolved to.")
    reasons: list[str] = Field(default_factory=list, description="Why it is so, and warnings.")
    runner_up: str = Field(default="", description="What came second when it was chosen.")
    better: str = Field(
        default="",
        description="Another plan that has become possible; nothing is done about it.",
    )
    kv_tokens: int = Field(default=0, description="Tokens that the KV cache of a replica holds.")
    constants: str = Field(
        default="", description="Row of the engine's memory constants that was used."
    )
    per_gpu: list[StageMemory] = Field(
        default_factory=list, alias="perGPU", description="Memory of one GPU of each stage."
    )


class AccuracyStatus(StatusModel):
    """What an accuracy gate measured, and what it says."""

    task: str = ""
    score: float | None = None
    baseline: float | None = Field(
        default=None, description="Of the unquantized model, measured or given."
    )
    limit: str = Field(default="", description="The limit of the spec, as in maxDrop 1.")
    samples: int = Field(default=0, description="Samples of the task; 0 where the tool tells none.")
    measured: str = Field(default="", description="When the score was taken.")
    passed: bool | None = Field(default=None, description="Absent while it is not decided.")


class ServingEngine(StatusModel):
    """What serves now."""

    key: str = ""
    revision: str = ""
    built_for: dict[str, str] = Field(default_factory=dict)
    accuracy: AccuracyStatus | None = None


class NextEngine(StatusModel):
    """What is being made to replace it."""

    key: str = ""
    revision: str = ""
    step: str = Field(
        default="",
        description="Fetching, Converting, Quantizing, Building, Measuring, Proving, Rolling.",
    )
    reason: str = Field(default="", description="What the user changed, old value → new value.")
    attempt: int = 0
    borrowed: str = Field(
        default="", description="Replica and nodes taken from a serving group for the candidate."
    )
    accuracy: AccuracyStatus | None = None


class EngineStatus(StatusModel):
    """The engine that serves and the one being made."""

    serving: ServingEngine = Field(default_factory=ServingEngine)
    next: NextEngine | None = None


class LinksStatus(StatusModel):
    """What the ranks of a replica talk over, as its runners read it from the driver and NCCL."""

    tensor: str = Field(
        default="", description="NVLink, PCIe, SharedMemory, Network, None (one rank) or Unknown."
    )
    pipeline: str = Field(
        default="", description="RDMA, RDMAWithoutGPUDirect, Socket, None (one stage) or Unknown."
    )
    slow: list[str] = Field(
        default_factory=list, description="Pairs that have less than others, or than they could."
    )


class GroupStatus(StatusModel):
    """The wish for one replica: which incarnation of it should exist, and what is held against it.

    This is the operator's only memory of failures: a pass writes it before the next one acts.
    """

    index: int
    incarnation: int = 1
    revision: str
    role: Literal["Serving", "Candidate"] = "Serving"
    state: str = Field(default="", description="Queued, Placed, Starting, Ready, Broken, Leaving.")
    restarts: int = 0
    not_before: str = Field(default="", description="No earlier than this a new try is made.")
    avoid_nodes: list[str] = Field(default_factory=list)
    cause: str = Field(default="", description="First cause of the last failure.")
    reason: str = Field(default="", description="The same as a stable word.")
    held: bool = Field(default=False, description="The restart budget is spent.")
    held_edit: str = Field(default="", description="The edit it was held at; a later one frees it.")
    nodes: list[str] = Field(default_factory=list, description="By stage.")
    links: LinksStatus | None = None


class BarredRevision(StatusModel):
    """A revision that was rolled back and is not taken for what serves."""

    revision: str
    cause: str = Field(default="", description="Why it was rolled back.")


class StepStatus(StatusModel):
    """A step's failures in the environment, which are tried again elsewhere."""

    step: str
    key: str
    attempts: int = Field(default=0, description="Number of the last attempt that failed.")
    failures: int = Field(default=0, description="Failures in a row.")
    edit: str = Field(default="", description="The edit it failed under; a later one tries again.")
    not_before: str = Field(default="", description="No earlier than this a new try is made.")
    avoid_nodes: list[str] = Field(default_factory=list)
    reason: str = ""
    cause: str = ""


class AdapterStatus(StatusModel):
    """What became of one adapter."""

    name: str
    state: Literal["Fetching", "Ready", "Invalid", "Failed"]
    reason: str = Field(default="", description="The same as a stable word.")
    message: str = ""
    loaded_on: str = Field(default="", description="Leaders that have it, such as `2 of 3`.")


class BenchmarkPoint(StatusModel):
    """What one number of requests at once gave."""

    concurrency: int
    tokens_per_second: float = Field(description="Output tokens of the replica.")
    requests_per_second: float
    ttft_ms: float = Field(description="Time to first token, median.")
    ttft_p99_ms: float
    tpot_ms: float = Field(description="Time per output token, median.")
    tpot_p99_ms: float
    failed: int = 0
    kv_cache: float | None = Field(default=None, description="Mean share in use, 0 to 1.")
    acceptance: float | None = Field(
        default=None, description="Tokens that a pass gave a request, with speculation."
    )


class BenchmarkStatus(StatusModel):
    """The last measured run of a replica; of another revision it says nothing of this one."""

    revision: Annotated[str, StringConstraints(max_length=253)]
    date: Annotated[str, StringConstraints(max_length=64)]
    tool: Annotated[str, StringConstraints(max_length=1024)]
    input_len: int
    output_len: int
    points: list[BenchmarkPoint] = Field(max_length=16)
    knee: int = Field(
        default=0, description="Concurrency after which throughput hardly rises; 0: not reached."
    )
    advice: list[Annotated[str, StringConstraints(max_length=1024)]] = Field(
        default_factory=list, max_length=8
    )


class AdviceStatus(StatusModel):
    """What half an hour of serving suggests to change; nothing is done about it."""

    reason: str = Field(description="A stable word.")
    message: str = ""
    revision: str = Field(default="", description="Whose replicas it was seen of.")
    figure: float = Field(
        default=0.0, description="What it rests on: a share, or a speed over another."
    )
    about: str = Field(default="", description="The adapter that it is of, if it is of one.")
    since: str = Field(default="", description="From when it was looked at.")
    until: str = Field(default="", description="To when; it stands until another look differs.")


class LLMDeploymentStatus(StatusModel):
    """What the operator answers."""

    observed_generation: int = -1
    conditions: list[Condition] = Field(
        default_factory=list, json_schema_extra={"x-list-map-keys": ["type"]}
    )
    plan: PlanStatus | None = None
    engine: EngineStatus | None = None
    groups: list[GroupStatus] = Field(
        default_factory=list, json_schema_extra={"x-list-map-keys": ["index"]}
    )
    steps: list[StepStatus] = Field(default_factory=list)
    adapters: list[AdapterStatus] = Field(
        default_factory=list, json_schema_extra={"x-list-map-keys": ["name"]}
    )
    advice: list[AdviceStatus] = Field(
        default_factory=list, description="What the use of the replicas that serve suggests."
    )
    failed_revision: str = Field(
        default="", description="A revision that spent its budget and was rolled back."
    )
    failed_cause: str = Field(default="", description="Why it was rolled back.")
    barred_revisions: list[BarredRevision] = Field(
        default_factory=list,
        description="Others that were rolled back before it, until one that was asked for serves.",
    )
    settled_revision: str = Field(
        default="",
        description="The newest revision of which a replica was ready: it is not rolled back.",
    )
    incarnations: int = Field(default=0, description="The highest incarnation ever used.")
    replicas: int = Field(default=0, description="Serving replicas that exist, ready or not.")
    ready_replicas: int = 0
    selector: str = Field(default="", description="Selects the leaders' pods, for autoscalers.")
    benchmark: BenchmarkStatus | None = Field(
        default=None, description="Written by `shardwright benchmark`, not by the operator."
    )

    @field_validator("benchmark", mode="wrap")
    @classmethod
    def _of_another(
        cls, value: object, handler: ValidatorFunctionWrapHandler
    ) -> BenchmarkStatus | None:
        """What others wrote and cannot be read is passed over: it must stop no deployment."""
        try:
            found: BenchmarkStatus | None = handler(value)
        except ValidationError:
            return None
        return found
