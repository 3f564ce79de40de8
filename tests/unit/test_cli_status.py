"""`shardwright status --watch`: every turn once, one line each."""

from __future__ import annotations

import io

from rich.console import Console

from shardwright.api.status import Condition, LLMDeploymentStatus
from shardwright.cli.status import turns


def state(*conditions: tuple[str, str, str, str]) -> LLMDeploymentStatus:
    return LLMDeploymentStatus(
        conditions=[
            Condition.model_validate(
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            )
            for kind, status, reason, message in conditions
        ]
    )


def plain(found: LLMDeploymentStatus, shown: set[tuple[str, str, str, str]]) -> list[str]:
    written = io.StringIO()
    console = Console(file=written, width=40, no_color=True)
    for line in turns(found, shown):
        console.print(line, highlight=False, soft_wrap=True)
    return written.getvalue().splitlines()


def test_a_turn_is_one_line_and_its_brackets_are_no_markup() -> None:
    message = "pods [red]a[/red] and [b] wait for a place that all of them fit into, long words"
    found = state(("Placed", "False", "Queued", message), ("Reconciling", "True", "Queued", "x"))
    assert plain(found, set()) == [f"Placed=False Queued: {message}"]


def test_the_same_words_are_written_out_once_and_a_turn_is_not_repeated() -> None:
    shown: set[tuple[str, str, str, str]] = set()
    pulled = "the image is not there"
    found = state(
        ("ModelReady", "False", "ImagePullFailed", pulled),
        ("Ready", "False", "ImagePullFailed", pulled),
        ("Stalled", "False", "Progressing", pulled),
    )
    assert plain(found, shown) == [
        f"ModelReady=False ImagePullFailed: {pulled}",
        "Ready=False ImagePullFailed",
    ]
    assert plain(found, shown) == []
    later = state(("Ready", "False", "ImagePullFailed", "another one"))
    assert plain(later, shown) == ["Ready=False ImagePullFailed: another one"]
