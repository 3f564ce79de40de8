"""LoRA in vLLM and SGLang: limits are given at the start, adapters are loaded over HTTP."""

from __future__ import annotations

from shardwright.api.serving import Runtime
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.runner.contract import AdapterServing
from shardwright.runtimes.adapter_slots import HOST_SLOTS, SGLANG_LOADED, slots_of

# Without it vLLM has no endpoint that loads or unloads (vllm/entrypoints/serve/lora/api_router.py).
VLLM_ENV = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
# Flags that follow from spec.lora, by the field that the user has instead.
VLLM_OWNED = (
    ("lora", ("enable-lora",)),
    ("lora.maxRank", ("max-lora-rank",)),
    ("lora.maxLoaded", ("max-loras", "max-cpu-loras")),
    ("lora.targetModules", ("lora-target-modules",)),
    ("lora.adapters", ("lora-modules",)),
)
SGLANG_OWNED = (
    ("lora", ("enable-lora",)),
    ("lora.maxRank", ("max-lora-rank",)),
    ("lora.maxLoaded", ("max-loras-per-batch", "max-loaded-loras")),
    ("lora.targetModules", ("lora-target-modules",)),
    ("lora.adapters", ("lora-paths",)),
)


def vllm_flags(spec: LLMDeploymentSpec) -> list[str]:
    """Flags of `vllm serve`; nothing without adapters."""
    lora = spec.lora
    if lora is None:
        return []
    slots = slots_of(Runtime.VLLM, lora)
    return [
        "--enable-lora",
        *("--max-loras", str(slots.count)),
        *("--max-cpu-loras", str(HOST_SLOTS * slots.count)),
        *("--max-lora-rank", str(slots.rank)),
        *("--lora-target-modules", *lora.hf_modules),
    ]


def vllm_env(spec: LLMDeploymentSpec) -> dict[str, str]:
    """Environment of `vllm serve`."""
    return dict(VLLM_ENV) if spec.lora is not None else {}


def sglang_flags(spec: LLMDeploymentSpec) -> list[str]:
    """Flags of `sglang.launch_server`; rank and modules are needed, as no adapter is known yet."""
    lora = spec.lora
    if lora is None:
        return []
    slots = slots_of(Runtime.SGLANG, lora)
    return [
        "--enable-lora",
        *("--max-loras-per-batch", str(slots.count)),
        *("--max-loaded-loras", str(SGLANG_LOADED)),
        *("--max-lora-rank", str(slots.rank)),
        *("--lora-target-modules", *lora.hf_modules),
    ]


def proof_inputs(spec: LLMDeploymentSpec) -> dict[str, object]:
    """What asks for a candidate: limits that decide whether the model loads at all."""
    lora = spec.lora
    if lora is None:
        return {}
    modules = [module.value for module in lora.modules]
    return {"lora": {"maxRank": lora.max_rank, "targetModules": modules}}


def serving(spec: LLMDeploymentSpec) -> AdapterServing | None:
    """How adapters reach the server while it serves."""
    lora = spec.lora
    if lora is None:
        return None
    if spec.engine.runtime is Runtime.VLLM:
        load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    else:
        load, unload = "/load_lora_adapter", "/unload_lora_adapter"
    return AdapterServing(lora.max_rank, lora.hf_modules, load, unload)
