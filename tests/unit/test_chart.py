"""The chart: what it renders, what it refuses, and which rights it asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hack import sync_chart
from tests.golden import specs
from tests.support import chart, exposed, rights
from tests.support.rights import CLUSTER, OWN, SERVED, VERBS, Right

import shardwright
from shardwright.api.settings import Settings
from shardwright.apply.kinds import kind_of
from shardwright.control.watched import WATCHES
from shardwright.render.pods import group_pods
from shardwright.runner.measures import FAMILIES, METRICS_PATH, OWN_FAMILIES

KUBERNETES = "1.37"
# Their schemas are no part of Kubernetes.
FOREIGN_KINDS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}

POOL = {
    "name": "h100",
    "product": "NVIDIA-H100-80GB-HBM3",
    "gpusPerNode": 8,
    "maxNodes": 4,
    "nvlinkSize": 8,
    "computeCapability": "9.0",
    "memoryMib": 81559,
}
FABRIC = {
    "infiniband": {
        "resources": {"rdma/ib": "8"},
        "env": {"NCCL_IB_HCA": "mlx5"},
        "capabilities": ["IPC_LOCK"],
    }
}
MATRIX: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("shardwright", {}),
    "release-y": ("y", {}),
    "release-on": ("on", {}),
    "release-123": ("123", {}),
    "longest-release": ("a" * 53, {}),
    "watched-namespaces": ("shardwright", {"watchNamespaces": ["llm", "123"]}),
    "two-operators": (
        "shardwright",
        {"replicas": 2, "strategy": {"type": "RollingUpdate"}, "priorityClassName": "high"},
    ),
    "monitoring": (
        "y",
        {
            "serviceMonitor": {"enabled": True, "labels": {"release": "on"}},
            "podMonitor": {"enabled": True, "labels": {"release": "1"}},
            "dashboard": {"enabled": True},
            "prometheusRule": {"enabled": True, "labels": {"release": "1"}},
        },
    ),
    "pools-and-fabric": (
        "shardwright",
        {
            "settings": {
                "nodePools": [POOL],
                "fabric": {"kind": "RDMA", "gigabytesPerSecond": 50},
                "fabricProfiles": FABRIC,
                "images": {"TensorRTLLM/1.2.1": "registry.internal/trtllm:1.2.1"},
                "nvlinkIslands": {"NVIDIA-A100-PCIE-40GB": 2},
                "timeouts": {"trashGraceSeconds": 31536000, "restartBackoffSeconds": 0.5},
            }
        },
    ),
    "closed-in": (
        "shardwright",
        {
            "networkPolicy": {"enabled": True},
            "image": {"digest": "sha256:" + "0" * 64},
            "imagePullSecrets": [{"name": "mirror"}],
            "podLabels": {"team": "on", "cost": "0123"},
            "podAnnotations": {"flag": "true"},
            "nodeSelector": {"pool": "yes"},
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.internal:3128"}],
        },
    ),
    "brought-along": (
        "shardwright",
        {
            "serviceAccount": {"create": False, "name": "operator"},
            "rbac": {"create": False, "aggregate": False},
            "crds": {"enabled": False},
            "global": {"anything": {"parent": "charts share"}},
        },
    ),
}


@pytest.fixture(params=MATRIX, scope="module")
def rendered(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    release, values = MATRIX[request.param]
    return chart.objects(values, release)


# --- what it renders


def test_lint_finds_nothing() -> None:
    done = chart.run(chart.helm_program(), "lint", "--strict", chart.CHART)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_object_is_valid_for_kubernetes(rendered: list[dict[str, Any]]) -> None:
    for item in rendered:
        if item["kind"] not in FOREIGN_KINDS:
            kubernetes_validate.validate(item, KUBERNETES, strict=True)


def test_only_the_monitoring_switches_bring_foreign_kinds() -> None:
    kinds = {item["kind"] for item in chart.objects(MATRIX["monitoring"][1])}
    assert kinds >= FOREIGN_KINDS
    assert not {item["kind"] for item in chart.objects()} & FOREIGN_KINDS


@pytest.mark.parametrize("name", MATRIX)
def test_two_renderings_are_equal(name: str) -> None:
    """A GitOps controller renders at every look: randomness would be an endless change."""
    release, values = MATRIX[name]
    assert chart.template(values, release).stdout == chart.template(values, release).stdout


def _strings(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        yield from node.values()


def test_labels_and_annotations_are_text(rendered: list[dict[str, Any]]) -> None:
    """A release may be called y, on or 123, which YAML would read as something else."""
    for item in rendered:
        for metadata in _metadata(item):
            for value in (
                *_strings(metadata.get("labels")),
                *_strings(metadata.get("annotations")),
            ):
                assert isinstance(value, str), (item["kind"], metadata)
            assert isinstance(metadata.get("name", ""), str)


def _metadata(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield item["metadata"]
    if item["kind"] == "Deployment":
        yield item["spec"]["template"]["metadata"]
        yield {"labels": item["spec"]["selector"]["matchLabels"]}


def test_names_fit_even_the_longest_release(rendered: list[dict[str, Any]]) -> None:
    for item in rendered:
        assert len(item["metadata"]["name"]) <= 63
        if item["kind"] == "Service":
            assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", item["metadata"]["name"])


def test_services_and_budgets_select_the_operators_pods(rendered: list[dict[str, Any]]) -> None:
    labels = chart.the(rendered, "Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [item["spec"]["selector"] for item in chart.of_kind(rendered, "Service")]
    selectors += [
        item["spec"]["selector"]["matchLabels"]
        for kind in ("Deployment", "PodDisruptionBudget")
        for item in chart.of_kind(rendered, kind)
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()


def test_a_budget_exists_only_where_a_second_operator_can_take_over() -> None:
    assert not chart.of_kind(chart.objects(), "PodDisruptionBudget")
    budget = chart.the(chart.objects({"replicas": 2}), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_one_operator_is_replaced_and_not_doubled_by_an_upgrade() -> None:
    spec = chart.the(chart.objects(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_crd_is_the_generated_one_and_kept() -> None:
    crd = chart.the(chart.objects(), "CustomResourceDefinition")
    source = yaml.safe_load(sync_chart.CRD_SOURCE.read_text())
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["name"] == source["metadata"]["name"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert source["metadata"].get("labels", {}).items() <= crd["metadata"]["labels"].items()


def test_the_crd_goes_with_the_release_only_when_asked() -> None:
    crd = chart.the(chart.objects({"crds": {"keep": False}}), "CustomResourceDefinition")
    assert "annotations" not in crd["metadata"]


def test_a_digest_decides_the_image() -> None:
    digest = "sha256:" + "a" * 64
    rendered = chart.objects({"image": {"digest": digest}})
    image = chart.the(rendered, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"ghcr.io/shardwright/operator:{shardwright.__version__}@{digest}"
    assert chart.settings(rendered)["operatorImage"] == image


def test_versions_are_those_of_the_package() -> None:
    metadata = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert metadata["appVersion"] == shardwright.__version__
    assert metadata["kubeVersion"] == ">=1.30.0-0"


# --- the operator's pod


def test_the_pod_is_restricted(rendered: list[dict[str, Any]]) -> None:
    pod = chart.the(rendered, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]) == {"requests", "limits"}
    for forbidden in ("hostNetwork", "hostPID", "hostIPC", "initContainers"):
        assert forbidden not in pod


def test_the_pod_runs_the_operator_on_its_settings(rendered: list[dict[str, Any]]) -> None:
    pod = chart.the(rendered, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == [
        "python3", "-m", "shardwright", "run", "--config", "/etc/shardwright/config.yaml",
    ]  # fmt: skip
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"config": "/etc/shardwright", "tmp": "/tmp"}  # noqa: S108 - a mount in the pod
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    # kopf asks for the user's name; a uid without an entry in passwd has none
    assert environment["LOGNAME"] == "shardwright"
    assert environment["PYTHONSAFEPATH"] == "1"
    assert pod["terminationGracePeriodSeconds"] == 30
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
        assert (container[probe]["timeoutSeconds"], container[probe]["failureThreshold"]) == (5, 6)


def test_a_change_of_settings_restarts_the_operator_and_nothing_else_does() -> None:
    def checksum(values: dict[str, Any]) -> str:
        deployment = chart.the(chart.objects(values), "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({"settings": {"concurrency": 17}}) != checksum({})
    assert checksum({"service": {"port": 9090}}) == checksum({})


# --- the settings


def test_the_operator_reads_the_settings_that_the_chart_writes(
    rendered: list[dict[str, Any]],
) -> None:
    Settings.model_validate(chart.settings(rendered))


def test_settings_keep_their_values_on_the_way() -> None:
    release, values = MATRIX["pools-and-fabric"]
    parsed = Settings.model_validate(chart.settings(chart.objects(values, release)))
    (pool,) = parsed.node_pools
    assert pool.model_dump(by_alias=True) == POOL
    assert parsed.fabric_profiles["infiniband"].resources == {"rdma/ib": "8"}
    assert parsed.images == values["settings"]["images"]
    assert parsed.nvlink_islands == {"NVIDIA-A100-PCIE-40GB": 2}
    assert parsed.timeouts.trash_grace_seconds == 31536000
    assert parsed.timeouts.restart_backoff_seconds == 0.5


def test_settings_that_the_release_knows_are_filled_in() -> None:
    values = {"watchNamespaces": ["llm"]}
    parsed = Settings.model_validate(chart.settings(chart.objects(values, "y", "ops")))
    assert (parsed.namespace, parsed.watch_namespaces) == ("ops", ["llm"])
    assert (parsed.lease.name, parsed.http_port) == ("y-shardwright", 8080)


def test_values_name_every_setting_with_the_operators_own_default() -> None:
    values = yaml.safe_load((chart.CHART / "values.yaml").read_text())["settings"]
    expected = Settings().model_dump(by_alias=True, exclude={"lease": {"name"}})
    for name in sync_chart.OWNED_BY_CHART:
        del expected[name]
    assert values["lease"].pop("name") == ""
    assert values == expected


# --- what it refuses


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"image": {"tagg": "1"}}, "tagg"),
        ({"replicaCount": 2}, "replicaCount"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"digest": "sha256:short"}}, "digest"),
        ({"watchNamespaces": "llm"}, "watchNamespaces"),
        ({"watchNamespaces": ["Not_A_Name"]}, "watchNamespaces"),
        ({"settings": {"concurency": 1}}, "concurency"),
        ({"settings": {"concurrency": 0}}, "concurrency"),
        ({"settings": {"namespace": "elsewhere"}}, "namespace"),
        ({"settings": {"timeouts": {"bindSecond": 1}}}, "bindSecond"),
        ({"settings": {"nodePools": [{"name": "h100", "gpus": 8}]}}, "gpus"),
        ({"settings": {"fabricProfiles": {"ib": {"hostNet": True}}}}, "hostNet"),
        ({"settings": {"logLevel": "LOUD"}}, "logLevel"),
        ({"networkPolicy": {"enabled": "yes"}}, "networkPolicy"),
        ({"strategy": {"type": "OnDelete"}}, "strategy"),
        (
            {"replicas": 2, "settings": {"lease": {"enabled": False}}},
            "settings.lease.enabled is false",
        ),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name is empty"),
    ],
)
def test_a_wrong_value_is_refused_and_named(values: dict[str, Any], named: str) -> None:
    done = chart.template(values)
    assert done.returncode != 0
    assert named in done.stderr


def test_an_old_cluster_is_refused() -> None:
    done = chart.run(chart.helm_program(), "template", "x", chart.CHART, "--kube-version", "1.29.9")
    assert done.returncode != 0
    assert ">=1.30.0-0" in done.stderr


def test_every_block_of_the_schema_of_values_is_closed() -> None:
    """An object with named properties admits no others: a typo would be accepted and ignored."""

    def walk(node: Any, path: str) -> None:
        if isinstance(node, list):
            for item in node:
                walk(item, path)
        if not isinstance(node, dict):
            return
        if isinstance(node.get("properties"), dict):
            assert node.get("additionalProperties") is False, path
        for key, value in node.items():
            walk(value, f"{path}.{key}")

    walk(json.loads(sync_chart.SCHEMA.read_text()), "values")


def test_no_template_asks_the_cluster_or_draws_a_number() -> None:
    for path in (chart.CHART / "templates").rglob("*"):
        text = path.read_text()
        assert not re.search(r"\b(lookup|genCA|genSignedCert|rand|uuidv4|now|APIVersions)", text), (
            path
        )


# --- what is copied from elsewhere


def test_files_that_are_written_from_a_source_are_up_to_date() -> None:
    assert sync_chart.main(["--check"]) == 0


def test_a_value_without_description_is_named() -> None:
    with pytest.raises(sync_chart.SyncError, match=r"image\.tag has no"):
        list(sync_chart.described_values("image:\n  # -- Where.\n  repository: x\n  tag: y\n"))


def test_the_table_of_values_follows_nesting_and_keys_with_dots() -> None:
    text = "a:\n  # -- One.\n  b: 1\n  c:\n    # -- Two.\n    d-e: []\n# -- Three.\nf: {}\n"
    assert list(sync_chart.described_values(text)) == [
        ("a.b", 1, "One."),
        ("a.c.d-e", [], "Two."),
        ("f", {}, "Three."),
    ]


# --- alerts


def test_each_alert_says_how_bad_how_long_and_what_to_read() -> None:
    rule = chart.the(chart.objects(MATRIX["monitoring"][1]), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    readme = sync_chart.README.read_text()
    assert len(group["rules"]) == 5
    for alert in group["rules"]:
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert re.fullmatch(r"[0-9]+[mh]", alert["for"])
        assert {"summary", "description", "runbook_url"} == set(alert["annotations"])
        assert alert["annotations"]["runbook_url"].endswith(f"#{alert['alert'].lower()}")
        assert f"### {alert['alert']}\n" in readme


def test_alerts_read_the_series_of_this_release_only() -> None:
    rendered = chart.objects(MATRIX["monitoring"][1], "y")
    service = chart.the(rendered, "Service")["metadata"]["name"]
    for alert in chart.the(rendered, "PrometheusRule")["spec"]["groups"][0]["rules"]:
        assert f'job="{service}"' in alert["expr"]


def test_the_monitor_keeps_the_namespace_that_a_series_names() -> None:
    monitor = chart.the(chart.objects(MATRIX["monitoring"][1]), "ServiceMonitor")
    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True


def test_the_pods_monitor_finds_the_pods_that_are_rendered() -> None:
    monitor = chart.the(chart.objects(MATRIX["monitoring"][1]), "PodMonitor")["spec"]
    found = specs.resolved(*specs.EXAMPLES["llama-70b-tp8-pp2"])
    (selected,) = monitor["selector"]["matchExpressions"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["path"] == METRICS_PATH
    assert monitor["namespaceSelector"] == {"any": True}
    for pod in group_pods(found, specs.identity("llama-70b-tp8-pp2"), "runner"):
        assert pod["metadata"]["labels"][selected["key"]] in selected["values"]
        ports = pod["spec"]["containers"][0]["ports"]
        assert endpoint["port"] in {port["name"] for port in ports}
    values = {"podMonitor": {"enabled": True}, "watchNamespaces": ["llm", "123"]}
    narrowed = chart.the(chart.objects(values), "PodMonitor")["spec"]
    assert narrowed["namespaceSelector"] == {"matchNames": ["llm", "123"]}


def test_the_dashboard_asks_for_series_and_labels_that_there_are() -> None:
    config = chart.the(
        [
            one
            for one in chart.objects(MATRIX["monitoring"][1])
            if "dashboard" in one["metadata"]["name"]
        ],
        "ConfigMap",
    )
    dashboard = json.loads(config["data"]["shardwright-serving.json"])
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in dashboard["templating"]["list"][1:]]
    families = {**FAMILIES, **OWN_FAMILIES}
    labels = exposed.labels()
    for query in queries:
        (name,) = re.findall(r"shardwright_\w+", query)
        family = families.get(name.removesuffix("_bucket"))
        assert family is not None, name
        assert ("rate(" in query) is (family.kind != "gauge"), query
        assert exposed.asked(query), query
        assert exposed.asked(query) <= labels[name], query
    assert len(queries) > len(dashboard["panels"])
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown <= exposed.asked(target["expr"]), target


# --- rights


def _granted(role: dict[str, Any], scope: str) -> set[Right]:
    return {
        Right(scope, group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _operators_roles(rendered: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    name = chart.the(rendered, "Deployment")["metadata"]["name"]
    (cluster,) = (
        role for role in chart.of_kind(rendered, "ClusterRole") if role["metadata"]["name"] == name
    )
    return (cluster, *chart.of_kind(rendered, "Role"))


def test_the_operator_gets_these_rights_and_no_others() -> None:
    cluster, own = _operators_roles(chart.objects())
    everywhere = {right._replace(scope=CLUSTER) for right in VERBS if right.scope != OWN}
    assert _granted(cluster, CLUSTER) == everywhere
    assert _granted(own, OWN) == {right for right in VERBS if right.scope == OWN}


def test_with_watched_namespaces_it_writes_only_there() -> None:
    rendered = chart.objects({"watchNamespaces": ["llm", "chat"]})
    cluster, *roles = _operators_roles(rendered)
    assert _granted(cluster, CLUSTER) == {right for right in VERBS if right.scope == CLUSTER}
    assert {verb for rule in cluster["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert "secrets" not in str(cluster["rules"])
    served = [role for role in roles if role["metadata"]["name"].endswith("-served")]
    assert [role["metadata"]["namespace"] for role in served] == ["llm", "chat"]
    for role in served:
        assert _granted(role, SERVED) == {right for right in VERBS if right.scope == SERVED}


def test_every_kind_that_is_watched_may_be_listed_and_watched_where_it_is() -> None:
    for watch in WATCHES:
        kind = kind_of(watch.kind)
        group = kind.api_version.rpartition("/")[0]
        scope = CLUSTER if watch.everywhere else SERVED
        for verb in ("list", "watch"):
            assert Right(scope, group, kind.plural, verb) in VERBS


def test_rights_on_single_objects_name_them() -> None:
    (cluster, _) = _operators_roles(chart.objects())
    named = {
        resource: rule["resourceNames"]
        for rule in cluster["rules"]
        for resource in rule["resources"]
        if "resourceNames" in rule
    }
    assert named == {resource: [name] for resource, name in rights.NAMED.items()}


def test_a_request_without_a_right_is_found_in_an_audit_log() -> None:
    def line(verb: str, resource: str, user: str = "operator", **reference: str) -> dict[str, Any]:
        return {
            "user": {"username": user},
            "verb": verb,
            "objectRef": {"resource": resource, **reference},
        }

    log = [
        line("create", "pods"),
        line("patch", "llmdeployments", subresource="status", apiGroup="shardwright.dev"),
        line("patch", "llmdeployments", apiGroup="shardwright.dev"),
        line("get", "pods", subresource="log"),
        line("delete", "nodes", user="somebody-else"),
        {"user": {"username": "operator"}, "verb": "get", "requestURI": "/version"},
    ]
    assert rights.beyond(log, "operator") == {
        ("shardwright.dev", "llmdeployments", "patch"),
        ("", "pods/log", "get"),
    }


def test_no_right_is_a_wildcard_and_the_lease_is_named(rendered: list[dict[str, Any]]) -> None:
    for kind in ("Role", "ClusterRole"):
        for role in chart.of_kind(rendered, kind):
            for rule in role["rules"]:
                assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
                if "leases" in rule["resources"] and rule["verbs"] != ["create"]:
                    assert rule["resourceNames"] == [chart.settings(rendered)["lease"]["name"]]


def test_bindings_lead_from_the_operators_account_to_roles_that_exist(
    rendered: list[dict[str, Any]],
) -> None:
    account = chart.the(rendered, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"]
    roles = {
        (role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"])
        for kind in ("Role", "ClusterRole")
        for role in chart.of_kind(rendered, kind)
    }
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in chart.of_kind(rendered, kind):
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", "name": account, "namespace": chart.NAMESPACE}
            ]
            reference = binding["roleRef"]
            namespace = binding["metadata"].get("namespace")
            assert (reference["kind"], namespace, reference["name"]) in roles


def test_users_roles_grow_by_level() -> None:
    rendered = chart.objects()
    verbs = {}
    for role in chart.of_kind(rendered, "ClusterRole"):
        for level in ("view", "edit", "admin"):
            label = f"rbac.authorization.k8s.io/aggregate-to-{level}"
            if role["metadata"]["labels"].get(label) == "true":
                verbs[level] = {verb for rule in role["rules"] for verb in rule["verbs"]}
    assert verbs == {
        "view": {"get", "list", "watch"},
        "edit": {"create", "update", "patch", "delete"},
        "admin": {"deletecollection"},
    }
