"""`trtllm-build`: a checkpoint compiled into an engine for the GPU that is visible."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright_standin import commandline, gpu, identity
from shardwright_standin.faults import Faults
from shardwright_standin.model import tensorfile
from shardwright_standin.model.shards import Place
from shardwright_standin.tools.played import refuse_others
from shardwright_standin.trtllm import checkpoint, engine

_LIMITS = (
    "max_batch_size",
    "max_input_len",
    "max_seq_len",
    "max_beam_width",
    "max_num_tokens",
    "opt_num_tokens",
    "max_draft_len",
)
_PLUGINS = (
    "gpt_attention_plugin",
    "gemm_plugin",
    "lora_plugin",
    "moe_plugin",
    "nccl_plugin",
    "context_fmha",
    "remove_input_padding",
    "tokens_per_block",
    "use_paged_context_fmha",
    "use_fp8_context_fmha",
    "multiple_profiles",
    "reduce_fusion",
    "user_buffer",
    "use_fused_mlp",
)
_ADAPTERS = ("max_lora_rank", "lora_target_modules")
_PLAYED = {
    "checkpoint_dir",
    "output_dir",
    "output_timing_cache",
    "input_timing_cache",
    "kv_cache_type",
    "workers",
    "log_level",
    "dry_run",
    "monitor_memory",
    "profiling_verbosity",
    *_LIMITS,
    *_PLUGINS,
    *_ADAPTERS,
}
_NOT_ON_SM100 = (
    "gemm_swiglu_plugin",
    "fp8_rowwise_gemm_plugin",
    "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin",
)
_FP8_FROM = (8, 9)
_NVFP4_FROM = (10, 0)


def main() -> int:
    """The program."""
    values = commandline.parse("trtllm-build", sys.argv[1:]).values
    Faults(program="trtllm-build").reach("start")
    _refuse(values)
    if values["checkpoint_dir"] is None:
        raise ValueError("checkpoint_dir is None; the stand-in builds from a checkpoint only")
    source, target = Path(values["checkpoint_dir"]), Path(values["output_dir"])
    build(source, target, values)
    if values["output_timing_cache"] and not values["dry_run"]:
        Path(values["output_timing_cache"]).write_bytes(b"standin timing cache\n")
    print("[TRT-LLM] [I] Total time of building all engines: 00:00:00")
    return 0


def build(source: Path, target: Path, values: Mapping[str, Any]) -> None:
    """Build every rank's engine, on the visible GPUs in turn.

    Raises:
        ZeroDivisionError: When no GPU is visible, as the real one's `rank % workers`.
        FileNotFoundError: When a rank of the checkpoint is missing.
        RuntimeError: When the GPU cannot compute with the checkpoint's precision.
    """
    configured = checkpoint.read_config(source)
    devices = gpu.visible(os.environ)
    workers = min(len(devices), int(values["workers"]))
    mapping = configured["mapping"]
    if values["dry_run"]:
        return
    target.mkdir(parents=True, exist_ok=True)
    for rank in range(mapping["world_size"]):
        device = devices[rank % workers]
        _check_precision(configured, device)
        payload = (source / f"rank{rank}.safetensors").read_bytes()
        tensorfile.decode(payload, f"rank{rank}.safetensors")
        place = Place(rank, mapping["tp_size"], mapping["pp_size"])
        engine.write_rank(target, place, payload, device)
        print(f"[TRT-LLM] [I] Engine of rank {rank} built on GPU {device.index} ({device.name})")
    engine.write_config(target, configured, _build_config(configured, values))


def _build_config(configured: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    limits = {name: values[name] for name in _LIMITS}
    if limits["max_seq_len"] is None:
        limits["max_seq_len"] = configured["max_position_embeddings"]
    # Enabled or not is stored as a boolean, a plugin's type as its name, "disable" as null.
    words: Mapping[Any, Any] = {"enable": True, "disable": False}
    plugins = {name: words.get(values[name], values[name]) for name in _PLUGINS}
    plugins["gemm_plugin"] = None if values["gemm_plugin"] == "disable" else values["gemm_plugin"]
    return {
        **limits,
        "kv_cache_type": (values["kv_cache_type"] or "paged").upper(),
        "speculative_decoding_mode": 1,
        "weight_streaming": False,
        "use_strip_plan": False,
        "lora_config": {
            "lora_dir": [],
            "lora_ckpt_source": "hf",
            "max_lora_rank": values["max_lora_rank"],
            "lora_target_modules": list(values["lora_target_modules"] or ()),
        },
        "plugin_config": plugins,
    }


def _refuse(values: Mapping[str, Any]) -> None:
    if values["streamingllm"] == "enable":
        raise AssertionError("StreamingLLM is no longer supported")
    for device in gpu.visible(os.environ)[:1]:
        for name in _NOT_ON_SM100:
            if device.compute.startswith("10.") and values[name] not in (None, "disable"):
                raise NotImplementedError(f"{name} is not supported on SM 100")
    refuse_others("trtllm-build", values, _PLAYED)


def _check_precision(configured: Mapping[str, Any], device: gpu.GPU) -> None:
    """Whether the GPU has the precision (compute capabilities of features/quantization.md)."""
    algorithm = str(configured["quantization"]["quant_algo"])
    major, minor = device.compute.split(".")
    least = {"FP8": _FP8_FROM, "W4A8_AWQ": _FP8_FROM, "NVFP4": _NVFP4_FROM}.get(algorithm, (0, 0))
    if (int(major), int(minor)) < least:
        raise RuntimeError(
            f"[TRT] [E] Error Code 9: Internal Error (Networks with {algorithm} precision require "
            f"hardware with {algorithm} support; {device.name} has compute capability "
            f"{device.compute}, TensorRT {identity.tensorrt(identity.version())})"
        )


if __name__ == "__main__":
    sys.exit(main())
