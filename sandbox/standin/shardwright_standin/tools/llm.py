"""TensorRT-LLM's `LLM(...)`: checks of its arguments, its ranks, the engine in front of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright_standin import contracts
from shardwright_standin.front.engine import Engine, Limits, connect
from shardwright_standin.front.group import Group, ipc_environment, mpi_group
from shardwright_standin.model import adapter, geometry, shards
from shardwright_standin.ranks import loading
from shardwright_standin.ranks import main as rank_process
from shardwright_standin.trtllm import checkpoint, engine, options

SPAWN_PROXY = "TLLM_SPAWN_PROXY_PROCESS"
TENSORRT = "tensorrt"
_WITH_MODEL = frozenset({"Draft_Target", "Eagle", "Eagle3", "Medusa"})


@dataclass(frozen=True, slots=True)
class LLM:
    """A loaded model; `end` lets its ranks go and waits for them."""

    engine: Engine
    end: Callable[[], None]
    arguments: Mapping[str, Any]
    adapters: adapter.Limits | None = None


def arguments(values: Mapping[str, Any], extra: str | None, backend: str) -> dict[str, Any]:
    """LlmArgs from a command line's values and the file of extra options.

    Raises:
        OptionsError: When the file is refused.
        ValueError: For sizes that the real class refuses.
        AssertionError: For a KV cache dtype with an engine.
    """
    own = {"free_gpu_memory_fraction": values.get("free_gpu_memory_fraction", 0.9)}
    given = {
        "tensor_parallel_size": values["tp_size"],
        "pipeline_parallel_size": values["pp_size"],
        "gpus_per_node": values.get("gpus_per_node"),
        "max_batch_size": values["max_batch_size"],
        "max_num_tokens": values["max_num_tokens"],
        "max_seq_len": values.get("max_seq_len"),
        "max_input_len": 1024,
        "kv_cache_config": own,
    }
    asked = options.load(Path(extra), backend) if extra else {}
    merged = options.merge(given, asked)
    if merged["gpus_per_node"] == 0:
        raise ValueError("gpus_per_node must be greater than 0, got 0")
    cache = merged["kv_cache_config"] or {}
    if not 0 < float(cache.get("free_gpu_memory_fraction", 0.9)) < 1:
        raise ValueError("kv_cache_config.free_gpu_memory_fraction must be between 0 and 1")
    if backend == TENSORRT and cache.get("dtype", "auto") != "auto":
        raise AssertionError("kv_cache_config.dtype must be auto with the tensorrt backend")
    stages = merged["pipeline_parallel_size"]
    _check_speculation(merged.get("speculative_config"), backend, stages)
    return merged


def _check_speculation(asked: Mapping[str, Any] | None, backend: str, stages: int) -> None:
    """What the real class refuses; greedy speculation changes no token, so it is not played.

    Raises:
        NotImplementedError: For drafting over stages, which the PyTorch backend's executor lacks.
        ValueError: For a type that the backend has not, or without what it needs.
    """
    if asked is None:
        return
    kind = asked.get("decoding_type")
    types = contracts.load("llm_args")["keys"]["speculative_config"]["decoding_types"]
    if kind not in types["tensorrt" if backend == TENSORRT else "pytorch"]:
        raise ValueError(f"Speculation type {kind} does not support backend {backend}")
    if kind in _WITH_MODEL:
        folder = asked.get("speculative_model") or asked.get("speculative_model_dir")
        if folder is None:
            raise ValueError(f"speculative_model must be specified for {kind}")
        if not (Path(folder) / "config.json").exists():
            raise FileNotFoundError(f"{folder} holds no config.json, and the stand-in has no hub")
    if backend != TENSORRT and stages > 1:
        raise NotImplementedError("Drafting is not supported for selected executor loop")
    if kind != "MTP" and not asked.get("max_draft_len"):
        raise ValueError(f"max_draft_len must be > 0 for {kind}")


def start(model: Path, backend: str, asked: Mapping[str, Any], program: str) -> LLM:
    """Bring the ranks up and have them load.

    Under the launcher the ranks are there already; otherwise they are spawned on this node.

    Raises:
        EngineFailedError: When a rank cannot load.
        ValueError: When the folder and what was asked for do not go together.
    """
    if not model.exists():
        raise FileNotFoundError(f"{model} is no folder, and the stand-in has no hub")
    order, limits, stop = _plan(model, backend, asked)
    group: Group | None = None
    if os.environ.get(SPAWN_PROXY) != "1":
        environment = ipc_environment()
        os.environ.update(environment)
        group = mpi_group(order.tensor * order.pipeline, program, os.environ)
    try:
        loaded = connect(
            rank_process.address(),
            rank_process.key(),
            order,
            limits,
            stop,
            group.alive.is_set if group else lambda: True,
        )
    except BaseException:
        if group is not None:
            group.end()
        raise

    def end() -> None:
        if group is None:
            loaded.close()
            return
        loaded.stop()
        group.end_when_idle()

    return LLM(loaded, end, asked, _adapters(model, backend, asked))


# TensorRT-LLM's names of projections (`get_default_trtllm_modules_to_hf_modules`).
_MODULES = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_dense": "o_proj",
    "mlp_h_to_4h": "gate_proj",
    "mlp_4h_to_h": "down_proj",
    "mlp_gate": "up_proj",
}


def _adapters(model: Path, backend: str, asked: Mapping[str, Any]) -> adapter.Limits | None:
    """What adapters the engine was built for, or the checkpoint is started for; None for none."""
    if backend == TENSORRT:
        built = engine.read_config(model).build
        if not built["plugin_config"].get("lora_plugin"):
            return None
        found = built["lora_config"]
    else:
        found = asked.get("lora_config")
        if not found:
            return None
    modules = tuple(_MODULES[name] for name in found.get("lora_target_modules") or _MODULES)
    return adapter.Limits(int(found.get("max_lora_rank", 64)), modules)


def _plan(
    model: Path, backend: str, asked: Mapping[str, Any]
) -> tuple[loading.LoadOrder, Limits, int]:
    tensor, pipeline = asked["tensor_parallel_size"], asked["pipeline_parallel_size"]
    per_node = asked["gpus_per_node"] or 0
    folder = str(model.resolve())
    if backend == TENSORRT:
        if not engine.is_engine(model):
            raise ValueError(
                f"{model} is no engine; the stand-in builds engines with trtllm-build only"
            )
        config = engine.read_config(model)
        engine.check_split(config, tensor, pipeline)
        order = loading.LoadOrder(loading.ENGINE, folder, config.tensor, config.pipeline, per_node)
        return order, engine_limits(config, asked), int(config.pretrained["eos_token_id"])
    if engine.is_engine(model):
        raise ValueError(f"{model} is an engine; backend {backend} loads a checkpoint")
    shape = geometry.read(model)
    shards.check(shape, tensor, pipeline)
    order = loading.LoadOrder(loading.CHECKPOINT, folder, tensor, pipeline, per_node)
    limits = Limits(
        max_batch_size=asked["max_batch_size"],
        max_num_tokens=asked["max_num_tokens"],
        max_seq_len=min(asked["max_seq_len"] or shape.max_positions, shape.max_positions),
        max_input_len=asked["max_input_len"],
    )
    return order, limits, shape.eos


def engine_limits(config: engine.EngineConfig, asked: Mapping[str, Any]) -> Limits:
    """Batch limits are clamped to the engine's, lengths are the engine's whatever was asked."""
    built = config.build
    found: dict[str, int] = {}
    for name in ("max_batch_size", "max_num_tokens"):
        found[name] = min(asked[name], built[name])
        if asked[name] > built[name]:
            _warn(f"{name} [{asked[name]}] is overridden by build_config.{name} [{built[name]}]")
    shape = checkpoint.geometry(config.pretrained)
    for name in ("max_seq_len", "max_input_len"):
        found[name] = built[name] or shape.max_positions
        if asked[name] not in (None, built[name]):
            _warn(f"{name} [{asked[name]}] is overridden by build_config.{name} [{built[name]}]")
    return Limits(**found)


def _warn(text: str) -> None:
    print(f"[TRT-LLM] [W] {text}", file=sys.stderr, flush=True)
