"""The CustomResourceDefinition: everything around the schema, and its one textual form."""

from __future__ import annotations

from typing import Any

import yaml

from shardwright.api import names
from shardwright.api.asked import AskedSpec
from shardwright.api.resource import LLMDeployment
from shardwright.api.schema import Schema, structural
from shardwright.api.status import LLMDeploymentStatus

CRD_NAME = f"{names.PLURAL}.{names.GROUP}"
HEADER = """\
# Generated from the models in operator/shardwright/api; changes by hand are lost.
# `shardwright crd --output crds/llmdeployments.yaml` writes it, `shardwright crd --check` compares.
"""


def _column(name: str, kind: str, path: str, text: str, *, wide: bool = False) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "description": text}
    return {**column, "priority": 1} if wide else column


def _condition(field: str) -> str:
    return f'.status.conditions[?(@.type=="Ready")].{field}'


# What `kubectl get llmd` shows; a column holds one path, so ready and desired stand apart.
COLUMNS = (
    _column("Ready", "string", _condition("status"), "All replicas of this generation serve."),
    _column("Reason", "string", _condition("reason"), "Why it is ready or not."),
    _column("Replicas", "integer", ".status.readyReplicas", "Replicas that are ready."),
    _column("TP", "integer", ".status.plan.tensor", "Tensor-parallel ranks of a stage."),
    _column("PP", "integer", ".status.plan.pipeline", "Pipeline-parallel stages."),
    _column("GPU", "string", ".status.plan.gpuProduct", "GPU product."),
    _column("Engine", "string", ".status.engine.serving.key", "Key of the engine that serves."),
    _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created."),
    _column("Desired", "integer", ".spec.replicas", "Replicas asked for.", wide=True),
    _column("Message", "string", _condition("message"), "What stands in the way.", wide=True),
)


def schema() -> Schema:
    """The schema of a whole object, as `openAPIV3Schema`."""
    status = structural(LLMDeploymentStatus, defaults=False)
    # without it an object that no operator has seen would count as ready to kstatus, hence to Helm
    status["default"] = {"observedGeneration": -1}
    return {
        "type": "object",
        "description": "A large language model served by replicas that are split over GPUs.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # declared so that the rules below can name the field
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": structural(AskedSpec),
            "status": status,
        },
        "x-kubernetes-validations": [rule.schema() for rule in LLMDeployment.rules],
    }


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition as a plain object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD_NAME, "labels": {"app.kubernetes.io/part-of": "shardwright"}},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": [names.CATEGORY],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [dict(column) for column in COLUMNS],
                    "schema": {"openAPIV3Schema": schema()},
                }
            ],
        },
    }


class _Dumper(yaml.SafeDumper):
    """No anchors: two equal parts are two parts, in a diff as well."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - as in yaml
        return True


def crd_yaml() -> str:
    """The CustomResourceDefinition as YAML, byte for byte the same on every run."""
    body = yaml.dump(crd(), Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return HEADER + body
