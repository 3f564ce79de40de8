"""Counts, at every state that the API server stores, what must never be there twice.

A replica's pods live and go as one group. From when the first of its members goes (the leader, to
be drained, while the workers still serve it) the group is on its way out and holds its place no
more: its next incarnation may stand beside it. Two that both stay are never right, nor are two pods
that work on one key.

A group must also never stay bound by half: how long each one was is measured.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.following import pods_followed
from tests.support.kube import Kube

from shardwright_sandbox.rest import Json

PREFIX = "shardwright.dev/"


def live(pod: Json) -> bool:
    """Whether a pod holds its place: not gated any more, not over, not on its way out."""
    return not pod["spec"].get("schedulingGates") and not _going(pod)


def _going(pod: Json) -> bool:
    over = pod["status"].get("phase") in ("Failed", "Succeeded")
    return over or "deletionTimestamp" in pod["metadata"]


def _group(pod: Json) -> tuple[str, ...]:
    """Deployment, replica and incarnation of a serving pod; empty for a step's."""
    labels = pod["metadata"]["labels"]
    if f"{PREFIX}replica" not in labels:
        return ()
    return tuple(labels[PREFIX + name] for name in ("deployment", "replica", "incarnation"))


@dataclass
class Census:
    """The pods of a namespace as they are, and what was wrong with them at any moment."""

    pods: dict[str, Json] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    half_since: dict[tuple[str, ...], float] = field(default_factory=dict)
    longest_half: float = 0.0
    leaving: set[tuple[str, ...]] = field(default_factory=set)
    catch_up: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, kind: str, pod: Json) -> None:
        """One event of a watch."""
        uid = pod["metadata"]["uid"]
        with self._lock:
            if kind == "DELETED":
                self.pods.pop(uid, None)
            else:
                self.pods[uid] = pod
            if (group := _group(pod)) and (kind == "DELETED" or _going(pod)):
                self.leaving.add(group)
            self._count()
            self._halves()

    def settle(self) -> float:
        """The longest time that a group was bound by half, those that still are included."""
        self.catch_up()
        with self._lock:
            now = time.monotonic()
            return max([self.longest_half, *(now - at for at in self.half_since.values())])

    def _count(self) -> None:
        held: dict[tuple[str, ...], list[str]] = {}
        for pod in self.pods.values():
            if live(pod) and _group(pod) not in self.leaving:
                held.setdefault(_place(pod), []).append(pod["metadata"]["name"])
        for place, names in held.items():
            if len(names) > 1:
                self.twice.append(f"{' '.join(place)}: {', '.join(sorted(names))}")

    def _halves(self) -> None:
        groups: dict[tuple[str, ...], list[bool]] = {}
        for pod in self.pods.values():
            if (group := _group(pod)) and not _going(pod):
                groups.setdefault(group, []).append(bool(pod["spec"].get("nodeName")))
        now = time.monotonic()
        halves = {group for group, bound in groups.items() if any(bound) and not all(bound)}
        for group in [one for one in self.half_since if one not in halves]:
            self.longest_half = max(self.longest_half, now - self.half_since.pop(group))
        for group in halves:
            self.half_since.setdefault(group, now)


def _place(pod: Json) -> tuple[str, ...]:
    labels = pod["metadata"]["labels"]
    if f"{PREFIX}replica" in labels:
        names = ("deployment", "replica", "stage")
    else:
        names = ("step", "key", "claim-uid")
    return tuple(f"{name}={labels.get(PREFIX + name, '')}" for name in names)


@contextlib.contextmanager
def counted(kube: Kube) -> Iterator[Census]:
    """A census of a namespace for the length of a block; it fails if it missed something."""
    census = Census()
    with pods_followed(kube, census.take, f"{PREFIX}role") as follower:
        census.catch_up = follower.catch_up
        yield census
