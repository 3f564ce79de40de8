"""Nodes as they are labelled in the field, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from shardwright.api.settings import PoolSettings, Settings
from shardwright.observe.nodes import node_pools, node_view, pod_requests
from shardwright.observe.products import base_product, label_form, nvlink_prior
from shardwright.observe.world import GPUInventory, NodePool, Resources, Sharing, Taint

GIB = 1024**3
H100 = "NVIDIA-H100-80GB-HBM3"
A100 = "NVIDIA-A100-SXM4-40GB"

# A complete set of an 8×H100 SXM node, as GPU Feature Discovery writes it.
H100_LABELS = {
    "kubernetes.io/hostname": "n",
    "nvidia.com/cuda.driver-version.full": "550.54.15",
    "nvidia.com/cuda.driver-version.major": "550",
    "nvidia.com/cuda.driver-version.minor": "54",
    "nvidia.com/cuda.driver-version.revision": "15",
    "nvidia.com/gfd.timestamp": "1736000000",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.machine": "Standard-PC-Q35-ICH9-2009",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": H100,
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/mig.config": "all-disabled",
    "nvidia.com/mig.strategy": "single",
}


def node(
    labels: Mapping[str, str] | None = None,
    *,
    gpus: int | None = 8,
    healthy: int | None = None,
    extra: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    conditions: tuple[Mapping[str, Any], ...] = ({"type": "Ready", "status": "True"},),
    **meta: Any,
) -> dict[str, Any]:
    capacity = {"cpu": "128", "memory": "1Ti", "ephemeral-storage": "100Gi", "pods": "110"}
    capacity |= dict(extra or {})
    allocatable = dict(capacity)
    if gpus is not None:
        capacity["nvidia.com/gpu"] = str(gpus)
        allocatable["nvidia.com/gpu"] = str(gpus if healthy is None else healthy)
    return {
        "metadata": {
            "name": "n",
            "uid": "u",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": dict(labels or {}),
            **meta,
        },
        "spec": dict(spec or {}),
        "status": {
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": [dict(item) for item in conditions],
        },
    }


def gpu(labels: Mapping[str, str], settings: Settings | None = None, **node_args: Any) -> Any:
    return node_view(node(labels, **node_args), settings or Settings()).gpu


def test_a_complete_label_set_gives_a_complete_inventory() -> None:
    view = node_view(node(H100_LABELS), Settings())
    assert view.gpu == GPUInventory(
        product=H100,
        count=8,
        capacity=8,
        memory_mib=81559,
        compute=(9, 0),
        sharing=Sharing.EXCLUSIVE,
        nvlink_size=8,
        driver="550.54.15",
    )
    assert view.allocatable == Resources(128_000, 1024 * GIB, 100 * GIB, 110, 8)
    assert (view.name, view.uid, view.ready, view.warnings) == ("n", "u", True, ())


def test_an_unhealthy_gpu_lowers_the_count_and_not_the_capacity() -> None:
    found = gpu(H100_LABELS, healthy=7)
    assert (found.count, found.capacity, found.nvlink_size) == (7, 8, 8)


def test_missing_labels_mean_an_unknown_product_and_not_zero_gpus() -> None:
    found = gpu({})
    assert (found.product, found.count, found.capacity) == ("", 8, 8)
    assert (found.compute, found.memory_mib, found.nvlink_size) == ((0, 0), 0, 0)


def test_a_node_without_gpus_is_an_ordinary_node() -> None:
    assert gpu({}, gpus=None) == GPUInventory()


def test_labels_without_a_device_plugin_offer_no_gpus() -> None:
    found = gpu(H100_LABELS, gpus=None)
    assert (found.product, found.count, found.capacity, found.slices_only) == (H100, 0, 0, False)


SHARED = H100_LABELS | {
    "nvidia.com/gpu.product": f"{H100}-SHARED",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
MIG_SINGLE = H100_LABELS | {
    "nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb",
    "nvidia.com/gpu.count": "56",
    "nvidia.com/gpu.memory": "4864",
}
MIG_MIXED = H100_LABELS | {
    "nvidia.com/gpu.product": A100,
    "nvidia.com/gpu.replicas": "0",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.5gb.count": "56",
    "nvidia.com/mig-1g.5gb.product": f"{A100}-MIG-1g.5gb",
}


@pytest.mark.parametrize(
    ("labels", "args", "sharing", "count"),
    [
        (SHARED, {"gpus": 32}, Sharing.SHARED, 32),
        # The shared resource renamed to nvidia.com/gpu.shared: the product has no suffix.
        (
            SHARED | {"nvidia.com/gpu.product": H100},
            {"gpus": None, "extra": {"nvidia.com/gpu.shared": "32"}},
            Sharing.SHARED,
            0,
        ),
        (
            H100_LABELS | {"nvidia.com/gpu.sharing-strategy": "mps"},
            {"gpus": 8},
            Sharing.SHARED,
            8,
        ),
        (MIG_SINGLE, {"gpus": 56}, Sharing.MIG, 56),
        (
            MIG_SINGLE | {"nvidia.com/gpu.product": f"{A100}-MIG-1g.5gb-SHARED"},
            {"gpus": 112},
            Sharing.MIG,
            112,
        ),
        (
            H100_LABELS
            | {
                "nvidia.com/gpu.product": f"{H100}-MIG-INVALID",
                "nvidia.com/gpu.count": "0",
                "nvidia.com/gpu.replicas": "0",
                "nvidia.com/gpu.memory": "0",
            },
            {"gpus": 0},
            Sharing.INVALID,
            0,
        ),
        (MIG_MIXED, {"gpus": 0, "extra": {"nvidia.com/mig-1g.5gb": "56"}}, Sharing.MIG, 0),
        # Two GPUs sliced, six left whole: the six are as good as any.
        (MIG_MIXED, {"gpus": 6, "extra": {"nvidia.com/mig-1g.5gb": "14"}}, Sharing.EXCLUSIVE, 6),
        # GKE's own labels, without GPU Feature Discovery.
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-l4",
                "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                "cloud.google.com/gke-max-shared-clients-per-gpu": "2",
            },
            {"gpus": 2},
            Sharing.SHARED,
            2,
        ),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
                "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
            },
            {"gpus": 7},
            Sharing.MIG,
            7,
        ),
    ],
)
def test_shared_and_sliced_gpus_are_told_from_whole_ones(
    labels: Mapping[str, str], args: dict[str, Any], sharing: Sharing, count: int
) -> None:
    found = gpu(labels, **args)
    assert (found.sharing, found.count) == (sharing, count)
    if sharing is not Sharing.EXCLUSIVE:
        assert found.nvlink_size == 0
    assert not found.mixed


def test_the_first_product_key_that_a_node_carries_names_its_product() -> None:
    coreweave = {"gpu.nvidia.com/model": "H100_NVLINK_80GB"}
    gke = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert gpu(coreweave).product == "H100_NVLINK_80GB"
    assert gpu(gke).product == "nvidia-h100-80gb"
    assert gpu(gke | coreweave | H100_LABELS).product == H100
    turned = Settings(product_keys=["cloud.google.com/gke-accelerator", "nvidia.com/gpu.product"])
    assert gpu(gke | H100_LABELS, turned).product == "nvidia-h100-80gb"
    assert gpu(coreweave, turned).product == ""
    assert gpu({"nvidia.com/gpu.product": ""} | coreweave).product == "H100_NVLINK_80GB"


@pytest.mark.parametrize(
    ("labels", "driver"),
    [
        ({"nvidia.com/cuda.driver-version.full": "580.82.07"}, "580.82.07"),
        (
            {
                "nvidia.com/cuda.driver-version.major": "550",
                "nvidia.com/cuda.driver-version.minor": "54",
                "nvidia.com/cuda.driver-version.revision": "15",
            },
            "550.54.15",
        ),
        (
            {
                "nvidia.com/cuda.driver.major": "470",
                "nvidia.com/cuda.driver.minor": "57",
                "nvidia.com/cuda.driver.rev": "02",
            },
            "470.57.02",
        ),
        ({"nvidia.com/cuda.driver.major": "470", "nvidia.com/cuda.driver.minor": "57"}, "470.57"),
        ({}, ""),
    ],
)
def test_the_driver_version_is_read_under_its_new_and_old_labels(
    labels: Mapping[str, str], driver: str
) -> None:
    assert gpu(labels).driver == driver


def test_a_clique_is_read_and_its_absence_says_nothing_about_links_inside_the_node() -> None:
    clique = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
    assert gpu(H100_LABELS | {"nvidia.com/gpu.clique": clique}).clique == clique
    assert gpu(H100_LABELS).clique == ""
    assert gpu(H100_LABELS).nvlink_size == 8


def test_fewer_labelled_gpus_than_the_node_has_mean_mixed_products() -> None:
    view = node_view(node(H100_LABELS | {"nvidia.com/gpu.count": "4"}), Settings())
    assert view.gpu.mixed
    assert "describes 4 of 8 GPUs" in view.warnings[0]
    assert not gpu(H100_LABELS, healthy=4).mixed
    assert gpu(H100_LABELS | {"nvidia.com/gpu.count": "4"}, healthy=4).mixed


@pytest.mark.parametrize(
    ("product", "size"),
    [
        (H100, 8),
        (A100, 8),
        ("NVIDIA-A100-SXM4-80GB", 8),
        ("NVIDIA-H200", 8),
        ("NVIDIA-B200", 8),
        ("NVIDIA-GB200", 8),
        ("NVIDIA-GB300", 8),
        ("NVIDIA-B300-SXM6-AC", 8),
        ("Tesla-V100-SXM2-32GB", 8),
        ("H100_NVLINK_80GB", 8),
        ("nvidia-h100-80gb", 8),
        ("nvidia-h100-mega-80gb", 8),
        ("nvidia-tesla-a100", 8),
        ("nvidia-h200-141gb", 8),
        ("NVIDIA-H100-NVL", 2),
        ("NVIDIA-H200-NVL", 2),
        ("NVIDIA-H100-PCIe", 0),
        ("H100_PCIE", 0),
        ("NVIDIA-L40S", 0),
        ("NVIDIA-L4", 0),
        ("nvidia-l4", 0),
        ("Tesla-T4", 0),
        ("NVIDIA-A10", 0),
        ("NVIDIA-A10G", 0),
        ("NVIDIA-A100-80GB-PCIe", None),
        ("A100_PCIE_40GB", None),
        ("NVIDIA-A40", None),
        ("NVIDIA-RTX-6000-Ada-Generation", None),
        ("", None),
    ],
)
def test_the_product_is_a_prior_for_how_many_gpus_share_nvlink(
    product: str, size: int | None
) -> None:
    assert nvlink_prior(product, 8) == size
    assert gpu({"nvidia.com/gpu.product": product}).nvlink_size == (size or 0)


def test_a_pair_is_no_larger_than_the_node() -> None:
    assert nvlink_prior("NVIDIA-H100-NVL", 1) == 1


def test_settings_go_before_the_prior_and_the_nodes_own_label_before_both() -> None:
    told = Settings(nvlink_islands={H100: 4, "NVIDIA-A100-80GB-PCIe": 2})
    assert gpu(H100_LABELS, told).nvlink_size == 4
    assert gpu({"nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe"}, told).nvlink_size == 2
    assert gpu(H100_LABELS | {"shardwright.dev/nvlink-size": "2"}, told).nvlink_size == 2
    assert gpu(H100_LABELS | {"shardwright.dev/nvlink-size": "0"}, told).nvlink_size == 0
    assert gpu(H100_LABELS | {"shardwright.dev/nvlink-size": "72"}).nvlink_size == 8


@pytest.mark.parametrize("text", ["eight", "-1", "8.0", "", "٣"])
def test_an_unreadable_label_is_named_and_the_prior_stands(text: str) -> None:
    view = node_view(node(H100_LABELS | {"shardwright.dev/nvlink-size": text}), Settings())
    assert view.gpu.nvlink_size == 8
    (warning,) = view.warnings
    assert f"shardwright.dev/nvlink-size={text!r}" in warning
    assert "whole number" in warning


def test_names_of_shared_and_sliced_products_lead_back_to_the_product() -> None:
    assert base_product(f"{H100}-SHARED") == H100
    assert base_product(f"{A100}-MIG-1g.5gb") == A100
    assert base_product(f"{A100}-MIG-1g.5gb-SHARED") == A100
    assert base_product(f"{H100}-MIG-INVALID") == H100
    assert base_product(H100) == H100
    assert label_form("NVIDIA H100 80GB HBM3") == H100
    assert label_form("NVIDIA Graphics (Device)") == "NVIDIA-Graphics-Device"


def test_ready_is_ready_and_anything_else_is_not_since_its_transition() -> None:
    stamp = "2026-02-03T04:05:06Z"
    epoch = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC).timestamp()
    for status in ("False", "Unknown"):
        condition = {"type": "Ready", "status": status, "lastTransitionTime": stamp}
        view = node_view(node(conditions=(condition,)), Settings())
        assert (view.ready, view.not_ready_since) == (False, epoch)
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp}
    pressure = {"type": "MemoryPressure", "status": "False"}
    view = node_view(node(conditions=(pressure, ready)), Settings())
    assert (view.ready, view.not_ready_since) == (True, None)


def test_a_node_that_never_reported_is_not_ready_since_it_was_created() -> None:
    view = node_view(node(conditions=()), Settings())
    created = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert (view.ready, view.not_ready_since) == (False, created)


def test_cordon_taints_and_deletion_are_read() -> None:
    view = node_view(
        node(
            spec={
                "unschedulable": True,
                "taints": [
                    {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
                    {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"},
                ],
            },
            deletionTimestamp="2026-02-03T04:05:06Z",
        ),
        Settings(),
    )
    assert view.unschedulable
    assert view.deleting
    assert view.taints == (
        Taint("nvidia.com/gpu", "present", "NoSchedule"),
        Taint("node.kubernetes.io/out-of-service", "", "NoExecute"),
    )


# Nodes that only a DRA driver serves.


def device(number: int, **attributes: str) -> dict[str, Any]:
    told = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "570.86.15"},
        **{name: {"string": value} for name, value in attributes.items()},
    }
    return {
        "name": f"gpu-{number}",
        "attributes": told,
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def resource_slice(
    devices: list[dict[str, Any]],
    *,
    node_name: str = "n",
    driver: str = "gpu.nvidia.com",
    generation: int = 1,
    slices: int = 1,
) -> dict[str, Any]:
    return {
        "spec": {
            "driver": driver,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": generation, "resourceSliceCount": slices},
            "devices": devices,
        }
    }


def dra(
    *slices: dict[str, Any], gpus: int | None = None, labels: Mapping[str, str] | None = None
) -> GPUInventory:
    return node_view(node(labels, gpus=gpus), Settings(), slices).gpu


def test_gpus_that_show_only_as_resource_slices_are_counted_from_their_devices() -> None:
    assert dra(resource_slice([device(n) for n in range(8)])) == GPUInventory(
        product=H100,
        count=8,
        capacity=8,
        memory_mib=81559,
        compute=(9, 0),
        nvlink_size=8,
        driver="570.86.15",
        slices_only=True,
    )


def test_slices_of_other_nodes_and_drivers_are_passed_over() -> None:
    assert not dra(
        resource_slice([device(0)], node_name="other"),
        resource_slice([device(0)], driver="compute-domain.nvidia.com"),
    ).slices_only


def test_slices_beside_a_device_plugin_change_nothing() -> None:
    found = dra(resource_slice([device(0)]), gpus=8)
    assert (found.count, found.slices_only) == (8, False)


def test_a_pool_is_read_in_its_newest_complete_generation() -> None:
    old = resource_slice([device(n) for n in range(8)], generation=4)
    half = resource_slice([device(n) for n in range(4)], generation=5, slices=2)
    assert dra(old, half).count == 8
    rest = resource_slice([device(n) for n in range(4, 7)], generation=5, slices=2)
    assert dra(old, half, rest).count == 7
    assert not dra(half).slices_only


def test_tainted_devices_are_owned_and_cannot_be_allocated() -> None:
    lost = device(7) | {"taints": [{"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}]}
    found = dra(resource_slice([*(device(n) for n in range(7)), lost]))
    assert (found.count, found.capacity) == (7, 8)


def test_mig_devices_alone_are_slices_and_beside_whole_gpus_are_not_counted() -> None:
    slices = [device(n, type="mig") for n in range(7)]
    assert dra(resource_slice(slices)).sharing is Sharing.MIG
    found = dra(resource_slice([*slices, device(7)]))
    assert (found.sharing, found.count) == (Sharing.EXCLUSIVE, 1)


def test_devices_of_two_products_make_a_mixed_node() -> None:
    found = dra(resource_slice([device(0), device(1), device(2, productName="NVIDIA H100 PCIe")]))
    assert (found.product, found.count, found.mixed) == (H100, 3, True)


def test_older_slices_with_a_basic_level_and_qualified_names_are_read() -> None:
    plain = device(0)
    basic = {
        "name": "gpu-0",
        "basic": {
            "attributes": {f"gpu.nvidia.com/{k}": v for k, v in plain["attributes"].items()},
            "capacity": {"gpu.nvidia.com/memory": "80Gi"},
        },
    }
    found = dra(resource_slice([basic]))
    assert (found.product, found.memory_mib, found.compute) == (H100, 80 * 1024, (9, 0))


def test_labels_fill_what_devices_leave_out() -> None:
    bare = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    found = dra(resource_slice([bare]), labels=H100_LABELS)
    assert (found.product, found.memory_mib, found.compute) == (H100, 81559, (9, 0))
    assert (found.driver, found.slices_only) == ("550.54.15", True)


# What pods ask for.


def container(name: str = "c", **resources: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "resources": resources}


def requests(**named: str) -> dict[str, str]:
    return {
        {"gpu": "nvidia.com/gpu", "ib": "rdma/ib", "disk": "ephemeral-storage"}.get(k, k): v
        for k, v in named.items()
    }


def pod(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **spec: Any) -> Any:
    return {"spec": {"containers": list(containers), "initContainers": list(init), **spec}}


def test_containers_add_up_and_the_pod_counts_as_one() -> None:
    found = pod_requests(
        pod(
            container(requests=requests(cpu="2", memory="4Gi", gpu="8", ib="1", disk="1Gi")),
            container(requests=requests(cpu="500m", memory="1Gi")),
        )
    )
    assert found == Resources(2500, 5 * GIB, GIB, 1, 8, {"rdma/ib": 1})


def test_limits_stand_in_for_requests_that_are_missing() -> None:
    found = pod_requests(
        pod(container(limits=requests(gpu="8", cpu="4"), requests=requests(cpu="1")))
    )
    assert (found.gpus, found.cpu_millis) == (8, 1000)


def test_init_containers_count_one_at_a_time_against_the_sum_of_the_others() -> None:
    found = pod_requests(
        pod(
            container(requests=requests(cpu="2", memory="1Gi")),
            init=(
                container("one", requests=requests(cpu="3")),
                container("two", requests=requests(cpu="1", memory="8Gi")),
            ),
        )
    )
    assert (found.cpu_millis, found.memory_bytes) == (3000, 8 * GIB)


def test_sidecars_run_beside_the_containers_and_the_init_containers_after_them() -> None:
    sidecar = container("proxy", requests=requests(cpu="1")) | {"restartPolicy": "Always"}
    before = container("before", requests=requests(cpu="4"))
    after = container("after", requests=requests(cpu="4"))
    main = container(requests=requests(cpu="2"))
    assert pod_requests(pod(main, init=(sidecar,))).cpu_millis == 3000
    assert pod_requests(pod(main, init=(before, sidecar))).cpu_millis == 4000
    assert pod_requests(pod(main, init=(sidecar, after))).cpu_millis == 5000


def test_pod_level_requests_replace_the_sum_for_cpu_and_memory_and_not_for_gpus() -> None:
    found = pod_requests(
        pod(
            container(requests=requests(cpu="2", memory="2Gi", gpu="4")),
            resources={"requests": {"cpu": "8", "memory": "16Gi"}},
        )
    )
    assert (found.cpu_millis, found.memory_bytes, found.gpus) == (8000, 16 * GIB, 4)


def test_a_pod_level_limit_alone_counts_only_where_no_container_asks() -> None:
    found = pod_requests(
        pod(
            container(requests=requests(cpu="2")),
            resources={"limits": {"cpu": "8", "memory": "16Gi"}},
        )
    )
    assert (found.cpu_millis, found.memory_bytes) == (2000, 16 * GIB)


def test_overhead_comes_on_top() -> None:
    found = pod_requests(
        pod(container(requests=requests(cpu="1")), overhead={"cpu": "250m", "memory": "120Mi"})
    )
    assert (found.cpu_millis, found.memory_bytes) == (1250, 120 * 1024**2)


def test_a_container_being_resized_counts_with_the_largest_of_its_sizes() -> None:
    body = pod(container(requests=requests(cpu="1", memory="8Gi")))
    body["status"] = {
        "containerStatuses": [
            {
                "name": "c",
                "allocatedResources": {"cpu": "2", "memory": "4Gi"},
                "resources": {"requests": {"cpu": "4", "memory": "4Gi"}},
            }
        ]
    }
    found = pod_requests(body)
    assert (found.cpu_millis, found.memory_bytes) == (4000, 8 * GIB)


def test_a_pod_that_asks_for_nothing_still_takes_a_pods_place() -> None:
    assert pod_requests(pod({"name": "c"})) == Resources(pods=1)


def test_node_pools_get_the_products_prior_where_the_settings_are_silent() -> None:
    found = Settings(
        node_pools=[
            PoolSettings(
                name="sxm",
                product=H100,
                gpus_per_node=8,
                max_nodes=4,
                compute_capability="9.0",
                memory_mib=81559,
            ),
            PoolSettings(name="nvl", product="NVIDIA-H100-NVL", gpus_per_node=4, max_nodes=2),
            PoolSettings(
                name="quad", product="NVIDIA-H100-NVL", gpus_per_node=4, max_nodes=2, nvlink_size=4
            ),
        ]
    )
    assert node_pools(found) == (
        NodePool("sxm", H100, 8, 4, 8, (9, 0), 81559),
        NodePool("nvl", "NVIDIA-H100-NVL", 4, 2, 2),
        NodePool("quad", "NVIDIA-H100-NVL", 4, 2, 4),
    )
