"""What vLLM, SGLang and NIM have in common: they load a published checkpoint, and nothing is built.

A runtime of this kind says in one table (`Direct`) which versions, precisions and flags it has;
the checks and the proof's inputs are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.api.names import PORT_RUNNER
from shardwright.api.settings import Settings
from shardwright.api.spec import (
    DType,
    KVPrecision,
    LLMDeploymentSpec,
    Runtime,
    WeightPrecision,
)
from shardwright.resolved import Resolved
from shardwright.runner.contract import READY_PATH, ModelFacts
from shardwright.runtimes import direct_experts, direct_lora, speculative
from shardwright.runtimes.base import ModelSource, Probe
from shardwright.runtimes.loads import Table
from shardwright.runtimes.published import published
from shardwright.runtimes.tensorrt_precision import DTYPES, Compute, Span


@dataclass(frozen=True, slots=True)
class Offer:
    """A precision that the runtime has.

    Attributes:
        span: Compute capabilities on which it runs.
        source: Entry of the support matrix's sources.
        online: Made of 16-bit weights while they are loaded; otherwise the checkpoint brings it.
        unpacked: Compute capabilities where the weights are unpacked to 16 bits before they are
            multiplied: memory is saved, arithmetic is not.
    """

    span: Span
    source: str
    online: bool = False
    unpacked: Span | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """A precision that the runtime does not have: why, and where that is written."""

    why: str
    source: str


@dataclass(frozen=True, slots=True)
class Direct:
    """One runtime of this kind.

    Attributes:
        runtime: Its name in the API.
        repository: Of its images, with the registry (runtimes such as CRI-O may refuse short
            names); a tag is `v` and the version. Empty where no pinned image is published.
        versions: Those whose command line is recorded, the newest last.
        line: What versions begin with that take the same command line.
        record: The recorded command line that its configuration file is checked against.
        owned: Flags that the operator sets, and the field that decides them.
        switches_off: Whether the configuration file can turn off a switch.
        weights: Precisions of the weights; what is in neither table is as it comes.
        kv_cache: Precisions of the KV cache.
        no_weights: Precisions of the weights that it does not have.
        no_kv_cache: Precisions of the KV cache that it does not have.
        loads: Published checkpoints that it loads.
        loads_source: Where it was read that these are all.
    """

    runtime: Runtime
    repository: str
    versions: tuple[str, ...]
    line: str
    record: str
    owned: Mapping[str, str]
    switches_off: bool
    weights: Mapping[WeightPrecision, Offer]
    kv_cache: Mapping[KVPrecision, Offer]
    no_weights: Mapping[WeightPrecision, Absent]
    no_kv_cache: Mapping[KVPrecision, Absent]
    loads: Table
    loads_source: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What the checks of a spec look at; `compute` is None while no such GPU is known."""

    engine: Direct
    spec: LLMDeploymentSpec
    compute: Compute | None
    settings: Settings | None = None

    @property
    def named(self) -> str:
        """The runtime's name and version, for messages."""
        return f"{self.spec.engine.runtime} {self.spec.engine.version}"


def known_image(engine: Direct, version: str) -> str | None:
    """The project's release image of a recorded version."""
    if not engine.repository or version not in engine.versions:
        return None
    return f"{engine.repository}:v{version}"


def made_online(engine: Direct, spec: LLMDeploymentSpec, facts: ModelFacts) -> bool:
    """Whether the runtime makes the asked weights while it loads a 16-bit model."""
    offer = engine.weights.get(spec.quantization.weights)
    return offer is not None and offer.online and not facts.quantization


def served_as_it_comes(spec: LLMDeploymentSpec, facts: ModelFacts) -> bool:
    """Whether the checkpoint brings the asked weights."""
    weights = spec.quantization.weights
    return weights is WeightPrecision.NONE or weights in published(facts)


def proof_inputs(
    spec: LLMDeploymentSpec, model: ModelSource, image: str, serve_key: str
) -> dict[str, object]:
    """Everything whose change asks for a new candidate; neutral values are left out.

    All limits but the share of memory decide whether the model loads at all. The share, and the
    user's own options, are rolled without a candidate.
    """
    limits = spec.engine.limits
    weights, kv_cache = spec.quantization.weights, spec.quantization.kv_cache
    inputs: dict[str, object] = {
        "served": serve_key,
        "model": model.key,
        "commit": model.commit or None,
        "image": image,
        "runtime": spec.engine.runtime.value,
        "version": spec.engine.version,
        "product": spec.gpu.product,
        "tensor": spec.parallelism.tensor,
        "pipeline": spec.parallelism.pipeline,
        "weights": weights.value if weights is not WeightPrecision.NONE else None,
        "kvCache": kv_cache.value if kv_cache is not KVPrecision.NONE else None,
        "dtype": DTYPES[spec.model.dtype] if spec.model.dtype is not DType.AUTO else None,
        "limits": {
            "maxBatchSize": limits.max_batch_size,
            "maxNumTokens": limits.max_num_tokens,
            "maxInputLen": limits.max_input_len,
            "maxSeqLen": limits.max_seq_len,
        },
        **direct_experts.proof_inputs(spec),
        **direct_lora.proof_inputs(spec),
        **speculative.proof_inputs(spec, model),
    }
    return {name: value for name, value in inputs.items() if value is not None}


def readiness(resolved: Resolved) -> Probe:  # noqa: ARG001
    """The runner's own port: it has a token generated and looks at the server's health."""
    return Probe(
        path=READY_PATH, port=PORT_RUNNER, period_seconds=5, timeout_seconds=3, failure_threshold=3
    )
