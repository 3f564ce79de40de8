"""An LLMDeployment's manifest as the question that the operator asks the planner for it.

The manifest is read by the model that the CRD is made of, and its fields become a question by the
operator's own functions, so that a manifest which plans is one that applies, and is planned alike.
Only `replicas` may be left out in earnest here: an API server fills in 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shardwright.api.asked import AskedSpec
from shardwright.api.names import API_VERSION, KIND
from shardwright.api.resource import LLMDeployment
from shardwright.api.settings import Settings
from shardwright.cli.reading import BadInputError, documents, faults
from shardwright.plan.checks import engine_refuses, gate_refuses
from shardwright.plan.drafts import draft_uri
from shardwright.plan.question import engine_settings, limits_of, workload_of
from shardwright.runtimes.base import Refusal
from shardwright.sizing.question import Limits, Workload
from shardwright.sizing.shape import EngineSettings

# A stand-in for what the API asks for and planning does not.
_REQUIRED = {"storage": {"claimName": "any"}}
# A stand-in for images that an administrator may have named.
_NAMED = "named"
# Sizes are known of versions whose command line is not.
_UNKNOWN_VERSION = "UnknownVersion"
_UNNAMED = "unnamed"
_OPEN = ("parallelism", "quantization", "gpu", "replicas")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest asks.

    Attributes:
        name: The object's name.
        uri: The model's.
        engine: The runtime and its limits.
        workload: The load; defaults where the manifest has none.
        limits: What it fixes.
        replicas_left_out: Whether it says nothing of replicas, so that a cluster fills in 1.
        notes: What was read otherwise than somebody might think.
        draft_uri: Of the model that drafts tokens; empty for none.
        refused: Why no cluster takes it, wherever it would fit; empty where some may.
    """

    name: str
    uri: str
    engine: EngineSettings
    workload: Workload
    limits: Limits
    replicas_left_out: bool = False
    notes: tuple[str, ...] = ()
    draft_uri: str = ""
    refused: str = ""


def read_manifest(text: str, source: str, *, everything_open: bool = False) -> Manifest:
    """Read the one LLMDeployment of a YAML text.

    Args:
        text: YAML; other kinds of objects beside it are passed over.
        source: Its name in messages.
        everything_open: Plan parallelism, quantization, GPU and replicas even where they are fixed.

    Raises:
        BadInputError: There is none, there are several, or a field is unknown or wrong.
    """
    body = _the_one(documents(text, source), source)
    spec = body.get("spec")
    if not isinstance(spec, dict):
        raise BadInputError(f"{source}: spec: expected a map with at least model.uri")
    spec = {name: value for name, value in spec.items() if value is not None}
    kept = {name: value for name, value in spec.items() if name not in _OPEN}
    whole = {**_named(body), "spec": {**_REQUIRED, **(kept if everything_open else spec)}}
    try:
        read = LLMDeployment.read(whole)
    except ValidationError as error:
        raise BadInputError(faults(error, LLMDeployment, source)) from error
    asked = read.spec
    left_out = "replicas" not in spec
    refusal = _refusal(asked)
    words = f"{refusal.reason}: {refusal.message}" if refusal is not None else ""
    unknown = refusal is not None and refusal.reason == _UNKNOWN_VERSION
    # As the operator: a deployment that is scaled to zero is planned for the one it may become.
    replicas = None if left_out or everything_open else max(1, asked.replicas)
    return Manifest(
        name=read.metadata.name,
        uri=asked.model.uri,
        engine=engine_settings(asked.engine, asked.lora, asked.speculative),
        workload=workload_of(asked),
        limits=limits_of(asked, replicas),
        replicas_left_out=left_out and not everything_open,
        notes=(*_notes(asked), *((f"a cluster refuses it, {words}",) if unknown else ())),
        draft_uri=draft_uri(asked),
        refused="" if unknown else words,
    )


def _named(body: Mapping[str, Any]) -> dict[str, Any]:
    """The object with a name: planning needs none, and one that an API server makes is not known.

    Its status is left out: it is no part of the question.
    """
    metadata = body.get("metadata")
    kept = {name: value for name, value in body.items() if name not in ("metadata", "status")}
    if metadata is not None and not isinstance(metadata, dict):
        return {**kept, "metadata": metadata}
    given = {name: value for name, value in (metadata or {}).items() if value is not None}
    return {**kept, "metadata": {"name": _UNNAMED, **given}}


def _refusal(asked: AskedSpec) -> Refusal | None:
    """What the operator refuses of a spec before it looks at the cluster.

    Images count as named: which there are is a matter of the operator's settings.
    """
    engine = asked.engine
    images = {f"{engine.runtime}/{engine.version}": _NAMED}
    settings = Settings().model_copy(update={"images": images, "evaluation_image": _NAMED})
    return engine_refuses(asked, None, settings) or gate_refuses(asked, settings)


def _the_one(found: list[Any], source: str) -> dict[str, Any]:
    mine = [one for one in found if isinstance(one, dict) and one.get("kind") == KIND]
    if not mine:
        kinds = sorted({str(one.get("kind")) for one in found if isinstance(one, dict)})
        has = f"it has {', '.join(kinds)}" if kinds else "it is empty"
        raise BadInputError(f"{source}: no {KIND} in this file ({has})")
    if len(mine) > 1:
        names = ", ".join(str((one.get("metadata") or {}).get("name")) for one in mine)
        raise BadInputError(f"{source}: {len(mine)} objects of kind {KIND} ({names}); give one")
    version = mine[0].get("apiVersion")
    if version != API_VERSION:
        raise BadInputError(f"{source}: apiVersion {version}: this release reads {API_VERSION}")
    return mine[0]


def _notes(asked: AskedSpec) -> Iterator[str]:
    if asked.replicas == 0:
        yield "replicas is 0 (scaled to zero): planned for 1, as in a cluster"
    shaped = asked.tensor is not None and asked.pipeline is not None
    precision = asked.quantization
    if shaped and None in (precision.weights, precision.kv_cache):
        left_out = [
            name
            for name, value in (("weights", precision.weights), ("kvCache", precision.kv_cache))
            if value is None
        ]
        yield (
            f"quantization left out beside a given shape is not planned, as in a cluster: "
            f"{' and '.join(left_out)} None; write Auto to have it planned"
        )
