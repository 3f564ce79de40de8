"""The operator's own image, installed from the chart on real nodes: it makes a model serve.

Nothing is pulled and nothing outside is reached: the image is put into the nodes' containerd as
`make image` writes it, and pods have no way out of the sandbox's network.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from hack import base, image
from tests.real.site import Site
from tests.support import from_inside, operator_image
from tests.support.kube import Json, Kube, ready
from tests.support.release import Release

from shardwright import __version__
from shardwright.api import names
from shardwright.runner.contract import MANIFEST, ROOT, STEP_MODEL
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.namespaces import make_namespace, remove_namespace
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.rest import MERGE_PATCH, rest_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
NAME = "tiny"


@pytest.fixture(scope="module")
def loaded(real_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of these sources on every node; its name."""
    folder = tmp_path_factory.mktemp("image") / "image"
    archive = operator_image.build(folder, Progress())
    nodes = real_sandbox.real_nodes().values()
    with ThreadPoolExecutor(len(nodes)) as workers:
        list(workers.map(lambda node: node.load_image(archive), nodes))
    return image.REFERENCE


@pytest.fixture(scope="module")
def release(real_sandbox: Sandbox, loaded: str) -> Iterator[Release]:
    """The chart, installed with its defaults where only restricted pods are let in."""
    namespace = f"system-{uuid.uuid4().hex[:6]}"
    make_namespace(real_sandbox.api, namespace, labels=RESTRICTED)
    values = yaml.safe_load((base.ROOT / "sandbox" / "chart-values.yaml").read_text())
    installed = Release(real_sandbox, namespace, values)
    # the sandbox has applied the CRD by hand
    installed.install("--take-ownership")
    assert installed.pod()["spec"]["containers"][0]["image"] == loaded
    yield installed
    installed.uninstall()
    remove_namespace(real_sandbox.api, namespace)


# --- the pod


@pytest.fixture(scope="module")
def inside(release: Release) -> Json:
    """What the operator's container looks like from inside."""
    told: Json = json.loads(release.python(Path(from_inside.__file__).read_text()))
    return told


def test_its_process_has_no_right_on_its_node(inside: Json) -> None:
    process = inside["process"]
    assert set(process["Uid"]) == set(process["Gid"]) == {str(base.UID)}
    for kind in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
        assert int(process[kind][0], 16) == 0, kind
    assert process["NoNewPrivs"] == ["1"]
    assert process["Seccomp"] == ["2"], "no filter of system calls"
    refusals = inside["refusals"]
    assert [folder for folder, words in refusals.items() if not words] == ["/tmp"]  # noqa: S108
    assert set(refusals.values()) == {"Read-only file system", ""}


def test_it_reaches_the_api_server_by_its_service_and_talks_to_nobody_else(inside: Json) -> None:
    assert inside["names"]["kubernetes.default.svc"] == inside["service"]
    assert inside["names"]["huggingface.co"] == "Name or service not known", "there is a way out"
    assert inside["peers"] == [f"{inside['service']}:443"]


def test_it_holds_its_lease_and_answers_probes_and_scrapes(
    release: Release, real_sandbox: Sandbox
) -> None:
    pod = release.pod()
    assert ready(pod)
    (container,) = pod["status"]["containerStatuses"]
    assert container["restartCount"] == 0
    path = f"/apis/coordination.k8s.io/v1/namespaces/{release.namespace}/leases/shardwright"
    holder = rest_of(real_sandbox.api).get(path)["spec"]["holderIdentity"]
    assert holder.startswith(f"{pod['metadata']['name']}_")
    # by its Service's address, as Prometheus would from a node
    service = release.get(f"/api/v1/namespaces/{release.namespace}/services/shardwright-metrics")
    address = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"
    for node in real_sandbox.real_nodes().values():
        for page in ("healthz", "readyz"):
            assert node.machine.run("curl", "--silent", "--fail", f"{address}/{page}") == "ok"
        metrics = node.machine.run("curl", "--silent", "--fail", f"{address}/metrics")
        assert "leader_election_master_status" in metrics
        assert "workqueue_depth" in metrics


# --- one end to end


def test_a_model_is_fetched_by_this_image_and_served_while_the_release_comes_and_goes(
    release: Release, site: Site, tmp_path: Path
) -> None:
    """Ranks of two stages on two nodes: the operator makes every kind of object that it can."""
    kube = site.kube
    rest_of(site.sandbox.api).patch(
        f"/api/v1/namespaces/{kube.namespace}", {"metadata": {"labels": RESTRICTED}}, MERGE_PATCH
    )
    site.create(NAME, tensor=2, pipeline=2)
    fetch = fetched(kube)
    assert fetch["status"]["containerStatuses"][0]["imageID"] == release.image_id()
    assert manifest(site, STEP_MODEL)["tools"] == {"shardwright": __version__}
    made = site.ready(NAME)
    pods = identities(kube)
    assert len(set(pods.values())) == 2
    (leader,) = site.leaders(NAME)
    assert site.wrong_answers(leader) == []

    with site.clients(NAME, tmp_path) as asked:
        # another operator, the same pods
        before = release.pod()
        release.install(podAnnotations={"example.com/upgraded": "yes"})
        after = release.pod()
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert identities(kube) == pods
        # no operator, the same pods
        release.uninstall()
        assert kube.get(NAME)["metadata"]["uid"] == made["metadata"]["uid"]
        assert identities(kube) == pods
    assert [one for one in asked if one.problem] == []

    # back again, it takes up what was asked for meanwhile
    kube.edit(NAME, {"replicas": 0})
    release.install()
    kube.wait_reason(NAME, "Ready", "ScaledToZero", 120)
    kube.wait("its replica gone", lambda: not kube.pods(NAME, live=False), 120)


def fetched(kube: Kube, seconds: float = 120) -> Json:
    """The pod of the fetch once it has ended well."""

    def ended() -> Json | None:
        found = kube.raw(
            f"/api/v1/namespaces/{kube.namespace}/pods",
            labelSelector=f"{names.LABEL_STEP}={STEP_MODEL}",
        )["items"]
        assert not [pod for pod in found if pod["status"]["phase"] == "Failed"], found
        return next((pod for pod in found if pod["status"]["phase"] == "Succeeded"), None)

    pod: Json = kube.wait("the model fetched", ended, seconds)
    return pod


def manifest(site: Site, step: str) -> Json:
    """What the artifact of a step says of itself; it is the only one."""
    (found,) = (
        content
        for path in (site.claim / ROOT).rglob(MANIFEST)
        if (content := json.loads(path.read_text()))["step"] == step
    )
    return dict(found)


def identities(kube: Kube) -> dict[str, str]:
    """The uid of every pod that serves, with its node; each must be ready."""
    pods = kube.pods(NAME)
    assert all(ready(pod) for pod in pods)
    return {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in pods}
