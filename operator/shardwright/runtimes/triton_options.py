"""What `engine.config` may set where Triton serves an engine: names and types, as its models do.

Names are the parameters of the backend's own templates (docs/model_config.md of
triton-inference-server/tensorrtllm_backend, read at r26.04), recorded in
tests/contracts/triton-models-1.2.yaml. Triton itself keeps parameters as text and the backend falls
back to a default, with a warning, for what it cannot read: so values are checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.tensorrt_paged import without_paged_context
from shardwright.runtimes.triton_model_config import Value
from shardwright.runtimes.unknown_keys import Keys, instead_of

_LARGEST = 2**31 - 1
_LARGEST_BYTES = 2**50


class Place(StrEnum):
    """Which part of the repository an option is for."""

    ENGINE = "tensorrt_llm"
    PREPROCESSING = "preprocessing"
    POSTPROCESSING = "postprocessing"
    # Fields of configurations rather than parameters.
    BATCHING = "batching"
    INSTANCES = "instances"
    DECOUPLED = "decoupled"


@dataclass(frozen=True, slots=True)
class Option:
    """An option: where it goes, what it takes, and how that is told to a user."""

    place: Place
    takes: str
    reads: Callable[[Any], Value | None]

    def read(self, value: Any) -> Value | None:  # noqa: ANN401 - decoded JSON
        """The typed value; None for one that it does not take."""
        return self.reads(value)


def _boolean(value: object) -> Value | None:
    return value if isinstance(value, bool) else None


def _whole(lowest: int, highest: int = _LARGEST) -> Callable[[object], Value | None]:
    def read(value: object) -> Value | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if lowest <= value <= highest else None

    return read


def _lengths(value: object) -> Value | None:
    """One window for all layers, or one a layer."""
    items: list[Any] = value if isinstance(value, list) else [value]
    read = _whole(1)
    return tuple(items) if items and all(read(item) is not None for item in items) else None


def _one_of(*words: str) -> Callable[[object], Value | None]:
    return lambda value: value if isinstance(value, str) and value in words else None


def _flag(place: Place) -> Option:
    return Option(place, "true or false", _boolean)


def _count(place: Place, lowest: int = 0, highest: int = _LARGEST) -> Option:
    return Option(place, f"a whole number from {lowest} to {highest}", _whole(lowest, highest))


def _word(place: Place, *words: str) -> Option:
    return Option(place, f"one of {', '.join(words)}", _one_of(*words))


OPTIONS: Mapping[str, Option] = {
    "add_special_tokens": _flag(Place.PREPROCESSING),
    "batch_scheduler_policy": _word(Place.ENGINE, "guaranteed_no_evict", "max_utilization"),
    "cancellation_check_period_ms": _count(Place.ENGINE, 1),
    "cuda_graph_cache_size": _count(Place.ENGINE),
    "cuda_graph_mode": _flag(Place.ENGINE),
    "decoding_mode": _word(Place.ENGINE, "top_k", "top_p", "top_k_top_p"),
    "decoupled_mode": _flag(Place.DECOUPLED),
    "enable_chunked_context": _flag(Place.ENGINE),
    "enable_context_fmha_fp32_acc": _flag(Place.ENGINE),
    "enable_kv_cache_reuse": _flag(Place.ENGINE),
    "exclude_input_in_output": _flag(Place.ENGINE),
    "iter_stats_max_iterations": _count(Place.ENGINE),
    "kv_cache_host_memory_bytes": _count(Place.ENGINE, 0, _LARGEST_BYTES),
    "max_attention_window_size": Option(
        Place.ENGINE, "a whole number from 1, or a list of them, one a layer", _lengths
    ),
    "max_queue_delay_microseconds": _count(Place.BATCHING),
    "max_queue_size": _count(Place.BATCHING),
    "max_tokens_in_paged_kv_cache": _count(Place.ENGINE, 1),
    "multi_block_mode": _flag(Place.ENGINE),
    "normalize_log_probs": _flag(Place.ENGINE),
    "postprocessing_instance_count": _count(Place.INSTANCES, 1, 256),
    "preprocessing_instance_count": _count(Place.INSTANCES, 1, 256),
    "request_stats_max_iterations": _count(Place.ENGINE),
    "sink_token_length": _count(Place.ENGINE),
    "skip_special_tokens": _flag(Place.POSTPROCESSING),
    "stats_check_period_ms": _count(Place.ENGINE, 1),
}
# What an engine must be built for.
PAGED = ("enable_chunked_context", "enable_kv_cache_reuse")
_SPLIT = "parallelism (the ranks of a replica are one model)"
# What the operator sets, and where the user asks for it.
RESERVED: Mapping[str, str] = {
    "batching_strategy": "nothing: requests are batched in flight",
    "encoder_engine_dir": "nothing: encoder-decoder models are not served by this repository",
    "engine_dir": "nothing: the engine is the one that was built",
    "gpt_model_path": "nothing: the engine is the one that was built",
    "gpt_model_type": "nothing: requests are batched in flight",
    "gpu_device_ids": _SPLIT,
    "kv_cache_free_gpu_mem_fraction": "engine.limits.gpuMemoryFraction",
    "max_batch_size": "engine.limits.maxBatchSize",
    "max_beam_width": "nothing: engines are built for one beam",
    "num_nodes": _SPLIT,
    "participant_ids": _SPLIT,
    "tokenizer_dir": "model.uri",
    "triton_backend": "engine.backend",
    "triton_max_batch_size": "engine.limits.maxBatchSize",
}


def options(spec: LLMDeploymentSpec) -> dict[str, Value]:
    """The spec's options with their types; those that are refused are left out."""
    read = {
        name: OPTIONS[name].read(value)
        for name, value in spec.engine.config.items()
        if name in OPTIONS
    }
    return {name: value for name, value in read.items() if value is not None}


def of_place(found: Mapping[str, Value], place: Place) -> dict[str, Value]:
    """Those of one place."""
    return {name: value for name, value in found.items() if OPTIONS[name].place is place}


def refused_option(spec: LLMDeploymentSpec) -> Refusal | None:
    """The first option that the operator sets itself, is not known, or has another type."""
    for name, value in spec.engine.config.items():
        path = f"engine.config.{name}"
        if name in RESERVED:
            return Refusal(
                "ReservedEngineConfig",
                f"{path} is set by the operator; use {RESERVED[name]} instead",
            )
        option = OPTIONS.get(name)
        if option is None:
            return Refusal(
                "UnknownEngineConfig",
                f"{path} is no option of Triton's models for engines; "
                f"{instead_of(name, Keys(OPTIONS, RESERVED))}",
            )
        if option.read(value) is None:
            return Refusal(
                "UnknownEngineConfig", f"{path} is {value!r}, and it must be {option.takes}"
            )
    return _decoding_of_heads(spec) or without_paged_context(
        spec, (name for name in PAGED if spec.engine.config.get(name) is True)
    )


def _decoding_of_heads(spec: LLMDeploymentSpec) -> Refusal | None:
    """The mode of decoding is that of the heads."""
    if spec.speculative is None or "decoding_mode" not in spec.engine.config:
        return None
    return Refusal(
        "ReservedEngineConfig",
        "engine.config.decoding_mode is set by the operator; use speculative instead",
    )
