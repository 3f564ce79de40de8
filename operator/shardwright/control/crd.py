"""At the start: does the API server serve our resource, with the fields this operator acts on?

An operator that is newer than its CRD would see new fields dropped by the server without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import structlog
from pydantic import BaseModel

from shardwright.api.asked import AskedSpec
from shardwright.api.names import GROUP, KIND, PLURAL, VERSION
from shardwright.api.status import LLMDeploymentStatus
from shardwright.apply.client import Cluster
from shardwright.apply.errors import Forbidden, NotFound
from shardwright.apply.kinds import CRD, DEPLOYMENT

_log = structlog.get_logger(__name__)
_NAME = f"{PLURAL}.{GROUP}"
_SHOWN = 5


class CRDError(Exception):
    """The cluster's CRD does not fit this operator."""


async def check_crd(cluster: Cluster) -> None:
    """Check that the served version knows every field of the models.

    Raises:
        CRDError: With what is missing and how to mend it.
        ClusterError: If the API server does not answer.
    """
    try:
        body = await cluster.get(CRD, "", _NAME)
    except NotFound as error:
        raise CRDError(
            f"the cluster has no {KIND} ({_NAME}); install the CRD of this version first, with the "
            "chart or `shardwright crd | kubectl apply --server-side -f -`"
        ) from error
    except Forbidden:
        await _check_served(cluster)
        return
    if problem := crd_problem(body):
        raise CRDError(problem)


async def _check_served(cluster: Cluster) -> None:
    """Without the right to read CRDs: at least that the resource is there."""
    try:
        await cluster.list(DEPLOYMENT, limit=1)
    except NotFound as error:
        raise CRDError(f"the cluster does not serve {GROUP}/{VERSION} {PLURAL}") from error
    _log.warning("CRD not checked: no right to get customresourcedefinitions", crd=_NAME)


def crd_problem(body: Mapping[str, Any]) -> str:
    """Why this CRD does not fit, or empty."""
    versions = {item["name"]: item for item in body["spec"]["versions"]}
    served = versions.get(VERSION)
    if served is None or not served.get("served"):
        offered = ", ".join(name for name, item in versions.items() if item.get("served"))
        return f"{_NAME} serves {offered or 'no version'}, this operator needs {VERSION}"
    schema = served["schema"]["openAPIV3Schema"]["properties"]
    missing = [
        *_missing(AskedSpec, schema.get("spec") or {}, "spec"),
        *_missing(LLMDeploymentStatus, schema.get("status") or {}, "status"),
    ]
    if not missing:
        return ""
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return (
        f"{_NAME} is older than this operator: it does not know {', '.join(missing[:_SHOWN])}"
        f"{more}; apply the CRD of this version with the chart or `shardwright crd | kubectl apply "
        "--server-side -f -`"
    )


def _missing(model: type[BaseModel], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    properties = schema.get("properties") or (schema.get("items") or {}).get("properties") or {}
    for name, field in model.model_fields.items():
        alias = field.alias or name
        here = f"{path}.{alias}"
        if alias not in properties:
            yield here
            continue
        for inner in _models(field.annotation):
            yield from _missing(inner, properties[alias], here)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Models inside an annotation: itself, or the members of a union or list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    if getattr(annotation, "__origin__", None) is dict:
        return
    for part in get_args(annotation):
        yield from _models(part)
