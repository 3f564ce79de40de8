"""An LLMDeployment's manifest as a sizing question: what it fixes, and what it leaves open.

`parallelism`, `quantization`, `gpu` and `replicas` may be left out, whole or in part: what is left
out is planned. Everything else is read by the models of the API, so that a manifest that plans is a
manifest that applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from shardwright.api.names import API_VERSION, KIND
from shardwright.api.serving import EngineSpec, KVPrecision, WeightPrecision
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.cli.reading import BadInputError, documents, first_of
from shardwright.sizing.question import Limits, Workload
from shardwright.sizing.shape import EngineSettings

# Stand-ins for what the API asks for and planning does not.
_REQUIRED = {"gpu": {"product": "Any"}, "storage": {"claimName": "any"}}
_AUTO = "Auto"
_OPEN = ("parallelism", "quantization", "gpu", "replicas")
# Fields of parallelism that planning knows and the API may not yet have.
_MORE_RANKS = ("expert", "attentionData")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a manifest asks.

    Attributes:
        name: The object's name.
        uri: The model's.
        engine: The runtime and its limits.
        workload: The load; defaults where the manifest has none.
        limits: What it fixes.
        notes: What was read otherwise than somebody might think.
    """

    name: str
    uri: str
    engine: EngineSettings
    workload: Workload
    limits: Limits
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Load(Workload):
    """A workload with the manifest's names."""

    __pydantic_config__ = ConfigDict(alias_generator=to_camel, extra="forbid")


_WORKLOAD: TypeAdapter[_Load] = TypeAdapter(_Load)


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
    if everything_open:
        spec = {name: value for name, value in spec.items() if name not in _OPEN}
    spec = {name: value for name, value in spec.items() if value is not None}
    read = _through_the_api(spec, source)
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    limits, notes = _limits(spec, read, source)
    return Manifest(
        name=str(name or "unnamed"),
        uri=read.model.uri,
        engine=engine_settings(read.engine),
        workload=_workload(spec.get("workload"), source),
        limits=limits,
        notes=notes,
    )


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


def _through_the_api(spec: Mapping[str, Any], source: str) -> LLMDeploymentSpec:
    """Validate every field as the API would, with stand-ins for what may be left out here."""
    known = {field.alias or name for name, field in LLMDeploymentSpec.model_fields.items()}
    asked: dict[str, Any] = {**_REQUIRED, **spec}
    if "workload" not in known:
        asked.pop("workload", None)
    if isinstance(gpu := asked["gpu"], dict) and gpu.get("product") is None:
        asked["gpu"] = _REQUIRED["gpu"]
    if isinstance(ranks := asked.get("parallelism"), dict):
        asked["parallelism"] = {
            name: value for name, value in ranks.items() if name not in _MORE_RANKS
        }
    if isinstance(precision := asked.get("quantization"), dict):
        asked["quantization"] = {
            name: value
            for name, value in precision.items()
            if name not in ("weights", "kvCache") or value != _AUTO
        }
    try:
        return LLMDeploymentSpec.read(asked)
    except ValidationError as error:
        raise BadInputError(f"{source}: spec.{first_of(error)}") from error


def engine_settings(engine: EngineSpec) -> EngineSettings:
    """The part of an engine that decides memory."""
    limits = engine.limits
    return EngineSettings(
        runtime=engine.runtime.value,
        version=engine.version,
        backend=engine.backend.value,
        memory_fraction=limits.gpu_memory_fraction,
        max_seq_len=limits.max_seq_len,
        max_num_tokens=limits.max_num_tokens,
        max_batch_size=limits.max_batch_size,
    )


def _workload(raw: object, source: str) -> Workload:
    if raw is None:
        return Workload()
    try:
        load = _WORKLOAD.validate_python(raw)
    except ValidationError as error:
        raise BadInputError(f"{source}: spec.workload.{first_of(error)}") from error
    return Workload(
        objective=load.objective,
        concurrency=load.concurrency,
        input_len=load.input_len,
        output_len=load.output_len,
        ttft_seconds=load.ttft_seconds,
        tpot_seconds=load.tpot_seconds,
    )


def _limits(
    spec: Mapping[str, Any], read: LLMDeploymentSpec, source: str
) -> tuple[Limits, tuple[str, ...]]:
    """What is given is fixed; what is not, or is Auto, is open."""
    notes = []
    ranks = spec.get("parallelism") or {}
    precision = spec.get("quantization") or {}
    replicas = spec.get("replicas")
    if replicas == 0:
        notes.append("replicas is 0 (scaled to zero): planned as if it were open")
    more: dict[str, int | None] = {}
    for name in _MORE_RANKS:
        value = ranks.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise BadInputError(
                f"{source}: spec.parallelism.{name} {value}: must be a whole number"
            )
        more[name] = value
    weights, kv_cache = precision.get("weights"), precision.get("kvCache")
    try:
        limits = Limits(
            weights=None if weights in (None, _AUTO) else WeightPrecision(weights),
            kv_cache=None if kv_cache in (None, _AUTO) else KVPrecision(kv_cache),
            tensor=read.parallelism.tensor if ranks.get("tensor") is not None else None,
            pipeline=read.parallelism.pipeline if ranks.get("pipeline") is not None else None,
            expert=more["expert"],
            attention_data=more["attentionData"],
            product=(spec.get("gpu") or {}).get("product"),
            replicas=read.replicas if replicas else None,
        )
    except ValueError as error:
        raise BadInputError(f"{source}: spec: {error}") from error
    return limits, tuple(notes)
