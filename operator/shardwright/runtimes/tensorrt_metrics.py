"""TensorRT-LLM's metrics: Prometheus' page for requests that ended, a JSON page for iterations.

`/prometheus/metrics` needs `return_perf_metrics`; in 1.2 it tells of finished requests only, later
versions count tokens and queues there too, so it is read first and the JSON page fills in. The JSON
page needs `enable_iter_perf_stats` on the PyTorch backend, and is emptied by reading.

How tokens are counted from iterations: each gives one token to every request in its generation
phase, and more by accepted draft tokens; a request's first token comes from its context phase and
is counted when the request completes. (`avgNumDecodedTokensPerIter` would say it too, but the
PyTorch backend sets it to 0: tensorrt_llm/_torch/pyexecutor/py_executor.py, `_update_iter_stats`.)
`trtllm_kv_cache_utilization` is passed over: a version that has it and does not fill it shows 0.
Names: tensorrt_llm/metrics/collector.py, cpp/tensorrt_llm/executor/jsonSerialization.cpp.
"""

from __future__ import annotations

from shardwright.runner.measures import ITERATIONS, MAX, Page, Source

_BATCH = "inflightBatchingStats"
_KV = "kvCacheStats"
_SPECULATION = "specDecodingStats"


def tensorrt_pages() -> tuple[Page, ...]:
    """Both pages; a series that an older version has not on the first comes from the second."""
    return (
        Page(
            "/prometheus/metrics",
            (
                Source("shardwright_requests_running", ("trtllm_num_requests_running",)),
                Source("shardwright_requests_waiting", ("trtllm_num_requests_waiting",)),
                Source("shardwright_prompt_tokens_total", ("trtllm_prompt_tokens_total",)),
                Source("shardwright_generation_tokens_total", ("trtllm_generation_tokens_total",)),
                Source("shardwright_requests_total", ("trtllm_request_success_total",)),
                Source(
                    "shardwright_draft_tokens_total",
                    ("trtllm_spec_decode_num_draft_tokens_total",),
                ),
                Source(
                    "shardwright_accepted_tokens_total",
                    ("trtllm_spec_decode_num_accepted_tokens_total",),
                ),
                Source(
                    "shardwright_time_to_first_token_seconds",
                    ("trtllm_time_to_first_token_seconds",),
                ),
                Source(
                    "shardwright_time_per_output_token_seconds",
                    ("trtllm_time_per_output_token_seconds",),
                ),
                Source(
                    "shardwright_request_duration_seconds", ("trtllm_e2e_request_latency_seconds",)
                ),
                Source("shardwright_queue_time_seconds", ("trtllm_request_queue_time_seconds",)),
            ),
            optional=True,
        ),
        Page(
            "/metrics",
            (
                Source("shardwright_requests_running", ("numActiveRequests",)),
                Source("shardwright_requests_waiting", ("numQueuedRequests",)),
                Source(
                    "shardwright_kv_cache_utilization",
                    (f"{_KV}.usedNumBlocks",),
                    per=f"{_KV}.maxNumBlocks",
                    merge=MAX,
                ),
                Source("shardwright_prompt_tokens_total", (f"{_BATCH}.numCtxTokens",)),
                Source(
                    "shardwright_generation_tokens_total",
                    (
                        f"{_BATCH}.numGenRequests",
                        "numCompletedRequests",
                        f"{_SPECULATION}.numAcceptedTokens",
                    ),
                ),
                Source("shardwright_draft_tokens_total", (f"{_SPECULATION}.numDraftTokens",)),
                Source("shardwright_accepted_tokens_total", (f"{_SPECULATION}.numAcceptedTokens",)),
                Source("shardwright_acceptance_length", (f"{_SPECULATION}.acceptanceLength",)),
            ),
            form=ITERATIONS,
        ),
    )
