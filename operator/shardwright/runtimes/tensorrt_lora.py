"""LoRA in TensorRT-LLM: what an engine is built with, what the server is started with.

An engine has the plugin for the highest rank and the modules that it was built for. How many
adapters are held is decided at the start. There is no endpoint that loads one: a request names the
adapter's folder, so an adapter is available as soon as its files are there.
"""

from __future__ import annotations

from typing import Any

from shardwright.api.lora import LoRA
from shardwright.api.spec import Backend, LLMDeploymentSpec, Runtime
from shardwright.runner.contract import AdapterServing, ModelFacts
from shardwright.runtimes.adapter_slots import HOST_SLOTS, slots_of
from shardwright.runtimes.base import Refusal

# Keys of the configuration file that follow from spec.lora; with it they are the operator's.
OWNED_KEYS = ("lora_config", "peft_cache_config")


def engine_inputs(spec: LLMDeploymentSpec) -> dict[str, object]:
    """What an engine's key says of LoRA; nothing without it, so that old keys stand."""
    if spec.lora is None:
        return {}
    return {"lora": limits_of(spec.lora)}


def limits_of(lora: LoRA) -> dict[str, object]:
    """The limits that are fixed by a build or a start, as keys hold them."""
    return {
        "maxRank": lora.max_rank,
        "targetModules": [module.value for module in lora.modules],
    }


def build_flags(spec: LLMDeploymentSpec) -> tuple[str, ...]:
    """Flags of trtllm-build; the rank and the modules count only beside the plugin."""
    lora = spec.lora
    if lora is None:
        return ()
    return (
        *("--lora_plugin", "auto"),
        *("--max_lora_rank", str(lora.max_rank)),
        *("--lora_target_modules", *(module.value for module in lora.modules)),
    )


def serve_keys(spec: LLMDeploymentSpec, facts: ModelFacts) -> dict[str, Any]:
    """Keys of the server's configuration file.

    The PyTorch backend works out its caches from `lora_config` (`max_loras`, `max_cpu_loras`) as
    `rank × layers × modules × adapters`; for an engine the same numbers are given to the cache
    (`tensorrt_llm/llmapi/llm.py`, `_torch/pyexecutor/_util.py`).
    """
    lora = spec.lora
    if lora is None:
        return {}
    slots = slots_of(Runtime.TENSORRT_LLM, lora)
    # The cache in host memory is allocated whole when the server starts.
    host = HOST_SLOTS * slots.count
    if spec.engine.backend is Backend.PYTORCH:
        return {
            "lora_config": {
                "max_lora_rank": lora.max_rank,
                "lora_target_modules": [module.value for module in lora.modules],
                "max_loras": lora.max_loaded,
                "max_cpu_loras": host,
            }
        }
    one = slots.rank * facts.layers * len(slots.modules)
    return {
        "peft_cache_config": {
            "num_device_module_layer": one * slots.count,
            "num_host_module_layer": one * host,
        }
    }


def serving(spec: LLMDeploymentSpec) -> AdapterServing | None:
    """How adapters reach the server: it opens the folder that a request names."""
    lora = spec.lora
    return AdapterServing(lora.max_rank, lora.hf_modules) if lora is not None else None


def owned_config(spec: LLMDeploymentSpec) -> Refusal | None:
    """A key of engine.config that spec.lora decides."""
    if spec.lora is None:
        return None
    for name in OWNED_KEYS:
        if name in spec.engine.config:
            return Refusal(
                "ReservedEngineConfig",
                f"engine.config.{name} is set by the operator from spec.lora; use lora.maxRank, "
                "lora.targetModules and lora.maxLoaded instead",
            )
    return None
