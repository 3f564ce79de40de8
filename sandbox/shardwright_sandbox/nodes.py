"""Simulated nodes: made from a fleet, and changed by tests as hardware and admins would."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from kubernetes import client

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.fleet import GPU_RESOURCE, Fleet, Override, Pool, Taint
from shardwright_sandbox.nodeobject import SLICES, node_object, slice_object
from shardwright_sandbox.rest import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    STRATEGIC_PATCH,
    Json,
    Rest,
    RestError,
    rest_of,
)
from shardwright_sandbox.stages import KUBELET_LABEL, KUBELET_RUNNING, READY_ANNOTATION

_NODES = "/api/v1/nodes"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_WORKERS = 8


def make_nodes(
    api: client.ApiClient, fleet: Fleet, *, wait_seconds: float = 90.0, exist_ok: bool = False
) -> list[str]:
    """Make every simulated node of a fleet; wait until those that shall be Ready are schedulable.

    Real nodes are there already: they start with the sandbox.

    Args:
        api: the cluster.
        fleet: what to make.
        wait_seconds: how long it may take until the node controller has taken
            its taint off all ready nodes.
        exist_ok: leave nodes that are there as they are.
    """
    wanted = [(pool, index) for pool in fleet.simulated for index in range(pool.count)]
    rest = rest_of(api)

    def make(item: tuple[Pool, int]) -> str:
        pool, index = item
        body = node_object(pool, index)
        name: str = body["metadata"]["name"]
        try:
            rest.post(_NODES, body)
        except RestError as error:
            if error.status != CONFLICT or not exist_ok:
                raise
        if pool.gpu is not None and pool.gpu.dra:
            rest.post(SLICES, slice_object(name, pool.gpu))
        return name

    with ThreadPoolExecutor(_WORKERS) as workers:
        names = list(workers.map(make, wanted))
    ready = [
        f"{pool.name}-{index}"
        for pool, index in wanted
        if pool.ready and pool.nodes.get(index, Override()).ready
    ]
    wait_schedulable(api, ready, wait_seconds)
    return names


def wait_schedulable(api: client.ApiClient, names: list[str], seconds: float) -> None:
    """Wait until these nodes are Ready and free of the node controller's taints."""
    rest = rest_of(api)
    deadline = time.monotonic() + seconds
    wanted = set(names)
    while True:
        # out of the watch cache: the wait must not load the database
        nodes = rest.get(_NODES, resourceVersion="0")["items"]
        missing = wanted - {node["metadata"]["name"] for node in nodes if _is_ready(node)}
        if not missing:
            return
        if time.monotonic() > deadline:
            raise SandboxError(
                f"{len(missing)} of {len(wanted)} nodes are not Ready after {seconds} s, among "
                f"them {', '.join(sorted(missing)[:3])}; see logs/kwok.log and "
                "logs/kube-controller-manager.log"
            )
        time.sleep(0.1)


def _is_ready(node: Json) -> bool:
    tainted = any(
        taint["key"] in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        for taint in node["spec"].get("taints", [])
    )
    return not tainted and any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in node["status"].get("conditions", [])
    )


def add_node(api: client.ApiClient, pool: Pool, index: int, *, wait_seconds: float = 90.0) -> str:
    """Add one more node of a pool, as an autoscaler would."""
    body = node_object(pool, index)
    rest_of(api).post(_NODES, body)
    name: str = body["metadata"]["name"]
    if pool.ready:
        wait_schedulable(api, [name], wait_seconds)
    return name


def delete_node(api: client.ApiClient, name: str) -> None:
    """Remove the node object, as a cloud does after terminating the machine."""
    rest_of(api).delete(f"{_NODES}/{name}")


def cordon(api: client.ApiClient, name: str, *, on: bool = True) -> None:
    """Cordon (or uncordon) a node."""
    _patch(api, name, {"spec": {"unschedulable": on}})


def taint(api: client.ApiClient, name: str, *taints: Taint) -> None:
    """Add taints to a node."""
    kept = _taints(api, name)
    # read and written as a whole: a merge by key could not hold one key with two effects
    _set_taints(api, name, [*kept, *(item.model_dump() for item in taints)])


def untaint(api: client.ApiClient, name: str, key: str) -> None:
    """Take every taint with this key off a node."""
    _set_taints(api, name, [item for item in _taints(api, name) if item["key"] != key])


def _taints(api: client.ApiClient, name: str) -> list[Json]:
    taints: list[Json] = rest_of(api).get(f"{_NODES}/{name}")["spec"].get("taints", [])
    return taints


def _set_taints(api: client.ApiClient, name: str, taints: list[Json]) -> None:
    _patch(api, name, {"spec": {"taints": taints}}, kind=MERGE_PATCH)


def _patch(
    api: client.ApiClient, name: str, patch: Json, *, part: str = "", kind: str = STRATEGIC_PATCH
) -> None:
    rest_of(api).patch(f"{_NODES}/{name}{part}", patch, kind)


def set_labels(api: client.ApiClient, name: str, labels: dict[str, str | None]) -> None:
    """Set labels of a node (None removes one)."""
    _patch(api, name, {"metadata": {"labels": labels}})


def set_allocatable(
    api: client.ApiClient, name: str, amount: int, *, resource: str = GPU_RESOURCE
) -> None:
    """Change what a node can give: a GPU became unhealthy, or well again."""
    patch = {"status": {"allocatable": {resource: str(amount)}}}
    _patch(api, name, patch, part="/status")


def set_ready(api: client.ApiClient, name: str, *, ready: bool) -> None:
    """Make a living kubelet report NotReady, or Ready again. KWOK writes the condition."""
    value = None if ready else "false"
    _patch(api, name, {"metadata": {"annotations": {READY_ANNOTATION: value}}})


def kill_kubelet(api: client.ApiClient, name: str, *, noticed: bool = True) -> None:
    """Stop a node's heartbeat: it becomes unreachable, and nothing ends its pods any more.

    Args:
        api: the cluster.
        name: of the node.
        noticed: write at once the condition that the node controller would write
            after the grace period, so that a test need not wait for it.
    """
    _patch(api, name, {"metadata": {"labels": {KUBELET_LABEL: None}}})
    if not noticed:
        return
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": stamp,
    }
    _patch(api, name, {"status": {"conditions": [condition]}}, part="/status")


def revive_kubelet(api: client.ApiClient, name: str) -> None:
    """Start the heartbeat again; pods that were deleted meanwhile now go."""
    patch = {"metadata": {"labels": {KUBELET_LABEL: KUBELET_RUNNING}}}
    _patch(api, name, patch)


def remove_nodes(api: client.ApiClient, names: list[str]) -> None:
    """Remove nodes and, at once, the pods on them; those that are gone already do not matter."""
    rest = rest_of(api)
    gone = set(names)
    # Without their node nothing would end these pods until the garbage collector
    # comes round, and the namespace of the test could not go.
    for pod in rest.get("/api/v1/pods")["items"]:
        if pod["spec"].get("nodeName") in gone:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            _delete(rest, f"{path}?gracePeriodSeconds=0")
    for name in names:
        _delete(rest, f"{_NODES}/{name}")
        # The garbage collector would take it later, perhaps from a new node of the same name, which
        # KWOK would then leave alone until it has made another.
        _delete(rest, f"{_LEASES}/{name}")


def _delete(rest: Rest, path: str) -> None:
    try:
        rest.delete(path)
    except RestError as error:
        if error.status != NOT_FOUND:
            raise
