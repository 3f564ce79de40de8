"""Metrics under the names of each engine."""

from __future__ import annotations

import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shardwright_standin.front.engine import Engine, Generation

# Family names by flavour; counters get `_total` when they are exported. Sources: for TensorRT-LLM
# tensorrt_llm/metrics/collector.py, for the others their wheels (vllm 0.33.0, sglang 0.5.23).
NAMES: Mapping[str, Mapping[str, str]] = {
    "trtllm": {
        "success": "trtllm_request_success",
        "whole": "trtllm_e2e_request_latency_seconds",
        "first": "trtllm_time_to_first_token_seconds",
        "each": "trtllm_time_per_output_token_seconds",
        "cache": "trtllm_kv_cache_utilization",
    },
    "vllm": {
        "running": "vllm:num_requests_running",
        "waiting": "vllm:num_requests_waiting",
        "cache": "vllm:kv_cache_usage_perc",
        "success": "vllm:request_success",
        "prompt": "vllm:prompt_tokens",
        "produced": "vllm:generation_tokens",
        "whole": "vllm:e2e_request_latency_seconds",
        "first": "vllm:time_to_first_token_seconds",
        "each": "vllm:request_time_per_output_token_seconds",
    },
    "sglang": {
        "running": "sglang:num_running_reqs",
        "waiting": "sglang:num_queue_reqs",
        "cache": "sglang:token_usage",
        "whole": "sglang:e2e_request_latency_seconds",
        "first": "sglang:time_to_first_token_seconds",
        "each": "sglang:request_time_per_output_token_seconds",
    },
}


class Metrics:
    """Counts finished requests and reads the engine's last iteration."""

    def __init__(self, flavour: str, model: str, engine: Engine) -> None:
        names = NAMES[flavour]
        labels = {"model_name": model}
        if flavour == "trtllm":
            labels["engine_type"] = "undefined"
        self._engine = engine
        self._registry = CollectorRegistry()
        self._labels = labels
        self._gauges = {
            kind: Gauge(names[kind], names[kind], list(labels), registry=self._registry)
            for kind in ("running", "waiting", "cache")
            if kind in names
        }
        self._counters = {
            kind: Counter(names[kind], names[kind], list(labels), registry=self._registry)
            for kind in ("prompt", "produced")
            if kind in names
        }
        self._histograms = {
            kind: Histogram(names[kind], names[kind], list(labels), registry=self._registry)
            for kind in ("whole", "first", "each")
        }
        self._success = None
        if "success" in names:
            reason = [*labels, "finished_reason"]
            self._success = Counter(
                names["success"], names["success"], reason, registry=self._registry
            )

    def finished(self, generation: Generation, prompt: int) -> None:
        """A request got its last token."""
        now, count = time.monotonic(), len(generation.tokens)
        seen = {
            "whole": now - generation.started,
            "first": generation.first_token - generation.started,
            "each": (now - generation.first_token) / max(1, count - 1),
        }
        for kind, histogram in self._histograms.items():
            histogram.labels(**self._labels).observe(seen[kind])
        for kind, counter in self._counters.items():
            counter.labels(**self._labels).inc(prompt if kind == "prompt" else count)
        if self._success is not None:
            self._success.labels(**self._labels, finished_reason=generation.finish).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text form."""
        last, limits = self._engine.last, self._engine.limits
        room = limits.max_batch_size * limits.max_seq_len
        values = {
            "running": last["numActiveRequests"],
            "waiting": last["numQueuedRequests"],
            "cache": last["kvTokens"] / room if self._engine.in_flight else 0.0,
        }
        for kind, gauge in self._gauges.items():
            gauge.labels(**self._labels).set(values[kind])
        text: bytes = generate_latest(self._registry)
        return text
