"""The observed world as plain frozen data: all that a decision may rest on.

Views are small projections of Kubernetes objects: what deciding needs and no more, so that ten
thousand of them fit in memory and two of them can be compared. Nothing here talks to a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shardwright.runner.contract import AdapterFacts, ModelFacts, Report

CRASH_LOOP = "CrashLoopBackOff"
"""Of a container that has ended twice at least and waits to be started again."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a pod asks for or a node offers. CPU in millicores, memory and scratch in bytes."""

    cpu_millis: int = 0
    memory_bytes: int = 0
    ephemeral_bytes: int = 0
    pods: int = 0
    gpus: int = 0
    other: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, more: Resources) -> Resources:
        names = {*self.other, *more.other}
        return Resources(
            self.cpu_millis + more.cpu_millis,
            self.memory_bytes + more.memory_bytes,
            self.ephemeral_bytes + more.ephemeral_bytes,
            self.pods + more.pods,
            self.gpus + more.gpus,
            {name: self.other.get(name, 0) + more.other.get(name, 0) for name in names},
        )

    def __sub__(self, less: Resources) -> Resources:
        names = {*self.other, *less.other}
        return Resources(
            self.cpu_millis - less.cpu_millis,
            self.memory_bytes - less.memory_bytes,
            self.ephemeral_bytes - less.ephemeral_bytes,
            self.pods - less.pods,
            self.gpus - less.gpus,
            {name: self.other.get(name, 0) - less.other.get(name, 0) for name in names},
        )

    def covers(self, need: Resources) -> bool:
        """Whether `need` fits; a resource that is not needed may be overdrawn elsewhere."""
        return (
            (need.cpu_millis <= 0 or self.cpu_millis >= need.cpu_millis)
            and (need.memory_bytes <= 0 or self.memory_bytes >= need.memory_bytes)
            and (need.ephemeral_bytes <= 0 or self.ephemeral_bytes >= need.ephemeral_bytes)
            and (need.pods <= 0 or self.pods >= need.pods)
            and (need.gpus <= 0 or self.gpus >= need.gpus)
            and all(
                self.other.get(name, 0) >= amount
                for name, amount in need.other.items()
                if amount > 0
            )
        )


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Sharing(StrEnum):
    """How a node hands out its GPUs; only EXCLUSIVE whole GPUs can form a tensor-parallel group."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"  # time-slicing or MPS
    MIG = "MIG"
    INVALID = "Invalid"  # a broken MIG configuration


@dataclass(frozen=True, slots=True)
class GPUInventory:
    """A node's GPUs, as labels and allocatable tell.

    `product` is empty when no label names it (unknown is not zero). `count` is what the node can
    allocate now, `capacity` what it has; fewer means unhealthy GPUs. `nvlink_size` is how many GPUs
    of this node share one NVLink domain (0: no NVLink). `clique` names a multi-node NVLink domain.
    `slices_only` marks a node that shows its GPUs as ResourceSlices only. `mixed` marks a node with
    GPUs of several products, of which labels describe one: which one a pod gets is not known.
    """

    product: str = ""
    count: int = 0
    capacity: int = 0
    memory_mib: int = 0
    compute: tuple[int, int] = (0, 0)
    sharing: Sharing = Sharing.EXCLUSIVE
    nvlink_size: int = 0
    clique: str = ""
    driver: str = ""
    slices_only: bool = False
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: its GPUs, what it can allocate, and whether it takes pods now."""

    name: str
    uid: str
    gpu: GPUInventory
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    ready: bool = True
    not_ready_since: float | None = None  # seconds since the epoch, None while ready
    unschedulable: bool = False
    deleting: bool = False
    warnings: tuple[str, ...] = ()  # labels that could not be read, and what was taken instead


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod: whose it is, where it is, what it asks for and how it does.

    `node` is where it is bound, `pin` the hostname its selector names (set by the placer before it
    is bound). `labels` holds the labels of our own group only.
    """

    namespace: str
    name: str
    uid: str
    resource_version: int = 0
    owner_uid: str = ""
    owner_kind: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    node: str = ""
    pin: str = ""
    ip: str = ""
    phase: str = "Pending"
    gated: bool = False
    ready: bool = False
    started: bool = False
    deleting: bool = False
    gone_by: float | None = None  # when its grace ends, of one that is being deleted
    disrupted: str = ""  # reason of the DisruptionTarget condition
    requests: Resources = Resources()
    priority: int = 0
    created: float = 0.0
    bound_at: float | None = None
    ready_changed: float | None = None  # lastTransitionTime of the Ready condition, True or False
    placement: str = ""  # the placement annotation as written
    adapters: str = ""  # the table of adapters that it was last told of
    waiting: str = ""  # container waiting reason, for example ImagePullBackOff
    waiting_message: str = ""
    unschedulable: str = ""  # message of PodScheduled=False
    exit_reason: str = ""  # OOMKilled, Error, … of a terminated container
    exit_code: int | None = None
    report: Report | None = None  # decoded termination message
    restarts: int = 0
    finished_at: float | None = None

    @property
    def finished(self) -> bool:
        """Whether it holds no resources any more."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class JobView:
    """A step Job: one step, one key, one attempt."""

    namespace: str
    name: str
    uid: str
    resource_version: int = 0
    step: str = ""
    key: str = ""
    attempt: int = 0
    source_attempt: int = 0  # which attempt made what it is made from; 0 for none, or not told
    also_attempts: tuple[int, ...] = ()  # the same of what it reads beside that
    claim_uid: str = ""
    owners: tuple[str, ...] = ()  # uids of the deployments that need it
    suspended: bool = False
    deleting: bool = False
    node: str = ""  # where its template is pinned
    requests: Resources = Resources()
    beside: Resources = Resources()  # of these, what sidecars have
    active: int = 0
    complete: bool = False
    failed: bool = False  # Failed or FailureTarget
    failure_reason: str = ""
    failure_message: str = ""
    created: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None


class RecordState(StrEnum):
    """What a record says of its artifact."""

    BUILDING = "Building"  # asked for the first time: from now on its folder may be there
    READY = "Ready"
    FAILED = "Failed"  # for good, until the key changes
    TRASHED = "Trashed"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one artifact on one claim; kept in a ConfigMap owned by the claim."""

    step: str
    key: str
    claim_uid: str
    state: RecordState
    name: str = ""
    uid: str = ""
    resource_version: int = 0
    inputs: Mapping[str, object] = field(default_factory=dict)
    commit: str = ""
    facts: ModelFacts | None = None
    adapter: AdapterFacts | None = None
    total_bytes: int = 0
    reason: str = ""
    message: str = ""
    log_tail: str = ""
    created: float = 0.0
    used: float = 0.0
    attempt: int = 0  # which attempt of its step made (or failed to make) it
    rebuilds: int = 0
    unused: float = 0.0  # since when nothing names it, as far as it was seen; 0 while named
    trash: str = ""  # stamp of its folder's name in the trash, while it is collected
    score: float | None = None  # what was measured, of a score
    samples: int = 0  # over how many samples; 0 for not told
    tried: tuple[str, ...] = ()  # wishes that what failed was tried under


@dataclass(frozen=True, slots=True)
class ClaimView:
    """A PersistentVolumeClaim and the topology of its volume."""

    namespace: str
    name: str
    uid: str
    bound: bool
    access_modes: tuple[str, ...]
    # Terms of the volume's required node affinity: any term, all labels of it; empty is anywhere.
    node_terms: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    deleting: bool = False

    @property
    def shared(self) -> bool:
        """Whether pods on several nodes may write it."""
        return "ReadWriteMany" in self.access_modes


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes that may come to exist (chart values): they count as possible, not as free."""

    name: str
    product: str
    gpus_per_node: int
    max_nodes: int
    nvlink_size: int = 0
    compute: tuple[int, int] = (0, 0)
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class RevisionView:
    """A ControllerRevision: a resolved spec as it was accepted. Only its number ever changes.

    `number` is the revision number, higher is newer. `text` is what was stored, as JSON: decoded
    it takes four times the memory, and it is read once.
    """

    name: str
    uid: str
    resource_version: int
    number: int
    owner_uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    text: str = "{}"
    created: float = 0.0

    @property
    def data(self) -> Mapping[str, object]:
        """The stored data, decoded anew at each call."""
        found = json.loads(self.text)
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class ChildView:
    """An object that is kept by server-side apply, or only has to exist.

    Services, disruption budgets, runner ConfigMaps. `generation` is 0 for kinds without one.
    """

    namespace: str
    name: str
    uid: str
    resource_version: int
    owner_uid: str = ""
    generation: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """An LLMDeployment as stored: `spec` and `status` are decoded JSON that nobody may change.

    `restarted_at` is the user's annotation, empty without one.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: int
    spec: Mapping[str, object] = field(default_factory=dict)
    status: Mapping[str, object] = field(default_factory=dict)
    restarted_at: str = ""
    deleting: bool = False
    created: float = 0.0
