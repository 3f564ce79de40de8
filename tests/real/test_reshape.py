"""Another split on the live object, under the requests of a client that never stops."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest
from tests.real.site import READY_SECONDS, Asked, Site, noted
from tests.support.kube import Json
from tests.support.operator import Operator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME = "tiny"
# The status is looked at this often; what it says is older than what is seen of it.
LOOK_SECONDS = 0.1


@dataclass
class Told:
    """What status said while it was watched: Unix time and the object, whenever it changed."""

    said: list[tuple[float, Json]] = field(default_factory=list)

    def first(self, what: str, since: float = 0.0) -> float:
        """When status first said Ready with a status or a reason, of the newest generation."""
        generation = self.said[-1][1]["metadata"]["generation"]
        for at, found in self.said:
            status = found.get("status", {})
            ready = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
            if at < since or status.get("observedGeneration") != generation:
                continue
            if what in (ready.get("reason"), f"Ready={ready.get('status')}"):
                return at
        raise AssertionError(f"status never said {what}")


@contextmanager
def watched(site: Site) -> Iterator[Told]:
    """Note every status of the deployment, that of the end too."""
    told, over = Told(), threading.Event()

    def note() -> None:
        found = site.kube.get(NAME)
        if not told.said or told.said[-1][1] != found:
            told.said.append((time.time(), found))

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            note()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()
    note()


def moved(site: Site, old: set[str], seconds: float = READY_SECONDS) -> None:
    """Wait until no pod of `old` is left and the deployment is Ready."""
    site.kube.wait(
        "no old pod",
        lambda: not old & {pod["metadata"]["uid"] for pod in site.kube.pods(NAME, live=False)},
        seconds,
    )
    site.ready(NAME)


def uids(site: Site) -> set[str]:
    return {pod["metadata"]["uid"] for pod in site.kube.pods(NAME)}


def working_hours(site: Site, step: str) -> tuple[float, float]:
    """When the last Job of a step began and ended, in whole seconds of Unix time."""
    jobs = [
        job["status"]
        for job in site.kube.jobs()
        if job["metadata"]["labels"]["shardwright.dev/step"] == step
    ]
    last = max(jobs, key=lambda status: str(status["startTime"]))
    began, ended = (
        datetime.fromisoformat(last[name]).timestamp() for name in ("startTime", "completionTime")
    )
    return began, ended


def came(asked: list[Asked], since: float, until: float) -> int:
    """Answers that came between two whole seconds, both of them included."""
    return sum(since <= one.ended < until + 1 for one in asked if not one.problem)


def answered(asked: list[Asked], since: float, until: float) -> int:
    return sum(since <= one.began and one.ended <= until for one in asked if not one.problem)


def test_another_split_is_built_proven_and_takes_over_without_a_failed_request(
    running: Operator, site: Site, tmp_path: Path
) -> None:
    rollout = {"maxSurge": 1, "maxUnavailable": 0, "drainTimeoutSeconds": 10}
    site.create(NAME, 2, 2, rollout=rollout)
    site.ready(NAME)
    old = uids(site)
    with site.clients(NAME, tmp_path) as asked:
        site.kube.edit(NAME, {"parallelism": {"tensor": 4, "pipeline": 1}})
        moved(site, old)
    assert [one.problem for one in asked if one.problem] == []
    # While the next engine was made the old group was not only there, it answered.
    for step in ("checkpoint", "engine"):
        assert came(asked, *working_hours(site, step)) > 0
    assert site.kube.get(NAME)["status"]["engine"]["serving"]["builtFor"]["tensor"] == "4"
    (leader,) = site.leaders(NAME)
    assert len(site.ranks(leader)) == 4
    assert site.wrong_answers(leader) == []

    # Back, without surge: both engines are there and proven, so the old group goes first.
    old = uids(site)
    back = {
        "parallelism": {"tensor": 2, "pipeline": 2},
        "rollout": {"maxSurge": 0, "maxUnavailable": 1},
    }
    with watched(site) as told, site.clients(NAME, tmp_path) as asked:
        site.kube.edit(NAME, back)
        moved(site, old)
        since = time.time()
        # Whoever called in the gap may wait for its own deadline first.
        site.kube.wait(
            "an answer of the new group",
            lambda: answered(noted(tmp_path), since, time.time()),
            READY_SECONDS,
        )
    announced = told.first("RollingOut")
    told.first("Ready=True", since=announced)
    # kube-proxy on the clients' node hears of the new group a moment after status has told.
    back = min(one.ended for one in asked if one.began >= since and not one.problem)
    failed = [one for one in asked if one.problem]
    early = [one for one in failed if one.ended < announced]
    late = [one for one in failed if one.began > back]
    assert (early, late) == ([], [])
    (leader,) = site.leaders(NAME)
    assert [row["stage"] for row in site.ranks(leader)] == [0, 0, 1, 1]
    assert site.wrong_answers(leader) == []
