"""A CEL rule as the CRD carries it; the models attach rules, the CRD generator writes them out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `x-kubernetes-validations`.

    Attributes:
        rule: The CEL expression; true means valid.
        message: What the user reads when it is false.
        message_expression: CEL that yields a message with the values in it; falls back to message.
            Numbers go in by `format`: the API server takes `string(number)` for a text of any
            length, and refuses what is joined to it as too costly.
        field_path: Path below the object that the API server names, for example `.maxInputLen`.
        reason: A field error reason that the API server knows.
    """

    rule: str
    message: str
    message_expression: str = ""
    field_path: str = ""
    reason: str = "FieldValueInvalid"

    def schema(self) -> dict[str, str]:
        """The rule as the API server reads it; what is empty is left out."""
        entry = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.message_expression,
            "fieldPath": self.field_path,
            "reason": self.reason,
        }
        return {name: value for name, value in entry.items() if value}
