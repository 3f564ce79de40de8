"""What a user should know of an accepted spec: nothing stands against it, and yet.

Told from the resolved spec alone, each time that status is written, so that a warning goes with
what it was about. The tuple at the end is the documentation.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.api.serving import Calibration
from shardwright.plan.given import WARNING
from shardwright.plan.used import draft_cost
from shardwright.resolved import Resolved
from shardwright.runtimes.direct import Offer
from shardwright.runtimes.registry import DIRECT
from shardwright.runtimes.tensorrt_precision import Compute, dotted
from shardwright.sizing.hardware import UnknownHardwareError, hardware


def told(resolved: Resolved) -> tuple[str, ...]:
    """The planner's reasons, and the warnings that the spec deserves."""
    said = (f"{WARNING}{text}" for ask in WARNINGS for text in ask(resolved))
    return (*resolved.reasons, *said)


def remote_code(resolved: Resolved) -> tuple[str, ...]:
    """A model's folder that may run Python in the pods."""
    spec = resolved.spec
    if not spec.model.trust_remote_code:
        return ()
    text = (
        f"model.trustRemoteCode true executes Python from the folder of {spec.model.uri} in every "
        "pod that serves it; read that code, and pin its revision, or leave it false"
    )
    return (text,)


def unused_calibration(resolved: Resolved) -> tuple[str, ...]:
    """Calibration data where nothing is quantized from data."""
    spec = resolved.spec
    given = spec.quantization.calibration.model_dump(by_alias=True)
    unasked = Calibration().model_dump(by_alias=True)
    named = [f"{name} {value}" for name, value in given.items() if value != unasked[name]]
    if not named or any(artifact.inputs.get("calibration") for artifact in resolved.artifacts):
        return ()
    weights = spec.quantization.weights
    text = (
        f"quantization.calibration ({', '.join(named)}) has no effect with weights {weights} on "
        f"{spec.engine.runtime} from {spec.model.uri}: no scales are taken from data here; leave "
        "it out, or choose a runtime and a precision that are calibrated (TensorRTLLM, FP8)"
    )
    return (text,)


def unpacked(resolved: Resolved) -> tuple[str, ...]:
    """Precisions that save memory on this GPU and no arithmetic."""
    spec = resolved.spec
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


def heavy_draft(resolved: Resolved) -> tuple[str, ...]:
    """A draft model that costs what it is to save.

    With c ≥ 1 passes a draft, (1 − a^(g+1)) / ((1 − a)(gc + 1)) is at most 1 for each a and g
    (Leviathan et al., arXiv:2211.17192, theorem 3.8).
    """
    wish, cost = resolved.spec.speculative, draft_cost(resolved)
    if wish is None or wish.model is None or cost is None or cost < 1:
        return ()
    text = (
        f"speculative.model.uri {wish.model.uri} is {cost:.1f} times as large as the model, and "
        "each of its drafts costs as many passes of it: no answer can come sooner so; name a draft "
        "of a tenth of the model's size or less, or leave speculative out"
    )
    return (text,)


def _unpacks(offer: Offer | None, compute: Compute) -> bool:
    return offer is not None and offer.unpacked is not None and compute in offer.unpacked


def _compute(product: str) -> Compute | None:
    try:
        return hardware(product).compute
    except UnknownHardwareError:
        return None


Warn = Callable[[Resolved], tuple[str, ...]]
WARNINGS: tuple[Warn, ...] = (remote_code, unused_calibration, unpacked, heavy_draft)
