"""NIM's metrics: those of the engine inside, under the path of NIM's proxy.

Containers of 1.x have names without a prefix
(https://docs.nvidia.com/nim/large-language-models/latest/observability.html). Since 2.0 the proxy
passes the path on to vLLM (reference/architecture of the documents of 2.1), whose names they are
then; a page has one kind or the other, so each value is looked for under both.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.runner.measures import Page, Source
from shardwright.runtimes.vllm_metrics import vllm_pages

PATH = "/v1/metrics"


# By our family, the name without a prefix.
_PLAIN = {
    "shardwright_requests_running": "num_requests_running",
    "shardwright_requests_waiting": "num_requests_waiting",
    "shardwright_kv_cache_utilization": "gpu_cache_usage_perc",
    "shardwright_prompt_tokens_total": "prompt_tokens_total",
    "shardwright_generation_tokens_total": "generation_tokens_total",
    "shardwright_requests_total": "request_success_total",
    "shardwright_time_to_first_token_seconds": "time_to_first_token_seconds",
    "shardwright_time_per_output_token_seconds": "time_per_output_token_seconds",
    "shardwright_request_duration_seconds": "e2e_request_latency_seconds",
}


def nim_pages() -> tuple[Page, ...]:
    """The one page of the server."""
    (inside,) = vllm_pages()
    return (Page(PATH, tuple(_with_plain(source) for source in inside.sources)),)


def _with_plain(source: Source) -> Source:
    plain = _PLAIN.get(source.family)
    return source if plain is None else replace(source, names=(plain, *source.names))
