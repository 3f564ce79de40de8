"""The base of every part of the resource: frozen, strict about names, null means not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from shardwright.api.rules import Rule
from shardwright.api.scalars import ObjectName


class Model(BaseModel):
    """Frozen, camelCase outside, unknown fields refused; `rules` become CEL on this object."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, raw: object) -> object:
        """Leave out nulls, as the API server does with fields that are not nullable."""
        if isinstance(raw, dict):
            return {name: value for name, value in raw.items() if value is not None}
        return raw

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """Read decoded YAML or JSON as the API server would under strict field validation.

        Names are the manifest's only (`maxSeqLen`, not `max_seq_len`).

        Raises:
            pydantic.ValidationError: What is wrong, each with its path.
        """
        return cls.model_validate(dict(raw), by_alias=True, by_name=False)


class SecretReference(Model):
    """A Secret of the deployment's own namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
