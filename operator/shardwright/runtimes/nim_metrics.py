"""NIM's metrics: names without a prefix, of whatever engine is inside.

Source: https://docs.nvidia.com/nim/large-language-models/latest/observability.html
"""

from __future__ import annotations

from shardwright.runner.measures import MAX, Page, Source


def nim_pages() -> tuple[Page, ...]:
    """The one page of the server."""
    return (
        Page(
            "/v1/metrics",
            (
                Source("shardwright_requests_running", ("num_requests_running",)),
                Source("shardwright_requests_waiting", ("num_requests_waiting",)),
                Source("shardwright_kv_cache_utilization", ("gpu_cache_usage_perc",), merge=MAX),
                Source("shardwright_prompt_tokens_total", ("prompt_tokens_total",)),
                Source("shardwright_generation_tokens_total", ("generation_tokens_total",)),
                Source("shardwright_requests_total", ("request_success_total",)),
                Source("shardwright_time_to_first_token_seconds", ("time_to_first_token_seconds",)),
                Source(
                    "shardwright_time_per_output_token_seconds", ("time_per_output_token_seconds",)
                ),
                Source("shardwright_request_duration_seconds", ("e2e_request_latency_seconds",)),
            ),
        ),
    )
