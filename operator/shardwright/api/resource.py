"""A whole LLMDeployment: the manifest that a user writes, with the rules on its name."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from shardwright.api.asked import AskedSpec
from shardwright.api.model import Model
from shardwright.api.rules import Rule

NAME_LIMIT = 40
"""Characters of metadata.name. Pods add replica, incarnation, stage and a hash of the owner's UID,
and a pod's name is also its hostname: a DNS label of at most 63 characters."""

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAME_FORM = (
    "must start with a letter, end with a letter or digit and hold only a-z, 0-9 and '-', since "
    "Services and pods are named after it"
)
_CEL_FORM = _NAME_FORM.replace("'", r"\'")


def name_problem(name: str) -> str:
    """Why an LLMDeployment cannot be called so; empty when it can."""
    if len(name) > NAME_LIMIT:
        return (
            f"metadata.name has {len(name)} characters, the limit is {NAME_LIMIT}: pods and "
            "Services add to it; choose a shorter one"
        )
    if not re.fullmatch(NAME_PATTERN[1:-1], name):
        return f"metadata.name {name} {_NAME_FORM}"
    return ""


class Metadata(Model):
    """The part of ObjectMeta that is looked at here; the API server judges the rest."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field(min_length=1, max_length=253)
    namespace: str = ""


class LLMDeployment(Model):
    """One LLMDeployment as a manifest."""

    api_version: Literal["shardwright.dev/v1alpha1"]
    kind: Literal["LLMDeployment"]
    metadata: Metadata
    spec: AskedSpec
    status: dict[str, Any] = Field(default_factory=dict)
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.size() <= {NAME_LIMIT}",
            f"metadata.name must have at most {NAME_LIMIT} characters",
            message_expression=f"'metadata.name has %d characters, the limit is {NAME_LIMIT}: pods "
            "and Services add to it; choose a shorter one'.format([self.metadata.name.size()])",
            field_path=".metadata.name",
        ),
        Rule(
            f"self.metadata.name.matches('{NAME_PATTERN}')",
            f"metadata.name {_NAME_FORM}",
            message_expression=f"'metadata.name %s {_CEL_FORM}'.format([self.metadata.name])",
            field_path=".metadata.name",
        ),
    )

    @model_validator(mode="after")
    def _name_fits(self) -> LLMDeployment:
        if problem := name_problem(self.metadata.name):
            raise ValueError(problem)
        return self
