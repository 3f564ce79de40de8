"""Counts, at every state that the API server stores, what must never be there twice.

A group must also never stay bound by half: how long each one was is measured.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.kube import Kube

from shardwright_sandbox.rest import Json, Rest

PREFIX = "shardwright.dev/"


def live(pod: Json) -> bool:
    """Whether a pod holds its place: not gated any more, not over, not on its way out."""
    return (
        not pod["spec"].get("schedulingGates")
        and "deletionTimestamp" not in pod["metadata"]
        and pod["status"].get("phase") not in ("Failed", "Succeeded")
    )


@dataclass
class Census:
    """The pods of a namespace as they are, and what was wrong with them at any moment."""

    pods: dict[str, Json] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    half_since: dict[tuple[str, ...], float] = field(default_factory=dict)
    longest_half: float = 0.0
    groups_seen: set[tuple[str, ...]] = field(default_factory=set)
    most_live: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def take(self, kind: str, pod: Json) -> None:
        """One event of a watch."""
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod
        self._count()
        self._halves()

    def settle(self) -> float:
        """The longest time that a group was bound by half, those that still are included."""
        now = time.monotonic()
        return max([self.longest_half, *(now - at for at in self.half_since.values())])

    def _count(self) -> None:
        held: dict[tuple[str, ...], list[str]] = {}
        for pod in self.pods.values():
            if live(pod):
                held.setdefault(_place(pod), []).append(pod["metadata"]["name"])
        for place, names in held.items():
            self.most_live[place] = max(self.most_live[place], len(names))
            if len(names) > 1:
                self.twice.append(f"{' '.join(place)}: {', '.join(sorted(names))}")

    def _halves(self) -> None:
        groups: dict[tuple[str, ...], list[bool]] = {}
        for pod in self.pods.values():
            labels = pod["metadata"]["labels"]
            over = pod["status"].get("phase") in ("Failed", "Succeeded")
            if f"{PREFIX}replica" in labels and "deletionTimestamp" not in pod["metadata"]:
                names = ("deployment", "replica", "incarnation")
                group = tuple(labels[PREFIX + name] for name in names)
                if not over:
                    groups.setdefault(group, []).append(bool(pod["spec"].get("nodeName")))
        now = time.monotonic()
        halves = {group for group, bound in groups.items() if any(bound) and not all(bound)}
        self.groups_seen |= set(groups)
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
    census, stop, listed = Census(), threading.Event(), threading.Event()
    problems: list[BaseException] = []
    rest = Rest(kube.api, connections=2)
    path = f"/api/v1/namespaces/{kube.namespace}/pods"
    selector = f"{PREFIX}role"

    def follow() -> None:
        answer = rest.get(path, labelSelector=selector)
        for item in answer["items"]:
            census.take("ADDED", item)
        version = str(answer["metadata"]["resourceVersion"])
        listed.set()
        while not stop.is_set():
            # Short watches, one after the other: it is how the thread sees that it shall stop.
            for event in rest.watch(
                path,
                stop,
                labelSelector=selector,
                resourceVersion=version,
                timeoutSeconds="2",
            ):
                version = str(event["object"]["metadata"]["resourceVersion"])
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    census.take(event["type"], event["object"])

    def run() -> None:
        try:
            follow()
        except BaseException as error:  # noqa: BLE001 - told at the end of the block
            problems.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert listed.wait(30), "the census could not list the namespace"
    try:
        yield census
    finally:
        stop.set()
        thread.join(30)
        rest.close()
    assert problems == [], "the census missed something"
