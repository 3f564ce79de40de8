"""Replicas on real nodes from the moment that something in them breaks until they serve again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.real.site import CHAT, MODEL, Site
from tests.support.client_loop import problem
from tests.support.kube import Json, ready
from tests.support.real_processes import PodProcess, inhabitants, processes, segments, shared
from tests.support.standin_model import ANSWER_TOKENS
from tests.support.watcher import Mark, Watcher

from shardwright.api import names

RECOVERY_SECONDS = 300.0
# The name under which tests report their timings: with their results, from whatever process.
RECOVERY = "recovery"
_LOOK_SECONDS = 0.25
_PROMPTS = 2


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a group; `container` is its id without the runtime's name."""

    name: str
    uid: str
    node: str
    container: str


@dataclass(frozen=True, slots=True)
class Members:
    """The pods of one incarnation of a replica, by stage."""

    replica: int
    incarnation: int
    pods: tuple[Member, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """By stage."""
        return tuple(pod.node for pod in self.pods)

    def part(self, part: str, stage: int) -> PodProcess:
        """A stage's process that is this part; the first rank's where each rank has one."""
        found = [one for one in processes({self.pods[stage].uid}) if one.part == part]
        return min(found, key=lambda one: one.rank)

    def left(self) -> list[PodProcess | int]:
        """What still runs of them, also such as no longer looks like it."""
        known = processes({pod.uid for pod in self.pods})
        inside = inhabitants([pod.container for pod in self.pods])
        others = set(inside) - {one.pid for one in known}
        return [*known, *sorted(others)]


def standing(site: Site, name: str) -> dict[int, Members]:
    """Each replica of a deployment that is Ready as a whole."""
    found: dict[int, list[Json]] = {}
    for pod in site.kube.pods(name):
        found.setdefault(_label(pod, names.LABEL_REPLICA), []).append(pod)
    return {replica: _members(replica, pods) for replica, pods in sorted(found.items())}


def _members(replica: int, pods: list[Json]) -> Members:
    (number,) = {_label(pod, names.LABEL_INCARNATION) for pod in pods}
    ordered = sorted(pods, key=lambda pod: _label(pod, names.LABEL_STAGE))
    found = tuple(
        Member(
            pod["metadata"]["name"],
            pod["metadata"]["uid"],
            pod["spec"]["nodeName"],
            pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2],
        )
        for pod in ordered
    )
    uids = {pod.uid for pod in found}
    running = processes(uids)
    assert segments(running), "ranks of one pod share no memory: there is nothing to look at"
    inside = inhabitants([pod.container for pod in found])
    # What has ended since says nothing.
    stayed = {one.pid for one in running} & {one.pid for one in processes(uids)}
    assert stayed <= set(inside), "a process is outside its container"
    return Members(replica, number, found)


@dataclass(slots=True)
class Recovery:
    """What was broken and what became of it; times in seconds from then on.

    `noticed` is when status told a cause, `gone` when nothing of the old incarnation ran any more,
    `whole` when all new pods were Ready, `served` when the new leader had answered as the unsharded
    model does.
    """

    what: str
    stage: str
    old: Members
    cause: str = ""
    reason: str = ""
    noticed: float | None = None
    gone: float | None = None
    whole: float | None = None
    served: float | None = None

    @property
    def node(self) -> str:
        """Where it was broken."""
        return self.old.nodes[0 if self.stage == names.ROLE_LEADER else -1]


@dataclass(frozen=True, slots=True)
class Timing:
    """One line of a recovery: seconds from the break, as `Recovery` has them."""

    what: str
    stage: str
    reason: str
    noticed: float
    gone: float
    whole: float
    served: float

    @staticmethod
    def of(one: Recovery) -> Timing:
        """Of a recovery that is over."""
        assert one.noticed is not None, "status told no cause"
        assert one.gone is not None
        assert one.whole is not None
        assert one.served is not None
        return Timing(one.what, one.stage, one.reason, one.noticed, one.gone, one.whole, one.served)


@dataclass(slots=True)
class Watch:
    """Looks at replicas from the moment that they were broken; keeps what two of them shared."""

    site: Site
    name: str
    watcher: Watcher
    broken: Sequence[Recovery]
    began: Mark = field(init=False)
    twice: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        """From now on."""
        self.began = self.watcher.mark()

    def until(
        self, what: str, done: Callable[[Recovery], bool], seconds: float = RECOVERY_SECONDS
    ) -> None:
        """Go on looking until it is so for each replica."""
        ends = time.monotonic() + seconds
        while True:
            self._look()
            if all(done(one) for one in self.broken):
                return
            assert time.monotonic() < ends, (
                f"not within {seconds:.0f} s: {what}: {self.broken}\n"
                f"running: {[one.old.left() for one in self.broken]}\n{self.site.kube.state()}"
            )
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> None:
        passed = time.monotonic() - self.began.at
        pods = self.site.kube.pods(self.name, live=False)
        slots = {pod["metadata"]["uid"]: _slot(pod) for pod in pods}
        self.twice |= shared(processes(slots), slots)
        for one in self.broken:
            if one.noticed is None and (told := self._told(one)):
                one.cause, one.reason, one.noticed = told["cause"], told["reason"], passed
            if one.gone is None and not one.old.left():
                one.gone = passed
            if one.served is None:
                self._look_at_new(one, pods)

    def _told(self, one: Recovery) -> Json | None:
        """What status has said of the break: it is forgotten soon after the replica serves again.

        What it tells of an older incarnation's end may stand there until the next one.
        """
        groups = (
            group
            for found in self.watcher.objects_since(self.began, self.name)
            for group in found.get("status", {}).get("groups", [])
        )
        return next(
            (
                group
                for group in groups
                if group["index"] == one.old.replica
                and group["incarnation"] > one.old.incarnation
                and group["cause"]
            ),
            None,
        )

    def _look_at_new(self, one: Recovery, pods: Sequence[Json]) -> None:
        fresh = [
            pod
            for pod in pods
            if _slot(pod)[0] == one.old.replica
            and _slot(pod)[1] > one.old.incarnation
            and "deletionTimestamp" not in pod["metadata"]
            and ready(pod)
        ]
        if len(fresh) < len(one.old.pods):
            return
        if one.whole is None:
            one.whole = time.monotonic() - self.began.at
        leader = min(fresh, key=lambda pod: _label(pod, names.LABEL_STAGE))
        if not asked(self.site, leader):
            one.served = time.monotonic() - self.began.at


def asked(site: Site, leader: Json, prompts: int = _PROMPTS) -> list[str]:
    """What a leader says otherwise than the unsharded model to the first few prompts."""
    url = f"http://{leader['status']['podIP']}:{names.PORT_HTTP}{CHAT}"
    chosen = list(site.reference.items())[:prompts]
    found = [problem(url, MODEL, *item, ANSWER_TOKENS) for item in chosen]
    return [one for one in found if one]


def table(found: Sequence[Timing]) -> list[str]:
    """Lines of a Markdown table: the medians of each kind of break, and the longest of `served`."""
    kinds: dict[tuple[str, str], list[Timing]] = {}
    for one in found:
        kinds.setdefault((one.what, one.stage), []).append(one)
    if not kinds:
        return []
    lines = [
        "| broken | pod | times | reason | told | nothing old runs | Ready | serves | at most |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (what, stage), same in kinds.items():
        reasons = ", ".join(f"`{reason}`" for reason in sorted({one.reason for one in same}))
        times = [
            _median([getattr(one, name) for one in same])
            for name in ("noticed", "gone", "whole", "served")
        ]
        longest = max(one.served for one in same)
        cells = [what, stage, str(len(same)), reasons, *times, f"{longest:.1f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} s"


def _slot(pod: Mapping[str, Any]) -> tuple[int, int]:
    return _label(pod, names.LABEL_REPLICA), _label(pod, names.LABEL_INCARNATION)


def _label(pod: Mapping[str, Any], name: str) -> int:
    return int(pod["metadata"]["labels"][name])
