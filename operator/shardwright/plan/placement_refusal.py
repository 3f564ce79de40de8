"""Why something cannot be placed now, in numbers and one sentence that ends with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.plan.placement_nodes import Kind, Obstacle, PlacementRequest, cores, gibibytes

_ADVICE = {
    Kind.UNKNOWN_PRODUCT: "install GPU Feature Discovery or set productKeys so that the product of "
    "those GPUs is known",
    Kind.CORDONED: "uncordon them",
    Kind.NOT_READY: "bring them back",
    Kind.DELETING: "add nodes in their place",
    Kind.AVOIDED: "repair or replace the nodes that failed",
    Kind.TAINT: "tolerate the taint in spec.placement.tolerations",
    Kind.SELECTOR: "widen spec.placement.nodeSelector or label more nodes",
    Kind.VOLUME: "use a volume that more nodes reach, or add nodes where it is",
    Kind.DRA_ONLY: "run NVIDIA's device plugin there, so that the nodes offer nvidia.com/gpu",
    Kind.NO_DEVICES: "look after NVIDIA's device plugin there",
    Kind.SHARING: "use nodes that hand out whole GPUs, or spec.parallelism.tensor 1",
    Kind.MIXED: "keep GPUs of one product a node",
    Kind.NVLINK: "lower spec.parallelism.tensor to the size of the islands",
    Kind.TOO_SMALL: "lower spec.pod.resources or spec.parallelism.tensor to what a node has",
    Kind.TAKEN: "free some of them",
}


@dataclass(frozen=True, slots=True)
class NoRoom:
    """Nothing was placed and nothing is held; what is missing.

    Attributes:
        request: What was asked for.
        free_gpus: Free GPUs of the product on nodes that pods of the request may use.
        largest_block: Most of them on one node.
        nodes_with_room: Nodes with room for one pod, all its resources counted.
        reasons: Nodes that are out, counted by cause: `2 nodes cordoned`, `1 NotReady`.
        possible: Whether it would fit if no pod ran on the nodes that may be used.
        next_step: What would help.
    """

    request: PlacementRequest
    free_gpus: int
    largest_block: int
    nodes_with_room: int
    reasons: tuple[str, ...]
    possible: bool
    next_step: str

    @property
    def needed_gpus(self) -> int:
        """GPUs of all pods together."""
        return self.request.gpus

    def message(self) -> str:
        """One sentence: needed, free, largest free block, nodes that are out, what would help."""
        parts = [f"{self._wanted()}: {self._found()}", *self._out(), self.next_step]
        return "; ".join(parts)

    def _wanted(self) -> str:
        request = self.request
        if not request.gpus_per_pod:
            need = request.per_pod
            asked = [
                text
                for amount, text in (
                    (need.cpu_millis, f"{cores(need.cpu_millis)} CPUs"),
                    (need.memory_bytes, f"{gibibytes(need.memory_bytes)} of memory"),
                    (need.ephemeral_bytes, f"{gibibytes(need.ephemeral_bytes)} of disk"),
                    *((n, f"{n} {name}") for name, n in sorted(need.other.items())),
                )
                if amount
            ]
            return f"needs one node with {', '.join(asked) or 'room for a pod'}"
        apart = " on different nodes" if request.spread and request.stages > 1 else ""
        pods = "pod" if request.stages == 1 else "pods"
        return (
            f"needs {request.gpus} {_gpus(request.gpus)} of {request.product} "
            f"({request.stages} {pods} × {request.gpus_per_pod}{apart})"
        )

    def _found(self) -> str:
        if not self.request.gpus_per_pod:
            return "no node has room"
        if not self.free_gpus and not self.reasons:
            return "no node has such GPUs"
        nodes = "node has" if self.nodes_with_room == 1 else "nodes have"
        return (
            f"{self.free_gpus} free, largest free block {self.largest_block} "
            f"{_gpus(self.largest_block)} on one node, {self.nodes_with_room} {nodes} room for a "
            "pod"
        )

    def _out(self) -> list[str]:
        return [", ".join(self.reasons)] if self.reasons else []


def explain(
    request: PlacementRequest,
    *,
    free_gpus: int,
    largest_block: int,
    nodes_with_room: int,
    against: Mapping[Obstacle, int],
    possible: bool,
    possible_later: bool,
    packs: bool,
) -> NoRoom:
    """Put the findings of a search that failed into words.

    Args:
        request: What was asked for.
        free_gpus: As in `NoRoom`.
        largest_block: As in `NoRoom`.
        nodes_with_room: As in `NoRoom`.
        against: What stands against nodes, with how many, in the order to be told.
        possible: As in `NoRoom`.
        possible_later: Whether it would fit with the nodes that are out for a while, if they were
            empty.
        packs: Whether it would fit now if stages shared nodes.
    """
    reasons: list[str] = []
    for found, count in against.items():
        noun = "" if reasons else " node" if count == 1 else " nodes"
        reasons.append(f"{count}{noun} {found.text}")
    if possible:
        step = "it is placed as soon as pods that hold the room end or nodes are added"
    elif possible_later:
        step = _advice({found: n for found, n in against.items() if found.kind.passing})
    elif not against:
        other = "with such GPUs or choose another spec.gpu.product"
        step = f"add nodes {other}" if request.gpus_per_pod else "add nodes"
    else:
        step = f"add nodes that can hold it, or {_advice(against)}"
    if packs:
        step += "; with spec.placement.pipelineStages: Pack it fits now"
    return NoRoom(
        request=request,
        free_gpus=free_gpus,
        largest_block=largest_block,
        nodes_with_room=nodes_with_room,
        reasons=tuple(reasons),
        possible=possible,
        next_step=step,
    )


def _advice(against: Mapping[Obstacle, int]) -> str:
    """What helps against the cause that keeps most nodes out; the first told among equals."""
    counted: dict[Kind, int] = {}
    for found, count in against.items():
        counted[found.kind] = counted.get(found.kind, 0) + count
    return _ADVICE[max(counted, key=lambda kind: (counted[kind], -kind))]


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else "GPUs"
