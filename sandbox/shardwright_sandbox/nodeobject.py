"""What simulated nodes look like to Kubernetes: the objects, nothing that talks to a cluster."""

from datetime import UTC, datetime

from shardwright_sandbox.fleet import GPU_RESOURCE, Gpu, Override, Pool
from shardwright_sandbox.labels import memory_and_compute, node_labels
from shardwright_sandbox.rest import Json
from shardwright_sandbox.stages import KUBELET_LABEL, KUBELET_RUNNING, READY_ANNOTATION

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_DRA_DRIVER = "gpu.nvidia.com"
_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
)


def node_object(pool: Pool, index: int, *, now: datetime | None = None) -> Json:
    """The Node as a kubelet with its device plugin would have registered it."""
    override = pool.nodes.get(index, Override())
    stamp = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = pool.ready and override.ready
    resources: Json = {
        "cpu": str(pool.cpu),
        "memory": pool.memory,
        "pods": str(pool.pods),
        "ephemeral-storage": pool.ephemeral_storage,
        **(_gpu_resources(pool.gpu) if pool.gpu is not None else {}),
    }
    capacity = {**resources, **_strings(pool.capacity), **_strings(override.capacity)}
    allocatable = {**capacity, **_strings(pool.allocatable), **_strings(override.allocatable)}
    taints = [
        taint.model_dump(exclude_defaults=False) for taint in (*pool.taints, *override.taints)
    ]
    annotations = {"kwok.x-k8s.io/node": "fake", **pool.annotations}
    if not ready:
        annotations[READY_ANNOTATION] = "false"
    conditions = [
        ("Ready", "True", "KubeletReady") if ready else ("Ready", "False", "KubeletNotReady"),
        *_CONDITIONS,
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": f"{pool.name}-{index}",
            "labels": {**node_labels(pool, index), KUBELET_LABEL: KUBELET_RUNNING},
            "annotations": annotations,
        },
        "spec": {
            "taints": taints,
            "unschedulable": pool.unschedulable or override.unschedulable,
        },
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "lastHeartbeatTime": stamp,
                    "lastTransitionTime": stamp,
                }
                for kind, status, reason in conditions
            ],
            "addresses": [{"type": "Hostname", "address": f"{pool.name}-{index}"}],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "v1.37.2",
                "kernelVersion": "sandbox",
                "osImage": "sandbox",
                "containerRuntimeVersion": "sandbox://0",
                "kubeProxyVersion": "",
                "bootID": "",
                "machineID": "",
                "systemUUID": "",
            },
        },
    }


def _strings(quantities: dict[str, str | int]) -> dict[str, str]:
    return {name: str(amount) for name, amount in quantities.items()}


def _gpu_resources(gpu: Gpu) -> dict[str, str]:
    if gpu.dra:
        return {}
    if gpu.mig is not None:
        slices = str(gpu.count * gpu.mig.slices_per_gpu)
        if gpu.mig.strategy == "single":
            return {GPU_RESOURCE: slices}
        return {GPU_RESOURCE: "0", f"nvidia.com/mig-{gpu.mig.profile}": slices}
    return {GPU_RESOURCE: str(gpu.count * (gpu.sharing.replicas if gpu.sharing else 1))}


def slice_object(node: str, gpu: Gpu) -> Json:
    """What the DRA driver publishes for a node whose GPUs the device plugin does not show."""
    memory, compute, _ = memory_and_compute(gpu)
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{node}-{index}"},
                "productName": {"string": gpu.product.replace("-", " ")},
                "cudaComputeCapability": {"version": f"{compute}.0"},
                "driverVersion": {"version": gpu.driver.replace(".0", ".", 1)},
            },
            "capacity": {"memory": {"value": f"{memory}Mi"}},
        }
        for index in range(gpu.count)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{_DRA_DRIVER}"},
        "spec": {
            "driver": _DRA_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
