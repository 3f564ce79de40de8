"""`aiperf profile`: streamed completions at one concurrency, and the JSON file that it exports.

Bodies and keys are aiperf 0.13.0's (endpoints/openai_completions.py, exporters), which was run
against this stand-in's server to compare. Prompts are random letters, a byte a token.
"""

from __future__ import annotations

import json
import random
import string
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from shardwright_standin import commandline
from shardwright_standin.faults import Faults
from shardwright_standin.tools.played import NotPlayedError, refuse_others
from shardwright_standin.tools.serving_benchmark import Seen, ask

TOOL = "aiperf-profile"
_PLAYED = {
    *("model", "url", "endpoint_type", "streaming", "tokenizer", "tokenizer_trust_remote_code"),
    *("isl", "isl_stddev", "osl", "osl_stddev", "extra_inputs", "concurrency", "request_count"),
    *("num_dataset_entries", "random_seed", "output_artifact_dir", "use_server_token_count"),
    # Nothing to see, and no GPU or metrics to ask.
    *("ui", "no_gpu_telemetry", "no_server_metrics"),
}
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def main() -> int:
    """The program, `profile` being its only command here."""
    words = sys.argv[1:]
    if words[:1] != ["profile"]:
        sys.exit(f"aiperf: the stand-in plays `aiperf profile` only, not {words[:1]}")
    values = commandline.parse(TOOL, words[1:]).values
    Faults(program="aiperf").reach("start")
    refuse_others(TOOL, values, _PLAYED)
    _check(values)
    bodies = _bodies(values)
    began = time.perf_counter()
    with ThreadPoolExecutor(values["concurrency"]) as workers:
        seen = list(workers.map(lambda body: ask(values["url"], body), bodies))
    result = _results(seen, time.perf_counter() - began)
    folder = Path(values["output_artifact_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "profile_export_aiperf.json").write_text(json.dumps(result), encoding="utf-8")
    for error in sorted({one.error for one in seen if one.error}):
        print(error, file=sys.stderr)
    return 0


def _check(values: Mapping[str, Any]) -> None:
    if values["endpoint_type"] != "completions" or not values["streaming"]:
        raise NotPlayedError("aiperf: the stand-in plays streamed completions only")
    if values["isl_stddev"] or values["osl_stddev"]:
        raise NotPlayedError("aiperf: the stand-in plays prompts and answers of one length only")
    if None in (values["concurrency"], values["request_count"], values["osl"]):
        raise NotPlayedError("aiperf: give --concurrency, --request-count and --osl")
    folder = Path(values["tokenizer"] or values["model"])
    if not (folder / "tokenizer_config.json").exists():
        raise OSError(f"Failed to load tokenizer '{folder}': no tokenizer_config.json in it")


def _bodies(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    chance = random.Random(values["random_seed"])  # noqa: S311 - prompts, no secret
    length = max(1, values["isl"] - 1)
    more = {}
    for pair in values["extra_inputs"] or ():
        name, _, value = pair.partition(":")
        more[name] = json.loads(value)
    prompts = [
        "".join(chance.choices(string.ascii_letters, k=length))
        for _ in range(values["num_dataset_entries"])
    ]
    return [
        {
            "prompt": prompts[at % len(prompts)],
            "model": values["model"],
            "stream": True,
            "max_tokens": values["osl"],
            "stream_options": {"include_usage": True},
            **more,
        }
        for at in range(values["request_count"])
    ]


def _results(seen: Sequence[Seen], duration: float) -> dict[str, Any]:
    """The export; without a good answer it has no metrics but the count of the bad ones."""
    good = [one for one in seen if not one.error]
    found: dict[str, Any] = {"aiperf_version": "0.13.0", "is_complete": True}
    if len(good) < len(seen):
        found["error_request_count"] = {"unit": "requests", "avg": float(len(seen) - len(good))}
    if not good:
        return found
    gaps = [(one.latency - one.first) / (one.produced - 1) for one in good if one.produced > 1]
    produced = sum(one.produced for one in good)
    return {
        **found,
        "request_count": {"unit": "requests", "avg": float(len(good))},
        "request_throughput": {"unit": "requests/sec", "avg": len(good) / duration},
        "output_token_throughput": {"unit": "tokens/sec", "avg": produced / duration},
        "time_to_first_token": _spread([one.first for one in good]),
        "inter_token_latency": _spread(gaps),
    }


def _spread(seconds: Sequence[float]) -> dict[str, Any]:
    ms = 1000 * np.asarray(seconds or [0.0])
    shares = {f"p{share}": float(np.percentile(ms, share)) for share in _PERCENTILES}
    return {
        "unit": "ms",
        "avg": float(ms.mean()),
        **shares,
        "min": float(ms.min()),
        "max": float(ms.max()),
        "std": float(ms.std()),
        "count": len(ms),
    }


if __name__ == "__main__":
    sys.exit(main())
