"""What a benchmark's pod waits for, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.benchmark.inside import MARK


def waits_for(pod: Mapping[str, Any] | None) -> str:
    """What a pod waits for; empty once its container has run.

    Args:
        pod: As the API server gives it; None while there is none.
    """
    if pod is None:
        return "waits for its pod: a quota or the namespace's pod security may refuse it"
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"waits for a node: {condition.get('message') or condition.get('reason')}"
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            why = ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
            return f"waits for its container: {why}"
    if not status.get("containerStatuses"):
        return "waits for its node to take it"
    return ""


def why_not_ready(pod: Mapping[str, Any]) -> str:
    """Why a leader is not ready, in the kubelet's words."""
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            said = condition.get("message") or condition.get("reason")
            return str(said or "not ready")
    return str(pod.get("status", {}).get("phase") or "not ready")


def progress(log: str) -> list[str]:
    """The lines of a benchmark's log that are its own, not the tool's."""
    return [line[len(MARK) :] for line in log.splitlines() if line.startswith(MARK)]


def over(pod: Mapping[str, Any] | None) -> tuple[bool, str]:
    """Whether the pod has ended, and its termination message or why it has none."""
    status = {} if pod is None else pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated")
        if ended is not None:
            return True, str(ended.get("message") or "")
    if status.get("phase") == "Failed":
        words = [str(status[key]) for key in ("reason", "message") if status.get(key)]
        return True, ": ".join(words)
    return False, ""
