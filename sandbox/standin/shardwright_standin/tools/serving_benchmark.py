"""The benchmarks that ask a server: vLLM's, SGLang's and TensorRT-LLM's, over real HTTP.

Bodies of requests and keys of results are the real tools': vllm/benchmarks/serve.py and
lib/endpoint_request_func.py, sglang/benchmark/serving.py (0.5.23),
tensorrt_llm/serve/scripts/benchmark_serving.py (0228a712). Prompts are random letters, a byte a
token. Numbers are this machine's, no GPU's.
"""

from __future__ import annotations

import http.client
import json
import random
import string
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from shardwright_standin import commandline
from shardwright_standin.faults import Faults
from shardwright_standin.tools.played import NotPlayedError, refuse_others

_PATH = "/v1/completions"
_TIMEOUT_SECONDS = 600.0
_SHARED = {
    *("backend", "base_url", "model", "served_model_name", "tokenizer", "dataset_name"),
    *("random_input_len", "random_output_len", "random_range_ratio", "num_prompts"),
    *("max_concurrency", "seed", "disable_tqdm"),
}
_OWN: Mapping[str, set[str]] = {
    "vllm-bench-serve": {
        *("endpoint", "ignore_eos", "percentile_metrics", "metric_percentiles"),
        *("save_result", "result_filename", "trust_remote_code"),
    },
    "trtllm-benchmark-serving": {
        *("endpoint", "ignore_eos", "percentile_metrics", "metric_percentiles"),
        *("save_result", "result_filename", "trust_remote_code", "random_ids"),
    },
    "sglang-benchmark-serving": {"output_file"},
}
_BACKEND = {"sglang-benchmark-serving": "sglang-oai"}
_DATASETS = {"sglang-benchmark-serving": "random-ids"}
# The share of the longest prompt that the shortest has, or how far lengths vary.
_EXACT = {"sglang-benchmark-serving": 1.0}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: seconds to the first token and to the last, and tokens in and out."""

    first: float = 0.0
    latency: float = 0.0
    prompt: int = 0
    produced: int = 0
    error: str = ""


def main(tool: str, words: Sequence[str]) -> int:
    """One of the programs."""
    values = commandline.parse(tool, words).values
    Faults(program=tool).reach("start")
    refuse_others(tool, values, _SHARED | _OWN[tool])
    _check(tool, values)
    bodies = _bodies(tool, values)
    if tool != "vllm-bench-serve":
        # Theirs is asked once before; vLLM's waits for the endpoint only when told to.
        tried = ask(values["base_url"], bodies[0])
        if tried.error:
            raise ValueError(f"Initial test run failed. Error: {tried.error}")
    began = time.perf_counter()
    with ThreadPoolExecutor(values["max_concurrency"] or len(bodies)) as workers:
        seen = list(workers.map(lambda body: ask(values["base_url"], body), bodies))
    duration = time.perf_counter() - began
    for error in sorted({one.error for one in seen if one.error}):
        print(error, file=sys.stderr)
    result = _results(tool, values, seen, duration)
    _save(tool, values, result)
    print(f"Successful requests: {result['completed']}")
    print(f"Output token throughput (tok/s): {result['output_throughput']:.2f}", flush=True)
    return 0


def _check(tool: str, values: Mapping[str, Any]) -> None:
    wanted = {
        "backend": _BACKEND.get(tool, "openai"),
        "dataset_name": _DATASETS.get(tool, "random"),
    }
    for name, only in wanted.items():
        if values[name] != only:
            raise NotPlayedError(f"{tool}: the stand-in plays --{name} {only} only")
    if float(values["random_range_ratio"]) != _EXACT.get(tool, 0.0):
        raise NotPlayedError(f"{tool}: the stand-in plays prompts of one length only")
    if values.get("endpoint", _PATH) != _PATH:
        raise NotPlayedError(f"{tool}: the stand-in plays --endpoint {_PATH} only")
    folder = Path(values["tokenizer"] or values["model"])
    if not (folder / "tokenizer_config.json").exists():
        raise OSError(f"Can't load tokenizer for '{folder}': no tokenizer_config.json in it")


def _bodies(tool: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    chance = random.Random(values["seed"])  # noqa: S311 - prompts, no secret
    # The server puts one token in front, as the real tools know from the tokenizer.
    length = max(1, values["random_input_len"] - 1)
    shared = {
        "model": values["served_model_name"] or values["model"],
        "max_tokens": values["random_output_len"],
        "stream": True,
    }
    if tool == "sglang-benchmark-serving":
        own: dict[str, Any] = {"best_of": 1, "temperature": 0.0, "ignore_eos": True}
    else:
        own = {
            "repetition_penalty": 1.0,
            "logprobs": None,
            "stream_options": {"include_usage": True},
        }
        if values["ignore_eos"]:
            own["ignore_eos"] = True
    if tool == "trtllm-benchmark-serving":
        own["temperature"] = 0.0
    return [
        {**shared, **own, "prompt": "".join(chance.choices(string.ascii_letters, k=length))}
        for _ in range(values["num_prompts"])
    ]


def ask(base: str, body: Mapping[str, Any]) -> Seen:
    """One streamed answer, its tokens timed as they come."""
    host = urlsplit(base)
    began = time.perf_counter()
    connection = http.client.HTTPConnection(
        host.hostname or "", host.port or 80, timeout=_TIMEOUT_SECONDS
    )
    times: list[float] = []
    usage: Mapping[str, int] = {}
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", _PATH, json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            return Seen(error=f"{answer.reason}: {answer.read(500).decode(errors='replace')}")
        for line in answer:
            text = line.decode().strip().removeprefix("data: ")
            if not text or text == "[DONE]":
                continue
            piece = json.loads(text)
            if piece.get("choices"):
                times.append(time.perf_counter() - began)
            usage = piece.get("usage") or usage
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Seen(error=f"{type(error).__name__}: {error}")
    finally:
        connection.close()
    if not times:
        return Seen(error="Never received a valid chunk to calculate TTFT.")
    return Seen(
        first=times[0],
        latency=times[-1],
        prompt=usage.get("prompt_tokens", len(body["prompt"]) + 1),
        produced=usage.get("completion_tokens", body["max_tokens"]),
    )


def _results(
    tool: str, values: Mapping[str, Any], seen: Sequence[Seen], duration: float
) -> dict[str, Any]:
    good = [one for one in seen if not one.error]
    prompts, produced = sum(one.prompt for one in good), sum(one.produced for one in good)
    tpots = [(one.latency - one.first) / (one.produced - 1) for one in good if one.produced > 1]
    total = "total_throughput" if tool == "sglang-benchmark-serving" else "total_token_throughput"
    found: dict[str, Any] = {
        "backend": values["backend"],
        "max_concurrency": values["max_concurrency"],
        "duration": duration,
        "completed": len(good),
        "total_input_tokens": prompts,
        "total_output_tokens": produced,
        "request_throughput": len(good) / duration,
        "output_throughput": produced / duration,
        total: (prompts + produced) / duration,
    }
    for name, seconds in (("ttft", [one.first for one in good]), ("tpot", tpots)):
        ms = 1000 * np.asarray(seconds or [0.0])
        found[f"mean_{name}_ms"] = float(ms.mean())
        found[f"median_{name}_ms"] = float(np.median(ms))
        found[f"std_{name}_ms"] = float(ms.std())
        found[f"p99_{name}_ms"] = float(np.percentile(ms, 99))
    if tool == "sglang-benchmark-serving":
        return found
    found["request_rate"] = "inf"
    found["date"] = datetime.now().strftime("%Y%m%d-%H%M%S")  # noqa: DTZ005 - as the real one
    found["num_prompts"] = values["num_prompts"]
    found["model_id"] = values["model"]
    if tool == "vllm-bench-serve":
        found["failed"] = len(seen) - len(good)
    return found


def _save(tool: str, values: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    if tool == "sglang-benchmark-serving":
        with Path(values["output_file"] or "sglang.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(result) + "\n")
    elif values["save_result"]:
        if not values["result_filename"]:
            raise NotPlayedError(f"{tool}: the stand-in plays --save-result with a name only")
        Path(values["result_filename"]).write_text(json.dumps(result), encoding="utf-8")
