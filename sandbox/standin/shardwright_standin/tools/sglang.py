"""`python -m sglang.launch_server`: the same network under SGLang's flags and endpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright_standin import commandline, flagfile, gpu
from shardwright_standin.faults import Faults
from shardwright_standin.front.adapters import SGLang
from shardwright_standin.front.engine import Limits as Sizes
from shardwright_standin.front.metrics import Metrics
from shardwright_standin.front.server import App, Flavour, serve
from shardwright_standin.model import geometry
from shardwright_standin.model.adapter import Limits
from shardwright_standin.tools import nodes
from shardwright_standin.tools.played import refuse_others
from shardwright_standin.tools.vllm import size

VERSION = "0.5.23"
_PLAYED = {
    "model_path",
    "host",
    "port",
    "tp_size",
    "pp_size",
    "nnodes",
    "node_rank",
    "dist_init_addr",
    "dist_timeout",
    "context_length",
    "max_running_requests",
    "max_prefill_tokens",
    "served_model_name",
    "enable_metrics",
    "enable_lora",
    "max_lora_rank",
    "lora_target_modules",
    "max_loaded_loras",
    # Slots of memory, of which there is none here.
    "max_loras_per_batch",
    # `fp8` alone, in `nodes.online`.
    "quantization",
    # Of no meaning here: GPU memory, kernels, logs, code in the model's folder, the order in which
    # requests wait; the KV cache is never rounded.
    "mem_fraction_static",
    "kv_cache_dtype",
    "schedule_policy",
    "chunked_prefill_size",
    "trust_remote_code",
    "dtype",
    "tokenizer_path",
    "load_format",
    "random_seed",
    "log_level",
    "log_level_http",
    "disable_cuda_graph",
    # Greedy speculation changes no token.
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_ngram_max_bfs_breadth",
    "disable_radix_cache",
}
_WITH_MODEL = frozenset({"EAGLE", "EAGLE3", "STANDALONE"})
_SPECULATION = _WITH_MODEL | {"NEXTN", "NGRAM"}
# NEXTN is read as EAGLE.
_OVER_STAGES = frozenset({"EAGLE", "NEXTN"})
_DEFAULT_TIMEOUT_SECONDS = 1800.0
_DEFAULT_MASTER = "127.0.0.1:25000"


def main() -> int:
    """The program."""
    tool = "sglang.launch_server"
    values = commandline.parse(tool, flagfile.merged(tool, sys.argv[1:])).values
    Faults(program="sglang").reach("start")
    refuse_others(tool, values, _PLAYED)
    folder = Path(values["model_path"])
    world = nodes.World(
        tensor=values["tp_size"],
        pipeline=values["pp_size"],
        nodes=values["nnodes"],
        node=values["node_rank"],
        master=values["dist_init_addr"] or _DEFAULT_MASTER,
        timeout_seconds=float(values["dist_timeout"] or _DEFAULT_TIMEOUT_SECONDS),
    )
    shape = geometry.read(folder)
    _check(values, world)
    length = size(values["context_length"]) or shape.max_positions
    limits = Sizes(
        max_batch_size=values["max_running_requests"] or 256,
        max_num_tokens=size(str(values["max_prefill_tokens"])),
        max_seq_len=min(length, shape.max_positions),
        max_input_len=min(length, shape.max_positions),
    )
    group, engine, end = nodes.start(folder, world, limits, "sglang", nodes.online(values))
    if engine is None:
        return nodes.follow(group)
    served = values["served_model_name"] or str(folder)
    flavour = Flavour(
        "sglang",
        dies_by_signal=False,
        unhealthy_while_draining=True,
        checks_engine=True,
        version=VERSION,
    )
    adapters = SGLang(engine, served, _adapters(values), most=values["max_loaded_loras"])
    measured = Metrics("sglang", served, engine) if values["enable_metrics"] else None
    return serve(
        (values["host"], values["port"]), App(flavour, engine, served, measured, adapters), end
    )


def _adapters(values: Mapping[str, Any]) -> Limits | None:
    """The limits of LoRA, None where it is off (srt/arg_groups/lora_hook.py)."""
    if not values["enable_lora"]:
        return None
    if not (values["max_lora_rank"] and values["lora_target_modules"]):
        raise AssertionError(
            "When no initial --lora-paths is provided, you need to specify both --max-lora-rank "
            "and --lora-target-modules for LoRA initialization."
        )
    most, batch = values["max_loaded_loras"], values["max_loras_per_batch"]
    if most is not None and most < batch:
        raise AssertionError(
            "max_loaded_loras should be greater than or equal to max_loras_per_batch. "
            f"max_loaded_loras={most}, max_loras_per_batch={batch}"
        )
    return Limits(values["max_lora_rank"], tuple(values["lora_target_modules"]))


def _check(values: Mapping[str, Any], world: nodes.World) -> None:
    algorithm = values["speculative_algorithm"]
    if algorithm is not None and algorithm not in _SPECULATION:
        raise ValueError(f"Unknown speculative algorithm name: {algorithm}")
    if algorithm in _WITH_MODEL:
        folder = Path(str(values["speculative_draft_model_path"]))
        if not (folder / "config.json").exists():
            raise OSError(f"Can't load the configuration of {str(folder)!r}")
    if algorithm is not None and world.pipeline > 1 and algorithm not in _OVER_STAGES:
        raise AssertionError(
            "Pipeline parallelism currently only supports EAGLE (non-multi-layer) speculative "
            "decoding"
        )
    ranks = world.tensor * world.pipeline
    present = len(gpu.visible(os.environ))
    if ranks % world.nodes:
        raise AssertionError(f"tp_size * pp_size {ranks} must be divisible by nnodes {world.nodes}")
    if world.nodes > 1 and values["dist_init_addr"] is None:
        raise AssertionError(f"--dist-init-addr is needed with --nnodes {world.nodes}")
    if not 0 <= world.node < world.nodes:
        raise AssertionError(f"--node-rank {world.node} is not below --nnodes {world.nodes}")
    if ranks // world.nodes > present:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: {ranks // world.nodes} ranks, {present} GPUs"
        )


if __name__ == "__main__":
    sys.exit(main())
