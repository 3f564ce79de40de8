"""Which keys of TensorRT-LLM's own configuration file a user may set through `engine.config`.

The runtime refuses unknown keys when it starts; that is too late. Keys are those of LlmArgs of the
1.2 line (recorded in tests/contracts/llm_args-1.2.yaml). A key that an engine fixes at build time
is offered for the PyTorch backend only: on the other one the runtime would drop it with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardwright.api.spec import Backend, LLMDeploymentSpec
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.unknown_keys import Keys, instead_of

BOTH = frozenset({Backend.TENSORRT, Backend.PYTORCH})
PYTORCH_ONLY = frozenset({Backend.PYTORCH})

KV_CACHE = "kv_cache_config"

CONFIG_KEYS: Mapping[str, frozenset[Backend]] = {
    "cache_transceiver_config": BOTH,
    "enable_chunked_prefill": BOTH,
    "env_overrides": BOTH,
    "guided_decoding_backend": BOTH,
    KV_CACHE: BOTH,
    "load_format": BOTH,
    "otlp_traces_endpoint": BOTH,
    "peft_cache_config": BOTH,
    "perf_metrics_max_requests": BOTH,
    "return_perf_metrics": BOTH,
    "scheduler_config": BOTH,
    "lora_config": PYTORCH_ONLY,
    "max_beam_width": PYTORCH_ONLY,
    "moe_cluster_parallel_size": PYTORCH_ONLY,
    "pp_partition": PYTORCH_ONLY,
    "sparse_attention_config": PYTORCH_ONLY,
    "allreduce_strategy": PYTORCH_ONLY,
    "attention_dp_config": PYTORCH_ONLY,
    "attn_backend": PYTORCH_ONLY,
    "cuda_graph_config": PYTORCH_ONLY,
    "disable_overlap_scheduler": PYTORCH_ONLY,
    "enable_autotuner": PYTORCH_ONLY,
    "enable_iter_perf_stats": PYTORCH_ONLY,
    "max_stats_len": PYTORCH_ONLY,
    "moe_config": PYTORCH_ONLY,
    "print_iter_log": PYTORCH_ONLY,
    "sampler_type": PYTORCH_ONLY,
    "stream_interval": PYTORCH_ONLY,
    "torch_compile_config": PYTORCH_ONLY,
}

# Blocks whose inner keys are recorded as well; the runtime forbids others inside them too.
NESTED_KEYS: Mapping[str, frozenset[str]] = {
    KV_CACHE: frozenset(
        {
            "copy_on_partial_reuse",
            "enable_block_reuse",
            "enable_partial_reuse",
            "event_buffer_max_size",
            "host_cache_size",
            "mamba_ssm_cache_dtype",
            "max_attention_window",
            "max_gpu_total_bytes",
            "max_tokens",
            "onboard_blocks",
            "secondary_offload_min_priority",
            "sink_token_length",
            "tokens_per_block",
            "use_uvm",
        }
    ),
    "cuda_graph_config": frozenset({"batch_sizes", "enable_padding", "max_batch_size"}),
    "lora_config": frozenset(
        {
            "lora_ckpt_source",
            "lora_dir",
            "lora_target_modules",
            "max_cpu_loras",
            "max_lora_rank",
            "max_loras",
            "swap_gate_up_proj",
            "trtllm_modules_to_hf_modules",
        }
    ),
    "peft_cache_config": frozenset(
        {
            "device_cache_percent",
            "host_cache_size",
            "lora_prefetch_dir",
            "max_adapter_size",
            "max_pages_per_block_device",
            "max_pages_per_block_host",
            "num_copy_streams",
            "num_device_module_layer",
            "num_ensure_workers",
            "num_host_module_layer",
            "num_put_workers",
            "optimal_adapter_size",
        }
    ),
    "moe_config": frozenset({"backend", "load_balancer", "max_num_tokens"}),
    "scheduler_config": frozenset(
        {"capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config"}
    ),
}

# Keys that the operator sets, and where the user asks for them. The same key in both places would
# mean different things before and after 1.4, where the command line wins over the file.
RESERVED_KEYS: Mapping[str, str] = {
    "backend": "engine.backend",
    "context_parallel_size": "parallelism (a replica is tensor × pipeline ranks)",
    "cp_config": "parallelism (a replica is tensor × pipeline ranks)",
    "dtype": "model.dtype",
    "enable_attention_dp": "parallelism.attentionData",
    "gpus_per_node": "parallelism.tensor",
    "max_batch_size": "engine.limits.maxBatchSize",
    "max_input_len": "engine.limits.maxInputLen",
    "max_num_tokens": "engine.limits.maxNumTokens",
    "max_seq_len": "engine.limits.maxSeqLen",
    "model": "model.uri",
    "moe_expert_parallel_size": "parallelism.expert",
    "moe_tensor_parallel_size": "parallelism.expert (the rest of tensor cuts each expert)",
    "orchestrator_type": "nothing: the operator starts the ranks over MPI",
    "pipeline_parallel_size": "parallelism.pipeline",
    "speculative_config": "speculative",
    "tensor_parallel_size": "parallelism.tensor",
    "tokenizer": "model.uri",
    "trust_remote_code": "model.trustRemoteCode",
    f"{KV_CACHE}.dtype": "quantization.kvCache",
    f"{KV_CACHE}.free_gpu_memory_fraction": "engine.limits.gpuMemoryFraction",
}


def reserved_config(spec: LLMDeploymentSpec) -> Refusal | None:
    """A key that the operator sets itself from another field."""
    for path in _paths(spec.engine.config):
        if path in RESERVED_KEYS:
            return Refusal(
                "ReservedEngineConfig",
                f"engine.config.{path} is set by the operator; use {RESERVED_KEYS[path]} instead",
            )
    return None


def unknown_config(spec: LLMDeploymentSpec) -> Refusal | None:
    """A key that the runtime does not know, or not on this backend."""
    engine = spec.engine
    for name, value in engine.config.items():
        backends = CONFIG_KEYS.get(name)
        if backends is None:
            return _unknown(spec, name, _keys(engine.backend))
        if engine.backend not in backends:
            return Refusal(
                "UnknownEngineConfig",
                f"engine.config.{name} has no effect with engine.backend {engine.backend} of "
                f"{engine.runtime} {engine.version}; remove it or use backend PyTorch",
            )
        if name not in NESTED_KEYS or value is None:
            continue
        if not isinstance(value, Mapping):
            return Refusal(
                "UnknownEngineConfig",
                f"engine.config.{name} must be an object with keys such as "
                f"{min(NESTED_KEYS[name])}, not {value!r}",
            )
        for inner in value:
            if inner not in NESTED_KEYS[name]:
                return _unknown(spec, str(inner), _keys_inside(name))
    return None


def _paths(config: Mapping[str, Any]) -> Iterable[str]:
    for name, value in config.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in value)


def _unknown(spec: LLMDeploymentSpec, name: str, keys: Keys) -> Refusal:
    return Refusal(
        "UnknownEngineConfig",
        f"engine.config.{keys.path(name)} is not a key that {spec.engine.runtime} "
        f"{spec.engine.version} knows; {instead_of(name, keys)}",
    )


def _keys(backend: Backend | None) -> Keys:
    """Every key that this backend takes, by its path."""
    outer = [name for name, backends in CONFIG_KEYS.items() if backend in backends]
    inner = [f"{name}.{key}" for name in outer for key in sorted(NESTED_KEYS.get(name, ()))]
    return Keys((*outer, *inner), RESERVED_KEYS)


def _keys_inside(block: str) -> Keys:
    """Those of one block."""
    start = f"{block}."
    reserved = {
        path.removeprefix(start): field
        for path, field in RESERVED_KEYS.items()
        if path.startswith(start)
    }
    return Keys(NESTED_KEYS[block], reserved, block)
