"""Kubernetes quantities as integers: millicores, bytes and counts.

The grammar is that of `resource.Quantity` in k8s.io/apimachinery: a decimal number with a decimal
suffix (n u m k M G T P E), a binary one (Ki Mi Gi Ti Pi Ei) or an exponent. Like the original,
whatever is no whole number is rounded away from zero, so that a request is never counted too small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil

from shardwright.api.names import GPU_RESOURCE
from shardwright.observe.world import Resources

_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,2})|(?P<suffix>[KMGTPE]i|[numkMGTPE]))?"
)
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{
        name: Fraction(1000**power) for power, name in enumerate(("", "k", "M", "G", "T", "P", "E"))
    },
    **{f"{name}i": Fraction(1024**power) for power, name in enumerate("KMGTPE", start=1)},
}


class QuantityError(ValueError):
    """A value is no Kubernetes quantity."""


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Fraction:
    match = _FORM.fullmatch(text)
    if match is None:
        raise QuantityError(
            f"{text!r} is no Kubernetes quantity: write a number with at most one suffix of "
            "n u m k M G T P E Ki Mi Gi Ti Pi Ei, for example 500m or 64Gi"
        )
    value = Fraction(match["number"])
    if match["exponent"]:
        value *= Fraction(10) ** int(match["exponent"])
    else:
        value *= _SUFFIXES[match["suffix"] or ""]
    return -value if match["sign"] == "-" else value


def parse_quantity(value: object) -> Fraction:
    """A quantity as an exact number in its base unit (cores, bytes, pieces).

    Numbers are read as well as text: in JSON and YAML `cpu: 2` is a number.

    Raises:
        QuantityError: When the value is neither a number nor text of the quantity's grammar.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise QuantityError(f"{value!r} is no Kubernetes quantity: expected text or a number")
    return _parsed(str(value))


def to_whole(value: object) -> int:
    """A quantity in whole base units (bytes, pieces), rounded away from zero.

    Raises:
        QuantityError: As `parse_quantity`.
    """
    return _away_from_zero(parse_quantity(value))


def to_millis(value: object) -> int:
    """A quantity in thousandths of its base unit (millicores), rounded away from zero.

    Raises:
        QuantityError: As `parse_quantity`.
    """
    return _away_from_zero(parse_quantity(value) * 1000)


def _away_from_zero(value: Fraction) -> int:
    return ceil(value) if value >= 0 else -ceil(-value)


def is_extended(name: str) -> bool:
    """Whether a resource is an extended one such as `rdma/ib`.

    Names without a domain (`cpu`, `hugepages-2Mi`, `attachable-volumes-csi-…`) and those of
    kubernetes.io are Kubernetes' own.
    """
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def resources_of(quantities: Mapping[str, object]) -> Resources:
    """A map of resource names to quantities (allocatable, capacity, requests) as integers.

    `nvidia.com/gpu` becomes `gpus`; other extended resources go to `other` by name, zeros left out;
    hugepages and volume limits are dropped.

    Raises:
        QuantityError: When a value is no quantity; the message names the resource.
    """
    other: dict[str, int] = {}
    known = {"cpu": 0, "memory": 0, "ephemeral-storage": 0, "pods": 0, GPU_RESOURCE: 0}
    for name, value in quantities.items():
        try:
            if name in known:
                known[name] = to_millis(value) if name == "cpu" else to_whole(value)
            elif is_extended(name) and (amount := to_whole(value)):
                other[name] = amount
        except QuantityError as error:
            raise QuantityError(f"resource {name}: {error}") from error
    return Resources(
        cpu_millis=known["cpu"],
        memory_bytes=known["memory"],
        ephemeral_bytes=known["ephemeral-storage"],
        pods=known["pods"],
        gpus=known[GPU_RESOURCE],
        other=other,
    )
