"""What the engine runtime itself refuses, asked through the interface that accepts specs.

The rules stand with the runtimes; here a candidate is only put into the words of a spec.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shardwright.api.serving import (
    Backend,
    DType,
    EngineSpec,
    GPUSpec,
    KVPrecision,
    Limits,
    ModelSpec,
    Parallelism,
    Quantization,
    Runtime,
    WeightPrecision,
)
from shardwright.api.spec import LLMDeploymentSpec, Storage
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.base import EngineRuntime, Refusal
from shardwright.runtimes.registry import RUNTIMES
from shardwright.sizing.hardware import NumberType
from shardwright.sizing.model import Model
from shardwright.sizing.pools import Pool
from shardwright.sizing.precisions import sixteen_bit
from shardwright.sizing.quantized_section import config_of
from shardwright.sizing.shape import EngineSettings, Precision, Shape

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_UNKNOWN_VERSION = "UnknownVersion"
_SUFFIX = re.compile(r"(For[A-Z].*|LMHeadModel)$")


def model_type(architecture: str) -> str:
    """A config's `model_type` by its architecture: `Qwen2MoeForCausalLM` is qwen2_moe."""
    return _WORD.sub("_", _SUFFIX.sub("", architecture)).lower()


def facts_of(model: Model) -> ModelFacts:
    """The facts that runtimes look at."""
    return ModelFacts(
        architecture=model.architecture,
        model_type=model_type(model.architecture),
        layers=len(model.layers),
        hidden_size=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.layers[0].attention.head_dim,
        vocab_size=model.vocabulary,
        max_positions=model.max_positions,
        dtype=model.dtype,
        quantization=model.checkpoint.method,
        config=config_of(model.checkpoint),
        experts=model.experts,
        bytes=model.file_bytes,
    )


def _uri(model: Model) -> str:
    """A uri for messages."""
    return f"hf://{model.name}" if _HUB_NAME.fullmatch(model.name) else "hf://planned/model"


@dataclass(slots=True)
class RuntimeVoice:
    """Asks the runtime of one question; it has nothing to say of runtimes that are not ours.

    Nor of versions whose command line is not known: they are planned by their constants alone.
    Specs are made once for each product and precision, and copied for each shape.
    """

    model: Model
    engine: EngineSettings
    _runtime: EngineRuntime | None = field(init=False)
    _facts: ModelFacts = field(init=False)
    _specs: dict[tuple[str, Precision], LLMDeploymentSpec] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        known = {runtime.value: runtime for runtime in Runtime}
        name = known.get(self.engine.runtime)
        self._runtime = RUNTIMES.get(name) if name else None
        self._facts = facts_of(self.model)

    def on_precision(self, pool: Pool, precision: Precision) -> Refusal | None:
        """Whether the runtime and this GPU take the precision at all."""
        if self._runtime is None:
            return None
        spec = self._spec(pool, precision)
        refusal = self._runtime.refuse_spec(spec, pool.compute)
        if refusal is not None and refusal.reason == _UNKNOWN_VERSION:
            self._runtime = None
            return None
        return refusal or self._runtime.refuse_model(spec, self._facts, pool.compute)

    def on_shape(self, pool: Pool, precision: Precision, shape: Shape) -> Refusal | None:
        """Whether the runtime takes the model so split."""
        if self._runtime is None:
            return None
        split = Parallelism(
            tensor=shape.tensor,
            pipeline=shape.pipeline,
            expert=shape.expert if shape.expert > 1 else None,
            attention_data=shape.attention_data if shape.attention_data > 1 else None,
        )
        spec = self._spec(pool, precision).model_copy(update={"parallelism": split})
        grouped = shape.expert > 1 or shape.attention_data > 1
        # What a runtime says of a spec without groups was asked for its precision already.
        refused = self._runtime.refuse_spec(spec, pool.compute) if grouped else None
        return refused or self._runtime.refuse_model(spec, self._facts, pool.compute)

    def _spec(self, pool: Pool, precision: Precision) -> LLMDeploymentSpec:
        key = (pool.product, precision)
        if key not in self._specs:
            self._specs[key] = self._make(pool, precision)
        return self._specs[key]

    def _make(self, pool: Pool, precision: Precision) -> LLMDeploymentSpec:
        engine = self.engine
        # Auto is refused as bfloat16 on GPUs without it, where a plan takes float16.
        half = sixteen_bit(self.model, pool.hardware) is NumberType.FP16
        return LLMDeploymentSpec(
            model=ModelSpec(
                uri=_uri(self.model),
                dtype=DType.FP16 if half else DType.AUTO,
            ),
            engine=EngineSpec(
                runtime=Runtime(engine.runtime),
                version=engine.version,
                backend=Backend(engine.backend) if engine.backend else None,
                # Whether an image is known is no question of sizes.
                image="planned",
                limits=Limits(
                    max_batch_size=engine.max_batch_size,
                    max_num_tokens=max(engine.max_num_tokens, engine.max_batch_size),
                    max_input_len=1,
                    max_seq_len=engine.max_seq_len,
                ),
            ),
            gpu=GPUSpec(product=pool.product),
            quantization=Quantization(
                weights=precision.weights or WeightPrecision.NONE,
                kv_cache=precision.kv_cache or KVPrecision.NONE,
            ),
            storage=Storage(claim_name="planned"),
        )
