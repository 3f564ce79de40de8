"""How the demo sees its deployment: samples, and what may be said about them.

Everything here is read from the API server, nothing from the operator's memory: the demo is a
witness, and its claims are checked on pods, records and Jobs, not only on status.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kubernetes import client
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardwright.api import names
from shardwright_sandbox.demo_states import State, States, state_of
from shardwright_sandbox.rest import MERGE_PATCH, Json, rest_of

NAMESPACE = "llm"
POLL_SECONDS = 0.15
STEPS = ("model", "checkpoint", "engine")
_PHASES = {
    "Fetching": "fetch",
    "Converting": "checkpoint",
    "Quantizing": "checkpoint",
    "Building": "build",
    "Proving": "prove",
    "RollingOut": "roll",
}
_STYLES = {
    "apply": "bold",
    "edit": "bold",
    "ready": "bold green",
    "refused": "bold red",
    "stalled": "bold red",
    "proven": "green",
}


class DemoError(Exception):
    """Something that the demo says it shows did not happen."""


@dataclass(frozen=True)
class Sample:
    """The deployment and its pods at one moment."""

    at: float
    version: int
    generation: int
    status: Json
    pods: tuple[Json, ...]

    def as_it_was(self, state: State) -> "Sample":
        """An earlier state of the deployment, beside the pods of now."""
        return replace(
            self, version=state.version, generation=state.generation, status=state.status
        )

    @property
    def current(self) -> bool:
        """Whether status is of this generation."""
        return bool(self.status.get("observedGeneration") == self.generation)

    def condition(self, kind: str) -> Json:
        """One condition, `{}` when there is none."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def is_true(self, kind: str) -> bool:
        """Whether a condition is True for this generation."""
        return self.current and self.condition(kind).get("status") == "True"

    @property
    def serving_key(self) -> str:
        """Key of the engine that status says serves."""
        serving = (self.status.get("engine") or {}).get("serving") or {}
        return str(serving.get("key", ""))

    @property
    def next(self) -> Json:
        """What status says of the engine that comes."""
        return (self.status.get("engine") or {}).get("next") or {}

    def endpoints(self) -> list[Json]:
        """Pods that the Service sends requests to: ready leaders with the serving label."""
        return [
            pod
            for pod in self.pods
            if names.LABEL_SERVING in pod["metadata"]["labels"]
            and "deletionTimestamp" not in pod["metadata"]
            and is_ready(pod)
        ]


def is_ready(pod: Json) -> bool:
    """Whether a pod is Ready."""
    return any(
        c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", [])
    )


def label(pod: Json, name: str) -> str:
    """One of our labels of an object, empty when it has none."""
    return str(pod["metadata"].get("labels", {}).get(name, ""))


class Screen:
    """Lines of `time  word  text`, wrapped under their own column whatever the width."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._began = time.monotonic()

    def title(self, text: str) -> None:
        """Begin a chapter."""
        self.console.print()
        self.console.rule(Text(text, style="bold"), align="left")

    def line(self, word: str, text: str) -> None:
        """Print one line."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=7, justify="right", style="dim", no_wrap=True)
        grid.add_column(width=10, no_wrap=True, style=_STYLES.get(word, "cyan"))
        grid.add_column(overflow="fold")
        grid.add_row(f"{time.monotonic() - self._began:.1f} s", word, Text(text))
        self.console.print(grid)


class Subject:
    """One LLMDeployment in the demo's namespace."""

    def __init__(self, api: client.ApiClient, name: str) -> None:
        self.name = name
        self._rest = rest_of(api)
        group = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
        self._collection, self._path = group, f"{group}/{name}"

    def create(self, body: Json) -> None:
        """Make it from a manifest."""
        self._rest.post(self._collection, body)

    def edit(self, spec: Json) -> None:
        """Merge a change into its spec, as `kubectl patch` does."""
        self._rest.patch(self._path, {"spec": spec}, MERGE_PATCH)

    def sample(self) -> Sample:
        """How it is now."""
        found = self._rest.get(self._path)
        query = f"{names.LABEL_DEPLOYMENT}={self.name},{names.LABEL_REPLICA}"
        pods = self._rest.get(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=query)
        state = state_of(found)
        return Sample(
            at=time.monotonic(),
            version=state.version,
            generation=state.generation,
            status=state.status,
            pods=tuple(pods["items"]),
        )

    def states(self) -> States:
        """Every state of it that is stored from when they are started."""
        return States(self._rest, self._collection)

    def metadata(self) -> Json:
        """Its metadata: whatever the operator might have left there."""
        found: Json = self._rest.get(self._path)["metadata"]
        return found

    def jobs(self) -> Counter[str]:
        """Step Jobs that were ever made in the namespace, by step."""
        items = self._rest.get(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")["items"]
        return Counter(label(job, names.LABEL_STEP) for job in items)

    def proofs(self) -> int:
        """Records of engines that were proven."""
        query = f"{names.LABEL_RECORD}=true,{names.LABEL_STEP}=proof"
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        items = self._rest.get(path, labelSelector=query)["items"]
        return sum(item["data"]["state"] == "Ready" for item in items)


@dataclass
class Chapter:
    """What one change led to, for the summary and for the checks."""

    what: str
    seconds: float = 0.0
    key: str = ""
    reason: str = ""
    built: Counter[str] = field(default_factory=Counter)
    candidates: int = 0
    least_ready: int | None = None
    looks: int = 0
    phases: list[str] = field(default_factory=list)
    refusal: str = ""

    @property
    def made(self) -> str:
        """Steps that ran, in words."""
        return ", ".join(step for step in STEPS if self.built[step]) or "nothing"


class Follower:
    """Follows a deployment until something is true, telling each turn once."""

    def __init__(self, screen: Screen, subject: Subject) -> None:
        self._screen = screen
        self._subject = subject
        self._told: set[tuple[str, ...]] = set()

    def follow(
        self,
        chapter: Chapter,
        done: Callable[[Sample], bool],
        *,
        limit: float,
        old: str = "",
        act: Callable[[], None],
        placed: Callable[[], None] | None = None,
    ) -> Sample:
        """Do `act`, then follow until `done`.

        Args:
            chapter: gets what was seen.
            done: when to stop.
            limit: seconds after which it has not happened.
            old: key of the engine that must go on serving until the next one is proven.
            act: the change that is followed.
            placed: called once, when the candidate has its nodes.

        Raises:
            DemoError: When time is up, or when the old engine stops serving too early.
        """
        self._told.clear()
        jobs, proofs = self._subject.jobs(), self._subject.proofs()
        before = self._subject.sample() if old else None
        serving = {label(pod, names.LABEL_REVISION) for pod in before.endpoints()} if before else ()
        states = self._subject.states()
        states.start()
        switched = not old
        began = time.monotonic()
        try:
            act()
            while True:
                sample = self._subject.sample()
                if old:
                    ready = len(sample.endpoints())
                    lowest = chapter.least_ready
                    chapter.least_ready = ready if lowest is None else min(lowest, ready)
                    if not switched:
                        switched = self._switch(sample, old, serving, proofs)
                # A turn that was over before this look has happened all the same.
                for state in states.until(sample.version):
                    if state.generation == sample.generation:
                        self._tell(chapter, sample.as_it_was(state))
                chapter.looks += 1
                if placed is not None and "place" in chapter.phases:
                    placed()
                    placed = None
                if done(sample):
                    break
                if sample.at - began > limit:
                    raise DemoError(
                        f"{chapter.what}: not done within {limit:.0f} s\n{told(sample)}"
                    )
                time.sleep(POLL_SECONDS)
        finally:
            states.stop()
        chapter.seconds = time.monotonic() - began
        chapter.key = sample.serving_key
        chapter.built = self._subject.jobs() - jobs
        chapter.candidates = self._subject.proofs() - proofs
        return sample

    def _switch(self, sample: Sample, old: str, serving: Iterable[str], proofs: int) -> bool:
        """Whether another engine serves now; if so its proof must be on record."""
        revisions = {label(pod, names.LABEL_REVISION) for pod in sample.endpoints()}
        if sample.serving_key == old and revisions <= set(serving):
            return False
        # The record is written before the label that lets requests in: it must be found now.
        if self._subject.proofs() <= proofs:
            raise DemoError(
                f"{sample.serving_key} serves without a proof on record, {old} should have\n"
                f"{told(sample)}"
            )
        return True

    def _tell(self, chapter: Chapter, sample: Sample) -> None:
        if not sample.current:
            return
        old = self._still(sample)
        if reason := sample.next.get("reason"):
            chapter.reason = reason
            self._once("why", f"{reason} → engine {sample.next['key']} is needed")
        # In the order in which they happen, also when one look sees several at once.
        for kind in ("ModelReady", "EngineReady"):
            self._tell_phase(chapter, sample.condition(kind), old)
        self._tell_places(chapter, sample)
        if sample.is_true("EngineReady") and "place" in chapter.phases:
            self._phase(chapter, "proven", f"{sample.condition('EngineReady')['message']}")
        self._tell_phase(chapter, sample.condition("Ready"), "")
        if sample.condition("Accepted").get("status") == "False":
            chapter.refusal = sample.condition("Accepted")["reason"]
        self._tell_ends(sample)

    def _tell_phase(self, chapter: Chapter, condition: Json, old: str) -> None:
        word = _PHASES.get(condition.get("reason", ""))
        if word == "prove":
            said = "one candidate replica loads it; no request reaches it"
        else:
            said = condition.get("message", "")
        if word is not None:
            self._phase(chapter, word, said + old)

    def _phase(self, chapter: Chapter, word: str, said: str) -> None:
        if word not in chapter.phases:
            chapter.phases.append(word)
            self._screen.line(word, said)

    def _tell_places(self, chapter: Chapter, sample: Sample) -> None:
        for group in sample.status.get("groups", []):
            seen = ("place", str(group["incarnation"]))
            if group["state"] != "Starting" or not group.get("nodes") or seen in self._told:
                continue
            self._told.add(seen)
            chapter.phases.append("place")
            role = "candidate" if group["role"] == "Candidate" else "replica"
            places = ", ".join(
                f"stage {stage} on {node}" for stage, node in enumerate(group["nodes"])
            )
            self._screen.line("place", f"{role} {group['index']}: {places}")

    def _tell_ends(self, sample: Sample) -> None:
        if sample.is_true("Stalled"):
            condition = sample.condition("Stalled")
            refused = sample.condition("Accepted").get("status") == "False"
            self._once(
                "refused" if refused else "stalled",
                f"{condition['reason']}: {condition['message']}",
            )
        elif sample.is_true("Ready"):
            self._once("ready", sample.condition("Ready")["message"])

    def _still(self, sample: Sample) -> str:
        ready = len(sample.endpoints())
        if not sample.serving_key or not ready:
            return ""
        return f" · {sample.serving_key} goes on serving, {ready} ready"

    def _once(self, word: str, text: str) -> None:
        if (word, text) not in self._told:
            self._told.add((word, text))
            self._screen.line(word, text)


def told(sample: Sample) -> str:
    """The moment in a few lines, for a failure."""
    lines = [
        f"  {c['type']}={c['status']} {c['reason']}: {c['message']}"
        for c in sample.status.get("conditions", [])
    ]
    lines += [
        f"  pod {pod['metadata']['name']} {pod['status'].get('phase')} on "
        f"{pod['spec'].get('nodeName', 'no node')} ready={is_ready(pod)}"
        for pod in sample.pods
    ]
    return "\n".join(lines)


def expect(truth: bool, what: str) -> None:  # noqa: FBT001 - a check
    """Fail the demo when something it says did not happen."""
    if not truth:
        raise DemoError(what)


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log file, empty when there is none."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def spread(sample: Sample, pipeline: int) -> None:
    """Fail unless each stage of the one replica is on a node of its own."""
    nodes = {
        label(pod, names.LABEL_STAGE): pod["spec"].get("nodeName")
        for pod in sample.pods
        if "deletionTimestamp" not in pod["metadata"]
    }
    expect(
        len(nodes) == pipeline and len(set(nodes.values())) == pipeline,
        f"{pipeline} stages should be on {pipeline} nodes, they are on {nodes}",
    )
