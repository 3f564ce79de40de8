"""The strings and numbers that a spec is made of: names, label keys and values, quantities.

Each type says the same to pydantic and to the API server. Numbers and booleans are strict, because
the API server takes neither `"8"` for a number nor `1` for true (nor, where a rule looks at the
field, 8.0 for 8). Patterns stay inside the syntax that Go's and Rust's linear-time engines share;
`$` means the end of the text in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Strict, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from shardwright.api.rules import Rule

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY_FORM = (
    "a label key such as pool or example.com/pool, at most 63 characters after the slash"
)
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
QUANTITY_LENGTH = 20
QUANTITY_MAXIMUM = 10**15  # as a plain number; exact as a float too, which JSON readers may use


def _without_nulls(value: object) -> object:
    """A map without the keys whose value is null, as the API server stores it."""
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if item is not None}
    return value


Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]

DNSLabel = Annotated[str, StringConstraints(pattern=f"^{_LABEL}$", min_length=1, max_length=63)]
# Secrets, claims, priority classes: a DNS subdomain.
ObjectName = Annotated[
    str, StringConstraints(pattern=f"^{_SUBDOMAIN}$", min_length=1, max_length=253)
]
OptionalObjectName = Annotated[str, StringConstraints(pattern=f"^({_SUBDOMAIN})?$", max_length=253)]
LabelKey = Annotated[
    str,
    StringConstraints(pattern=f"^({_SUBDOMAIN}/)?{_NAME_PART}$", min_length=1, max_length=317),
]
OptionalLabelKey = Annotated[
    str, StringConstraints(pattern=f"^(({_SUBDOMAIN}/)?{_NAME_PART})?$", max_length=317)
]
LabelValue = Annotated[
    str,
    StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63),
]

POSITIVE_QUANTITY = Rule(
    "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))",
    "must be a quantity greater than 0, such as 8, 500m or 64Gi",
    message_expression="'quantity %s must be greater than 0, such as 8, 500m or 64Gi'"
    ".format([string(self)])",
)


def _quantity(value: object) -> int | str:
    """A positive quantity in the user's own form: `8` stays a number, `"8"` a string."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= QUANTITY_MAXIMUM:
            raise PydanticCustomError(
                "quantity",
                "quantity {value} must be at least 1 and at most {limit}",
                {"value": value, "limit": QUANTITY_MAXIMUM},
            )
        return value
    if not isinstance(value, str):
        raise PydanticCustomError(
            "quantity",
            "{value} is no quantity: write a whole number, or a text in quotes such as 8, 500m or "
            "64Gi",
            {"value": str(value)[:QUANTITY_LENGTH]},
        )
    if len(value) > QUANTITY_LENGTH or not re.fullmatch(QUANTITY_PATTERN[1:-1], value):
        raise PydanticCustomError(
            "quantity",
            "'{value}' is no quantity: write digits, at most one point and m, k, Ki, M, Mi, G, Gi, "
            "T or Ti, at most {limit} characters",
            {"value": value, "limit": QUANTITY_LENGTH},
        )
    if not re.search("[1-9]", value):
        # not a matter of shape: the server tells it by its rule
        raise ValueError(f"quantity {value} must be greater than 0, such as 8, 500m or 64Gi")
    return value


Quantity = Annotated[
    int | str,
    BeforeValidator(_quantity),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 1,
            "maximum": QUANTITY_MAXIMUM,
            "maxLength": QUANTITY_LENGTH,
            "pattern": QUANTITY_PATTERN,
            "x-kubernetes-validations": [POSITIVE_QUANTITY.schema()],
        }
    ),
]
"""CPU in cores, memory and storage in bytes, as Kubernetes writes them; a number or a string.

YAML authors write `cpu: 8` without quotes as often as with them. The user's form is kept, since a
value that changes under a GitOps tool is drift; `str()` gives what a manifest takes.
"""


NullsDropped = BeforeValidator(_without_nulls)
"""For maps of strings: a null value is a key that is not there."""


def unique_by(field: str) -> AfterValidator:
    """A list whose items differ in `field`, as `x-kubernetes-list-type: map` asks.

    Raises (inside pydantic): a custom error that names the first value found twice.
    """

    def check(items: list[object]) -> list[object]:
        seen: set[object] = set()
        for item in items:
            value = getattr(item, field)
            if value in seen:
                raise PydanticCustomError(
                    "duplicate",
                    "{field} '{value}' is given twice; each may stand once",
                    {"field": field, "value": value},
                )
            seen.add(value)
        return items

    validator: Callable[[list[object]], list[object]] = check
    return AfterValidator(validator)
