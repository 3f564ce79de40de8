"""Triton's model configurations as typed values, and the text that a `config.pbtxt` holds.

Fields are those of the ModelConfig message (triton-inference-server/common,
protobuf/model_config.proto) that the models of this project need; the text is protobuf's text form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# A parameter's value. Triton keeps them as text; the backends read them as what they are here.
Value = str | bool | int | float | tuple[int, ...]


class DataType(StrEnum):
    """Types of tensors that language models take and give."""

    BOOL = "TYPE_BOOL"
    FP16 = "TYPE_FP16"
    FP32 = "TYPE_FP32"
    INT32 = "TYPE_INT32"
    INT64 = "TYPE_INT64"
    STRING = "TYPE_STRING"
    UINT64 = "TYPE_UINT64"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output; `dims` leave out the batch, −1 is any length.

    `optional` and `ragged` (rows of a batch may differ in length) are for inputs only; `scalar`
    reshapes [1] to [], as the backend wants single values of a batch.
    """

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Batching:
    """Triton's dynamic batcher; 0 is no delay, and no limit of the queue."""

    preferred: int
    max_queue_delay_microseconds: int = 0
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A model of an ensemble: its tensors' names to the ensemble's."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model of a repository.

    Either `backend` or `platform` is set. `max_batch_size` 0 says that the model has no batch
    dimension. `instances` are on the CPU: a backend that uses GPUs asks for them itself; 0 for an
    ensemble, which has none.
    """

    name: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    backend: str = ""
    platform: str = ""
    decoupled: bool = False
    batching: Batching | None = None
    instances: int = 0
    steps: tuple[Step, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=dict)

    def text(self) -> str:
        """The content of its `config.pbtxt`."""
        return "\n".join((*_lines(self), ""))


def value_text(value: Value) -> str:
    """A parameter's value as the backends read it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def _lines(config: ModelConfig) -> Iterator[str]:
    yield f"name: {_quoted(config.name)}"
    if config.backend:
        yield f"backend: {_quoted(config.backend)}"
    if config.platform:
        yield f"platform: {_quoted(config.platform)}"
    yield f"max_batch_size: {config.max_batch_size}"
    if config.decoupled:
        yield "model_transaction_policy { decoupled: true }"
    if config.batching is not None:
        yield from _batching(config.batching)
    for kind, tensors in (("input", config.inputs), ("output", config.outputs)):
        yield f"{kind} ["
        yield ",\n".join(_tensor(tensor) for tensor in tensors)
        yield "]"
    if config.instances:
        yield f"instance_group [ {{ count: {config.instances} kind: KIND_CPU }} ]"
    if config.steps:
        yield "ensemble_scheduling {"
        for step in config.steps:
            yield from _step(step)
        yield "}"
    for name, value in config.parameters.items():
        text = _quoted(value_text(value))
        yield f"parameters {{ key: {_quoted(name)} value {{ string_value: {text} }} }}"


def _batching(batching: Batching) -> Iterator[str]:
    yield "dynamic_batching {"
    yield f"  preferred_batch_size: [ {batching.preferred} ]"
    yield f"  max_queue_delay_microseconds: {batching.max_queue_delay_microseconds}"
    yield f"  default_queue_policy {{ max_queue_size: {batching.max_queue_size} }}"
    yield "}"


def _tensor(tensor: Tensor) -> str:
    dims = ", ".join(map(str, tensor.dims))
    parts = [f"name: {_quoted(tensor.name)}", f"data_type: {tensor.data_type}", f"dims: [ {dims} ]"]
    if tensor.scalar:
        parts.append("reshape { shape: [ ] }")
    if tensor.ragged:
        parts.append("allow_ragged_batch: true")
    if tensor.optional:
        parts.append("optional: true")
    return f"  {{ {' '.join(parts)} }}"


def _step(step: Step) -> Iterator[str]:
    yield f"  step {{ model_name: {_quoted(step.model)} model_version: -1"
    for kind, names in (("input_map", step.inputs), ("output_map", step.outputs)):
        for inner, outer in names.items():
            yield f"    {kind} {{ key: {_quoted(inner)} value: {_quoted(outer)} }}"
    yield "  }"


def _quoted(text: str) -> str:
    """A string literal: escapes of JSON for ASCII are those of protobuf's text form."""
    return json.dumps(text, ensure_ascii=True)
