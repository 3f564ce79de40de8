"""What a pass wants written: plain data, made by pure code, carried out by the executor.

A list of writes is carried out in order; a `Together` holds writes that do not depend on each
other. Bodies are complete manifests with `metadata.name` (and namespace, where the kind has one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.api.names import KIND, MANAGER_CHILDREN

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Create:
    """Create once under a deterministic name; never changed by an apply afterwards.

    An object that is there already counts as created if it is not being deleted and
    `expect_owner_uid` (when given) is among its owners. Jobs must also carry the same step, key and
    claim labels: their name is the single flight, and their owners are many.
    """

    kind: str
    body: Body
    expect_owner_uid: str = ""


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply; left out when nothing would change."""

    kind: str
    body: Body
    manager: str = MANAGER_CHILDREN


@dataclass(frozen=True, slots=True)
class ApplyStatus:
    """Server-side apply of the LLMDeployment's status; the body names its resourceVersion."""

    body: Body
    kind: str = KIND


@dataclass(frozen=True, slots=True)
class Patch:
    """JSON patch operations on exactly the object with `uid`; the test of the uid is added."""

    kind: str
    namespace: str
    name: str
    uid: str
    ops: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly the object with `uid`. `grace_seconds` None keeps the object's own."""

    kind: str
    namespace: str
    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class PostEvent:
    """Tell people about a transition of an object.

    Args:
        namespace: Of the object, and of the event.
        name: Of the object.
        uid: Of the object.
        reason: Stable CamelCase word.
        note: What happened; cut at 1,024 bytes.
        action: What the operator did or tried, CamelCase.
        key: Says which transition it is, for example its time: the same twice is one event.
        at: Seconds since the epoch.
        warning: Whether somebody should look.
        kind: Of the object.
    """

    namespace: str
    name: str
    uid: str
    reason: str
    note: str
    action: str
    key: str
    at: float
    warning: bool = False
    kind: str = KIND


Write = Create | Apply | ApplyStatus | Patch | Delete | PostEvent


@dataclass(frozen=True, slots=True)
class Together:
    """Writes that may happen in any order, at the same time."""

    writes: tuple[Write, ...]
