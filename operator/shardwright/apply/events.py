"""Events of events.k8s.io/v1: one for each transition, and the same transition only once.

The name is the hash of what the event says, so that a repeated pass, a retried call or a new leader
gets "already exists" instead of a second event.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from shardwright.api.names import GROUP, MANAGED_BY
from shardwright.apply.kinds import EVENT, kind_of
from shardwright.apply.writes import PostEvent

_NOTE_LIMIT_BYTES = 1024
_NAME_LIMIT = 253
_INSTANCE_LIMIT = 128


def event_body(post: PostEvent, instance: str) -> dict[str, Any]:
    """The manifest of an event.

    Args:
        post: What is said of which object.
        instance: Which operator process says it.
    """
    said = f"{post.uid}\n{post.reason}\n{post.action}\n{post.note}\n{post.key}"
    digest = hashlib.sha256(said.encode()).hexdigest()[:16]
    return {
        "apiVersion": kind_of(EVENT).api_version,
        "kind": EVENT,
        "metadata": {
            "namespace": post.namespace,
            "name": f"{post.name[: _NAME_LIMIT - len(digest) - 1]}.{digest}",
        },
        "eventTime": datetime.fromtimestamp(post.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{GROUP}/{MANAGED_BY}",
        "reportingInstance": instance[:_INSTANCE_LIMIT],
        "action": post.action,
        "reason": post.reason,
        "type": "Warning" if post.warning else "Normal",
        "note": cut(post.note, _NOTE_LIMIT_BYTES),
        "regarding": {
            "apiVersion": kind_of(post.kind).api_version,
            "kind": post.kind,
            "namespace": post.namespace,
            "name": post.name,
            "uid": post.uid,
        },
    }


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, with an ellipsis when something is left out."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    return raw[: limit - 3].decode(errors="ignore") + "…"
