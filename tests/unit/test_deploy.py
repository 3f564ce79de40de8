"""Files for Argo CD, Flux and kube-state-metrics point to what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.support import chart

import shardwright
from shardwright.api.names import GROUP, KIND, VERSION

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def named(name: str, kind: str, called: str) -> dict[str, Any]:
    (found,) = (
        item
        for item in documents(name)
        if item["kind"] == kind and item["metadata"]["name"] == called
    )
    return found


def crd_schema() -> dict[str, Any]:
    crd = yaml.safe_load((ROOT / "crds/llmdeployments.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


@pytest.mark.parametrize("name", ["shardwright", "models"])
def test_argo_applies_server_side_and_makes_the_namespace(name: str) -> None:
    spec = named("argocd/applications.yaml", "Application", name)["spec"]
    assert {"ServerSideApply=true", "CreateNamespace=true"} <= set(
        spec["syncPolicy"]["syncOptions"]
    )


def test_argo_syncs_the_operator_before_the_models() -> None:
    waves = {
        item["metadata"]["name"]: int(
            item["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"]
        )
        for item in documents("argocd/applications.yaml")
    }
    assert waves["shardwright"] < waves["models"]


def test_argo_leaves_replicas_to_an_autoscaler_also_when_it_syncs() -> None:
    spec = named("argocd/applications.yaml", "Application", "models")["spec"]
    assert spec["ignoreDifferences"] == [
        {"group": GROUP, "kind": KIND, "jsonPointers": ["/spec/replicas"]}
    ]
    assert "RespectIgnoreDifferences=true" in spec["syncPolicy"]["syncOptions"]
    assert "replicas" in crd_schema()["properties"]["spec"]["properties"]


def test_argo_and_flux_take_the_chart_of_this_version() -> None:
    source = named("argocd/applications.yaml", "Application", "shardwright")["spec"]["source"]
    assert source["targetRevision"] == f"v{shardwright.__version__}"
    assert (ROOT / source["path"] / "Chart.yaml").exists()
    repository = named("flux/cluster/shardwright.yaml", "GitRepository", "shardwright")
    assert repository["spec"]["ref"] == {"tag": source["targetRevision"]}
    assert repository["spec"]["url"] == source["repoURL"]
    (release,) = documents("flux/operator/helmrelease.yaml")
    assert (ROOT / release["spec"]["chart"]["spec"]["chart"] / "Chart.yaml").exists()


def test_the_values_of_the_flux_release_are_values_of_the_chart() -> None:
    (release,) = documents("flux/operator/helmrelease.yaml")
    rendered = chart.objects(release["spec"]["values"], release["spec"]["releaseName"])
    assert chart.the(rendered, "Deployment")["metadata"]["name"] == "shardwright"


def test_flux_waits_for_the_operator_before_the_models() -> None:
    operator = named("flux/cluster/shardwright.yaml", "Kustomization", "shardwright")
    models = named("flux/cluster/models.yaml", "Kustomization", "models")
    assert models["spec"]["dependsOn"] == [{"name": operator["metadata"]["name"]}]
    assert operator["spec"]["wait"] is models["spec"]["wait"] is True
    folder = ROOT / operator["spec"]["path"]
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}


def test_kubectl_builds_the_flux_operator_folder() -> None:
    built = chart.run(chart.kubectl_program(), "kustomize", DEPLOY / "flux/operator")
    assert built.returncode == 0, built.stderr
    kinds = [item["kind"] for item in yaml.safe_load_all(built.stdout)]
    assert kinds == ["Namespace", "HelmRelease"]


def test_kube_state_metrics_reads_only_fields_that_the_crd_has() -> None:
    (config,) = documents("kube-state-metrics/custom-resource-state.yaml")
    (resource,) = config["spec"]["resources"]
    assert resource["groupVersionKind"] == {"group": GROUP, "version": VERSION, "kind": KIND}
    paths = []
    for metric in resource["metrics"]:
        detail = metric["each"][metric["each"]["type"].lower()]
        base = detail.get("path", [])
        if "valueFrom" in detail:
            paths.append([*base, *detail["valueFrom"]])
        else:
            paths.append(base)
        paths += [[*base, *path] for path in detail.get("labelsFromPath", {}).values()]
    assert len(paths) > 10
    for path in paths:
        node: Any = crd_schema()
        if path[:1] == ["metadata"]:
            continue
        for part in path:
            node = node.get("items", node)["properties"][part]


def test_kube_state_metrics_may_list_what_it_reads() -> None:
    role, binding = documents("kube-state-metrics/rbac.yaml")
    for item in (role, binding):
        kubernetes_validate.validate(item, "1.37", strict=True)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {rule["resources"][0]: rule["verbs"] for rule in role["rules"]} == {
        "llmdeployments": ["list", "watch"],
        "customresourcedefinitions": ["list", "watch"],
    }
