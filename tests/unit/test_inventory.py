"""What the cluster has, as the checks of a spec ask it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet import H100, gpu_node

from shardwright.observe.world import NodePool, Sharing
from shardwright.plan.inventory import (
    compute_of,
    explain_unknown_product,
    largest_domain,
    products,
    sharing_of,
    split_that_fits,
    suggestions,
    unlabelled,
    unlabelled_note,
)

A100 = "NVIDIA-A100-SXM4-80GB"
NVL = "NVIDIA-H100-NVL"


def test_the_domain_is_the_node_or_the_nvlink_island_where_islands_are_known() -> None:
    assert largest_domain([gpu_node("a", 8)], [], H100) == 8
    assert largest_domain([gpu_node("a", 8, product=NVL, nvlink=2)], [], NVL) == 2
    assert (
        largest_domain([gpu_node("a", 8, product="NVIDIA-L40S", nvlink=0)], [], "NVIDIA-L40S") == 8
    )


def test_the_largest_of_unlike_nodes_answers_and_the_text_counts_them() -> None:
    nodes = [gpu_node("a", 4), gpu_node("b", 8), gpu_node("c", 4), gpu_node("d", 2)]
    assert largest_domain(nodes, [], H100) == 8
    found = products(nodes, [])[H100]
    assert found.sizes == ((8, 1), (4, 2), (2, 1))
    assert found.describe() == f"{H100} (8 GPUs on 1 node, 4 on 2 nodes, 2 on 1 node)"


def test_an_unhealthy_gpu_or_a_cordon_does_not_shrink_what_the_cluster_has() -> None:
    nodes = [gpu_node("a", 8, healthy=7, unschedulable=True, ready=False)]
    assert largest_domain(nodes, [], H100) == 8
    assert products(nodes, [])[H100].unhealthy == 1


def test_shared_sliced_and_mixed_nodes_bring_no_domain() -> None:
    nodes = [
        gpu_node("a", 32, sharing=Sharing.SHARED),
        gpu_node("b", 56, sharing=Sharing.MIG),
        gpu_node("c", 8, inventory={"mixed": True}),
    ]
    assert largest_domain(nodes[:2], [], H100) == 0
    assert largest_domain(nodes, [], H100) == 0
    assert largest_domain([*nodes, gpu_node("d", 4)], [], H100) == 4


def test_a_node_pool_counts_with_what_it_may_bring() -> None:
    pool = NodePool("burst", H100, gpus_per_node=8, max_nodes=2, compute=(9, 0))
    islands = NodePool("pairs", H100, gpus_per_node=8, max_nodes=2, nvlink_size=2)
    assert largest_domain([], [pool], H100) == 8
    assert largest_domain([], [islands], H100) == 2
    assert largest_domain([gpu_node("a", 4)], [pool, islands], H100) == 8
    assert sharing_of([gpu_node("a", 32, sharing=Sharing.SHARED)], [pool], H100) is (
        Sharing.EXCLUSIVE
    )
    assert compute_of([], [pool], H100) == (9, 0)
    assert products([], [pool])[H100].describe() == f"{H100} (no node now; pool burst)"


def test_a_node_that_is_being_deleted_is_gone_already() -> None:
    assert products([gpu_node("a", deleting=True)], []) == {}


def test_unknown_products_answer_with_nothing() -> None:
    nodes = [gpu_node("a")]
    assert largest_domain(nodes, [], A100) == 0
    assert sharing_of(nodes, [], A100) is None
    assert compute_of(nodes, [], A100) is None
    assert compute_of(nodes, [], H100) is None  # the node's labels do not tell it


@pytest.mark.parametrize(
    ("sharings", "answer"),
    [
        ([Sharing.SHARED, Sharing.EXCLUSIVE], Sharing.EXCLUSIVE),
        ([Sharing.MIG, Sharing.SHARED], Sharing.SHARED),
        ([Sharing.INVALID, Sharing.MIG], Sharing.MIG),
        ([Sharing.INVALID], Sharing.INVALID),
    ],
)
def test_the_best_way_of_handing_out_a_product_answers(
    sharings: list[Sharing], answer: Sharing
) -> None:
    nodes = [gpu_node(f"n{i}", sharing=kind) for i, kind in enumerate(sharings)]
    assert sharing_of(nodes, [], H100) is answer


def test_compute_capability_comes_from_whichever_node_tells_it() -> None:
    nodes = [gpu_node("a"), gpu_node("b", inventory={"compute": (9, 0)})]
    assert compute_of(nodes, [], H100) == (9, 0)


@pytest.mark.parametrize(
    ("world", "domain", "split"),
    [
        (16, 8, (8, 2)),
        (16, 16, (16, 1)),
        (8, 16, (8, 1)),
        (12, 8, (6, 2)),
        (24, 8, (8, 3)),
        (16, 6, (4, 4)),
        (14, 8, (7, 2)),
        (4, 1, (1, 4)),
        (16, 0, None),
    ],
)
def test_the_split_that_fits_has_the_largest_divisor_within_the_domain(
    world: int, domain: int, split: tuple[int, int] | None
) -> None:
    assert split_that_fits(world, domain) == split


def test_the_split_keeps_to_heads_and_to_the_number_of_stages() -> None:
    assert split_that_fits(24, 8, heads=64) == (8, 3)
    assert split_that_fits(12, 8, heads=64) == (4, 3)
    assert split_that_fits(16, 8, max_stages=2) == (8, 2)
    assert split_that_fits(16, 4, max_stages=2) is None


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.integers(1, 256), st.integers(1, 32))
def test_a_split_always_keeps_the_world_size(world: int, domain: int) -> None:
    split = split_that_fits(world, domain)
    assert split is not None
    tensor, pipeline = split
    assert tensor * pipeline == world
    assert tensor <= domain
    assert not any(world % wider == 0 for wider in range(tensor + 1, min(world, domain) + 1))


NAMES = (
    H100,
    f"{H100}-SHARED",
    "NVIDIA-H100-PCIe",
    "NVIDIA-H200",
    "NVIDIA-B200",
    A100,
    "NVIDIA-A100-SXM4-40GB",
    "Tesla-T4",
)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("NVIDIA-H100-80GB-HBM", (H100, f"{H100}-SHARED")),
        ("nvidia-h200", ("NVIDIA-H200",)),
        ("T4", ("Tesla-T4",)),
        ("NVIDIA-A100", ("NVIDIA-A100-SXM4-40GB", A100)),
        ("NVIDIA-A100-PCIE-40GB", ("NVIDIA-A100-SXM4-40GB", A100)),
        ("NVIDIA-H100-SXM5-80GB", (H100, f"{H100}-SHARED", "NVIDIA-H100-PCIe")),
        ("NVIDIA-B220", ("NVIDIA-B200", "NVIDIA-H200")),
        ("AMD-Instinct-MI300X", ()),
    ],
)
def test_a_slip_in_the_product_is_answered_with_what_was_meant(
    typed: str, meant: tuple[str, ...]
) -> None:
    assert suggestions(typed, NAMES) == meant


def test_an_unknown_product_is_refused_with_what_the_cluster_has() -> None:
    nodes = [
        gpu_node("h1"),
        gpu_node("h2"),
        gpu_node("a1", 8, product=A100),
        gpu_node("s1", 32, product="Tesla-T4-SHARED", sharing=Sharing.SHARED),
        *(gpu_node(f"u{i}", product="") for i in range(4)),
    ]
    assert explain_unknown_product(nodes, [], "NVIDIA-H100-80GB-HBM") == (
        "spec.gpu.product NVIDIA-H100-80GB-HBM: no node and no node pool has it. Did you mean "
        "NVIDIA-H100-80GB-HBM3? The cluster has NVIDIA-A100-SXM4-80GB (8 GPUs on 1 node), "
        "NVIDIA-H100-80GB-HBM3 (8 GPUs on 2 nodes), Tesla-T4-SHARED (time-shared on 1 node). "
        "4 nodes carry GPUs but no product label (u0, u1, u2, …): install GPU Feature Discovery "
        "or set productKeys."
    )


def test_a_cluster_without_known_gpus_says_so() -> None:
    assert explain_unknown_product([gpu_node("c", 0)], [], H100) == (
        f"spec.gpu.product {H100}: no node and no node pool has it. The cluster has no GPUs whose "
        "product is known."
    )


def test_a_long_inventory_is_cut_short() -> None:
    nodes = [gpu_node(f"n{i:02}", product=f"GPU-X{i:02}") for i in range(20)]
    text = explain_unknown_product(nodes, [], H100)
    assert "GPU-X11 (8 GPUs on 1 node) and 8 more" in text
    assert "GPU-X12" not in text


def test_nodes_with_gpus_of_no_known_product_are_named() -> None:
    nodes = [
        gpu_node("b", product=""),
        gpu_node("a", product=""),
        gpu_node("cpu", 0),
        gpu_node("labelled"),
        gpu_node("slices", 0, sharing=Sharing.MIG),
        gpu_node("leaving", product="", deleting=True),
    ]
    assert unlabelled(nodes) == ("a", "b", "slices")
    assert unlabelled_note(nodes[:1]) == (
        "1 node carries GPUs but no product label (b): install GPU Feature Discovery or set "
        "productKeys"
    )
    assert unlabelled_note(nodes[2:4]) == ""


def test_a_product_whose_nodes_offer_no_whole_gpu_says_so() -> None:
    assert products([gpu_node("a", 0, inventory={"product": H100})], [])[H100].describe() == (
        f"{H100} (no whole GPUs on 1 node)"
    )
