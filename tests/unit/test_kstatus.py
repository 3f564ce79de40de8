"""The rules by which Helm 4 and Flux call an LLMDeployment ready, in progress or failed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import kstatus
from tests.support.kstatus import CURRENT, FAILED, IN_PROGRESS, TERMINATING, verdict


def condition(kind: str, status: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Because", "message": message or kind}


def resource(
    *conditions: dict[str, str], observed: Any = 3, deleted: bool = False
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "llama", "generation": 3}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-29T10:00:00Z"
    status: dict[str, Any] = {"conditions": list(conditions)}
    if observed is not None:
        status["observedGeneration"] = observed
    return {"kind": "LLMDeployment", "metadata": metadata, "status": status}


READY = condition("Ready", "True")
NOT_READY = condition("Ready", "False", "4 GPUs needed, 1 free")
STALLED = condition("Stalled", "True", "FP8 needs compute capability 8.9")
RECONCILING = condition("Reconciling", "True", "Building the engine")


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (resource(READY), CURRENT),
        (resource(NOT_READY), IN_PROGRESS),
        (resource(condition("Ready", "Unknown")), IN_PROGRESS),
        (resource(NOT_READY, STALLED), FAILED),
        (resource(READY, STALLED), FAILED),
        (resource(READY, RECONCILING), IN_PROGRESS),
        (resource(READY, condition("Stalled", "False")), CURRENT),
        (resource(READY, observed=2), IN_PROGRESS),
        (resource(STALLED, observed=2), IN_PROGRESS),
        (resource(READY, deleted=True), TERMINATING),
        # These two are why the CRD gives `status` a default, and why Ready is always written.
        (resource(observed=None), CURRENT),
        (resource(condition("Available", "False")), CURRENT),
    ],
)
def test_verdicts(judged: dict[str, Any], expected: str) -> None:
    assert verdict(judged).status == expected


def test_an_object_nobody_has_seen_is_in_progress_by_the_default_of_the_schema() -> None:
    assert verdict(resource(observed=-1)).message == (
        "LLMDeployment generation is 3, but latest observed generation is -1"
    )


def test_users_read_our_own_message() -> None:
    assert verdict(resource(NOT_READY)).message == "4 GPUs needed, 1 free"
    assert verdict(resource(STALLED)).message == "FP8 needs compute capability 8.9"


def test_of_reconciling_and_stalled_the_first_in_the_list_decides() -> None:
    assert verdict(resource(RECONCILING, STALLED)).status == IN_PROGRESS
    assert verdict(resource(STALLED, RECONCILING)).status == FAILED


@pytest.mark.parametrize("observed", ["3", 3.0, True])
def test_an_observed_generation_that_is_no_whole_number_cannot_be_read(observed: Any) -> None:
    with pytest.raises(kstatus.StatusError, match=r"status\.observedGeneration"):
        verdict(resource(READY, observed=observed))
