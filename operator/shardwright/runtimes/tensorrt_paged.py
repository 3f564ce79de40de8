"""Switches that need an engine which reads its context from pages of the KV cache.

Chunks of context and reuse of blocks go with paged context attention; it is fixed when the engine
is built. The server of TensorRT-LLM and Triton's model have such switches by different names.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.tensorrt_steps import paged_context_fmha


def without_paged_context(spec: LLMDeploymentSpec, switched_on: Iterable[str]) -> Refusal | None:
    """The first switch that the engine is not built for.

    Args:
        spec: Of a compiled engine.
        switched_on: Those of `engine.config` that are true, by their path in it.
    """
    if paged_context_fmha(spec):
        return None
    for path in switched_on:
        why = (
            "engine.build.plugins.pagedContextFMHA is false; set it to true"
            if not spec.engine.build.plugins.paged_context_fmha
            else f"quantization.kvCache {spec.quantization.kv_cache} with weights "
            f"{spec.quantization.weights} excludes it; use kvCache None"
        )
        return Refusal(
            "UnknownEngineConfig",
            f"engine.config.{path} needs an engine with paged context attention, which this one "
            f"has not: {why}, or leave {path} out",
            source="paged-context",
        )
    return None
