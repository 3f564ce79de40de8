"""SGLang's metrics, with `--enable-metrics`. Source: sglang/srt/observability, 0.5.23.

The first rank of each attention group has series of its own, labelled by its rank in the stage.
Those of other pipeline stages on the same node tell of the same requests and are passed over;
attention groups are added up.
"""

from __future__ import annotations

from shardwright.runner.measures import MAX, Page, Source

_FIRST_STAGE = {"pp_rank": "0"}
# With priorities the total has an empty one, and each priority a series beside it.
_TOTAL = {**_FIRST_STAGE, "priority": ""}


def sglang_pages() -> tuple[Page, ...]:
    """The one page of the server."""
    return (
        Page(
            "/metrics",
            (
                Source("shardwright_requests_running", ("sglang:num_running_reqs",), _TOTAL),
                Source("shardwright_requests_waiting", ("sglang:num_queue_reqs",), _TOTAL),
                Source(
                    "shardwright_kv_cache_utilization",
                    ("sglang:token_usage",),
                    _FIRST_STAGE,
                    merge=MAX,
                ),
                Source("shardwright_prompt_tokens_total", ("sglang:prompt_tokens_total",)),
                Source("shardwright_generation_tokens_total", ("sglang:generation_tokens_total",)),
                Source("shardwright_requests_total", ("sglang:num_requests_total",)),
                Source(
                    "shardwright_preemptions_total",
                    ("sglang:num_retracted_requests_total",),
                    _FIRST_STAGE,
                ),
                Source(
                    "shardwright_acceptance_length",
                    ("sglang:spec_accept_length",),
                    _FIRST_STAGE,
                    merge=MAX,
                ),
                Source(
                    "shardwright_time_to_first_token_seconds",
                    ("sglang:time_to_first_token_seconds",),
                ),
                Source(
                    "shardwright_time_per_output_token_seconds",
                    ("sglang:request_time_per_output_token_seconds",),
                ),
                Source(
                    "shardwright_request_duration_seconds", ("sglang:e2e_request_latency_seconds",)
                ),
                Source(
                    "shardwright_queue_time_seconds",
                    ("sglang:queue_time_seconds",),
                    _FIRST_STAGE,
                ),
            ),
        ),
    )
