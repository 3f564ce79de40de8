"""LoRA in TensorRT-LLM: what an engine is built with, what the server is started with.

An engine has the plugin for the highest rank and the modules that it was built for. How many
adapters are held is decided at the start. There is no endpoint that loads one: a request names the
adapter's folder, so an adapter is available as soon as its files are there.
"""

from __future__ import annotations

from typing import Any

from shardwright.api.lora import LoRA, TargetModule
from shardwright.api.spec import Backend, LLMDeploymentSpec
from shardwright.runner.contract import AdapterServing, ModelFacts
from shardwright.runtimes.base import Refusal

# Keys of the configuration file that follow from spec.lora; with it they are the operator's.
OWNED_KEYS = ("lora_config", "peft_cache_config")
# Adapters kept in pinned host memory for each one on the GPUs: those taken off come back without a
# look at the claim. The cache is allocated whole when the server starts.
HOST_SLOTS = 2
_QKV = (TargetModule.ATTN_Q, TargetModule.ATTN_K, TargetModule.ATTN_V)


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
    host = HOST_SLOTS * lora.max_loaded
    if spec.engine.backend is Backend.PYTORCH:
        return {
            "lora_config": {
                "max_lora_rank": lora.max_rank,
                "lora_target_modules": [module.value for module in lora.modules],
                "max_loras": lora.max_loaded,
                "max_cpu_loras": host,
            }
        }
    one = lora.max_rank * facts.layers * _modules_held(lora)
    return {
        "peft_cache_config": {
            "num_device_module_layer": one * lora.max_loaded,
            "num_host_module_layer": one * host,
        }
    }


def serving(spec: LLMDeploymentSpec) -> AdapterServing | None:
    """How adapters reach the server: it opens the folder that a request names."""
    lora = spec.lora
    return AdapterServing(lora.max_rank, lora.hf_modules) if lora is not None else None


def _modules_held(lora: LoRA) -> int:
    """Modules that a slot has room for: of q, k and v all three as soon as one is adapted.

    The missing ones are filled with zeros (`get_missing_qkv_modules`).
    """
    modules = set(lora.modules)
    if modules & set(_QKV):
        modules |= set(_QKV)
    return len(modules)


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
