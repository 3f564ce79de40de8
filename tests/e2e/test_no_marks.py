"""A user's object stays the user's: the operator writes its status and nothing else of it.

A finalizer would hold a namespace up when the operator is gone; an annotation, or a default written
back, would be drift to Argo CD and Flux for ever.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.kube import BASE, GROUP, PLURAL, VERSION, Json, Kube, merged
from tests.support.operator import PATIENT, Operator
from tests.support.watcher import Watcher, watching

from shardwright_sandbox.clients import kubectl
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.player.control import PlayerControl
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.rest import CONFLICT, Rest, RestError, rest_of

pytestmark = pytest.mark.e2e

# No deadline is tested here: none may pass on a slow machine, and be counted as a restart.
OPERATOR = PATIENT

PATIENCE = 120.0
NAME = "llama"
_SMALL: Json = {"parallelism": {"tensor": 2, "pipeline": 2}, "rollout": {"maxSurge": 1}}
_LABELS = {"example.com/team": "search"}
_ANNOTATIONS = {"example.com/owner": "search"}


class Repository:
    """One manifest as a GitOps tool holds it: applied by the server, compared by the server."""

    def __init__(self, sandbox: Sandbox, folder: Path, kube: Kube) -> None:
        self._program = kubectl(Progress(quiet=True))
        self._kubeconfig = sandbox.kubeconfig
        self._folder = folder
        self._kube = kube
        self.spec: Json = {}

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._program), f"--kubeconfig={self._kubeconfig}", *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    @property
    def _file(self) -> Path:
        return self._folder / "llama.yaml"

    def apply(self, spec: Json) -> None:
        """Commit a spec and have it applied; a conflict with another manager fails."""
        self.spec = spec
        manifest = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "LLMDeployment",
            "metadata": {
                "name": NAME,
                "namespace": self._kube.namespace,
                "labels": _LABELS,
                "annotations": _ANNOTATIONS,
            },
            "spec": spec,
        }
        self._file.write_text(yaml.safe_dump(manifest), encoding="utf-8")
        done = self._run("apply", "--server-side", "--field-manager=gitops", "-f", str(self._file))
        assert done.returncode == 0, done.stderr

    def difference(self) -> str:
        """What applying it again would change: empty when nothing.

        kubectl reads the object twice, as it is and as it would be: of two states of it a write of
        status in between is no difference to the file.
        """

        def compared() -> tuple[str] | None:
            version = self._version()
            found = self._compared()
            return (found,) if self._version() == version else None

        (found,) = self._kube.wait("a comparison of one state", compared)
        return str(found)

    def _version(self) -> str:
        return str(self._kube.get(NAME)["metadata"]["resourceVersion"])

    def _compared(self) -> str:
        done = self._run("diff", "--server-side", "--field-manager=gitops", "-f", str(self._file))
        # 0: no difference, 1: a difference, more: it could not be told.
        assert done.returncode in (0, 1), done.stderr
        return done.stdout if done.returncode else ""


@pytest.fixture
def repository(sandbox: Sandbox, tmp_path: Path, kube: Kube) -> Repository:
    return Repository(sandbox, tmp_path, kube)


@pytest.fixture
def watcher(kube: Kube) -> Iterator[Watcher]:
    with watching(kube.api, kube.namespace) as found:
        yield found


def _marks(item: Json) -> list[str]:
    """Everything about an LLMDeployment that only we could have put there, outside its status."""
    metadata = item["metadata"]
    found = [f"finalizer {name}" for name in metadata.get("finalizers", [])]
    found += [f"owner {owner}" for owner in metadata.get("ownerReferences", [])]
    found += [
        f"annotation {name}" for name in metadata.get("annotations", {}) if name not in _ANNOTATIONS
    ]
    found += [f"label {name}" for name in metadata.get("labels", {}) if name not in _LABELS]
    return found


def _foreign_fields(item: Json) -> list[str]:
    """Fields outside status that a manager of ours owns, and status owned by another."""
    found = []
    for entry in item["metadata"]["managedFields"]:
        fields = sorted(entry["fieldsV1"])
        ours = str(entry["manager"]).startswith("shardwright")
        if ours and (fields != ["f:status"] or entry.get("subresource") != "status"):
            found.append(f"{entry['manager']} owns {fields}")
        if not ours and "f:status" in fields:
            found.append(f"{entry['manager']} owns status")
    return found


def test_a_full_life_leaves_no_mark_on_the_object_and_no_difference_to_its_file(
    running: Operator,
    kube: Kube,
    h100s: list[str],
    player: PlayerControl,
    watcher: Watcher,
    repository: Repository,
) -> None:
    base = merged(BASE, _SMALL)

    def settled() -> None:
        kube.wait_ready(NAME, PATIENCE)
        watcher.wait_quiet(0.5, PATIENCE)

    def created() -> None:
        repository.apply(base)
        settled()

    def rebuilt() -> None:
        repository.apply(merged(base, {"parallelism": {"tensor": 4}}))
        settled()

    def scaled() -> None:
        repository.apply(merged(repository.spec, {"replicas": 2}))
        settled()

    def broken_and_replaced() -> None:
        victim = kube.pods(NAME)[0]["metadata"]
        kube.core.delete_namespaced_pod(victim["name"], kube.namespace, grace_period_seconds=0)
        pods, _ = kube.wait_replaced(NAME, {victim["uid"]}, PATIENCE)
        assert len(pods) == 4
        settled()

    def build_failed() -> None:
        player.fail_step("engine")
        limits = {"engine": {"limits": {"maxBatchSize": 32}}}
        repository.apply(merged(repository.spec, limits))
        kube.wait_reason(NAME, "Stalled", "ToolFailed", PATIENCE)

    def refused() -> None:
        repository.apply(merged(repository.spec, {"parallelism": {"tensor": 16, "pipeline": 1}}))
        kube.wait_reason(NAME, "Accepted", "TensorParallelExceedsNVLinkDomain", PATIENCE)

    def reverted() -> None:
        repository.apply(base)
        settled()

    life: list[Callable[[], None]] = [
        created,
        rebuilt,
        scaled,
        broken_and_replaced,
        build_failed,
        refused,
        reverted,
    ]
    for event in life:
        event()
        assert repository.difference() == "", event.__name__
        assert _foreign_fields(kube.get(NAME)) == [], event.__name__

    states = watcher.objects(NAME)
    assert len(states) > len(life)
    assert [mark for state in states for mark in _marks(state)] == []
    assert [field for state in states for field in _foreign_fields(state)] == []
    managers = {entry["manager"] for entry in states[-1]["metadata"]["managedFields"]}
    assert managers == {"gitops", "shardwright-status"}


def test_nothing_holds_the_object_up_when_it_is_deleted_without_an_operator(
    running: Operator, kube: Kube, h100s: list[str]
) -> None:
    kube.create(NAME, _SMALL)
    kube.wait_ready(NAME, PATIENCE)
    assert running.stop() == 0
    try:
        kube.delete(NAME)

        def gone() -> bool:
            path = f"/apis/{GROUP}/{VERSION}/namespaces/{kube.namespace}/{PLURAL}"
            return not kube.raw(path)["items"] and not kube.pods(NAME, live=False)

        kube.wait("the object and its pods gone", gone, PATIENCE)
    finally:
        running.start().wait()


def _scale(rest: Rest, path: str, replicas: int) -> None:
    """As the HorizontalPodAutoscaler does it: an update of /scale, anew after a conflict."""
    while True:
        scale = rest.get(f"{path}/scale")
        scale["spec"]["replicas"] = replicas
        try:
            rest.call("PUT", f"{path}/scale?fieldManager=autoscaler", scale)
        except RestError as error:
            # The operator has written status in between.
            if error.status != CONFLICT:
                raise
        else:
            return


def _apply(rest: Rest, path: str, replicas: int) -> None:
    """By server-side apply of the one field (of /scale the server has none for custom kinds)."""
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "LLMDeployment",
        "spec": {"replicas": replicas},
    }
    rest.patch(f"{path}?fieldManager=autoscaler", body, "application/apply-patch+yaml")


@pytest.mark.parametrize("scale_to", [_scale, _apply])
def test_a_scale_by_an_autoscaler_is_left_alone_and_conflicts_with_nobody(
    scale_to: Callable[[Rest, str, int], None],
    running: Operator,
    kube: Kube,
    h100s: list[str],
    watcher: Watcher,
    repository: Repository,
) -> None:
    # As one writes it for an autoscaler: the file leaves replicas out.
    base = {name: value for name, value in merged(BASE, _SMALL).items() if name != "replicas"}
    repository.apply(base)
    kube.wait_ready(NAME, PATIENCE)

    path = f"/apis/{GROUP}/{VERSION}/namespaces/{kube.namespace}/{PLURAL}/{NAME}"
    rest = rest_of(kube.api)
    scale = rest.get(f"{path}/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (1, 1)
    scale_to(rest, path, 3)
    mark = watcher.mark()
    kube.wait_ready(NAME, PATIENCE)

    scale = rest.get(f"{path}/scale")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    selected = kube.raw(
        f"/api/v1/namespaces/{kube.namespace}/pods", labelSelector=scale["status"]["selector"]
    )["items"]
    # One pod a replica: the leaders, so that a metric per pod is one per replica.
    assert len(selected) == 3
    assert repository.difference() == ""

    repository.apply(merged(base, {"pod": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}}))
    kube.wait_ready(NAME, PATIENCE)
    watcher.wait_quiet(1.0, PATIENCE)
    assert repository.difference() == ""
    assert {state["spec"]["replicas"] for state in watcher.objects_since(mark, NAME)} == {3}
    owners = {
        entry["manager"]
        for entry in kube.get(NAME)["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }
    # The server notes no manager of an update of /scale; nobody else may be noted in any case.
    assert owners == ({"autoscaler"} if scale_to is _apply else set())
    assert len(kube.pods(NAME)) == 6
