"""What a plan is asked for: the workload, the GPUs there are, and what is fixed already."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shardwright.api.running import StagePlacement
from shardwright.api.serving import KVPrecision, WeightPrecision
from shardwright.sizing.model import Model
from shardwright.sizing.shape import EngineSettings

GIB = 1024**3


class Objective(StrEnum):
    """What "best" means.

    Latency: the shortest time of one request. Throughput: the most tokens a second from each GPU
    with replicas as full as asked. Balanced: the product of both. Offline: the most tokens a second
    at any latency.
    """

    LATENCY = "Latency"
    THROUGHPUT = "Throughput"
    BALANCED = "Balanced"
    OFFLINE = "Offline"


@dataclass(frozen=True, slots=True)
class Workload:
    """The load that is planned for.

    Attributes:
        objective: What is made best.
        concurrency: Requests in flight at once, over all replicas.
        input_len: Tokens of a prompt.
        output_len: Tokens of an answer.
        ttft_seconds: Longest time to the first token that is wanted; None for no target.
        tpot_seconds: Longest time between two tokens that is wanted; None for no target.

    Raises:
        ValueError: A count below 1, or a target that is not above 0.
    """

    objective: Objective = Objective.BALANCED
    concurrency: int = 64
    input_len: int = 2048
    output_len: int = 512
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "input_len", "output_len"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"workload.{_camel(name)} {value}: must be at least 1")
        for name in ("ttft_seconds", "tpot_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(
                    f"workload.{_camel(name)} {value}: must be above 0 seconds; leave it out for "
                    "no target"
                )

    @property
    def request_len(self) -> int:
        """Tokens of a finished request: prompt and answer."""
        return self.input_len + self.output_len


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


class FabricKind(StrEnum):
    """How nodes reach each other: RDMA (InfiniBand or RoCE), or TCP over Ethernet."""

    RDMA = "RDMA"
    ETHERNET = "Ethernet"


@dataclass(frozen=True, slots=True, order=True)
class Fabric:
    """The network between nodes.

    Attributes:
        kind: RDMA or Ethernet.
        gigabytes_per_second: 10⁹ bytes a second for each GPU of a node, one way.
        source: Where the figures come from: a label, a resource, the settings, an assumption.
    """

    kind: FabricKind
    gigabytes_per_second: float
    source: str = ""


# A 100-gigabit port shared by eight GPUs: what a node has when nothing says that it has more. A
# figure that is too low only makes plans keep their communication inside nodes.
ASSUMED_FABRIC = Fabric(FabricKind.ETHERNET, 1.5625, "assumed: 100 Gb/s Ethernet for eight GPUs")


@dataclass(frozen=True, slots=True, order=True)
class NodeGroup:
    """Nodes that are alike in everything a plan looks at.

    Attributes:
        name: For people; unique within a fleet.
        product: GPU product, as the node's label has it.
        nodes: How many there are.
        gpus_per_node: GPUs that a node owns.
        free_gpus: GPUs of each of these nodes that nothing uses.
        nvlink_size: GPUs of a node that share one NVLink domain; 0 for PCIe only.
        memory_bytes: Memory of one GPU as the driver reports it.
        compute: CUDA compute capability; (0, 0) while it is not known.
        fabric: How these nodes reach others.
        clique_nodes: Nodes that share one NVLink domain (racks such as NVL72); 1 for none.
        possible: Nodes that an autoscaler may bring, not nodes that exist.
    """

    name: str
    product: str
    nodes: int
    gpus_per_node: int
    free_gpus: int
    nvlink_size: int
    memory_bytes: int
    compute: tuple[int, int] = (0, 0)
    fabric: Fabric = ASSUMED_FABRIC
    clique_nodes: int = 1
    possible: bool = False

    @property
    def domain(self) -> int:
        """GPUs of a node that may form one tensor-parallel group: its NVLink domain, or the node.

        Without NVLink the ranks talk over PCIe, which is slow and not forbidden.
        """
        return min(self.nvlink_size, self.gpus_per_node) if self.nvlink_size else self.gpus_per_node

    def slots(self, tensor: int) -> int:
        """Groups of `tensor` GPUs that are free on these nodes, none of them over two domains.

        Which GPUs are taken is not known: those in use are taken to fill domains from the first.
        """
        whole, rest = divmod(self.free_gpus, self.domain)
        return self.nodes * (whole * (self.domain // tensor) + rest // tensor)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All GPUs that a plan may use, as groups of equal nodes in a fixed order.

    Attributes:
        groups: The groups, in order of product and name.
        skipped: Why nodes with GPUs were left out, each with a count.
        host_bytes: Host memory that pods may ask for, of the node that has most: for each product,
            and for "" among all nodes, those without GPUs included. What is not known is not there.
    """

    groups: tuple[NodeGroup, ...]
    skipped: tuple[str, ...] = ()
    host_bytes: tuple[tuple[str, int], ...] = ()

    @property
    def products(self) -> tuple[str, ...]:
        """GPU products in alphabetical order."""
        return tuple(sorted({group.product for group in self.groups}))

    @property
    def gpus(self) -> int:
        """GPUs of all nodes, free or not."""
        return sum(group.nodes * group.gpus_per_node for group in self.groups)

    @property
    def free_gpus(self) -> int:
        """GPUs that nothing uses."""
        return sum(group.nodes * group.free_gpus for group in self.groups)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user has fixed; None is open.

    Attributes:
        weights: Weight precision.
        weight_bits: 16, 8 or 4: any precision of so many bits, the best that the GPU has.
        kv_cache: Precision of the KV cache.
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline stages.
        expert: Expert-parallel ranks.
        attention_data: Data-parallel attention groups.
        product: GPU product.
        replicas: Replicas.
        pipeline_stages: Spread puts the stages of a replica on different nodes. Pack lets them
            share one, as a plan may do anyway, so that it bars nothing; nor does None.
    """

    weights: WeightPrecision | None = None
    weight_bits: int | None = None
    kv_cache: KVPrecision | None = None
    tensor: int | None = None
    pipeline: int | None = None
    expert: int | None = None
    attention_data: int | None = None
    product: str | None = None
    replicas: int | None = None
    pipeline_stages: StagePlacement | None = None

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "expert", "attention_data", "replicas"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"{_camel(name)} {value}: must be at least 1; leave it out to open"
                )
        if self.weight_bits not in (None, 4, 8, 16):
            raise ValueError(f"weightBits {self.weight_bits}: must be 16, 8 or 4")


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that was asked."""

    model: Model
    fleet: Fleet
    workload: Workload
    engine: EngineSettings
    limits: Limits
