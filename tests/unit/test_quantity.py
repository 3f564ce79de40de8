from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.observe.quantity import (
    QuantityError,
    is_extended,
    parse_quantity,
    resources_of,
    to_millis,
    to_whole,
)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("0", 0),
        ("8", 8),
        (8, 8),
        ("+8", 8),
        ("-2", -2),
        ("64Gi", 64 * 1024**3),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("1G", 10**9),
        ("129e6", 129_000_000),
        ("129E6", 129_000_000),
        ("1E", 10**18),
        ("1Ei", 1024**6),
        ("123Ki", 123 * 1024),
        ("5k", 5000),
        ("2T", 2 * 10**12),
        ("3Pi", 3 * 1024**5),
        (".5Ki", 512),
        ("5.", 5),
        ("1e-1", 1),  # rounded away from zero
        ("2113929216001m", 2113929217),  # memory in thousandths of a byte, seen in the field
        ("1n", 1),
        ("-1500m", -2),
    ],
)
def test_quantities_become_whole_units_rounded_away_from_zero(text: object, whole: int) -> None:
    assert to_whole(text) == whole


@pytest.mark.parametrize(
    ("text", "millis"),
    [("500m", 500), ("2", 2000), (2, 2000), (0.5, 500), ("0.1", 100), ("1500u", 2), ("100n", 1)],
)
def test_cpu_becomes_millicores_rounded_up(text: object, millis: int) -> None:
    assert to_millis(text) == millis


@pytest.mark.parametrize(
    "text",
    ["", "Gi", "1 Gi", "1gi", "1KiB", "1K", "0x10", "1e", "1e999", "--1", "1.2.3", "٣", "1\n", "."],
)
def test_what_is_no_quantity_is_refused_with_the_value_and_the_grammar(text: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity(text)
    assert repr(text) in str(refused.value)
    assert "Ki Mi Gi" in str(refused.value)


@pytest.mark.parametrize("value", [True, None, ["1"], {"value": "1"}])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(QuantityError, match="expected text or a number"):
        parse_quantity(value)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.integers(-(10**9), 10**9), st.sampled_from(["n", "u", "m", "", "k", "M", "Gi", "Ti"]))
def test_rounding_never_loses_and_never_adds_a_whole_unit(number: int, suffix: str) -> None:
    exact = parse_quantity(f"{number}{suffix}")
    whole = to_whole(f"{number}{suffix}")
    assert abs(whole) >= abs(exact)
    assert abs(whole - exact) < 1
    millis = to_millis(f"{number}{suffix}")
    assert abs(Fraction(millis, 1000)) >= abs(exact)
    assert abs(Fraction(millis, 1000) - exact) < Fraction(1, 1000)


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        ("rdma/ib", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/gpu.shared", True),
        ("cpu", False),
        ("hugepages-1Gi", False),
        ("attachable-volumes-csi-ebs.csi.aws.com", False),
        ("kubernetes.io/batch-cpu", False),
        ("scheduling.kubernetes.io/foo", False),
        ("requests.nvidia.com/gpu", False),
    ],
)
def test_extended_resources_are_told_from_those_of_kubernetes(name: str, extended: bool) -> None:
    assert is_extended(name) is extended


def test_a_resource_list_keeps_extended_resources_and_drops_hugepages() -> None:
    found = resources_of(
        {
            "cpu": "127500m",
            "memory": "2Ti",
            "ephemeral-storage": "100G",
            "pods": "110",
            "nvidia.com/gpu": "8",
            "hugepages-2Mi": "4Gi",
            "rdma/ib": "4",
            "nvidia.com/mig-1g.5gb": "0",
        }
    )
    assert (found.cpu_millis, found.memory_bytes) == (127_500, 2 * 1024**4)
    assert (found.ephemeral_bytes, found.pods, found.gpus) == (100 * 10**9, 110, 8)
    assert found.other == {"rdma/ib": 4}


def test_an_unreadable_resource_is_named() -> None:
    with pytest.raises(QuantityError, match=r"resource memory: '64GB' is no Kubernetes quantity"):
        resources_of({"cpu": "1", "memory": "64GB"})
