"""How TensorRT-LLM serves: command line, configuration file, probes, and what asks for a proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.api.names import PORT_HTTP, PORT_RUNNER
from shardwright.api.spec import Backend, DType, KVPrecision, LLMDeploymentSpec, WeightPrecision
from shardwright.resolved import Resolved
from shardwright.runner.contract import READY_PATH, SERVE_CONFIG, Command, served_model
from shardwright.runtimes import speculative, tensorrt_lora, tensorrt_speculative
from shardwright.runtimes.base import ModelSource, Probe
from shardwright.runtimes.tensorrt_config import KV_CACHE
from shardwright.runtimes.tensorrt_experts import expert_options
from shardwright.runtimes.tensorrt_precision import DTYPES, KV_DTYPES
from shardwright.runtimes.tensorrt_steps import paged_context_fmha

BACKENDS: Mapping[Backend, str] = {Backend.TENSORRT: "tensorrt", Backend.PYTORCH: "pytorch"}


def proof_inputs(
    spec: LLMDeploymentSpec, model: ModelSource, image: str, serve_key: str
) -> dict[str, object]:
    """Everything whose change asks for a new candidate; neutral values are left out.

    Without an engine the limits are start options that decide whether the model loads at all, so
    they count here; with one they are in the engine's key. How much memory the KV cache takes, and
    the user's own runtime options, have no place in an engine and are rolled without a candidate.
    """
    limits = spec.engine.limits
    started_with: dict[str, object] = {
        "dtype": DTYPES[spec.model.dtype] if spec.model.dtype is not DType.AUTO else None,
        "limits": {
            "maxBatchSize": limits.max_batch_size,
            "maxNumTokens": limits.max_num_tokens,
            "maxInputLen": limits.max_input_len,
            "maxSeqLen": limits.max_seq_len,
        },
        **tensorrt_lora.engine_inputs(spec),
    }
    weights, kv_cache = spec.quantization.weights, spec.quantization.kv_cache
    inputs: dict[str, object] = {
        "served": serve_key,
        "model": model.key,
        "commit": model.commit or None,
        "image": image,
        "runtime": spec.engine.runtime.value,
        "version": spec.engine.version,
        "backend": spec.engine.backend,
        "product": spec.gpu.product,
        "tensor": spec.parallelism.tensor,
        "pipeline": spec.parallelism.pipeline,
        "expert": spec.parallelism.expert,
        "attentionData": spec.parallelism.attention_data,
        "weights": weights.value if weights is not WeightPrecision.NONE else None,
        "kvCache": kv_cache.value if kv_cache is not KVPrecision.NONE else None,
        **(started_with if spec.engine.backend is Backend.PYTORCH else {}),
        **speculative.proof_inputs(spec, model),
    }
    return {name: value for name, value in inputs.items() if value is not None}


def serve_command(resolved: Resolved) -> Command:
    """What each rank runs; with one stage the server starts its ranks itself.

    The launcher expands its arguments without quoting, so none of them holds a blank or a quote.
    Spellings are those that every 1.x knows. The server names the model after the last part of the
    path it is given, hence the link under the served name.
    """
    spec = resolved.spec
    server = [
        "trtllm-serve",
        served_model(spec.model.served_name),
        *("--backend", BACKENDS[spec.engine.backend or Backend.TENSORRT]),
        *("--tokenizer", "{model}"),
        # Its default listens on the loopback only.
        *("--host", "0.0.0.0"),  # noqa: S104
        *("--port", str(PORT_HTTP)),
        *("--tp_size", str(resolved.tensor)),
        *("--pp_size", str(resolved.pipeline)),
        # A pod sees exactly its stage's GPUs; guessing eight puts ranks on devices that are absent.
        *("--gpus_per_node", str(resolved.tensor)),
        *("--extra_llm_api_options", SERVE_CONFIG),
    ]
    if spec.model.trust_remote_code:
        server.append("--trust_remote_code")
    if resolved.pipeline == 1:
        return Command(tool="trtllm-serve", argv=tuple(server))
    return Command(tool="trtllm-llmapi-launch", argv=("trtllm-llmapi-launch", *server))


def serve_config(resolved: Resolved) -> dict[str, Any]:
    """The YAML file of LlmArgs: limits, KV cache, and the user's own keys.

    A key stands here or on the command line, never in both: which of the two wins changed between
    versions. The KV cache's block is merged key by key, as the runtime does.
    """
    spec = resolved.spec
    limits = spec.engine.limits
    kv_cache: dict[str, Any] = {"free_gpu_memory_fraction": limits.gpu_memory_fraction}
    config: dict[str, Any] = {
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_input_len": limits.max_input_len,
        "max_seq_len": limits.max_seq_len,
        # Its metrics page; the user may turn it off.
        "return_perf_metrics": True,
    }
    if spec.engine.backend is Backend.PYTORCH:
        config.update(expert_options(spec))
        config["enable_iter_perf_stats"] = True
        if spec.model.dtype is not DType.AUTO:
            config["dtype"] = DTYPES[spec.model.dtype]
        # An engine has its KV precision from the checkpoint and accepts no other here.
        if spec.quantization.kv_cache is not KVPrecision.NONE:
            kv_cache["dtype"] = KV_DTYPES[spec.quantization.kv_cache]
    elif not paged_context_fmha(spec):
        # Blocks can be reused only by an engine with paged context attention.
        kv_cache["enable_block_reuse"] = False
    own = dict(spec.engine.config)
    kv_cache.update(own.pop(KV_CACHE, None) or {})
    adapters = tensorrt_lora.serve_keys(spec, resolved.facts)
    drafted = tensorrt_speculative.serve_keys(spec, resolved.draft)
    return {**config, **own, **adapters, **drafted, KV_CACHE: kv_cache}


def readiness(resolved: Resolved) -> Probe:  # noqa: ARG001
    """The runner's own port: it asks the server for a generated token once, then looks cheaply.

    The server's /health answers before the engine does, and /health_generate costs a generation
    each time.
    """
    return Probe(
        path=READY_PATH, port=PORT_RUNNER, period_seconds=5, timeout_seconds=3, failure_threshold=3
    )
