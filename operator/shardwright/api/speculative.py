"""Speculative decoding: what drafts tokens that the model then checks several at a time."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints, model_validator

from shardwright.api.model import Model, SecretReference
from shardwright.api.rules import Rule
from shardwright.api.scalars import Int
from shardwright.api.serving import URI_LENGTH, URI_RULES, check_uri

MAX_DRAFT_LEN = 64
DEFAULT_DRAFT_LEN = 3


class SpeculationMethod(StrEnum):
    """What drafts: another model, heads trained for this one, the text so far, or its own layers.

    DraftModel: a smaller model of the same vocabulary. Medusa, Eagle, Eagle3: weights trained for
    exactly the served model. NGram: what followed the same words earlier in the text. MTP: the
    multi-token-prediction layers that the model's checkpoint brings.
    """

    DRAFT_MODEL = "DraftModel"
    MEDUSA = "Medusa"
    EAGLE = "Eagle"
    EAGLE3 = "Eagle3"
    NGRAM = "NGram"
    MTP = "MTP"


OWN = frozenset({SpeculationMethod.NGRAM, SpeculationMethod.MTP})
"""Methods that need no files beside the model's."""


class DraftSource(Model):
    """Where the draft model's, or the heads', files come from."""

    uri: Annotated[str, StringConstraints(min_length=1, max_length=URI_LENGTH)] = Field(
        description="As model.uri."
    )
    secret_ref: SecretReference | None = Field(
        default=None, description="Credentials for fetching it, as model.secretRef."
    )
    rules: ClassVar[tuple[Rule, ...]] = URI_RULES

    @model_validator(mode="after")
    def _uri_has_a_known_form(self) -> DraftSource:
        check_uri(self.uri)
        return self


_WITH_MODEL = "methods DraftModel, Medusa, Eagle and Eagle3 need speculative.model"
_WITHOUT = "methods NGram and MTP draft without a model of their own: leave speculative.model out"


class Speculative(Model):
    """Speculative decoding; left out, every token is computed one by one."""

    method: SpeculationMethod = Field(description="What drafts the tokens.")
    model: DraftSource | None = Field(
        default=None, description="The draft model or heads; none for NGram and MTP."
    )
    max_draft_len: Int = Field(
        default=DEFAULT_DRAFT_LEN,
        ge=1,
        le=MAX_DRAFT_LEN,
        description="Tokens that are drafted at a time.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.model) || self.method in ['NGram', 'MTP']",
            _WITH_MODEL,
            field_path=".model",
            reason="FieldValueRequired",
        ),
        Rule(
            "!has(self.model) || !(self.method in ['NGram', 'MTP'])",
            _WITHOUT,
            field_path=".model",
        ),
    )

    @model_validator(mode="after")
    def _model_goes_with_the_method(self) -> Speculative:
        if self.model is None and self.method not in OWN:
            raise ValueError(_WITH_MODEL)
        if self.model is not None and self.method in OWN:
            raise ValueError(_WITHOUT)
        return self
