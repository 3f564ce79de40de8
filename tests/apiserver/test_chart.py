"""The chart on a real API server with real Helm: install, upgrade, leave, come back; its rights.

No kubelet runs the operator's pod here, so releases of the operator are not waited for; where a
test needs the operator's word on an LLMDeployment it writes the status itself.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import chart, rights
from tests.support.rights import CLUSTER, OWN, SERVED, VERBS, Right

from shardwright.api import names
from shardwright_sandbox import audit
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.config import SandboxConfig
from shardwright_sandbox.namespaces import make_namespace, remove_namespace
from shardwright_sandbox.rest import NOT_FOUND, Rest, RestError, rest_of

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(900)]

CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
LLMDEPLOYMENT: dict[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": "llama"},
    "spec": {
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"},
        "gpu": {"product": "NVIDIA-H100-80GB-HBM3"},
        "storage": {"claimName": "models"},
    },
}
CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "models"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "none",
        "resources": {"requests": {"storage": "1Ti"}},
    },
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A control plane of this module's own, at first without the CRD: the chart brings it."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("installs and removes a CRD: runs only on a control plane it has started")
    config = SandboxConfig(player=False, die_with_parent=True, audit=True)
    with Sandbox.start(tmp_path_factory.mktemp("chart"), config) as running:
        yield running


@dataclass(frozen=True)
class Cluster:
    """Helm, kubectl and plain requests on one control plane.

    `system` is the operator's namespace, which admits only restricted pods; `models` is a user's.
    """

    sandbox: Sandbox
    rest: Rest
    system: str
    models: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.sandbox.kubeconfig)}

    def helm(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self._run(chart.helm_program(), *arguments)

    def kubectl(
        self, *arguments: object, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self._run(chart.kubectl_program(), *arguments, stdin=stdin)

    def _run(self, *command: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            timeout=120,
        )

    def install(
        self, release: str = "shardwright", *options: str, **values: object
    ) -> subprocess.CompletedProcess[str]:
        """`helm upgrade --install` of the chart; values as `path__to=1`."""
        sets = [f"--set-json={key.replace('__', '.')}={json.dumps(v)}" for key, v in values.items()]
        return self.helm(
            "upgrade",
            "--install",
            release,
            chart.CHART,
            f"--namespace={self.system}",
            *sets,
            *options,
        )

    def get(self, path: str) -> dict[str, Any] | None:
        try:
            found = self.rest.get(path)
        except RestError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return dict(found)

    def apply(self, document: dict[str, Any]) -> None:
        done = self.kubectl(
            "apply",
            "--server-side",
            f"--namespace={self.models}",
            "-f",
            "-",
            stdin=json.dumps(document),
        )
        assert done.returncode == 0, done.stderr

    def write_status(self, status: dict[str, Any]) -> None:
        self.rest.patch(
            f"{self.llmdeployment}/status",
            {"status": status},
            "application/merge-patch+json",
        )

    @property
    def operator(self) -> str:
        """The operator's account, as `namespace:name`."""
        return f"{self.system}:shardwright"

    @property
    def llmdeployment(self) -> str:
        """Path of the one that the tests apply."""
        return f"/apis/{names.API_VERSION}/namespaces/{self.models}/{names.PLURAL}/llama"


@pytest.fixture
def cluster(own: Sandbox) -> Iterator[Cluster]:
    """Two empty namespaces, and afterwards no release and no CRD."""
    tag = uuid.uuid4().hex[:6]
    running = Cluster(own, rest_of(own.api), f"system-{tag}", f"models-{tag}")
    make_namespace(
        own.api, running.system, labels={"pod-security.kubernetes.io/enforce": "restricted"}
    )
    make_namespace(own.api, running.models)
    yield running
    for release in ("shardwright", "other"):
        running.helm("uninstall", release, f"--namespace={running.system}", "--ignore-not-found")
    if running.get(CRD) is not None:
        running.rest.delete(CRD)
        until(lambda: running.get(CRD) is None, "the CRD to go")
    for namespace in (running.system, running.models):
        remove_namespace(own.api, namespace)


def until(done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def established(cluster: Cluster) -> bool:
    crd = cluster.get(CRD) or {}
    # null for a moment, before the controller writes them
    conditions = crd.get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def served(cluster: Cluster) -> bool:
    """Whether clients find the kind: discovery tells of it a moment after it is established."""
    command = ("get", f"{names.PLURAL}.{names.GROUP}", f"--namespace={cluster.models}")
    return established(cluster) and cluster.kubectl(*command).returncode == 0


def succeeded(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


# --- the life of a release


def test_a_release_is_upgraded_and_leaves_and_comes_back_and_the_models_stay(
    cluster: Cluster,
) -> None:
    succeeded(cluster.install())
    until(lambda: served(cluster), "the CRD")
    cluster.apply(CLAIM)
    cluster.apply(LLMDEPLOYMENT)
    before = cluster.get(cluster.llmdeployment)

    def operator() -> dict[str, Any] | None:
        return cluster.get(f"/apis/apps/v1/namespaces/{cluster.system}/deployments/shardwright")

    succeeded(cluster.install(image__tag="0.1.1", podLabels={"team": "platform"}))
    upgraded = operator()
    assert upgraded is not None
    pod = upgraded["spec"]["template"]
    assert pod["spec"]["containers"][0]["image"].endswith(":0.1.1")
    assert pod["metadata"]["labels"]["team"] == "platform"
    assert cluster.get(cluster.llmdeployment) == before, "an upgrade touches no LLMDeployment"

    succeeded(cluster.helm("uninstall", "shardwright", f"--namespace={cluster.system}"))
    until(lambda: operator() is None, "the operator to go")
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/shardwright"
    assert cluster.get(role) is None
    assert established(cluster)
    assert cluster.get(cluster.llmdeployment) == before
    assert (
        cluster.get(f"/api/v1/namespaces/{cluster.models}/persistentvolumeclaims/models")
        is not None
    )

    succeeded(cluster.install())
    assert cluster.get(cluster.llmdeployment) == before


def test_an_upgrade_brings_the_new_crd(cluster: Cluster) -> None:
    """What a chart's crds/ folder would not do."""
    succeeded(cluster.install())
    until(lambda: served(cluster), "the CRD")
    older = cluster.get(CRD)
    assert older is not None
    older["spec"]["names"]["shortNames"] = []
    version = older["spec"]["versions"][0]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["placement"]
    cluster.rest.patch(CRD, {"spec": older["spec"]}, "application/merge-patch+json")

    succeeded(cluster.install("shardwright", "--force-conflicts", image__tag="0.1.1"))
    newer = cluster.get(CRD)
    assert newer is not None
    assert newer["spec"]["names"]["shortNames"] == [names.SHORT_NAME]
    schema = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "placement" in schema["properties"]["spec"]["properties"]


def test_a_kept_crd_is_handed_over_to_another_release_only_when_asked(cluster: Cluster) -> None:
    succeeded(cluster.install())
    until(lambda: served(cluster), "the CRD")
    cluster.apply(LLMDEPLOYMENT)
    succeeded(cluster.helm("uninstall", "shardwright", f"--namespace={cluster.system}"))

    refused = cluster.install("other")
    assert refused.returncode != 0
    assert "invalid ownership metadata" in refused.stderr
    succeeded(cluster.install("other", "--take-ownership"))
    crd = cluster.get(CRD)
    assert crd is not None
    assert crd["metadata"]["annotations"]["meta.helm.sh/release-name"] == "other"
    assert cluster.get(cluster.llmdeployment) is not None


def test_a_crd_that_was_applied_by_hand_is_taken_over_when_asked(cluster: Cluster) -> None:
    done = cluster.kubectl(
        "apply", "--server-side", "-f", chart.ROOT / "crds" / "llmdeployments.yaml"
    )
    succeeded(done)
    until(lambda: served(cluster), "the CRD")
    assert "invalid ownership metadata" in cluster.install().stderr
    succeeded(cluster.install("shardwright", "--take-ownership"))


def test_without_keep_the_crd_goes_with_the_release(cluster: Cluster) -> None:
    succeeded(cluster.install(crds__keep=False))
    until(lambda: served(cluster), "the CRD")
    succeeded(cluster.helm("uninstall", "shardwright", f"--namespace={cluster.system}"))
    until(lambda: cluster.get(CRD) is None, "the CRD to go")


def test_a_release_called_123_installs(cluster: Cluster) -> None:
    succeeded(cluster.install("123"))
    found = cluster.get(f"/api/v1/namespaces/{cluster.system}/services/shardwright-123-metrics")
    assert found is not None
    assert found["spec"]["selector"]["app.kubernetes.io/instance"] == "123"
    succeeded(cluster.helm("uninstall", "123", f"--namespace={cluster.system}"))


# --- Helm's --wait on a release that holds an LLMDeployment


@pytest.fixture
def models_chart(tmp_path: Path, cluster: Cluster) -> Path:
    """A chart of a user's, with one LLMDeployment; the CRD is there, the operator is not."""
    succeeded(cluster.install())
    until(lambda: served(cluster), "the CRD")
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: models\nversion: 0.1.0\n")
    (tmp_path / "templates" / "llama.yaml").write_text(yaml.safe_dump(LLMDEPLOYMENT))
    return tmp_path


def waiting(cluster: Cluster, folder: Path, timeout: str) -> subprocess.Popen[str]:
    command = [
        "install",
        "models",
        folder,
        f"--namespace={cluster.models}",
        "--wait",
        "--timeout",
        timeout,
    ]
    return subprocess.Popen(
        [str(word) for word in (chart.helm_program(), *command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=cluster.environment,
    )


def conditions(generation: int, *found: tuple[str, str, str, str]) -> dict[str, Any]:
    return {
        "observedGeneration": generation,
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "observedGeneration": generation,
                "lastTransitionTime": "2026-11-29T10:00:00Z",
            }
            for kind, status, reason, message in found
        ],
    }


def test_helm_does_not_call_an_object_ready_that_no_operator_has_seen(
    cluster: Cluster, models_chart: Path
) -> None:
    with waiting(cluster, models_chart, "20s") as helm:
        output, _ = helm.communicate(timeout=300)
    assert helm.returncode != 0
    assert "generation is 1, but latest observed generation is -1" in output
    assert "deadline exceeded" in output


def test_helm_waits_until_ready_is_true_for_this_generation(
    cluster: Cluster, models_chart: Path
) -> None:
    with waiting(cluster, models_chart, "300s") as helm:
        until(lambda: cluster.get(cluster.llmdeployment) is not None, "the object")
        building = conditions(
            1,
            ("Reconciling", "True", "Building", "Building the engine"),
            ("Ready", "False", "Building", "0 of 1 replicas are ready"),
        )
        cluster.write_status(building)
        time.sleep(2)
        assert helm.poll() is None, "Ready=False is no end"
        ready = conditions(1, ("Ready", "True", "AllReplicasReady", "1 of 1 replicas are ready"))
        cluster.write_status(ready)
        output, _ = helm.communicate(timeout=400)
    assert helm.returncode == 0, output
    assert "STATUS: deployed" in output


def test_helm_fails_fast_with_our_message_when_stalled(
    cluster: Cluster, models_chart: Path
) -> None:
    message = "FP8 needs compute capability 8.9; NVIDIA-A100-SXM4-80GB has 8.0"
    with waiting(cluster, models_chart, "300s") as helm:
        until(lambda: cluster.get(cluster.llmdeployment) is not None, "the object")
        stalled = conditions(
            1,
            ("Ready", "False", "PrecisionNotSupported", message),
            ("Stalled", "True", "PrecisionNotSupported", message),
        )
        cluster.write_status(stalled)
        output, _ = helm.communicate(timeout=400)
    assert helm.returncode != 0
    assert message in output
    assert "deadline exceeded" not in output, "it waited for its timeout"


# --- pod security


def rendered_pod() -> dict[str, Any]:
    template = chart.the(chart.objects(), "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template)}
    pod["metadata"]["name"] = "operator"
    pod["spec"].pop("serviceAccountName")
    return pod


def dry_run(cluster: Cluster, pod: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return cluster.kubectl(
        "create",
        "--dry-run=server",
        f"--namespace={cluster.system}",
        "-f",
        "-",
        stdin=json.dumps(pod),
    )


def test_the_operators_pod_is_admitted_where_only_restricted_pods_are(cluster: Cluster) -> None:
    succeeded(dry_run(cluster, rendered_pod()))
    loose = rendered_pod()
    loose["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    refused = dry_run(cluster, loose)
    assert 'violates PodSecurity "restricted' in refused.stderr


# --- rights


def can(cluster: Cluster, right: Right, namespaces: dict[str, str]) -> bool:
    """`kubectl auth can-i`; an empty namespace asks for the whole cluster."""
    plain, _, subresource = right.resource.partition("/")
    what = f"{plain}.{right.group}" if right.group else plain
    name, namespace = name_of(right), namespaces[right.scope]
    done = cluster.kubectl(
        *("auth", "can-i", right.verb, f"{what}/{name}" if name else what),
        *([f"--subresource={subresource}"] if subresource else []),
        *([f"--namespace={namespace}"] if namespace else ["--all-namespaces"]),
        f"--as=system:serviceaccount:{cluster.operator}",
    )
    answer = done.stdout.strip()
    assert answer in {"yes", "no"}, done.stderr
    return answer == "yes"


def reviewed(
    cluster: Cluster, right: Right, namespaces: dict[str, str], *, account: str = "", name: str = ""
) -> bool:
    """The same question without a program's start: for the many that must be denied."""
    plain, _, subresource = right.resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{account or cluster.operator}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "group": right.group,
                "resource": plain,
                "subresource": subresource,
                "verb": right.verb,
                "namespace": namespaces[right.scope],
                "name": name or name_of(right),
            },
        },
    }
    answer = cluster.rest.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def name_of(right: Right) -> str:
    if right.scope == OWN and right.verb != "create":
        return "shardwright"  # the Lease is called like the release
    return rights.NAMED.get(right.resource, "") if right.scope == CLUSTER else ""


DENIED = [
    Right(SERVED, group, resource, verb)
    for verb, resource, group in (
        ("update", "llmdeployments", names.GROUP),
        ("patch", "llmdeployments", names.GROUP),
        ("delete", "llmdeployments", names.GROUP),
        ("list", "secrets", ""),
        ("patch", "secrets", ""),
        ("delete", "secrets", ""),
        ("create", "pods/exec", ""),
        ("get", "pods/log", ""),
        ("create", "pods/eviction", ""),
        ("create", "pods/binding", ""),
        ("update", "pods", ""),
        ("patch", "nodes", ""),
        ("delete", "persistentvolumeclaims", ""),
        ("delete", "services", ""),
        ("create", "serviceaccounts/token", ""),
        ("patch", "customresourcedefinitions", "apiextensions.k8s.io"),
        ("list", "customresourcedefinitions", "apiextensions.k8s.io"),
        ("create", "clusterroles", "rbac.authorization.k8s.io"),
        ("create", "deployments", "apps"),
        ("update", "leases", "coordination.k8s.io"),
    )
]


def test_the_operator_can_do_what_it_does_everywhere_and_nothing_else(cluster: Cluster) -> None:
    succeeded(cluster.install())
    until(lambda: served(cluster), "the CRD")
    places = {CLUSTER: "", SERVED: "", OWN: cluster.system}
    assert [right for right in VERBS if not can(cluster, right, places)] == []
    for namespace in ("", cluster.models, cluster.system):
        there = {SERVED: namespace}
        assert [right for right in DENIED if reviewed(cluster, right, there)] == []
    renew = Right(OWN, "coordination.k8s.io", "leases", "update")
    assert reviewed(cluster, renew, places)
    assert not reviewed(cluster, renew, places, name="somebody-elses")


def test_with_watched_namespaces_the_operator_can_do_it_only_there(cluster: Cluster) -> None:
    succeeded(cluster.install(watchNamespaces=[cluster.models]))
    until(lambda: served(cluster), "the CRD")
    places = {CLUSTER: "", SERVED: cluster.models, OWN: cluster.system}
    assert [right for right in VERBS if not can(cluster, right, places)] == []
    elsewhere = {CLUSTER: "", SERVED: "default", OWN: "default"}
    assert [right for right in VERBS if reviewed(cluster, right, elsewhere)] == [
        right for right in VERBS if right.scope == CLUSTER
    ]


def test_users_with_the_clusters_own_roles_can_use_llmdeployments(cluster: Cluster) -> None:
    succeeded(cluster.install())
    until(lambda: served(cluster), "the CRD")
    verbs = {
        "view": {"get", "list", "watch"},
        "edit": {"get", "list", "watch", "create", "update", "patch", "delete"},
    }
    verbs["admin"] = verbs["edit"] | {"deletecollection"}
    for role in verbs:
        done = cluster.kubectl(
            *("create", "rolebinding", role, f"--clusterrole={role}"),
            *(f"--serviceaccount={cluster.models}:{role}", f"--namespace={cluster.models}"),
        )
        succeeded(done)

    def granted() -> dict[str, set[str]]:
        return {
            role: {
                verb
                for verb in verbs["admin"]
                if reviewed(
                    cluster,
                    Right(SERVED, names.GROUP, names.PLURAL, verb),
                    {SERVED: cluster.models},
                    account=f"{cluster.models}:{role}",
                )
            }
            for role in verbs
        }

    # the controller manager merges aggregated roles a moment later
    until(lambda: granted() == verbs, "the cluster's roles to take ours in")


# --- the operator itself, with these rights and these settings


def test_the_operator_judges_a_spec_under_its_own_service_account(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A real token, the rendered settings: whatever it lists, watches or writes must be granted."""
    succeeded(cluster.install(watchNamespaces=[cluster.models]))
    until(lambda: served(cluster), "the CRD")
    cluster.apply(CLAIM)
    settings = chart.settings(
        chart.objects({"watchNamespaces": [cluster.models]}, namespace=cluster.system)
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings | {"httpPort": 0}))
    kubeconfig = cluster.sandbox.kubeconfig_for_account(
        cluster.system, "shardwright", tmp_path / "kubeconfig"
    )
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "shardwright", "run", "--config", tmp_path / "config.yaml"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [str(word) for word in command], stdout=log, stderr=log, env=environment
        ) as operator,
    ):
        try:
            cluster.apply(LLMDEPLOYMENT)

            def judged() -> bool:
                assert operator.poll() is None, (tmp_path / "log").read_text()[-3000:]
                said = (tmp_path / "log").read_text()
                assert "forbidden" not in said.lower(), said[-3000:]
                status = (cluster.get(cluster.llmdeployment) or {}).get("status", {})
                return bool(status.get("observedGeneration") == 1 and status.get("conditions"))

            until(judged, "a verdict")
        finally:
            operator.terminate()
            operator.wait(timeout=120)
    found = cluster.get(cluster.llmdeployment)
    assert found is not None
    by_type = {one["type"]: one for one in found["status"]["conditions"]}
    assert by_type["Ready"]["status"] == "False"
    assert by_type["Accepted"]["status"] == "False", by_type  # no node has such a GPU
    layout = cluster.sandbox.layout
    assert layout is not None
    user = f"system:serviceaccount:{cluster.operator}"
    assert rights.beyond(audit.entries(layout.audit_log), user) == set()
    assert "annotations" not in found["metadata"]
    assert "finalizers" not in found["metadata"]
