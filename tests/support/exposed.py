"""The labels of each series as a serving pod's runner exposes it, for whoever asks for them."""

from __future__ import annotations

import re
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families
from tests.support.serving import REQUEST

from shardwright.runner.measures import FAMILIES, HISTOGRAM
from shardwright.runner.serve.measure.exposition import Histogram
from shardwright.runner.serve.measure.gpu_use import GPUUse
from shardwright.runner.serve.measure.page import page
from shardwright.runner.serve.measure.watch import GPULook, Look

# Added by whoever scrapes: those of a PodMonitor that queries may name.
SCRAPED = frozenset({"namespace", "pod"})


def labels() -> dict[str, frozenset[str]]:
    """Label names by the name of a sample, from a page that tells of everything."""
    seen = Histogram((("+Inf", 1.0),), 1.0, 1.0)
    values = {name: seen if family.kind == HISTOGRAM else 1.0 for name, family in FAMILIES.items()}
    text = page(
        replace(REQUEST, stage=0, revision="abc"),
        Look(1.0, values, {"/metrics": True}),
        GPULook(1.0, (GPUUse(0, 0.5, 1, 2),)),
        {"/metrics": 1},
        1,
    )
    return {
        sample.name: frozenset(sample.labels) | SCRAPED
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def asked(query: str) -> frozenset[str]:
    """Label names that a query of PromQL, or `label_values` of Grafana, names."""
    matchers = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query)
    groups = [word for found in re.findall(r"\bby \(([^)]*)\)", query) for word in found.split(",")]
    values = re.findall(r"^label_values\(.*,\s*(\w+)\)$", query)
    return frozenset(map(str.strip, (*matchers, *groups, *values)))
