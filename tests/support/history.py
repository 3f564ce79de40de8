"""Everything that ever became of the serving pods of a namespace, from a watch.

A test that only looks now and then misses what was wrong for a moment: a group bound by half, a
replica that left twice, a pod that went back to the bad node.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from tests.support.following import pods_followed
from tests.support.kube import Kube

from shardwright_sandbox.rest import Json


@dataclass
class Life:
    """One pod: where it was bound, and when (monotonic seconds, as the watch told)."""

    name: str
    deployment: str
    replica: int
    incarnation: int
    stage: int
    created: float
    stamped: datetime  # when it was created, by the API server's clock, in whole seconds
    node: str = ""
    bound: float | None = None
    gone: float | None = None  # deleted, ended or removed
    finished: datetime | None = None  # when its first container ended, by its kubelet's clock

    @property
    def group(self) -> tuple[str, int, int]:
        """Deployment, replica and incarnation."""
        return self.deployment, self.replica, self.incarnation


@dataclass
class History:
    """All lives so far, by uid; whoever asks is answered when all that was stored is in it."""

    lives: dict[str, Life] = field(default_factory=dict)
    catch_up: Callable[[], None] = lambda: None

    def take(self, kind: str, raw: Json) -> None:
        """One event of the watch."""
        meta, now = raw["metadata"], time.monotonic()
        labels = meta["labels"]
        life = self.lives.setdefault(
            meta["uid"],
            Life(
                name=meta["name"],
                deployment=labels["shardwright.dev/deployment"],
                replica=int(labels["shardwright.dev/replica"]),
                incarnation=int(labels["shardwright.dev/incarnation"]),
                stage=int(labels["shardwright.dev/stage"]),
                created=now,
                stamped=datetime.fromisoformat(meta["creationTimestamp"]),
            ),
        )
        node = raw["spec"].get("nodeName", "")
        if node and life.bound is None:
            life.node, life.bound = node, now
        ends = [
            datetime.fromisoformat(one["state"]["terminated"]["finishedAt"])
            for one in raw["status"].get("containerStatuses", [])
            if "terminated" in one.get("state", {})
        ]
        if life.finished is None:
            life.finished = min(ends, default=None)
        over = kind == "DELETED" or "deletionTimestamp" in meta
        if life.gone is None and (over or raw["status"].get("phase") in ("Failed", "Succeeded")):
            life.gone = now

    def of(self, deployment: str = "", replica: int | None = None) -> list[Life]:
        """Lives of a deployment (and of one replica), oldest first."""
        self.catch_up()
        found = [
            life
            for life in list(self.lives.values())
            if deployment in ("", life.deployment) and replica in (None, life.replica)
        ]
        return sorted(found, key=lambda life: (life.created, life.stage))

    def incarnations(self, deployment: str, replica: int) -> list[int]:
        """The incarnations a replica had, in order."""
        return sorted({life.incarnation for life in self.of(deployment, replica)})

    def bound_by_half(self) -> float:
        """The longest time that a group held GPUs of some of its nodes and not of the others."""
        groups: dict[tuple[str, int, int], list[Life]] = {}
        for life in self.of():
            groups.setdefault(life.group, []).append(life)
        return max((_half(lives) for lives in groups.values()), default=0.0)


def _half(lives: list[Life]) -> float:
    """How long some of these were bound while others, not bound yet, were there."""
    now = time.monotonic()
    starts = [life.bound for life in lives if life.bound is not None]
    if not starts:
        return 0.0
    began = min(starts)
    held = max((life.gone or now) for life in lives if life.bound is not None)
    late = [life.bound if life.bound is not None else (life.gone or now) for life in lives]
    return max(0.0, min(held, max(late)) - began)


@contextlib.contextmanager
def watched(kube: Kube) -> Iterator[History]:
    """A history that begins with what is there and grows while the block runs."""
    history = History()
    with pods_followed(kube, history.take, "shardwright.dev/replica") as follower:
        history.catch_up = follower.catch_up
        yield history
        follower.catch_up()
