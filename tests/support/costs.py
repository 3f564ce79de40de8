"""What an edit of a live object costs, by the columns of the artifact table (docs/artifacts.md)."""

from __future__ import annotations

from tests.support.kube import Kube, ready
from tests.support.watcher import PREFIX, Mark, Watcher

# Nothing changes for so long: what an edit causes is over.
QUIET_SECONDS = 0.8


def settle(kube: Kube, watcher: Watcher, name: str, pods: int, seconds: float) -> None:
    """Wait until it is Ready with so many pods, all of one revision, and nothing moves any more."""
    kube.wait_ready(name, seconds)

    def whole() -> bool:
        found = kube.pods(name, live=False)
        revisions = {pod["metadata"]["labels"][f"{PREFIX}revision"] for pod in found}
        alive = all("deletionTimestamp" not in pod["metadata"] for pod in found)
        return (
            len(found) == pods
            and len(revisions) == 1
            and alive
            and all(ready(pod) for pod in found)
        )

    kube.wait(f"{name} whole", whole, seconds)
    watcher.wait_quiet(QUIET_SECONDS, seconds)


def counted(watcher: Watcher, mark: Mark, name: str) -> dict[str, int]:
    """What has happened since, zeros left out: Jobs by step, candidates, pods, revisions.

    `fetch` is the step of models, and of what drafts.
    """
    jobs = watcher.jobs_since(mark)
    counts = {
        "fetch": jobs.pop("model", 0),
        "checkpoint": jobs.pop("checkpoint", 0),
        "engine": jobs.pop("engine", 0),
        **jobs,
        "candidates": watcher.candidates_since(mark, name),
        "pods taken down": len(watcher.left_since(mark, name)),
        "pods made": len(watcher.born_since(mark, name)),
        "revisions": len(watcher.revisions_since(mark)),
    }
    return {what: count for what, count in counts.items() if count}
