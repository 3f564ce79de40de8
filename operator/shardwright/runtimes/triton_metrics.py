"""Triton's metrics with the TensorRT-LLM backend, on a port of their own.

Sources: triton-inference-server/tensorrtllm_backend, README "Triton Metrics" (batch manager), and
triton-inference-server/server, docs/user_guide/metrics.md (requests; the time to the first response
with `--metrics-config histogram_latencies=true`, for models that stream). Triton counts no tokens.
"""

from __future__ import annotations

from shardwright.runner.measures import MAX, Page, Source

PORT = 8002
# The model of the repository that runs an engine: what stands before and after it is no request.
ENGINE = "tensorrt_llm"
_MILLISECONDS = 1e-3


def triton_pages(model: str = ENGINE) -> tuple[Page, ...]:
    """The page on the metrics port; requests are counted by `model`, which answers them."""
    one = {"model": model}
    requests, blocks = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
    return (
        Page(
            "/metrics",
            (
                Source(
                    "shardwright_requests_running",
                    (requests,),
                    {**one, "request_type": "active"},
                ),
                Source(
                    "shardwright_requests_waiting",
                    (requests,),
                    {**one, "request_type": "waiting"},
                ),
                Source(
                    "shardwright_kv_cache_utilization",
                    (blocks,),
                    {**one, "kv_cache_block_type": "fraction"},
                    merge=MAX,
                ),
                Source("shardwright_requests_total", ("nv_inference_request_success",), one),
                Source(
                    "shardwright_time_to_first_token_seconds",
                    ("nv_inference_first_response_histogram_ms",),
                    one,
                    scale=_MILLISECONDS,
                ),
            ),
            port=PORT,
        ),
    )
