"""One GPU as the memory model counts it; what its driver reports stands in `observe.gpus`."""

from __future__ import annotations

from shardwright.observe.gpus import driver_memory, gpu_kind
from shardwright.sizing.shape import GPUMemory


def gpu_memory(product: str) -> tuple[GPUMemory, tuple[str, ...]]:
    """Memory of a product, and what is not certain about it."""
    found = driver_memory(product)
    return GPUMemory(found.total, product), (found.doubt,) if found.doubt else ()


def gpu_class(product: str) -> str:
    """Architecture of a product; empty when it is not known."""
    kind = gpu_kind(product)
    return kind.gpu_class if kind else ""
