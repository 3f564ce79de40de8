"""Sees everything that happens in a namespace, so that a test can count it afterwards.

Watches, not samples: every state that the API server has stored comes by, so a minimum of ready
replicas is one, and a pod's first labels tell a candidate (born without the serving label) from a
replica of a proven revision. Whatever a test asks is answered from all that was stored when it
asked, and a mark is a moment before which all that was stored has come by.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client
from tests.support.following import Follower

from shardwright.runner.contract import ENV_REQUEST, ServeRequest, decode
from shardwright_sandbox.rest import Json, rest_of

PREFIX = "shardwright.dev/"
PROTECTED = f"{PREFIX}protected"


@dataclass(frozen=True)
class Mark:
    """A moment, for "since"."""

    at: float


@dataclass
class SeenPod:
    """One serving pod, as it was born and how it ended."""

    uid: str
    name: str
    deployment: str
    replica: int
    incarnation: int
    stage: int
    revision: str
    candidate: bool  # born without the serving label: its revision was not proven then
    born: float
    left: float | None = None  # being deleted, ended or gone
    protected: bool = False
    ready: bool = False

    @property
    def group(self) -> tuple[str, int, int]:
        """Deployment, replica and incarnation."""
        return self.deployment, self.replica, self.incarnation


@dataclass(frozen=True)
class SeenJob:
    """One step Job."""

    uid: str
    step: str
    key: str
    attempt: str
    born: float


@dataclass(frozen=True)
class ReadyCount:
    """How many serving groups of a deployment were wholly ready from `at` on."""

    at: float
    deployment: str
    count: int


@dataclass
class _Seen:
    pods: dict[str, SeenPod] = field(default_factory=dict)
    jobs: dict[str, SeenJob] = field(default_factory=dict)
    revisions: dict[str, tuple[str, float]] = field(default_factory=dict)  # uid: name, born
    objects: list[tuple[float, Json]] = field(default_factory=list)
    ready: list[ReadyCount] = field(default_factory=list)
    last_event: float = 0.0


class Watcher:
    """Records pods, Jobs, revisions and LLMDeployments of one namespace while it is open."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._namespace = namespace
        self._lock = threading.Lock()
        self._seen = _Seen()
        core, batch, apps = "/api/v1", "/apis/batch/v1", "/apis/apps/v1"
        ours = "/apis/shardwright.dev/v1alpha1"

        def follow(group: str, plural: str, tell: Callable[[str, Json], None]) -> Follower:
            path = f"{group}/namespaces/{namespace}/{plural}"
            return Follower(rest_of(api), path, self._telling(tell))

        self._pods = follow(core, "pods", self._on_pod)
        self._jobs = follow(batch, "jobs", self._on_job)
        self._revisions = follow(apps, "controllerrevisions", self._on_revision)
        self._objects = follow(ours, "llmdeployments", self._on_object)
        self._all = (self._pods, self._jobs, self._revisions, self._objects)

    def start(self) -> Watcher:
        """Begin, and wait until what is there already has been seen."""
        for follower in self._all:
            follower.start()
        return self

    def stop(self) -> None:
        """End; raises what went wrong in between, since then something may have been missed."""
        for follower in self._all:
            follower.stop()

    def catch_up(self) -> None:
        """Wait until all that is stored by now has been seen."""
        for follower in self._all:
            follower.catch_up()

    # What a test asks.

    def mark(self) -> Mark:
        """Now, when all that was stored before has been seen."""
        self.catch_up()
        return Mark(time.monotonic())

    def wait_quiet(self, seconds: float = 1.0, at_most: float = 60.0) -> None:
        """Until nothing has changed for a while."""
        begun = time.monotonic()
        while not (self._quiet(begun, seconds) and self._quiet_indeed(begun, seconds)):
            assert time.monotonic() < begun + at_most, f"{self._namespace} never became quiet"
            time.sleep(0.05)

    def _quiet(self, begun: float, seconds: float) -> bool:
        with self._lock:
            last = max(self._seen.last_event, begun)
        return time.monotonic() - last >= seconds

    def _quiet_indeed(self, begun: float, seconds: float) -> bool:
        """Silence may also mean that the watches are behind."""
        self.catch_up()
        return self._quiet(begun, seconds)

    def jobs_since(self, mark: Mark) -> dict[str, int]:
        """Step Jobs made, by step; steps without one are left out."""
        self._jobs.catch_up()
        with self._lock:
            made = [job.step for job in self._seen.jobs.values() if job.born >= mark.at]
        return {step: made.count(step) for step in sorted(set(made))}

    def jobs(self) -> list[SeenJob]:
        """Every step Job ever seen."""
        self._jobs.catch_up()
        with self._lock:
            return list(self._seen.jobs.values())

    def born_since(self, mark: Mark, name: str) -> list[SeenPod]:
        """Serving pods of a deployment that were created."""
        self._pods.catch_up()
        with self._lock:
            return [
                pod
                for pod in self._seen.pods.values()
                if pod.deployment == name and pod.born >= mark.at
            ]

    def left_since(self, mark: Mark, name: str) -> list[SeenPod]:
        """Serving pods of a deployment that were there at the mark and are not any more."""
        self._pods.catch_up()
        with self._lock:
            return [
                pod
                for pod in self._seen.pods.values()
                if pod.deployment == name
                and pod.born < mark.at
                and pod.left is not None
                and pod.left >= mark.at
            ]

    def candidates_since(self, mark: Mark, name: str) -> int:
        """Groups that were created to prove a revision."""
        return len({pod.group for pod in self.born_since(mark, name) if pod.candidate})

    def revisions_since(self, mark: Mark) -> list[str]:
        """ControllerRevisions that were made."""
        self._revisions.catch_up()
        with self._lock:
            return [name for name, born in self._seen.revisions.values() if born >= mark.at]

    def least_ready_since(self, mark: Mark, name: str) -> int:
        """The fewest serving groups that were wholly ready at any moment since the mark."""
        self._pods.catch_up()
        with self._lock:
            counts = [item for item in self._seen.ready if item.deployment == name]
        before = [item for item in counts if item.at < mark.at]
        after = [item.count for item in counts if item.at >= mark.at]
        return min([*([before[-1].count] if before else [0]), *after])

    def story_since(self, mark: Mark, name: str) -> str:
        """What happened to a deployment's groups, line by line: for the message of a failure."""
        with self._lock:
            lines = [
                (pod.born, f"+ {pod.name} {pod.revision}{' candidate' if pod.candidate else ''}")
                for pod in self._seen.pods.values()
                if pod.deployment == name
            ]
            lines += [
                (pod.left, f"- {pod.name}")
                for pod in self._seen.pods.values()
                if pod.deployment == name and pod.left is not None
            ]
            before = -1
            for item in self._seen.ready:
                if item.deployment == name and item.count != before:
                    lines.append((item.at, f"  {item.count} ready"))
                    before = item.count
        told = [f"{at - mark.at:7.2f} s {text}" for at, text in sorted(lines) if at >= mark.at]
        return "\n".join(told)

    def most_groups_since(self, mark: Mark, name: str) -> int:
        """The most groups that existed at any moment since the mark.

        A group of which a pod is being deleted is on its way out and is not counted.
        """
        self._pods.catch_up()
        with self._lock:
            pods = [pod for pod in self._seen.pods.values() if pod.deployment == name]
        most = 0
        for moment in [mark.at, *(pod.born for pod in pods if pod.born >= mark.at)]:
            born = {pod.group for pod in pods if pod.born <= moment}
            leaving = {pod.group for pod in pods if pod.left is not None and pod.left <= moment}
            most = max(most, len(born - leaving))
        return most

    def objects(self, name: str) -> list[Json]:
        """Every state of an LLMDeployment that was stored."""
        self._objects.catch_up()
        with self._lock:
            return [item for _, item in self._seen.objects if item["metadata"]["name"] == name]

    def objects_since(self, mark: Mark, name: str) -> list[Json]:
        """Every state of an LLMDeployment that was stored since the mark."""
        self._objects.catch_up()
        with self._lock:
            return [
                item
                for at, item in self._seen.objects
                if at >= mark.at and item["metadata"]["name"] == name
            ]

    # What comes by.

    def _telling(self, tell: Callable[[str, Json], None]) -> Callable[[str, Json], None]:
        def told(kind: str, item: Json) -> None:
            with self._lock:
                self._seen.last_event = time.monotonic()
                tell(kind, item)

        return told

    def _on_pod(self, kind: str, item: Json) -> None:
        metadata: Json = item["metadata"]
        labels: dict[str, str] = metadata.get("labels", {})
        if f"{PREFIX}replica" not in labels:
            return
        now = time.monotonic()
        uid = str(metadata["uid"])
        pod = self._seen.pods.get(uid)
        if pod is None:
            pod = self._seen.pods[uid] = SeenPod(
                uid=uid,
                name=str(metadata["name"]),
                deployment=labels[f"{PREFIX}deployment"],
                replica=int(labels[f"{PREFIX}replica"]),
                incarnation=int(labels[f"{PREFIX}incarnation"]),
                stage=int(labels[f"{PREFIX}stage"]),
                revision=labels[f"{PREFIX}revision"],
                candidate=PROTECTED not in labels,
                born=now,
            )
        ended = item["status"].get("phase") in ("Failed", "Succeeded")
        going = kind == "DELETED" or ended or "deletionTimestamp" in metadata
        if going and pod.left is None:
            pod.left = now
        pod.protected = PROTECTED in labels
        pod.ready = not going and any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in item["status"].get("conditions", [])
        )
        self._count(pod.deployment, now)

    def _count(self, deployment: str, now: float) -> None:
        # By stage, the youngest. One that has left stays until another takes its stage: a group
        # that has lost a member is not whole.
        groups: dict[tuple[str, int, int], dict[int, SeenPod]] = {}
        for pod in self._seen.pods.values():
            if pod.deployment == deployment:
                groups.setdefault(pod.group, {})[pod.stage] = pod
        count = sum(
            all(pod.ready and pod.protected for pod in stages.values())
            for stages in groups.values()
        )
        self._seen.ready.append(ReadyCount(now, deployment, count))

    def _on_job(self, kind: str, item: Json) -> None:
        metadata: Json = item["metadata"]
        labels: dict[str, str] = metadata.get("labels", {})
        uid = str(metadata["uid"])
        if kind == "DELETED" or uid in self._seen.jobs or f"{PREFIX}step" not in labels:
            return
        self._seen.jobs[uid] = SeenJob(
            uid=uid,
            step=labels[f"{PREFIX}step"],
            key=labels[f"{PREFIX}key"],
            attempt=labels.get(f"{PREFIX}attempt", ""),
            born=time.monotonic(),
        )

    def _on_revision(self, kind: str, item: Json) -> None:
        metadata: Json = item["metadata"]
        if kind != "DELETED":
            self._seen.revisions.setdefault(
                str(metadata["uid"]), (str(metadata["name"]), time.monotonic())
            )

    def _on_object(self, kind: str, item: Json) -> None:
        if kind != "DELETED":
            self._seen.objects.append((time.monotonic(), item))


@contextmanager
def watching(api: client.ApiClient, namespace: str) -> Iterator[Watcher]:
    """A watcher over a namespace for the length of a block, of which it has then seen all."""
    watcher = Watcher(api, namespace).start()
    try:
        yield watcher
        watcher.catch_up()
    finally:
        watcher.stop()


def served_as(pod: Json) -> dict[str, Any]:
    """What tells one revision's pods from another's: revision, split, and what is loaded."""
    texts = [
        variable["value"]
        for container in pod["spec"]["containers"]
        for variable in container.get("env", [])
        if variable["name"] == ENV_REQUEST
    ]
    assert texts, f"pod {pod['metadata']['name']} carries no request"
    request = decode(ServeRequest, texts[0])
    return {
        "revision": pod["metadata"]["labels"][f"{PREFIX}revision"],
        "tensor": request.tensor,
        "pipeline": request.pipeline,
        "step": request.step,
        "key": request.key,
    }
