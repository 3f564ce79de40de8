"""kstatus's verdict on an object, as Helm 4, Flux and other tools take it.

A port of the rules that `fluxcd/cli-utils` (pkg/kstatus/status, v1.2.2) applies to kinds it does
not know. Unit tests use it; that the port is right shows against Helm's own `--wait` on an API
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CURRENT = "Current"
IN_PROGRESS = "InProgress"
FAILED = "Failed"
TERMINATING = "Terminating"


class StatusError(ValueError):
    """kstatus cannot read the object; Helm's wait ends with an error or hangs."""


@dataclass(frozen=True)
class Verdict:
    """What kstatus makes of an object, with the message that its users show."""

    status: str
    message: str


def verdict(resource: Mapping[str, Any]) -> Verdict:
    """Judge `resource`, a decoded object of a kind without rules of its own.

    Raises:
        StatusError: If a generation is no whole number.
    """
    metadata = resource.get("metadata") or {}
    status = resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return Verdict(TERMINATING, "Resource scheduled for deletion")
    generation = _whole_number("metadata.generation", metadata.get("generation"))
    observed = _whole_number("status.observedGeneration", status.get("observedGeneration"))
    if generation is not None and observed is not None and generation != observed:
        return Verdict(
            IN_PROGRESS,
            f"{resource.get('kind')} generation is {generation}, "
            f"but latest observed generation is {observed}",
        )
    conditions = status.get("conditions") or []
    # the first in the list decides, so the two must exclude each other
    for condition in conditions:
        if condition["status"] == "True" and condition["type"] == "Reconciling":
            return Verdict(IN_PROGRESS, condition["message"])
        if condition["status"] == "True" and condition["type"] == "Stalled":
            return Verdict(FAILED, condition["message"])
    for condition in conditions:
        if condition["type"] == "Ready":
            if condition["status"] == "True":
                return Verdict(CURRENT, "Resource is Ready")
            return Verdict(IN_PROGRESS, condition["message"])
    return Verdict(CURRENT, "Resource is current")


def _whole_number(field: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise StatusError(f"{field} is {value!r}, not a whole number")
    return value
