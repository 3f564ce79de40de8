"""Where the unquantized model can be measured: the fewest GPUs of one node that hold it.

Where nothing holds it, that is told with numbers before anything is built. What stands against a
gate by spec and settings alone is told by `checks`, before the model is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.api.spec import LLMDeploymentSpec
from shardwright.observe.gpus import DriverMemory
from shardwright.plan.question import model_of
from shardwright.plan.room import memory_plan
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes import evaluation
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.evaluation import Baseline
from shardwright.runtimes.registry import runtime
from shardwright.sizing.question import GIB
from shardwright.words import counted

# Of the weights on disk, where the model's sizes are not known: activations, context and a cache.
_ROOM = 1.3
_WAYS_OUT = (
    'give its score if you know it (quantization.accuracy.baseline: "68.2"), or a limit without a '
    "baseline (minScore)"
)


def gate_plan(
    spec: LLMDeploymentSpec,
    facts: ModelFacts,
    gpu: DriverMemory,
    domain: int,
) -> Baseline | Refusal | None:
    """Where a gate's baseline is measured; None when nothing has to be, a refusal when nothing can.

    Args:
        spec: A spec with nothing open, whose gate has a tool.
        facts: Its model's.
        gpu: Memory of one GPU of the spec's product.
        domain: GPUs of the product that one node, or one NVLink island of it, has.
    """
    accuracy = spec.quantization.accuracy
    if accuracy is None or not accuracy.measures_baseline:
        return None
    if facts.quantization:
        return Refusal(
            "BaselineUnavailable",
            f"quantization.accuracy.baseline Measure: the model comes quantized by "
            f"{facts.quantization}, its 16-bit original is not here; {_WAYS_OUT}",
        )
    for tensor in _ranks(domain):
        if _fits(spec, facts, gpu, tensor):
            return Baseline(tensor)
    most = max(1, domain)
    return Refusal(
        "BaselineUnavailable",
        f"quantization.accuracy.baseline Measure: the 16-bit model has {facts.bytes / GIB:.1f} GiB "
        f"of weights, and {counted(most, 'GPU')} of {spec.gpu.product}, as many as one node of "
        f"this cluster has, hold {most * gpu.total / GIB:.1f} GiB in all, which is too little with "
        f"activations and a cache, or cannot share its heads; {_WAYS_OUT}",
    )


def _ranks(domain: int) -> Iterator[int]:
    most = max(1, domain)
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return iter(sorted({*powers, most}))


def _fits(spec: LLMDeploymentSpec, facts: ModelFacts, gpu: DriverMemory, tensor: int) -> bool:
    plain = evaluation.plain_spec(spec, facts, tensor)
    if runtime(spec.engine.runtime).refuse_model(plain, facts) is not None:
        return False
    model = model_of(facts, spec.model.uri)
    plan = None if isinstance(model, Refusal) else memory_plan(plain, model, gpu.total)
    if plan is not None:
        return plan.concurrency >= 1
    return facts.bytes * _ROOM <= tensor * gpu.total
