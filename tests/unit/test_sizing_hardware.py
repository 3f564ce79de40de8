"""The table of GPU products: every row is plausible, sourced and found by its label."""

from __future__ import annotations

import pytest

from shardwright.observe.gpus import GPUKind, catalogue_memory, driver_memory, gpu_kinds
from shardwright.sizing.fleet import memory_of
from shardwright.sizing.hardware import (
    Hardware,
    NumberType,
    UnknownHardwareError,
    hardware,
    products,
)
from shardwright.sizing.question import GIB

LABELS = {
    "NVIDIA-H100-80GB-HBM3": "H100 SXM",
    "NVIDIA-H100-PCIe": "H100 PCIe",
    "NVIDIA-H100-NVL": "H100 NVL",
    "H100_NVLINK_80GB": "H100 SXM",
    "nvidia-h100-mega-80gb": "H100 SXM",
    "NVIDIA-H200": "H200 SXM",
    "NVIDIA-H200-NVL": "H200 NVL",
    "NVIDIA-B200": "B200",
    "NVIDIA-GB200": "GB200",
    "NVIDIA-GB300": "GB300",
    "NVIDIA-A100-SXM4-80GB": "A100 SXM 80GB",
    "NVIDIA-A100-SXM4-40GB": "A100 SXM 40GB",
    "NVIDIA-A100-80GB-PCIe": "A100 PCIe 80GB",
    "NVIDIA-A100-PCIE-40GB": "A100 PCIe 40GB",
    "nvidia-a100-80gb": "A100 SXM 80GB",
    "nvidia-tesla-a100": "A100 SXM 40GB",
    "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb": "A100 SXM 40GB",
    "NVIDIA-H100-80GB-HBM3-SHARED": "H100 SXM",
    "NVIDIA-L40S": "L40S",
    "NVIDIA-L4": "L4",
    "NVIDIA-A10G": "A10G",
    "Tesla-T4": "T4",
    "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition": "RTX PRO 6000 Blackwell Server",
    "NVIDIA-GH200-480GB": "GH200",
}


@pytest.mark.parametrize(("label", "name"), LABELS.items())
def test_a_label_finds_its_product(label: str, name: str) -> None:
    assert hardware(label).name == name


def test_an_unknown_product_is_named_with_what_is_known() -> None:
    with pytest.raises(UnknownHardwareError, match=r"GPU product Acme-9000.*H100 SXM.*fix"):
        hardware("Acme-9000")


@pytest.mark.parametrize("known", products(), ids=lambda known: known.name)
def test_a_row_is_plausible(known: Hardware) -> None:
    assert known.source
    assert known.compute >= (7, 0)
    assert 100 <= known.memory_gbps <= 20_000
    assert 0 <= known.nvlink_gbps <= 2_000
    assert known.pcie_gbps in (16, 32, 64)
    half = known.tflops[NumberType.FP16]
    assert 50 <= half <= 5_000
    # Halving the bits doubles the rate, give or take the sheet's rounding; Ada's and Ampere's
    # consumer boards halve floating point with 32-bit sums, and B300's INT8 was cut.
    for kind, times in ((NumberType.FP8, 2), (NumberType.FP4, 4)):
        if kind in known.tflops:
            assert known.tflops[kind] / half >= 0.95 * times
            assert known.tflops[kind] / half <= 1.6 * times


@pytest.mark.parametrize("known", products(), ids=lambda known: known.name)
def test_types_come_with_their_generation(known: Hardware) -> None:
    assert (NumberType.BF16 in known.tflops) == (known.compute >= (8, 0))
    assert (NumberType.FP8 in known.tflops) == (known.compute >= (8, 9))
    assert (NumberType.FP4 in known.tflops) == (known.compute >= (10, 0))
    assert (NumberType.INT8 in known.tflops) == (known.compute >= (7, 5))


def test_no_two_rows_answer_to_the_same_name_with_different_figures() -> None:
    assert len({known.name for known in products()}) == len(products())


def test_a_type_without_tensor_cores_has_no_figure() -> None:
    assert hardware("NVIDIA-A100-SXM4-80GB").flops(NumberType.FP8) is None
    assert hardware("NVIDIA-H100-80GB-HBM3").flops(NumberType.FP8) == pytest.approx(1.9789e15)


def test_memory_of_a_label_is_what_a_process_sees() -> None:
    assert memory_of("NVIDIA-H100-80GB-HBM3", 81559) / GIB == pytest.approx(79.19, abs=0.02)
    assert memory_of("Acme-9000", 81559) / GIB == pytest.approx(79.17, abs=0.02)
    assert memory_of("NVIDIA-H100-80GB-HBM3", 40000) == 40000 * 1024**2


def test_products_with_figures_have_memory_too() -> None:
    kinds = {kind.name for kind in gpu_kinds()}
    assert len(kinds) > 10
    for known in products():
        assert memory_of(f"NVIDIA-{known.name.replace(' ', '-')}") > 10 * GIB


@pytest.mark.parametrize("kind", gpu_kinds(), ids=lambda kind: kind.name)
def test_one_row_has_what_a_driver_reports_and_what_is_sold(kind: GPUKind) -> None:
    product = "-".join(["NVIDIA", *sorted(kind.words)])
    assert driver_memory(product).total == kind.total
    assert not driver_memory(product).doubt
    assert catalogue_memory(product) == kind.catalogue
    # Boards are sold by the round number next to what is on them: GB or GiB, whichever is nearer.
    assert 0.9 * kind.catalogue < kind.total < 1.075 * kind.catalogue
    assert kind.source


def test_what_is_sold_is_read_from_a_name_first_and_never_unknown() -> None:
    assert catalogue_memory("NVIDIA-X900-64GB") == 64 * 10**9
    assert catalogue_memory("NVIDIA-H100-80GB-HBM3") == 80 * 10**9
    assert catalogue_memory("NVIDIA-A30") == 24 * 10**9
    assert catalogue_memory("Some-New-GPU") == 80 * 10**9
    assert driver_memory("Some-New-GPU").doubt
