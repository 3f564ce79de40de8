"""vLLM's metrics. Source: vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py, 0.33.0.

Counters are exported with `_total`. With data parallelism there is a series for each engine: loads
are added up, of KV caches the fullest counts, since that is where requests are preempted.

Of adapters it tells the names of those that have requests, not how many: `vllm:lora_requests_info`
has a series for each list that there was, whose value is the time at which it was so. All other
series have the base model's name as `model_name`, whichever adapter a request asks for.
"""

from __future__ import annotations

from shardwright.runner.measures import MAX, Names, Page, Source


def vllm_pages() -> tuple[Page, ...]:
    """The one page of the server."""
    return (
        Page(
            "/metrics",
            (
                Source("shardwright_requests_running", ("vllm:num_requests_running",)),
                Source("shardwright_requests_waiting", ("vllm:num_requests_waiting",)),
                # 1 is 100 %, whatever the name says.
                Source(
                    "shardwright_kv_cache_utilization", ("vllm:kv_cache_usage_perc",), merge=MAX
                ),
                Source("shardwright_prompt_tokens_total", ("vllm:prompt_tokens_total",)),
                Source("shardwright_generation_tokens_total", ("vllm:generation_tokens_total",)),
                Source("shardwright_requests_total", ("vllm:request_success_total",)),
                Source("shardwright_preemptions_total", ("vllm:num_preemptions_total",)),
                Source(
                    "shardwright_draft_tokens_total", ("vllm:spec_decode_num_draft_tokens_total",)
                ),
                Source(
                    "shardwright_accepted_tokens_total",
                    ("vllm:spec_decode_num_accepted_tokens_total",),
                ),
                Source(
                    "shardwright_time_to_first_token_seconds",
                    ("vllm:time_to_first_token_seconds",),
                ),
                Source(
                    "shardwright_time_per_output_token_seconds",
                    ("vllm:request_time_per_output_token_seconds",),
                ),
                Source(
                    "shardwright_request_duration_seconds", ("vllm:e2e_request_latency_seconds",)
                ),
                Source("shardwright_queue_time_seconds", ("vllm:request_queue_time_seconds",)),
            ),
            adapters=Names(
                "vllm:lora_requests_info", ("running_lora_adapters", "waiting_lora_adapters")
            ),
        ),
    )
