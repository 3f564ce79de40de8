from pathlib import Path
from typing import Any

import pytest

from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.fleet import Pool, fill, load_fleet, parse_fleet
from shardwright_sandbox.labels import node_labels
from shardwright_sandbox.nodes import node_object
from shardwright_sandbox.stages import READY_ANNOTATION

FLEETS = Path(__file__).parents[2] / "sandbox" / "fleets"


def pool(**more: Any) -> Pool:
    return parse_fleet({"pools": [{"name": "p", "count": 4, **more}]}, "test").pools[0]


def gpu_pool(gpu: dict[str, Any], **more: Any) -> Pool:
    return pool(gpu={"product": "NVIDIA-H100-80GB-HBM3", **gpu}, **more)


def test_every_fleet_file_gives_nodes() -> None:
    for path in FLEETS.glob("*.yaml"):
        for one in load_fleet(path).pools:
            for index in range(one.count):
                node = node_object(one, index)
                for value in node["metadata"]["labels"].values():
                    assert len(value) <= 63, (path, value)


def test_the_demo_fleet_is_six_h100_four_h200_two_a100() -> None:
    pools = {one.name: one for one in load_fleet(FLEETS / "demo.yaml").pools}
    assert {name: (one.count, one.gpu.product, one.gpu.count) for name, one in pools.items()} == {
        "h100": (6, "NVIDIA-H100-80GB-HBM3", 8),
        "h200": (4, "NVIDIA-H200", 8),
        "a100": (2, "NVIDIA-A100-SXM4-80GB", 8),
    }


def test_labels_of_a_whole_gpu_node() -> None:
    labels = node_labels(gpu_pool({}, zone="zone-{i//2}"), 3)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["nvidia.com/gpu.count"] == "8"
    assert labels["nvidia.com/gpu.memory"] == "81559"
    assert labels["nvidia.com/gpu.family"] == "hopper"
    assert labels["nvidia.com/gpu.compute.major"] == "9"
    assert labels["nvidia.com/mig.config"] == "all-disabled"
    assert labels["topology.kubernetes.io/zone"] == "zone-1"
    assert labels["kubernetes.io/hostname"] == "p-3"


def test_slices_of_one_kind_count_as_gpus() -> None:
    sliced = pool(
        gpu={"product": "NVIDIA-A100-SXM4-40GB", "mig": {"profile": "1g.5gb", "slicesPerGPU": 7}}
    )
    labels = node_labels(sliced, 0)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert labels["nvidia.com/gpu.count"] == "56"
    assert labels["nvidia.com/gpu.memory"] == "4864"
    assert node_object(sliced, 0)["status"]["allocatable"]["nvidia.com/gpu"] == "56"


def test_slices_of_many_kinds_have_a_resource_of_their_own() -> None:
    mixed = pool(
        gpu={"product": "NVIDIA-A100-SXM4-40GB", "mig": {"slicesPerGPU": 7, "strategy": "mixed"}}
    )
    allocatable = node_object(mixed, 0)["status"]["allocatable"]
    assert (allocatable["nvidia.com/gpu"], allocatable["nvidia.com/mig-1g.5gb"]) == ("0", "56")
    assert node_labels(mixed, 0)["nvidia.com/gpu.replicas"] == "0"


def test_shared_gpus() -> None:
    shared = gpu_pool({"count": 2, "sharing": {"replicas": 4}})
    assert node_labels(shared, 0)["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
    assert node_object(shared, 0)["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_an_unhealthy_gpu_lowers_allocatable_only() -> None:
    status = node_object(gpu_pool({}, allocatable={"nvidia.com/gpu": 7}), 0)["status"]
    assert (status["capacity"]["nvidia.com/gpu"], status["allocatable"]["nvidia.com/gpu"]) == (
        "8",
        "7",
    )


def test_nodes_without_feature_discovery_and_with_slices_only() -> None:
    bare = gpu_pool({"labels": False, "dra": True}, labels={"example.com/gpu": "h100"})
    assert not any(key.startswith("nvidia.com/") for key in node_labels(bare, 0))
    assert "nvidia.com/gpu" not in node_object(bare, 0)["status"]["allocatable"]


def test_cliques_and_levels_by_pattern_and_by_size() -> None:
    rack = pool(
        gpu={"product": "NVIDIA-GB200", "count": 4, "clique": "uuid.{i//2}"},
        network={"example.com/rack": {"per": 2, "prefix": "rack-"}, "example.com/slot": "s{i%2}"},
    )
    labels = node_labels(rack, 3)
    assert labels["nvidia.com/gpu.clique"] == "uuid.1"
    assert labels["example.com/rack"] == "rack-1"
    assert labels["example.com/slot"] == "s1"


def test_one_node_may_differ() -> None:
    one = gpu_pool({}, nodes={1: {"ready": False, "unschedulable": True, "labels": {"a": "b"}}})
    first, second = node_object(one, 0), node_object(one, 1)
    assert first["status"]["conditions"][0]["status"] == "True"
    assert second["status"]["conditions"][0]["status"] == "False"
    assert second["metadata"]["annotations"][READY_ANNOTATION] == "false"
    assert second["spec"]["unschedulable"] is True
    assert second["metadata"]["labels"]["a"] == "b"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"pools": []}, "pools"),
        ({"pools": [{"name": "p", "count": 0}]}, "pools.0.count"),
        ({"pools": [{"name": "P", "count": 1}]}, "pools.0.name"),
        ({"pools": [{"name": "p", "count": 1, "gpus": {}}]}, "pools.0.gpus"),
        ({"pools": [{"name": "p", "count": 1}, {"name": "p", "count": 1}]}, "given twice"),
        ({"pools": [{"name": "p", "count": 1, "nodes": {3: {}}}]}, "no node 3"),
        ({"pools": [{"name": "p", "count": 1, "network": {"a": "x-{j}"}}]}, "{i//N}"),
        (None, "not a fleet"),
    ],
)
def test_wrong_fleets_are_refused_with_the_field(content: object, said: str) -> None:
    with pytest.raises(SandboxError, match=r"fleet") as refused:
        parse_fleet(content, "a.yaml")
    assert said in str(refused.value)


def test_sharing_and_slices_exclude_each_other() -> None:
    with pytest.raises(SandboxError, match="exclude each other"):
        gpu_pool({"sharing": {"replicas": 2}, "mig": {}})


def test_an_unknown_product_needs_its_numbers() -> None:
    with pytest.raises(SandboxError, match="memoryMiB"):
        node_labels(pool(gpu={"product": "Example-X1"}), 0)
    known = pool(gpu={"product": "Example-X1", "memoryMiB": 1000, "compute": "8.9"})
    assert node_labels(known, 0)["nvidia.com/gpu.family"] == "ada-lovelace"


def test_patterns_are_data_not_programs() -> None:
    assert fill("a{i}-{i//2}-{i % 3}", 5) == "a5-2-2"
    for bad in ("{i.__class__}", "{i//0}", "{}", "{1+1}"):
        with pytest.raises(ValueError, match="none of"):
            fill(bad, 1)
