"""Which of a runtime's own metrics are which of ours: one table a runtime.

The tables travel in a ServeRequest as data. Names of the runtimes' own metrics, and where they were
read, stand in tests/data/metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardwright.api.spec import Backend, Runtime
from shardwright.resolved import Resolved
from shardwright.runner.measures import Page
from shardwright.runtimes.nim_metrics import nim_pages
from shardwright.runtimes.sglang_metrics import sglang_pages
from shardwright.runtimes.tensorrt_metrics import tensorrt_pages
from shardwright.runtimes.triton_metrics import triton_pages
from shardwright.runtimes.vllm_metrics import vllm_pages

# By the name that `engine.runtime` has.
PAGES: Mapping[str, Callable[[], tuple[Page, ...]]] = {
    "TensorRTLLM": tensorrt_pages,
    "Triton": triton_pages,
    "VLLM": vllm_pages,
    "SGLang": sglang_pages,
    "NIM": nim_pages,
}


def pages_of(resolved: Resolved) -> tuple[Page, ...]:
    """The pages that a leader's runner reads of this deployment's engine."""
    spec = resolved.spec
    if spec.engine.runtime is Runtime.TRITON and spec.engine.backend is Backend.PYTORCH:
        # There is one model, and it bears the served name.
        return triton_pages(spec.model.served_name)
    return PAGES[spec.engine.runtime.value]()
