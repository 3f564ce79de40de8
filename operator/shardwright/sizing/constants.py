"""Constants of the memory model by engine, version and class of GPU, each with its source.

The table is data/memory_constants.json. None is fitted to a model: a value comes from a log, from
the engine's own documents, or from sizes, and says which. Where nothing is published a value stands
in, is marked `assumed`, and the plan's notes say so.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from shardwright.sizing.kv_cache import Pooling
from shardwright.sizing.partition import Remainder
from shardwright.sizing.question import GIB
from shardwright.sizing.shape import EngineSettings

Version = tuple[int, int]

_VERSION = re.compile(r"v?(\d{1,4})(?:\.(\d{1,4}))?")
# Triton and NIM serve through another engine.
_FRONTS = frozenset({"triton", "nim"})
_ENGINES = {
    "vllm": "VLLM",
    "sglang": "SGLang",
    "tensorrtllm": "TensorRTLLM",
    "trtllm": "TensorRTLLM",
}
_BACKENDS = {"tensorrt": "TensorRT", "pytorch": "PyTorch"}
_NEWEST = "9999.0"


class Budget(StrEnum):
    """What the memory fraction is a fraction of.

    `OF_TOTAL`: of the whole GPU, for everything but the context and late graphs (vLLM).
    `STATIC`: of the whole GPU, for weights and KV cache alone (SGLang's mem_fraction_static).
    `OF_FREE`: of what is free after loading and profiling, for the KV cache (TensorRT-LLM).
    """

    OF_TOTAL = "OfTotal"
    STATIC = "Static"
    OF_FREE = "OfFree"


@dataclass(frozen=True, slots=True)
class EngineConstants:
    """One row. Everything is in bytes unless named otherwise.

    Attributes:
        row: Its name, as status and output tell it.
        engine: `VLLM`, `SGLang` or `TensorRTLLM`.
        backend: `TensorRT` or `PyTorch` for TensorRT-LLM.
        first: First version, as (major, minor).
        below: First version that it is no longer for.
        gpu_class: Architecture it was measured on; empty for none.
        measured: The GPU it was measured on; empty for none.
        budget: What the memory fraction is of.
        remainder: Where the layers go that stages do not divide.
        pooling: How the KV cache is pooled.
        graphs_inside: Whether CUDA graphs are taken out of the budget.
        sampler_bytes: What the sampler takes whatever the batch.
        sampler_bytes_per_logit: Per request in flight and vocabulary entry.
        forward_width_bytes: Per token of a pass and inner element of this rank.
        forward_hidden_bytes: Per token of a pass and hidden element.
        expert_workspace_bytes: Per token of a pass, active expert and element of its buffers.
        tower_bytes: What a vision tower adds on its stage.
        runtime_bytes: Taken from the budget on one GPU.
        runtime_tensor_bytes: The same with tensor parallelism.
        runtime_pipeline_bytes: The same with pipeline stages of one GPU.
        context_bytes: Outside the budget on one GPU.
        context_tensor_bytes: The same with several GPUs.
        graphs_bytes: CUDA graphs.
        sources: Where the values come from, without repetition.
        notes: What is not covered.
        assumed: Names of values that stand in for a measurement, with what to say of each.
    """

    row: str
    engine: str
    backend: str
    first: Version
    below: Version
    gpu_class: str
    measured: str
    budget: Budget
    remainder: Remainder
    pooling: Pooling
    graphs_inside: bool
    sampler_bytes: float
    sampler_bytes_per_logit: float
    forward_width_bytes: float
    forward_hidden_bytes: float
    expert_workspace_bytes: float
    tower_bytes: float
    runtime_bytes: float
    runtime_tensor_bytes: float
    runtime_pipeline_bytes: float
    context_bytes: float
    context_tensor_bytes: float
    graphs_bytes: float
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    assumed: tuple[tuple[str, str], ...]


class UnknownEngineError(ValueError):
    """No row of the table is for this runtime."""


def _version(text: str) -> Version:
    found = _VERSION.match(text)
    if not found:
        raise UnknownEngineError(
            f"version {text!r} is not of the form major.minor.patch; write one such as 0.19.0"
        )
    return int(found[1]), int(found[2] or 0)


def _constants(row: Mapping[str, Any]) -> EngineConstants:
    values: Mapping[str, Mapping[str, Any]] = row["values"]

    def gib(name: str) -> float:
        return float(values[name]["value"]) * GIB

    def plain(name: str) -> float:
        return float(values[name]["value"])

    assumed = tuple(
        (name, f"{name} {entry['value']} {entry['unit']} is assumed: {entry['source']}")
        for name, entry in values.items()
        if entry["basis"] == "assumed"
    )
    return EngineConstants(
        row=row["id"],
        engine=row["engine"],
        backend=row["backend"],
        first=_version(row["from"]),
        below=_version(row["below"] or _NEWEST),
        gpu_class=row["gpuClass"],
        measured=row["measured"],
        budget=Budget(row["budget"]),
        remainder=Remainder(row["remainder"]),
        pooling=Pooling(int(plain("blockTokens")), row["grouped"], plain("groupRatio")),
        graphs_inside=row["graphsInside"],
        sampler_bytes=gib("samplerGiB"),
        sampler_bytes_per_logit=plain("samplerBytesPerLogit"),
        forward_width_bytes=plain("forwardWidthBytes"),
        forward_hidden_bytes=plain("forwardHiddenBytes"),
        expert_workspace_bytes=plain("expertWorkspaceBytes"),
        tower_bytes=gib("towerGiB"),
        runtime_bytes=gib("nonTorchGiB"),
        runtime_tensor_bytes=gib("nonTorchTensorGiB"),
        runtime_pipeline_bytes=gib("nonTorchPipelineGiB"),
        context_bytes=gib("contextGiB"),
        context_tensor_bytes=gib("contextTensorGiB"),
        graphs_bytes=gib("graphsGiB"),
        sources=tuple(dict.fromkeys(str(entry["source"]) for entry in values.values())),
        notes=tuple(row["notes"]),
        assumed=assumed,
    )


@functools.cache
def _table() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("data/memory_constants.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return table


@functools.cache
def rows() -> tuple[EngineConstants, ...]:
    """The whole table."""
    return tuple(_constants(row) for row in _table()["rows"])


@functools.lru_cache(maxsize=256)
def loaded_ratio(method: str, gpu_class: str) -> float | None:
    """How much larger quantized experts are once loaded than in the file.

    None when nothing was measured for this format on this class of GPU. Formats other than MXFP4
    load as they are stored.
    """
    for entry in _table()["formats"]:
        if entry["format"] == method:
            return float(entry["ratio"]) if entry["gpuClass"] == gpu_class else None
    return 1.0


@functools.lru_cache(maxsize=256)
def _find(engine: str, backend: str, version: str) -> EngineConstants:
    wanted = _version(version)
    for row in rows():
        if (
            row.engine == engine
            and row.backend in ("", backend)
            and row.first <= wanted < row.below
        ):
            return row
    raise UnknownEngineError(
        f"{engine} {version} has no {backend or 'such'} backend; TensorRT engines exist up to 1.2: "
        "use the PyTorch backend or an earlier version"
    )


@functools.lru_cache(maxsize=256)
def constants_of(engine: EngineSettings) -> tuple[EngineConstants, tuple[str, ...]]:
    """The row for a runtime, and what must be said of the choice.

    Triton and NIM are measured nowhere by themselves: they take the row of the engine that their
    backend names, TensorRT-LLM for Triton and vLLM for NIM where none is named.

    Raises:
        UnknownEngineError: No row is for this runtime, backend and version.
    """
    runtime = engine.runtime.lower().replace("-", "").replace("_", "")
    backend = _BACKENDS.get(engine.backend.lower(), "")
    if runtime in _FRONTS:
        return _behind(runtime, engine.backend, backend)
    name = _ENGINES.get(runtime)
    if name is None:
        known = ", ".join(sorted({row.engine for row in rows()} | {"NIM", "Triton"}))
        raise UnknownEngineError(
            f"runtime {engine.runtime!r} is not one of {known}: no constants are known for it"
        )
    if name == "TensorRTLLM" and not backend:
        backend = "PyTorch"
    return _find(name, backend, engine.version), ()


def _behind(front: str, asked: str, backend: str) -> tuple[EngineConstants, tuple[str, ...]]:
    """The newest row of the engine behind a front, whose own version says nothing about it."""
    name = _ENGINES.get(asked.lower().replace("-", ""), "TensorRTLLM" if backend else "")
    if not name:
        name = "TensorRTLLM" if front == "triton" else "VLLM"
    if name == "TensorRTLLM":
        backend = backend or ("TensorRT" if front == "triton" else "PyTorch")
    row = [row for row in rows() if row.engine == name and row.backend in ("", backend)][-1]
    return row, (
        f"{'Triton' if front == 'triton' else 'NIM'} serves through {name} {backend}".rstrip()
        + f"; constants of {row.row}: the engine's version inside the image decides, and nothing "
        "is measured for the image itself",
    )
