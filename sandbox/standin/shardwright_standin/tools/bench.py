"""`trtllm-bench`: `throughput`, `latency` and `build`, with the real report's keys.

Measured over the tiny model's ranks: numbers of this machine, no GPU's. A data set is a file of
JSON lines with `task_id`, `prompt` or `input_ids`, and `output_tokens`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright_standin import commandline, contracts, gpu, identity
from shardwright_standin.faults import Faults
from shardwright_standin.front.engine import Engine
from shardwright_standin.model import geometry, make, tokenizer
from shardwright_standin.tools import build as builder
from shardwright_standin.tools import llm
from shardwright_standin.tools.played import NotPlayedError, refuse_others
from shardwright_standin.trtllm import checkpoint, engine

_PLAYED = {
    "engine_dir",
    "backend",
    "extra_llm_api_options",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "dataset",
    "eos_id",
    "num_requests",
    "warmup",
    "tp",
    "pp",
    "concurrency",
    "streaming",
    "report_json",
    "kv_cache_free_gpu_mem_fraction",
    "enable_chunked_context",
}
_BUILD_PLAYED = {"tp_size", "pp_size", "max_seq_len", "max_batch_size", "max_num_tokens"}
_MOST_RANKS = 8
_PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Measured:
    """One request: tokens in and out, latency and time to first token in seconds."""

    prompt: int
    produced: int
    latency: float
    first: float


def main() -> int:
    """The program."""
    asked = commandline.parse("trtllm-bench", sys.argv[1:])
    Faults(program="trtllm-bench").reach("start")
    model = Path(asked.values["model_path"] or asked.values["model"])
    flags = contracts.load("trtllm-bench")["commands"][asked.command]["flags"]
    if asked.command == "build":
        refuse_others("trtllm-bench build", asked.inner, _BUILD_PLAYED, flags)
        return _build(asked, model)
    refuse_others(f"trtllm-bench {asked.command}", asked.inner, _PLAYED, flags)
    return _run(asked, model)


def _run(asked: commandline.Parsed, model: Path) -> int:
    task = asked.inner
    compiled = task["backend"] == llm.TENSORRT
    if compiled and task["max_seq_len"] is not None:
        raise AssertionError("max_seq_len is not a runtime parameter for C++ backend")
    if task["dataset"] is None:
        raise NotPlayedError("trtllm-bench: the stand-in reads no data set from stdin; --dataset")
    requests = read_dataset(Path(task["dataset"]), task["num_requests"])
    if compiled and task["engine_dir"] is None:
        raise ValueError("--engine_dir is needed with the tensorrt backend")
    folder = Path(task["engine_dir"]) if compiled else model
    arguments = llm.arguments(
        {
            "tp_size": task["tp"],
            "pp_size": task["pp"],
            "max_batch_size": task.get("max_batch_size") or 2048,
            "max_num_tokens": task.get("max_num_tokens") or 8192,
            "max_seq_len": task["max_seq_len"],
            "free_gpu_memory_fraction": task["kv_cache_free_gpu_mem_fraction"],
        },
        task.get("extra_llm_api_options"),
        task["backend"],
    )
    loaded = llm.start(folder, task["backend"], arguments, "trtllm-bench")
    try:
        stop = task.get("eos_id", -1)
        for prompt, budget in (requests * task["warmup"])[: task["warmup"]]:
            _measure(loaded.engine, prompt, budget, stop)
        # A latency run keeps one request in flight unless it is told otherwise.
        width = task["concurrency"] if task["concurrency"] > 0 else len(requests)
        began = time.monotonic()
        with ThreadPoolExecutor(width) as pool:
            seen = list(
                pool.map(lambda one: _measure(loaded.engine, one[0], one[1], stop), requests)
            )
        elapsed = time.monotonic() - began
        limits = loaded.engine.limits
    finally:
        loaded.end()
    content = report(asked, folder, seen, elapsed)
    content["world_info"] |= {
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
    }
    text = json.dumps(content, indent=4)
    if task["report_json"]:
        Path(task["report_json"]).write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def read_dataset(path: Path, most: int) -> list[tuple[list[int], int]]:
    """Prompts as tokens, each with its number of output tokens; `most` 0 means all.

    Raises:
        ValueError: When there is no request in the file.
    """
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        given = entry.get("input_ids", entry.get("logits"))
        prompt = given if given is not None else tokenizer.encode(entry["prompt"])
        found.append((list(prompt), int(entry["output_tokens"])))
    if not found:
        raise ValueError(f"{path} has no requests")
    return found[:most] if most else found


def report(
    asked: commandline.Parsed, folder: Path, seen: Sequence[Measured], elapsed: float
) -> dict[str, Any]:
    """The report by the keys of tensorrt_llm/bench/dataclasses/reporting.py (read at 02499765)."""
    devices = gpu.visible(os.environ)
    compiled = asked.inner["backend"] == llm.TENSORRT
    tensor, pipeline = asked.inner["tp"], asked.inner["pp"]
    if compiled:
        config = engine.read_config(folder)
        tensor, pipeline = config.tensor, config.pipeline
    world = tensor * pipeline
    produced, prompts = sum(one.produced for one in seen), sum(one.prompt for one in seen)
    latencies = [one.latency * 1000 for one in seen]
    content: dict[str, Any] = {
        "engine": {
            "model": asked.values["model"],
            "model_path": asked.values["model_path"],
            "engine_dir": str(folder) if compiled else None,
            "version": identity.version(),
            "backend": "TRT" if compiled else "Pytorch",
        },
        "machine": {"name": devices[0].name, "memory.total": devices[0].memory_mib / 1024},
        "world_info": {"tp_size": tensor, "pp_size": pipeline, "world_size": world},
        "request_info": {
            "num_requests": len(seen),
            "avg_input_length": prompts / len(seen),
            "avg_output_length": produced / len(seen),
        },
        "performance": {
            "total_latency_ms": elapsed * 1000,
            "avg_request_latency_ms": sum(latencies) / len(latencies),
            "request_throughput_req_s": len(seen) / elapsed,
            "system_output_throughput_tok_s": produced / elapsed,
            "system_total_throughput_tok_s": (produced + prompts) / elapsed,
            "output_throughput_per_gpu_tok_s": produced / elapsed / world,
            "request_latency_percentiles_ms": _percentiles(latencies),
        },
    }
    if asked.inner.get("streaming") or asked.command == "latency":
        each = [1000 * (one.latency - one.first) / max(1, one.produced - 1) for one in seen]
        first = [1000 * one.first for one in seen]
        content["streaming_metrics"] = {
            "avg_ttft_ms": sum(first) / len(first),
            "avg_tpot_ms": sum(each) / len(each),
            "ttft_percentiles": _percentiles(first),
            "tpot_percentiles": _percentiles(each),
        }
    return content


def _measure(running: Engine, prompt: list[int], budget: int, stop: int) -> Measured:
    generation = running.submit(prompt, budget, stop)
    produced = len(list(generation.stream()))
    return Measured(
        prompt=len(prompt),
        produced=produced,
        latency=time.monotonic() - generation.started,
        first=generation.first_token - generation.started,
    )


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {f"p{rank}": ordered[(len(ordered) - 1) * rank // 100] for rank in _PERCENTILES}
    return {
        **found,
        "minimum": ordered[0],
        "maximum": ordered[-1],
        "average": sum(ordered) / len(ordered),
    }


def _build(asked: commandline.Parsed, model: Path) -> int:
    """The checkpoint and the engine in one, as the real command's LLM class does it."""
    task: Mapping[str, Any] = asked.inner
    cut = (task["tp_size"], task["pp_size"])
    if cut[0] * cut[1] > _MOST_RANKS:
        raise ValueError(
            f"Parallelism mapping of TP{cut[0]}-PP{cut[1]} is currently unsupported. Please try "
            "with a mapping with <=8 GPUs."
        )
    if task["max_seq_len"] is None:
        raise ValueError("Unspecified max_seq_len for engine build. Exiting.")
    if (task["max_batch_size"] is None) != (task["max_num_tokens"] is None):
        raise ValueError("--max_batch_size and --max_num_tokens are given together or not at all")
    shape = geometry.read(model)
    workspace = Path(asked.values["workspace"] or tempfile.gettempdir())
    target = workspace / asked.values["model"] / f"tp_{cut[0]}_pp_{cut[1]}"
    defaults = {
        commandline.key(flag): entry.get("default")
        for flag, entry in contracts.load("trtllm-build")["flags"].items()
    }
    limits = {
        "max_seq_len": task["max_seq_len"],
        "max_batch_size": task["max_batch_size"] or defaults["max_batch_size"],
        "max_num_tokens": task["max_num_tokens"] or defaults["max_num_tokens"],
        "multiple_profiles": "enable",
    }
    with tempfile.TemporaryDirectory(dir=workspace) as folder:
        source = Path(folder)
        precision = checkpoint.Precision(shape.dtype)
        checkpoint.write(source, shape, make.read(model), cut, precision)
        builder.build(source, target, {**defaults, **limits})
    print(f"ENGINE SAVED: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
