"""`vllm serve`: the same network under vLLM's flags, endpoints and multi-node start.

`vllm bench serve` asks such a server.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright_standin import commandline, flagfile, gpu
from shardwright_standin.faults import Faults
from shardwright_standin.front.adapters import VLLM
from shardwright_standin.front.engine import Limits as Sizes
from shardwright_standin.front.metrics import Metrics
from shardwright_standin.front.server import App, Flavour, serve
from shardwright_standin.model import geometry
from shardwright_standin.model.adapter import MODULES, Limits
from shardwright_standin.tools import nodes
from shardwright_standin.tools.played import refuse_others

VERSION = "0.33.0"
_PLAYED = {
    "model",
    "host",
    "port",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "nnodes",
    "node_rank",
    "master_addr",
    "master_port",
    "headless",
    "distributed_executor_backend",
    "distributed_timeout_seconds",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "served_model_name",
    "shutdown_timeout",
    "api_server_count",
    # `fp8` alone, in `nodes.online`.
    "quantization",
    # Of no meaning here: GPU memory, kernels, logs, code in the model's folder; the KV cache is
    # never rounded.
    "gpu_memory_utilization",
    "kv_cache_dtype",
    "kv_cache_memory_bytes",
    "trust_remote_code",
    "dtype",
    "seed",
    "tokenizer",
    "load_format",
    "enforce_eager",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "disable_log_stats",
    "uvicorn_log_level",
    "disable_uvicorn_access_log",
    "enable_log_requests",
    "enable_lora",
    "max_lora_rank",
    "lora_target_modules",
    # Slots of memory, of which there is none here.
    "max_loras",
    "max_cpu_loras",
    # Greedy speculation changes no token.
    "speculative_config",
    # Refused below: the network has no experts.
    "enable_expert_parallel",
}
_WITH_MODEL = frozenset({"draft_model", "eagle", "eagle3"})
_SPECULATION = _WITH_MODEL | {"ngram", "mtp", "suffix"}
_DEFAULT_TIMEOUT_SECONDS = 600.0
_EXECUTORS_OVER_NODES = (None, "mp", "uni", "external_launcher")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def main() -> int:
    """The program: a server, or the benchmark that asks one."""
    words = sys.argv[1:]
    if words[:2] == ["bench", "serve"]:
        # Only here: a server needs none of it.
        from shardwright_standin.tools import serving_benchmark  # noqa: PLC0415

        return serving_benchmark.main("vllm-bench-serve", words[2:])
    if words[:1] != ["serve"]:
        sys.exit(f"vllm: the stand-in plays `serve` and `bench serve` only, not {words[:1]}")
    return play(flagfile.merged("vllm-serve", words[1:], leading=1))


def play(words: Sequence[str], *, version: str = VERSION, proxied: bool = False) -> int:
    """Serve as the words after `vllm serve` say; `proxied` behind NIM's proxy."""
    asked = commandline.parse("vllm-serve", words)
    values = asked.values
    Faults(program="vllm").reach("start")
    refuse_others("vllm-serve", values, _PLAYED)
    model = str(asked.positional["model_tag"] or values["model"])
    folder = Path(model)
    world = _world(values)
    shape = geometry.read(folder)
    _check(values, world, shape)
    limits = Sizes(
        max_batch_size=values["max_num_seqs"] or 256,
        max_num_tokens=size(values["max_num_batched_tokens"]) or 8192,
        max_seq_len=_length(values["max_model_len"], shape),
        max_input_len=_length(values["max_model_len"], shape),
    )
    group, engine, end = nodes.start(folder, world, limits, "vllm", nodes.online(values))
    if engine is None:
        return nodes.follow(group)
    served = (values["served_model_name"] or [model])[0]
    flavour = Flavour(
        "vllm",
        drain_seconds=float(values["shutdown_timeout"]),
        checks_engine=True,
        metrics_path="/v1/metrics" if proxied else "/metrics",
        version=version,
        proxied=proxied,
    )
    updating = os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") in ("1", "true", "True")
    adapters = VLLM(engine, served, _adapters(values), updating=updating)
    app = App(flavour, engine, served, Metrics("vllm", served, engine), adapters)
    return serve((values["host"] or "0.0.0.0", values["port"]), app, end)  # noqa: S104


def _adapters(values: Mapping[str, Any]) -> Limits | None:
    """The limits of LoRA, None where it is off."""
    if not values["enable_lora"]:
        return None
    if values["max_cpu_loras"] is not None and values["max_cpu_loras"] < values["max_loras"]:
        raise ValueError(
            f"max_cpu_loras ({values['max_cpu_loras']}) must be >= max_loras "
            f"({values['max_loras']})."
        )
    return Limits(values["max_lora_rank"], tuple(values["lora_target_modules"] or MODULES))


def size(text: str | None) -> int:
    """A number such as 8192, 8k (decimal) or 8K (binary); 0 for none."""
    if text is None:
        return 0
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is no size")
    number, unit = found.groups()
    return int(float(number) * ({**_DECIMAL, **_BINARY}[unit] if unit else 1))


def _length(text: str | None, shape: geometry.Geometry) -> int:
    if text in (None, "auto", "-1"):
        return shape.max_positions
    length = size(text)
    if length > shape.max_positions:
        raise ValueError(
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={shape.max_positions} or model_max_length=None in model's "
            "config.json)."
        )
    return length


def _world(values: Mapping[str, Any]) -> nodes.World:
    return nodes.World(
        tensor=values["tensor_parallel_size"],
        pipeline=values["pipeline_parallel_size"],
        nodes=values["nnodes"],
        node=values["node_rank"],
        master=f"{values['master_addr']}:{values['master_port']}",
        timeout_seconds=float(values["distributed_timeout_seconds"] or _DEFAULT_TIMEOUT_SECONDS),
    )


def _check(values: Mapping[str, Any], world: nodes.World, shape: geometry.Geometry) -> None:
    """What vllm/config/{parallel,model}.py and vllm/entrypoints/cli/serve.py refuse."""
    ranks = world.tensor * world.pipeline
    present = len(gpu.visible(os.environ))
    if values["headless"] and (values["api_server_count"] or 0) > 0:
        raise ValueError(
            f"--api-server-count={values['api_server_count']} cannot be used with --headless (no "
            "API servers are started in headless mode)."
        )
    if values["enable_expert_parallel"]:
        raise ValueError(
            "Number of experts in the model must be greater than 0 when expert parallelism is "
            "enabled."
        )
    if values["speculative_config"] is not None:
        _check_speculation(values["speculative_config"])
    if shape.heads % world.tensor:
        raise ValueError(
            f"Total number of attention heads ({shape.heads}) must be divisible by tensor parallel "
            f"size ({world.tensor})."
        )
    if ranks % world.nodes:
        raise ValueError(f"world size {ranks} must be divisible by nnodes {world.nodes}")
    if ranks // world.nodes > present:
        raise ValueError(
            f"World size ({ranks}) is larger than the number of available GPUs ({present}) in this "
            "node. If this is intentional and you are using: - ray, set "
            "'--distributed-executor-backend ray'. - multiprocessing, set '--nnodes' appropriately."
        )
    if world.nodes > 1 and values["distributed_executor_backend"] not in _EXECUTORS_OVER_NODES:
        raise ValueError(
            "nnodes > 1 can only be set when distributed executor backend is mp, uni or "
            "external_launcher."
        )
    if world.node and not values["headless"]:
        raise ValueError(f"--node-rank {world.node} without --headless is not played here")


def _check_speculation(asked: Mapping[str, Any]) -> None:
    """What vllm/config/speculative.py refuses."""
    method = asked.get("method")
    if method not in _SPECULATION:
        raise ValueError(f"1 validation error for SpeculativeConfig\nmethod\n  {method!r}")
    if not asked.get("num_speculative_tokens"):
        raise ValueError("num_speculative_tokens must be provided with speculative model")
    if method in _WITH_MODEL and not (Path(str(asked.get("model"))) / "config.json").exists():
        raise OSError(f"Can't load the configuration of {asked.get('model')!r}")


if __name__ == "__main__":
    sys.exit(main())
