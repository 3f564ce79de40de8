"""What a change of a spec field costs: every spec path has exactly one change class.

The table is the specification of rebuilds. Which artifact is really made anew follows from the
artifacts' keys; the table says what those keys must add up to, and a test holds them against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from shardwright.api.asked import AskedKVCache, AskedSpec, AskedWeights
from shardwright.api.spec import Backend, LLMDeploymentSpec


class ChangeClass(StrEnum):
    """One row of the table; the order is that of weight, the heaviest first."""

    MODEL = "model"
    STORAGE = "storage"
    WEIGHTS = "weights"
    DRAFT = "draft"
    RUNTIME = "runtime"
    SHAPE = "shape"
    SPECULATION = "speculation"
    KV_CACHE = "kvCache"
    GPU = "gpu"
    BUILD = "build"
    GATE = "gate"
    ROLLING = "rolling"
    NONE = "none"


SPEC_CLASSES: Mapping[str, ChangeClass] = MappingProxyType(
    {
        "model.uri": ChangeClass.MODEL,
        "model.servedName": ChangeClass.ROLLING,
        "model.secretRef": ChangeClass.NONE,
        "model.dtype": ChangeClass.WEIGHTS,
        "model.trustRemoteCode": ChangeClass.ROLLING,
        "engine.runtime": ChangeClass.RUNTIME,
        "engine.version": ChangeClass.RUNTIME,
        "engine.backend": ChangeClass.RUNTIME,
        "engine.image": ChangeClass.RUNTIME,
        "engine.limits.maxBatchSize": ChangeClass.BUILD,
        "engine.limits.maxNumTokens": ChangeClass.BUILD,
        "engine.limits.maxInputLen": ChangeClass.BUILD,
        "engine.limits.maxSeqLen": ChangeClass.BUILD,
        # the one limit that the runtime reads at its start and no engine is compiled for
        "engine.limits.gpuMemoryFraction": ChangeClass.ROLLING,
        "engine.build": ChangeClass.BUILD,
        "engine.config": ChangeClass.ROLLING,
        "gpu.product": ChangeClass.GPU,
        "parallelism.tensor": ChangeClass.SHAPE,
        "parallelism.pipeline": ChangeClass.SHAPE,
        "parallelism.expert": ChangeClass.SHAPE,
        "parallelism.attentionData": ChangeClass.SHAPE,
        "quantization.weights": ChangeClass.WEIGHTS,
        "quantization.kvCache": ChangeClass.KV_CACHE,
        "quantization.calibration": ChangeClass.WEIGHTS,
        "quantization.accuracy": ChangeClass.GATE,
        "speculative.method": ChangeClass.SPECULATION,
        "speculative.model.uri": ChangeClass.DRAFT,
        "speculative.model.secretRef": ChangeClass.NONE,
        "speculative.maxDraftLen": ChangeClass.SPECULATION,
        "lora.maxRank": ChangeClass.BUILD,
        "lora.targetModules": ChangeClass.BUILD,
        # Slots are made when the runtime starts; no engine is compiled for their number.
        "lora.maxLoaded": ChangeClass.ROLLING,
        # Loaded into what serves and taken out of it, live.
        "lora.adapters": ChangeClass.NONE,
        # Once a shape is given nothing depends on it; while fields are open see `hashed_wish`.
        "workload": ChangeClass.NONE,
        "replicas": ChangeClass.NONE,
        "placement": ChangeClass.ROLLING,
        "rollout": ChangeClass.NONE,
        "storage.claimName": ChangeClass.STORAGE,
        "pod": ChangeClass.ROLLING,
    }
)
"""Path below `spec` to class; a path stands for everything below it."""

# Quantities may be written as a number or as a string and mean the same.
_QUANTITIES = ("pod.resources", "pod.shmSize")
# Sets: their order means nothing.
_SETS = frozenset({"lora.targetModules"})
# Free-form: a null in it is a value of the runtime's, not an absent field of ours.
_FREE_FORM = "engine.config"

_SHOWN_CHANGES = 3
_SHOWN_CHARACTERS = 64

Difference = tuple[str, Any, Any]


class UnclassifiedPathError(LookupError):
    """A spec path has no change class, or is a parent of paths that have several."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What happens after a change: which artifacts are made anew, and what becomes of pods.

    `fetch` is of what the change names: the model, or what drafts for it. `candidate` means that
    one replica proves the result before others move to it; `roll` that the serving pods are
    replaced within surge and unavailability.
    """

    fetch: bool = False
    checkpoint: bool = False
    engine: bool = False
    candidate: bool = False
    roll: bool = False


_ENGINE = Effects(engine=True, candidate=True, roll=True)
_CHECKPOINT = Effects(checkpoint=True, engine=True, candidate=True, roll=True)
_ALL = Effects(fetch=True, checkpoint=True, engine=True, candidate=True, roll=True)
_TABLE: Mapping[ChangeClass, Effects] = MappingProxyType(
    {
        ChangeClass.MODEL: _ALL,
        ChangeClass.STORAGE: _ALL,
        ChangeClass.WEIGHTS: _CHECKPOINT,
        ChangeClass.RUNTIME: _CHECKPOINT,
        ChangeClass.DRAFT: _ALL,
        ChangeClass.SHAPE: _CHECKPOINT,
        ChangeClass.SPECULATION: _CHECKPOINT,
        ChangeClass.KV_CACHE: _CHECKPOINT,
        ChangeClass.GPU: _ENGINE,
        ChangeClass.BUILD: _ENGINE,
        # The same files and the same pods, only not proven for this gate: see `plan.gate`.
        ChangeClass.GATE: Effects(candidate=True),
        ChangeClass.ROLLING: Effects(roll=True),
        ChangeClass.NONE: Effects(),
    }
)
# Without an engine a checkpoint is one folder for every shape, and the KV cache's precision and
# speculation are start options: none of them is in the files.
_NOT_IN_A_SHARED_CHECKPOINT = frozenset(
    {ChangeClass.SHAPE, ChangeClass.KV_CACHE, ChangeClass.DRAFT, ChangeClass.SPECULATION}
)


def change_class(path: str) -> ChangeClass:
    """The class of a path below `spec`, such as `parallelism.tensor` or `pod.env`.

    Raises:
        UnclassifiedPathError: For a path that the resource does not have, and for a parent of
            paths of several classes.
    """
    for prefix, found in SPEC_CLASSES.items():
        if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
            return found
    below = sorted(prefix for prefix in SPEC_CLASSES if prefix.startswith(f"{path}."))
    if below:
        raise UnclassifiedPathError(
            f"spec.{path} has no change class of its own; ask for one of {', '.join(below)}"
        )
    raise UnclassifiedPathError(f"spec.{path} has no change class: add it to SPEC_CLASSES")


def effects(change: ChangeClass, backend: Backend | None, quantized: bool) -> Effects:  # noqa: FBT001 - a column of the table
    """What a change of this class causes under the new spec's backend and quantization.

    The TensorRT backend always has a checkpoint (split for TP and PP) and an engine. The PyTorch
    backend has no engine, and a checkpoint only if the weights are quantized (`quantized`); limits
    are start options there but still need a proof, since they decide what memory is left. Runtimes
    without a choice of backends (None: vLLM, SGLang) load the model's own checkpoint: they have
    neither.
    """
    row = _TABLE[change]
    if backend is Backend.TENSORRT:
        return row
    made = quantized and backend is not None
    checkpoint = row.checkpoint and made and change not in _NOT_IN_A_SHARED_CHECKPOINT
    return replace(row, checkpoint=checkpoint, engine=False)


def hashed_spec(spec: LLMDeploymentSpec) -> dict[str, Any]:
    """The part of a spec that names its revision: all fields but those of class NONE.

    By the manifest's names and in JSON types. A field at its default is there like any other; one
    that is absent (`image`) is left out, so that an optional field added later names no new
    revision. Quantities are strings here, whichever way they were written.
    """
    return _kept(spec.model_dump(mode="json", by_alias=True), "")


def hashed_wish(spec: AskedSpec) -> dict[str, Any]:
    """The part of a user's spec that tells one wish from another.

    Without open fields that is `hashed_spec` of what it says, so that a spec which gives its shape
    has the hash it always had. With open fields it is what stands in the spec, Auto where precision
    is open, and the workload too: there it decides what is chosen, although the class of its path
    is NONE. What was chosen is no part of it: nodes that come and go change no wish.
    """
    if not spec.open:
        return hashed_spec(spec.filled())
    kept = _kept(spec.model_dump(mode="json", by_alias=True), "")
    weights, kv_cache = spec.weights, spec.kv_cache
    kept["quantization"] = {
        **kept["quantization"],
        "weights": (weights or AskedWeights.AUTO).value,
        "kvCache": (kv_cache or AskedKVCache.AUTO).value,
    }
    if spec.workload is not None:
        load = spec.workload.model_dump(mode="json", by_alias=True, exclude_none=True)
        kept.update({"workload": load} if load else {})
    return kept


def _kept(node: Mapping[str, Any], parent: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in node.items():
        path = _join(parent, name)
        if value is None:
            continue
        if _inner(path):
            child = _kept(value, path)
            if child:
                kept[name] = child
        elif change_class(path) is not ChangeClass.NONE:
            kept[name] = _plain(value, path)
    return kept


@cache
def _inner(path: str) -> bool:
    """Whether classes stand below this path and not on it."""
    return any(prefix.startswith(f"{path}.") for prefix in SPEC_CLASSES)


def _plain(value: Any, path: str) -> Any:  # noqa: ANN401 - any JSON value
    """Nulls left out and quantities as strings."""
    if path == _FREE_FORM:
        return value
    if isinstance(value, dict):
        items = ((name, _plain(item, _join(path, name))) for name, item in value.items())
        return {name: item for name, item in items if item is not None}
    if path in _SETS:
        return sorted(value)
    if isinstance(value, list):
        return [_plain(item, path) for item in value]
    if path.startswith(_QUANTITIES) and isinstance(value, int):
        return str(value)
    return value


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Leaf differences as (path, old value, new value); None where there is none.

    Lists are leaves. In order of weight (class), then as the fields stand in the spec. Keys that
    hold points or slashes are in brackets: `placement.nodeSelector[example.com/pool]`.
    """
    found = list(_differences(old, new, ""))
    return sorted(found, key=lambda difference: _weight(difference[0]))


def why(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The differences in one line for people: `parallelism.tensor 4 → 8, replicas 1 → 2`.

    At most three, the heaviest first, then how many more. Empty when nothing differs.
    """
    found = changed(old, new)
    parts = [_said(*difference) for difference in found[:_SHOWN_CHANGES]]
    line = ", ".join(parts)
    more = len(found) - len(parts)
    return f"{line} and {more} more" if more else line


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], parent: str
) -> Iterator[Difference]:
    for name in (*old, *(name for name in new if name not in old)):
        path = _join(parent, name)
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, path)
        elif isinstance(before, Mapping) and before and after is None:
            yield from _differences(before, {}, path)
        elif isinstance(after, Mapping) and after and before is None:
            yield from _differences({}, after, path)
        elif _differ(before, after):
            yield path, before, after


def _differ(before: object, after: object) -> bool:
    """True and 1 are two values in JSON, though not in Python; 1 and 1.0 are one in both."""
    return before != after or isinstance(before, bool) is not isinstance(after, bool)


def _weight(path: str) -> int:
    try:
        return list(ChangeClass).index(change_class(path))
    except UnclassifiedPathError:
        # a field of another version of the resource: worth telling, after what we know
        return len(ChangeClass)


def _said(path: str, before: object, after: object) -> str:
    if isinstance(before, list | Mapping) or isinstance(after, list | Mapping):
        return f"{path} changed"
    return f"{path} {_short(before)} → {_short(after)}"


def _short(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if not text:
        return '""'
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _join(parent: str, name: str) -> str:
    if not parent:
        return name
    return f"{parent}.{name}" if name.isidentifier() else f"{parent}[{name}]"
