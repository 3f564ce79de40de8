"""Which nodes may hold a pod, why the others may not, and how many pods fit on one.

The rules are those of kube-scheduler where it has a say (taints, selectors, allocatable), stricter
where a tensor-parallel group needs it: whole GPUs of the one product, all on one NVLink island.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from shardwright.api.names import GPU_RESOURCE
from shardwright.api.spec import Toleration
from shardwright.observe.world import NodeView, Resources, Sharing, Taint

_REPELLING = frozenset({"NoSchedule", "NoExecute"})
# Kubernetes puts these on nodes for a time: node.kubernetes.io/not-ready, unschedulable, …
_PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What is to be placed: `stages` pods of one shape, each with `gpus_per_pod` GPUs of one node.

    A step Job is a request of one stage; with 0 GPUs it takes any node and `product` is not read.

    Attributes:
        product: GPU product as the nodes' label names it, suffixes of shared GPUs included.
        gpus_per_pod: Tensor-parallel ranks of a stage.
        stages: Pods of the replica, all of which are placed or none.
        per_pod: What one pod asks for; its `gpus` is taken from `gpus_per_pod`.
        tolerations: The user's; `nvidia.com/gpu` is tolerated anyway by pods that ask for GPUs.
        node_selector: Labels that a node must carry.
        spread: Whether every stage needs a node of its own.
        levels: Node labels of the network's levels, nearest first.
        avoid: Names of nodes that are never taken.
        sibling_nodes: Names of nodes that hold other replicas: taken only if nothing else is as
            near.
        node_terms: Where the volume can be reached: any term, all labels of it; empty: anywhere.
        nvlink_needed: Whether a node with no known NVLink between the pod's GPUs is refused.
        need: What one pod takes from its node, itself and its GPUs included (computed).
    """

    product: str
    gpus_per_pod: int
    stages: int
    per_pod: Resources
    tolerations: Sequence[Toleration] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    spread: bool = True
    levels: tuple[str, ...] = ()
    avoid: frozenset[str] = frozenset()
    sibling_nodes: frozenset[str] = frozenset()
    node_terms: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    nvlink_needed: bool = False
    need: Resources = field(init=False)

    def __post_init__(self) -> None:
        if self.stages < 1:
            raise ValueError(f"stages is {self.stages}: a replica has at least 1")
        if self.gpus_per_pod < 0:
            raise ValueError(f"gpus_per_pod is {self.gpus_per_pod}: it cannot be negative")
        if self.per_pod.gpus not in (0, self.gpus_per_pod):
            raise ValueError(
                f"per_pod.gpus is {self.per_pod.gpus} and gpus_per_pod {self.gpus_per_pod}: leave "
                "per_pod.gpus at 0 or make them equal"
            )
        need = replace(self.per_pod, gpus=self.gpus_per_pod, pods=max(1, self.per_pod.pods))
        object.__setattr__(self, "need", need)  # asked for every node: computed once

    @property
    def gpus(self) -> int:
        """GPUs of the whole replica."""
        return self.stages * self.gpus_per_pod


class Kind(IntEnum):
    """What stands against a node, in the order in which it is looked at and told."""

    UNKNOWN_PRODUCT = 0
    CORDONED = 1
    NOT_READY = 2
    DELETING = 3
    AVOIDED = 4
    TAINT = 5
    SELECTOR = 6
    VOLUME = 7
    DRA_ONLY = 8
    NO_DEVICES = 9
    SHARING = 10
    MIXED = 11
    NVLINK = 12
    TOO_SMALL = 13
    TAKEN = 14

    @property
    def passing(self) -> bool:
        """Whether it may end without anybody changing the cluster's hardware or the spec."""
        return self in (Kind.CORDONED, Kind.NOT_READY, Kind.AVOIDED)


@dataclass(frozen=True, slots=True, order=True)
class Obstacle:
    """Why a node is out: its kind, and words that complete "2 nodes …"."""

    kind: Kind
    text: str


def is_other_product(request: PlacementRequest, node: NodeView) -> bool:
    """Whether the node is no matter of this request: it has no GPUs, or other ones."""
    if request.gpus_per_pod == 0:
        return False
    if node.gpu.product:
        return node.gpu.product != request.product
    return not _has_gpus(node)


def _has_gpus(node: NodeView) -> bool:
    return node.gpu.capacity > 0 or node.gpu.count > 0


def obstacle(request: PlacementRequest, node: NodeView, *, islands: bool) -> Obstacle | None:
    """What keeps pods of this request off the node however empty it is, None if nothing does.

    `islands` asks that a pod's GPUs share one NVLink island where islands are known: ranks of a
    group need it, steps do not. Nodes for which `is_other_product` holds are not asked about.
    """
    if request.gpus_per_pod and not node.gpu.product:
        return Obstacle(Kind.UNKNOWN_PRODUCT, "with GPUs of unknown product")
    return (
        _condition(request, node)
        or _selection(request, node)
        or _devices(request, node, islands=islands)
    )


def _condition(request: PlacementRequest, node: NodeView) -> Obstacle | None:
    if node.unschedulable:
        return Obstacle(Kind.CORDONED, "cordoned")
    if not node.ready:
        return Obstacle(Kind.NOT_READY, "NotReady")
    if node.deleting:
        return Obstacle(Kind.DELETING, "being deleted")
    if node.name in request.avoid:
        return Obstacle(Kind.AVOIDED, "avoided after earlier failures")
    for taint in node.taints:
        if taint.effect in _REPELLING and not tolerates(request, taint):
            value = f"={taint.value}" if taint.value else ""
            return Obstacle(Kind.TAINT, f"with untolerated taint {taint.key}{value}:{taint.effect}")
    return None


def open_to(request: PlacementRequest, node: NodeView) -> bool:
    """Whether selectors and taints let pods of this request onto the node at all.

    Taints that a node has while it is cordoned or not ready are passed over: they go.
    """
    lasting = (taint for taint in node.taints if not taint.key.startswith(_PASSING_TAINTS))
    return _selection(request, node) is None and all(
        taint.effect not in _REPELLING or tolerates(request, taint) for taint in lasting
    )


def tolerates(request: PlacementRequest, taint: Taint) -> bool:
    """Whether pods of this request endure a taint.

    Pods that ask for GPUs endure `nvidia.com/gpu` whatever its value (providers differ in it);
    steps without GPUs do not, so that they stay off GPU pools that are kept for GPU work.
    """
    if request.gpus_per_pod and taint.key == GPU_RESOURCE:
        return True
    return any(_endures(toleration, taint) for toleration in request.tolerations)


def _endures(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def _selection(request: PlacementRequest, node: NodeView) -> Obstacle | None:
    for key, value in request.node_selector.items():
        if node.labels.get(key) != value:
            return Obstacle(Kind.SELECTOR, f"without label {key}={value}")
    if request.node_terms and not any(
        all(node.labels.get(key) in values for key, values in term.items())
        for term in request.node_terms
    ):
        return Obstacle(Kind.VOLUME, "out of the volume's reach")
    return None


def _devices(request: PlacementRequest, node: NodeView, *, islands: bool) -> Obstacle | None:
    gpu, wanted = node.gpu, request.gpus_per_pod
    if wanted == 0:
        return None
    if gpu.slices_only:
        return Obstacle(
            Kind.DRA_ONLY, f"with GPUs only as ResourceSlices (no allocatable {GPU_RESOURCE})"
        )
    if gpu.sharing is Sharing.INVALID:
        return Obstacle(Kind.SHARING, "with an invalid MIG configuration")
    if not _has_gpus(node):
        return Obstacle(Kind.NO_DEVICES, f"offering no {GPU_RESOURCE}")
    if wanted > 1 and gpu.sharing is not Sharing.EXCLUSIVE:
        kind = "MIG slices" if gpu.sharing is Sharing.MIG else "time-shared GPUs"
        return Obstacle(Kind.SHARING, f"with {kind}, which cannot form a group of {wanted}")
    if gpu.mixed:
        return Obstacle(Kind.MIXED, "with GPUs of several products")
    if islands and 0 < gpu.nvlink_size < min(wanted, gpu.capacity):
        return Obstacle(
            Kind.NVLINK, f"with NVLink islands of {gpu.nvlink_size} GPUs, fewer than {wanted}"
        )
    if request.nvlink_needed and wanted > 1 and gpu.nvlink_size < wanted:
        return Obstacle(Kind.NVLINK, "without NVLink between their GPUs")
    return None


_LIFECYCLE_TAINTS = "node.kubernetes.io/"


def recovered(node: NodeView) -> NodeView:
    """The node as it would be uncordoned and Ready, without the taints that come with either."""
    return replace(
        node,
        ready=True,
        unschedulable=False,
        taints=tuple(one for one in node.taints if not one.key.startswith(_LIFECYCLE_TAINTS)),
    )


def room(request: PlacementRequest, node: NodeView, used: Resources) -> int:
    """How many pods of this request fit on a node beside what is used there.

    At most one of a spread replica, and one where GPUs are shared or sliced: two slots there may
    be the same GPU.
    """
    need, offer = request.need, node.allocatable
    one = request.spread or (need.gpus and node.gpu.sharing is not Sharing.EXCLUSIVE)
    fits = min(1 if one else request.stages, _times(offer.gpus - used.gpus, need.gpus))
    if not fits:
        return 0
    return min(
        fits,
        _times(offer.cpu_millis - used.cpu_millis, need.cpu_millis),
        _times(offer.memory_bytes - used.memory_bytes, need.memory_bytes),
        _times(offer.ephemeral_bytes - used.ephemeral_bytes, need.ephemeral_bytes),
        _times(offer.pods - used.pods, need.pods),
        *(
            _times(offer.other.get(name, 0) - used.other.get(name, 0), amount)
            for name, amount in need.other.items()
        ),
    )


_UNBOUNDED = 1 << 30


def _times(free: int, need: int) -> int:
    """How often a need fits in what is free; what is not needed may be overdrawn."""
    if need <= 0:
        return _UNBOUNDED
    return free // need if free > 0 else 0


def shortage(request: PlacementRequest, node: NodeView, used: Resources) -> Obstacle:
    """What a node without room for one pod is short of, the first of GPUs, memory, CPU and so on.

    What the node would not have when empty comes before what others have taken.
    """
    for base, kind, free in ((Resources(), Kind.TOO_SMALL, ""), (used, Kind.TAKEN, " free")):
        left = node.allocatable - base
        if text := _lack(request.need, left, node, free):
            return Obstacle(kind, text)
    raise ValueError(f"node {node.name} has room for a pod: it is short of nothing")


def _lack(need: Resources, left: Resources, node: NodeView, free: str) -> str:
    if left.gpus < need.gpus:
        unhealthy = not free and node.gpu.capacity >= need.gpus
        return (
            f"with unhealthy GPUs ({left.gpus} of {node.gpu.capacity} allocatable)"
            if unhealthy
            else f"with fewer than {need.gpus} GPUs{free}"
        )
    lacks = (
        (left.memory_bytes, need.memory_bytes, f"{gibibytes(need.memory_bytes)} of memory"),
        (left.cpu_millis, need.cpu_millis, f"{cores(need.cpu_millis)} CPUs"),
        (left.ephemeral_bytes, need.ephemeral_bytes, f"{gibibytes(need.ephemeral_bytes)} of disk"),
        (left.pods, need.pods, f"{need.pods} pod"),
        *((left.other.get(name, 0), n, f"{n} {name}") for name, n in sorted(need.other.items())),
    )
    return next(
        (f"without {text}{free}" for have, wanted, text in lacks if wanted > 0 and have < wanted),
        "",
    )


def gibibytes(amount: int) -> str:
    """Bytes as people write them in a pod: `412Gi`, `1.5Gi`, `512Mi`."""
    if amount < _GIB:
        return f"{amount / 1024**2:.4g}Mi"
    return f"{amount / _GIB:.1f}".removesuffix(".0") + "Gi"


def cores(millis: int) -> str:
    """Millicores as cores: `8`, `0.5`."""
    return f"{millis / 1000:g}"
