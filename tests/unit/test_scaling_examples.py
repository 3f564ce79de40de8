"""Autoscalers by example: they scale what there is, by series that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.support import exposed

from shardwright.api.names import API_VERSION, KIND
from shardwright.runner.measures import FAMILIES, GAUGE, OWN_FAMILIES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/scaling"
CRD = yaml.safe_load((ROOT / "crds/llmdeployments.yaml").read_text(encoding="utf-8"))
SCALERS = ("hpa.yaml", "keda.yaml", "keda-to-zero.yaml")
ALL = {**FAMILIES, **OWN_FAMILIES}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", SCALERS)
def test_it_scales_a_deployment_of_the_examples(name: str) -> None:
    target = read(name)["spec"]["scaleTargetRef"]
    assert (target["apiVersion"], target["kind"]) == (API_VERSION, KIND)
    example = yaml.safe_load((ROOT / f"examples/{target['name']}.yaml").read_text(encoding="utf-8"))
    assert example["metadata"]["name"] == target["name"]
    (version,) = CRD["spec"]["versions"]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_the_hpa_is_valid_and_its_metric_is_one_that_the_adapter_makes() -> None:
    scaler = read("hpa.yaml")
    kubernetes_validate.validate(scaler, "1.37", strict=True)
    (metric,) = scaler["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert ALL[name].kind == GAUGE
    (rule,) = read("prometheus-adapter-values.yaml")["rules"]["custom"]
    (series,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    assert re.fullmatch(series, name)
    for other, family in ALL.items():
        # Sums over series of one pod: counters and histograms would make no sense there.
        assert not re.fullmatch(series, other) or family.kind == GAUGE
    assert scaler["spec"]["minReplicas"] >= 1


@pytest.mark.parametrize("name", SCALERS[1:])
def test_keda_asks_for_series_of_the_runner_by_labels_that_they_have(name: str) -> None:
    spec = read(name)["spec"]
    asked = [trigger["metadata"]["query"] for trigger in spec["triggers"]]
    ours = [query for query in asked if "shardwright_" in query]
    assert ours
    for query in ours:
        (series,) = re.findall(r"shardwright_\w+", query)
        assert ALL[series].kind == GAUGE
        labels = exposed.asked(query)
        assert labels == {"namespace", "deployment"}
        assert labels <= exposed.labels()[series]
        assert f'deployment="{spec["scaleTargetRef"]["name"]}"' in query
    # At zero no replica tells anything: something else must wake it.
    assert spec["minReplicaCount"] > 0 or len(asked) > len(ours)


@pytest.mark.parametrize("name", SCALERS[1:])
def test_keda_s_fields_are_its_own_and_each_has_an_effect(name: str) -> None:
    """Source: https://keda.sh/docs/2.15/reference/scaledobject-spec and scalers/prometheus."""
    spec = read(name)["spec"]
    known = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "triggers"}
    known |= {"cooldownPeriod", "fallback", "advanced"}
    assert set(spec) <= known
    # It is waited for before the last replica goes, and by nobody else.
    assert ("cooldownPeriod" in spec) == (spec["minReplicaCount"] == 0)
    assert set(spec.get("fallback", {})) <= {"failureThreshold", "replicas", "behavior"}
    behaviors = ("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower")
    assert spec.get("fallback", {}).get("behavior", "static") in behaviors
    for trigger in spec["triggers"]:
        # A fallback counts for averages only.
        assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
        fields = {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues"}
        assert {"serverAddress", "query", "threshold"} <= set(trigger["metadata"]) <= fields
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_adapter_s_rule_groups_by_labels_that_the_series_have() -> None:
    (rule,) = read("prometheus-adapter-values.yaml")["rules"]["custom"]
    (series,) = re.findall(r'__name__=~"([^"]+)"', rule["seriesQuery"])
    grouped = set(rule["resources"]["overrides"])
    assert grouped == exposed.SCRAPED
    found = [name for name in exposed.labels() if re.fullmatch(series, name)]
    assert len(found) == 3
    for name in found:
        assert grouped <= exposed.labels()[name]


def test_every_query_in_the_text_asks_for_series_and_labels_that_there_are() -> None:
    found = []
    for path in sorted((ROOT / "docs").glob("**/*.md")):
        found += re.findall(r"(shardwright_\w+)\{([^}]*)\}", path.read_text(encoding="utf-8"))
    runners = [(name, inside) for name, inside in found if name in exposed.labels()]
    assert runners
    for name, inside in runners:
        assert exposed.asked(f"{{{inside}}}") <= exposed.labels()[name], (name, inside)


def test_what_the_text_links_to_is_there() -> None:
    text = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    for name in (*SCALERS, "prometheus-adapter-values.yaml"):
        assert f"../examples/scaling/{name}" in text
