"""A namespace in which live changes are made, and what each of them costs."""

from __future__ import annotations

from dataclasses import dataclass

from tests.real.site import SPEC, Asked, Site
from tests.support import costs
from tests.support.kube import Json, merged
from tests.support.watcher import Mark, Watcher

from shardwright.runner.contract import ENV_REQUEST, ServeRequest, decode

STAGES = 2
SECONDS = 240.0
# A candidate beside the one that serves, which goes when its last request is done.
SURGE: Json = {"rollout": {"maxSurge": 1, "maxUnavailable": 0, "drainTimeoutSeconds": 10}}
# What each row of the table costs one replica of two stages.
ROLL = {"pods taken down": STAGES, "pods made": STAGES}
PROOF = {"candidates": 1, "revisions": 1, **ROLL}


@dataclass(frozen=True, slots=True)
class Live:
    """A namespace with the model, and everything that happens in it."""

    site: Site
    watcher: Watcher

    def create(self, name: str, change: Json) -> Mark:
        """Create a deployment of two ranks on each of two stages; when."""
        split = {"parallelism": {"tensor": 2, "pipeline": STAGES}}
        spec = merged(merged(SPEC, split), change)
        if "engine" in change:
            # A null must reach the base that it is merged into.
            spec["engine"] = {**spec["engine"], **change["engine"]}
        mark = self.watcher.mark()
        self.site.kube.create(name, spec)
        return mark

    def settled(self, name: str, pods: int = STAGES) -> None:
        costs.settle(self.site.kube, self.watcher, name, pods, SECONDS)

    def cost(self, mark: Mark, name: str) -> dict[str, int]:
        return costs.counted(self.watcher, mark, name)

    def uids(self, name: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.site.kube.pods(name)}

    def leader(self, name: str) -> Json:
        (leader,) = self.site.leaders(name)
        return leader

    def containers(self, name: str) -> set[tuple[str, int]]:
        """Containers of a deployment's pods, and how often each was started anew."""
        return {
            (one["containerID"], one["restartCount"])
            for pod in self.site.kube.pods(name)
            for one in pod["status"]["containerStatuses"]
        }

    def roll(self, name: str, change: Json, pods: int = STAGES) -> dict[str, int]:
        """Edit it, and wait until no pod of before is left and nothing moves; what that cost."""
        old, mark = self.uids(name), self.watcher.mark()
        self.site.kube.edit(name, change)
        self.site.kube.wait(
            "no pod of before",
            lambda: (
                not old & {pod["metadata"]["uid"] for pod in self.site.kube.pods(name, live=False)}
            ),
            SECONDS,
        )
        self.settled(name, pods)
        return self.cost(mark, name)


def failed(asked: list[Asked]) -> list[str]:
    assert any(not one.problem for one in asked)
    return [one.problem for one in asked if one.problem]


def request(pod: Json) -> ServeRequest:
    """What a serving pod was asked to do."""
    (container,) = pod["spec"]["containers"]
    (text,) = [one["value"] for one in container["env"] if one["name"] == ENV_REQUEST]
    return decode(ServeRequest, text)
