"""GPUs that a node shows only as ResourceSlices of NVIDIA's DRA driver.

Such a node has no `nvidia.com/gpu` among its allocatable resources, so counting allocatable finds
nothing. The driver's attributes tell product, memory, compute capability and driver version; no
attribute tells which GPUs share NVLink.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwright.observe.products import label_form
from shardwright.observe.quantity import to_whole
from shardwright.observe.world import GPUInventory, Sharing

DRIVER = "gpu.nvidia.com"
_MIB = 1024**2
_REPELLING = frozenset({"NoSchedule", "NoExecute"})


def slice_inventory(node: str, slices: Sequence[Mapping[str, Any]]) -> GPUInventory | None:
    """The GPUs that ResourceSlices of `gpu.nvidia.com` publish for one node, None if none do.

    A pool is read in its newest generation of which all slices have arrived. Devices with a taint
    that keeps pods away (a lost GPU, a critical XID) count to `capacity` but not to `count`. Slices
    of other nodes and drivers are passed over. `nvlink_size` is left 0: slices do not know it.

    Args:
        node: The node's name.
        slices: ResourceSlices of resource.k8s.io v1 or v1beta2, or v1beta1 (`basic` devices).
    """
    devices = list(_devices(node, slices))
    whole = [device for device in devices if _text(device, "type") in ("gpu", "")]
    counted = whole or [device for device in devices if _text(device, "type") == "mig"]
    if not counted:
        return None
    names = Counter(label_form(_text(device, "productName")) for device in counted)
    product = min(names, key=lambda name: (-names[name], name))
    model = next(
        device for device in counted if label_form(_text(device, "productName")) == product
    )
    return GPUInventory(
        product=product,
        count=sum(not _repels(device) for device in counted),
        capacity=len(counted),
        memory_mib=_memory_mib(model),
        compute=_version_pair(_text(model, "cudaComputeCapability")),
        sharing=Sharing.EXCLUSIVE if whole else Sharing.MIG,
        driver=_text(model, "driverVersion"),
        slices_only=True,
        mixed=len(names) > 1,
    )


def _devices(node: str, slices: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Devices of the node's pools, each pool in its newest complete generation."""
    pools: dict[str, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for item in slices:
        spec = item.get("spec") or {}
        if spec.get("driver") == DRIVER and spec.get("nodeName") == node:
            pool = spec.get("pool") or {}
            pools[str(pool.get("name", ""))][int(pool.get("generation", 0))].append(spec)
    for _, generations in sorted(pools.items()):
        complete = [
            number
            for number, specs in generations.items()
            if len(specs) >= int((specs[0].get("pool") or {}).get("resourceSliceCount", 1))
        ]
        if complete:
            for spec in generations[max(complete)]:
                # v1beta1 kept a device's content one level down.
                yield from (device.get("basic") or device for device in spec.get("devices") or ())


def _text(device: Mapping[str, Any], attribute: str) -> str:
    """An attribute as text, with or without the driver's domain before its name."""
    attributes = device.get("attributes") or {}
    value = attributes.get(attribute) or attributes.get(f"{DRIVER}/{attribute}") or {}
    return str(value.get("string") or value.get("version") or "")


def _memory_mib(device: Mapping[str, Any]) -> int:
    capacity = device.get("capacity") or {}
    memory = capacity.get("memory") or capacity.get(f"{DRIVER}/memory") or {}
    # v1beta1 in its first form wrote the quantity without an object around it.
    amount = memory.get("value", 0) if isinstance(memory, Mapping) else memory
    return to_whole(amount) // _MIB


def _version_pair(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor or 0)) if major.isdigit() and (minor or "0").isdigit() else (0, 0)


def _repels(device: Mapping[str, Any]) -> bool:
    return any(taint.get("effect") in _REPELLING for taint in device.get("taints") or ())
