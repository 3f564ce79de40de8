"""Another operator takes over: a newer one with other settings, or one that stood by."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.kube import Kube
from tests.support.operator import PATIENT, SETTINGS, Operator
from tests.support.watcher import watching

from shardwright_sandbox.rest import Json, rest_of

pytestmark = pytest.mark.e2e

NAME = "llama"
PREFIX = "shardwright.dev/"
NEW_VERSION = "9.9.9"
# An operator of another version: every label set of its objects has one more.
PATCH = f"""
import shardwright.render.common as common

before = common.labels


def labels(*args, **kwargs):
    return {{**before(*args, **kwargs), "app.kubernetes.io/version": "{NEW_VERSION}"}}


common.labels = labels
"""
NEW_SETTINGS: Json = {
    "operatorImage": "registry.example.com/shardwright/operator:9.9.9",
    "images": {
        f"TensorRTLLM/{version}": "registry.example.com/trtllm:new"
        for version in ("1.2.0", "1.2.1")
    },
    "levels": ["example.com/row", "example.com/rack"],
    "stepResources": {"cpu": "4", "memory": "32Gi"},
    "fetchResources": {"cpu": "1", "memory": "2Gi"},
    "nvlinkIslands": {"NVIDIA-A100-SXM4-80GB": 4},
    "nodePools": [{"name": "more", "product": "NVIDIA-H200", "gpusPerNode": 8, "maxNodes": 4}],
    # The profile of everyone who names none.
    "fabricProfiles": {"": {"env": {"NCCL_IB_HCA": "mlx5"}, "annotations": {"example.com/a": "b"}}},
}

MakeOperator = Callable[..., Operator]


def lease(seconds: int = 60) -> Json:
    """A Lease of the test's own."""
    return {
        "name": f"shardwright-{uuid.uuid4().hex[:8]}",
        "durationSeconds": seconds,
        "renewSeconds": seconds * 2 // 3,
    }


def everything(kube: Kube) -> dict[str, dict[str, Any]]:
    """Name to uid and spec of all that an upgrade must leave alone."""
    space = f"namespaces/{kube.namespace}"
    paths = {
        "pod": f"/api/v1/{space}/pods",
        "job": f"/apis/batch/v1/{space}/jobs",
        "revision": f"/apis/apps/v1/{space}/controllerrevisions",
        "service": f"/api/v1/{space}/services",
        "budget": f"/apis/policy/v1/{space}/poddisruptionbudgets",
    }
    return {
        kind: {
            item["metadata"]["name"]: (
                item["metadata"]["uid"],
                item.get("spec"),
                item.get("data"),
                item.get("revision"),
            )
            for item in kube.raw(path)["items"]
        }
        for kind, path in paths.items()
    }


def image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])


def test_an_operator_upgrade_replaces_no_pod_and_makes_no_revision_and_no_job(
    make_operator: MakeOperator,
    kube: Kube,
    h100s: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = lease()
    old = make_operator(lease=own, **PATIENT).start()
    old.wait()
    kube.create(NAME, {"replicas": 2})
    kube.wait_ready(NAME)
    assert old.stop() == 0

    (tmp_path / "sitecustomize.py").write_text(PATCH, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with watching(kube.api, kube.namespace) as watcher:
        # What the old one has ordered is carried out by others: they may be at it still.
        watcher.wait_quiet(2)
        before = everything(kube)
        pods = kube.pods(NAME)
        mark = watcher.mark()
        new = make_operator(lease=own, **PATIENT, **NEW_SETTINGS).start()
        new.wait()
        kube.wait(
            "the new operator has gone over the deployment",
            lambda: all(
                item["metadata"]["labels"].get("app.kubernetes.io/version") == NEW_VERSION
                for item in kube.raw(f"/api/v1/namespaces/{kube.namespace}/services")["items"]
            ),
        )
        watcher.wait_quiet(3)
        assert watcher.born_since(mark, NAME) == []
        assert watcher.left_since(mark, NAME) == []
        assert watcher.jobs_since(mark) == {}
        assert watcher.least_ready_since(mark, NAME) == 2
        assert everything(kube) == before
        assert kube.condition(NAME, "Ready")["status"] == "True"

        # What breaks comes back as it was, whatever the new operator would choose today.
        kube.core.delete_namespaced_pod(pods[0]["metadata"]["name"], kube.namespace)
        again, _ = kube.wait_replaced(NAME, {pods[0]["metadata"]["uid"]})
        assert len(again) == 4
        assert len(watcher.born_since(mark, NAME)) == 2
        assert {image(pod) for pod in again} == {image(pods[0])}
        assert watcher.revisions_since(mark) == []

        # An edit takes over what was resolved before, as far as the user did not change it.
        kube.edit(NAME, {"pod": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}})
        kube.wait_ready(NAME)
        assert watcher.jobs_since(mark) == {}
        assert watcher.candidates_since(mark, NAME) == 0
    rolled = kube.pods(NAME)
    assert {image(pod) for pod in rolled} == {image(pods[0])}
    variables = {item["name"] for pod in rolled for item in pod["spec"]["containers"][0]["env"]}
    assert "NCCL_DEBUG" in variables
    assert "NCCL_IB_HCA" not in variables
    assert new.stop() == 0
    assert old.errors() == new.errors() == []


# Fields that an older operator did not know; each has a default.
NEWER = (
    ("placement",),
    ("rollout",),
    ("quantization",),
    ("pod", "shmSize"),
    ("model", "trustRemoteCode"),
    ("engine", "limits", "gpuMemoryFraction"),
    ("engine", "build"),
)


def test_a_revision_of_an_older_operator_without_newer_fields_is_still_the_wish(
    make_operator: MakeOperator, kube: Kube, h100s: list[str]
) -> None:
    own = lease()
    first = make_operator(lease=own).start()
    first.wait()
    kube.create(NAME)
    kube.wait_ready(NAME)
    pods = {pod["metadata"]["uid"] for pod in kube.pods(NAME)}
    assert first.stop() == 0

    path = f"/apis/apps/v1/namespaces/{kube.namespace}/controllerrevisions"
    [stored] = kube.raw(path)["items"]
    name = stored["metadata"]["name"]
    for field in NEWER:
        node = stored["data"]["spec"]
        for part in field[:-1]:
            node = node[part]
        del node[field[-1]]
    for made in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        stored["metadata"].pop(made, None)
    # Its data cannot be changed in place.
    kube.apps.delete_namespaced_controller_revision(name, kube.namespace)
    kube.apps.create_namespaced_controller_revision(
        kube.namespace, {"apiVersion": "apps/v1", "kind": "ControllerRevision", **stored}
    )

    with watching(kube.api, kube.namespace) as watcher:
        mark = watcher.mark()
        second = make_operator(lease=own).start()
        second.wait()
        kube.edit(NAME, {"rollout": {"drainTimeoutSeconds": 61}})  # to be answered, and no more
        kube.wait_ready(NAME)
        watcher.wait_quiet(2)
        assert watcher.revisions_since(mark) == []
        assert watcher.jobs_since(mark) == {}
        assert watcher.born_since(mark, NAME) == []
    assert {pod["metadata"]["uid"] for pod in kube.pods(NAME)} == pods
    assert [item["metadata"]["name"] for item in kube.raw(path)["items"]] == [name]
    assert second.stop() == 0
    assert second.errors() == []


def stored(kube: Kube, own: Json) -> Json:
    """What a Lease says."""
    group = "/apis/coordination.k8s.io/v1"
    path = f"{group}/namespaces/{SETTINGS['namespace']}/leases/{own['name']}"
    found: Json = rest_of(kube.api).get(path)["spec"]
    return found


def moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def standing_by(kube: Kube, operator: Operator) -> None:
    """Until it waits for the Lease."""

    def up() -> bool:
        assert operator.alive
        return "probes and metrics served" in operator.log.read_text(encoding="utf-8")

    kube.wait("it comes up", up)


def test_of_two_operators_only_the_holder_acts_and_the_other_follows_at_once_or_in_time(
    make_operator: MakeOperator, kube: Kube, h100s: list[str]
) -> None:
    seconds = 30
    # Each writes how long it lasts while it holds it. The first one's outlasts every wait here.
    long = lease(3600)
    own = {**lease(seconds), "name": long["name"]}
    first = make_operator(lease=long).start()
    first.wait()
    second = make_operator(lease=own).start()
    standing_by(kube, second)
    kube.create(NAME)
    kube.wait_ready(NAME)
    assert not kube.wait_quietly(3, lambda: second.acts), "it holds no Lease, it does nothing"
    assert "reconcile" not in second.log.read_text(encoding="utf-8")

    # In order: the Lease is given back, nobody waits for it to expire.
    assert stored(kube, own)["leaseDurationSeconds"] == 3600
    assert first.stop() == 0
    second.wait()
    kube.edit(NAME, {"replicas": 2})
    kube.wait_ready(NAME)

    # Killed: the Lease has to expire.
    third = make_operator(lease=own).start()
    standing_by(kube, third)
    assert not kube.wait_quietly(2, lambda: third.acts)
    second.kill()
    last = stored(kube, own)
    assert last["leaseDurationSeconds"] == seconds
    kube.edit(NAME, {"replicas": 1})
    third.wait()
    taken = stored(kube, own)
    assert taken["holderIdentity"] not in ("", last["holderIdentity"])
    waited = moment(taken["acquireTime"]) - moment(last["renewTime"])
    assert waited.total_seconds() >= seconds, "it must not be taken from one that may live"
    kube.wait_ready(NAME)
    assert len(kube.pods(NAME)) == 2
    assert third.stop() == 0
    assert first.errors() == second.errors() == third.errors() == []
