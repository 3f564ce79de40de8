"""What a user should know of an accepted spec: nothing stands against it, and yet.

Told from the resolved spec alone, each time that status is written, so that a warning goes with
what it was about. The tuple at the end is the documentation.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.plan.given import WARNING
from shardwright.resolved import Resolved
from shardwright.runtimes.direct import Offer
from shardwright.runtimes.registry import DIRECT
from shardwright.runtimes.tensorrt_precision import Compute, dotted
from shardwright.sizing.hardware import UnknownHardwareError, hardware


def told(resolved: Resolved) -> tuple[str, ...]:
    """The planner's reasons, and the warnings that the spec deserves."""
    spec = resolved.spec
    return (*resolved.reasons, *(f"{WARNING}{text}" for ask in WARNINGS for text in ask(spec)))


def remote_code(spec: LLMDeploymentSpec) -> tuple[str, ...]:
    """A model's folder that may run Python in the pods."""
    if not spec.model.trust_remote_code:
        return ()
    text = (
        f"model.trustRemoteCode true executes Python from the folder of {spec.model.uri} in every "
        "pod that serves it; read that code, and pin its revision, or leave it false"
    )
    return (text,)


def unpacked(spec: LLMDeploymentSpec) -> tuple[str, ...]:
    """Precisions that save memory on this GPU and no arithmetic."""
    engine, compute = DIRECT.get(spec.engine.runtime), _compute(spec.gpu.product)
    if engine is None or compute is None:
        return ()
    weights, kv_cache = spec.quantization.weights, spec.quantization.kv_cache
    asked = (
        (f"weights {weights}", engine.weights.get(weights)),
        (f"kvCache {kv_cache}", engine.kv_cache.get(kv_cache)),
    )
    return tuple(
        f"quantization.{what} is unpacked to 16 bits on {spec.gpu.product} (compute capability "
        f"{dotted(compute)}) before it is used: it saves memory, not arithmetic"
        for what, offer in asked
        if _unpacks(offer, compute)
    )


def _unpacks(offer: Offer | None, compute: Compute) -> bool:
    return offer is not None and offer.unpacked is not None and compute in offer.unpacked


def _compute(product: str) -> Compute | None:
    try:
        return hardware(product).compute
    except UnknownHardwareError:
        return None


Warn = Callable[[LLMDeploymentSpec], tuple[str, ...]]
WARNINGS: tuple[Warn, ...] = (remote_code, unpacked)
