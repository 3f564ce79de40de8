"""The answer to a sizing question: what was chosen, what came second, and why not the others.

Plain frozen data that is written as JSON or YAML with camelCase keys and read back unchanged, so
that a plan can be kept in a status, shown by another program, and compared with a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from shardwright.sizing.question import Workload
from shardwright.sizing.shape import MemoryPlan, Precision, Shape
from shardwright.sizing.steps import StepNeed


@dataclass(frozen=True, slots=True)
class StepTime:
    """Where the time of one decoding step goes, in seconds, over all stages of a replica.

    Attributes:
        weights: Reading weights from memory, or computing with them where that takes longer.
        kv_cache: Reading the KV cache.
        communication: All-reduce, all-to-all, and sends between stages.
        overhead: Starting kernels.
        prefill: Share of the prompts that are read in between.
    """

    weights: float
    kv_cache: float
    communication: float
    overhead: float
    prefill: float

    @property
    def total(self) -> float:
        """Seconds between two tokens of a request."""
        return self.weights + self.kv_cache + self.communication + self.overhead + self.prefill


@dataclass(frozen=True, slots=True)
class Estimate:
    """How fast one replica is, by bytes, FLOPs and links.

    These are for comparing candidates. Absolute values are rough; see docs/choosing.md.

    Attributes:
        batch: Requests in flight in this replica that the figures are for.
        capacity: Requests of the asked lengths that its KV cache and the engine's limits hold.
        ttft_seconds: From a prompt's start to its first token, without waiting in a queue.
        tpot_seconds: Between two tokens of one request.
        tokens_per_second: Output tokens of the replica.
        tokens_per_second_per_gpu: The same for each of its GPUs.
        step: Where `tpot_seconds` goes.
    """

    batch: int
    capacity: int
    ttft_seconds: float
    tpot_seconds: float
    tokens_per_second: float
    tokens_per_second_per_gpu: float
    step: StepTime


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of serving the model on this fleet.

    Attributes:
        product: GPU product.
        precision: Of weights and KV cache; weights None is the checkpoint's own.
        shape: How one replica is split.
        replicas: As many as the free GPUs hold, at most one a request in flight; or as fixed.
        replicas_needed: Replicas that hold the asked concurrency; may exceed `replicas`.
        stage_nodes: For one replica, each stage's node, counted from 0: (0, 1) is two stages on two
            nodes, (0, 0) two stages on one.
        node_groups: Names of the node groups that may carry it.
        memory: What every stage's GPUs hold.
        estimate: How fast one replica is at its share of the concurrency.
        score: By the objective, higher is better; comparable within one answer only.
        accuracy_loss: Published loss in percent for this precision; None where none is published.
        reasons: Why it looks as it does.
        steps: What has to be done before it serves, and what the cluster lacks for it.
    """

    product: str
    precision: Precision
    shape: Shape
    replicas: int
    replicas_needed: int
    stage_nodes: tuple[int, ...]
    node_groups: tuple[str, ...]
    memory: MemoryPlan
    estimate: Estimate
    score: float
    accuracy_loss: float | None = None
    reasons: tuple[str, ...] = ()
    steps: tuple[StepNeed, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.shape.world_size * self.replicas

    @property
    def nodes_per_replica(self) -> int:
        """Nodes that one replica spreads over."""
        return len(set(self.stage_nodes))

    @property
    def concurrency(self) -> int:
        """Requests of the asked lengths that all replicas hold."""
        return self.estimate.capacity * self.replicas


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why something was not chosen; a part that is None stands for all of its kind.

    Attributes:
        code: Stable CamelCase word.
        message: Field, value, limit, and what to do.
        product: GPU product; None for any.
        precision: None for any.
        shape: None for any.
        score: For what was possible and lost on its score.
        memory: Where it was counted.
        estimate: Where it was made.
    """

    code: str
    message: str
    product: str | None = None
    precision: Precision | None = None
    shape: Shape | None = None
    score: float | None = None
    memory: MemoryPlan | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The whole answer.

    Attributes:
        model: The model's name.
        workload: What was asked.
        chosen: None when nothing is possible; `rejected` then says why.
        runner_up: The best of another shape, precision or product; None when there is none.
        would_change: What would have to be different for another choice, in sentences.
        rejected: Everything else that was looked at, with its reason.
        notes: What limits this answer: figures that were assumed, nodes that were left out.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, extra="forbid", ser_json_inf_nan="strings"
    )

    model: str
    workload: Workload
    chosen: Candidate | None
    runner_up: Candidate | None = None
    would_change: tuple[str, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()


_ADAPTER: TypeAdapter[Choice] = TypeAdapter(Choice)


def to_data(choice: Choice) -> dict[str, Any]:
    """The answer as plain dictionaries, lists and scalars with camelCase keys."""
    data: dict[str, Any] = _ADAPTER.dump_python(choice, mode="json", by_alias=True)
    return data


def from_data(data: Mapping[str, Any]) -> Choice:
    """The answer from what `to_data` made.

    Raises:
        pydantic.ValidationError: A key is missing, unknown or of the wrong type, with its path.
    """
    return _ADAPTER.validate_python(dict(data))
