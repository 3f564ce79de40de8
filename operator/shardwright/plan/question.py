"""A spec with open fields as a question to the planner, and plans in a few words."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from shardwright.api.asked import AskedSpec
from shardwright.api.lora import LoRA
from shardwright.api.serving import EngineSpec, WeightPrecision
from shardwright.api.spec import (
    LLMDeploymentSpec,
    SpeculationMethod,
    Speculative,
    StagePlacement,
)
from shardwright.runner.config_keys import unpack_config
from shardwright.runner.contract import ModelFacts
from shardwright.runtimes.adapter_slots import slots_of
from shardwright.runtimes.base import Refusal
from shardwright.sizing.config_json import load_json, model_from_config
from shardwright.sizing.model import Model
from shardwright.sizing.question import Limits, Objective, Workload
from shardwright.sizing.result import Candidate
from shardwright.sizing.shape import EngineSettings, Shape

_USUAL_INPUT, _USUAL_OUTPUT, _USUAL_CONCURRENCY = 2048, 512, 64


def model_of(facts: ModelFacts, uri: str) -> Model | Refusal:
    """The model's geometry, read by the planner's own parser from what the fetch reported."""
    if not facts.config:
        return Refusal(
            "ModelNotKnown",
            f"spec.model.uri {uri}: its config.json is not kept beside its facts (an earlier "
            "version fetched it, or it is too long), so its memory cannot be worked out; give "
            "spec.parallelism and spec.gpu, or delete the model's record to fetch it again",
        )
    try:
        return _model(facts.config, _name(uri), facts.bytes)
    except ValueError as error:
        return Refusal(
            "ModelNotKnown",
            f"spec.model.uri {uri}: {error}; or give spec.parallelism, quantization and gpu",
        )


def _name(uri: str) -> str:
    return uri.split("://", 1)[-1].split("@", 1)[0]


@lru_cache(maxsize=256)
def _model(config: str, name: str, total: int) -> Model:
    index = {"metadata": {"total_size": total}} if total else None
    return model_from_config(load_json(unpack_config(config)), name=name, index=index)


def engine_settings(
    engine: EngineSpec,
    lora: LoRA | None = None,
    speculative: Speculative | None = None,
    draft: ModelFacts | None = None,
) -> EngineSettings:
    """The part of an engine that decides memory, and what its build takes.

    Args:
        engine: The spec's.
        lora: The spec's: its slots are taken whether adapters are loaded or not.
        speculative: The spec's.
        draft: Facts of the draft model that it names, where they are known.
    """
    limits = engine.limits
    slots = slots_of(engine.runtime.value, lora) if lora is not None else None
    return EngineSettings(
        runtime=engine.runtime.value,
        version=engine.version,
        backend=engine.backend.value if engine.backend else "",
        memory_fraction=limits.gpu_memory_fraction,
        max_seq_len=limits.max_seq_len,
        max_num_tokens=limits.max_num_tokens,
        max_batch_size=limits.max_batch_size,
        lora_slots=slots.count if slots is not None else 0,
        lora_rank=slots.rank if slots is not None else 0,
        lora_modules=slots.hf_modules if slots is not None else (),
        own_draft=speculative is not None and speculative.method is SpeculationMethod.MTP,
        draft=_draft(speculative, draft),
        build_workers=engine.build.workers,
    )


def _draft(speculative: Speculative | None, facts: ModelFacts | None) -> Model | None:
    """The draft's geometry; None where there is none, or nothing is known of it."""
    if speculative is None or speculative.model is None or facts is None:
        return None
    found = model_of(facts, speculative.model.uri)
    return None if isinstance(found, Refusal) else found


def limits_of(asked: AskedSpec, replicas: int | None) -> Limits:
    """What the spec fixes."""
    stages = asked.placement.pipeline_stages
    return Limits(
        weights=asked.weights,
        kv_cache=asked.kv_cache,
        tensor=asked.tensor,
        pipeline=asked.pipeline,
        expert=asked.expert,
        attention_data=asked.attention_data,
        product=asked.product,
        replicas=replicas,
        pipeline_stages=None if stages is StagePlacement.AUTO else stages,
    )


def workload_of(asked: AskedSpec) -> Workload:
    """The load, with usual lengths for what is left out, shortened to the engine's limits."""
    load, limits = asked.workload, asked.engine.limits
    longest = limits.max_seq_len
    given_in = load.input_len if load is not None else None
    given_out = load.output_len if load is not None else None
    room = longest - (given_out or min(_USUAL_OUTPUT, max(1, longest // 5)))
    input_len = given_in or max(1, min(_USUAL_INPUT, limits.max_input_len, room))
    return Workload(
        objective=Objective((load.objective if load else None) or Objective.BALANCED),
        concurrency=(load.concurrency if load else None) or _USUAL_CONCURRENCY,
        input_len=input_len,
        output_len=given_out or max(1, min(_USUAL_OUTPUT, longest - input_len)),
    )


def same_question(old: AskedSpec, new: AskedSpec) -> bool:
    """Whether two specs ask the planner the same, so that what was chosen is kept.

    The number of replicas is left out: scaling changes no shape.
    """
    return _question(old) == _question(new)


def _question(asked: AskedSpec) -> tuple[object, ...]:
    placement = asked.placement
    return (
        asked.model.uri,
        asked.model.dtype,
        # How an engine is built decides no shape.
        replace(engine_settings(asked.engine, asked.lora, asked.speculative), build_workers=1),
        asked.speculative.model.uri if asked.speculative and asked.speculative.model else "",
        limits_of(asked, None),
        workload_of(asked),
        dict(placement.node_selector),
        tuple(placement.tolerations),
    )


def headline(candidate: Candidate) -> str:
    """A plan in a few words, the same for the same plan."""
    return _words(
        candidate.product,
        candidate.shape,
        candidate.precision.weights or WeightPrecision.NONE,
        candidate.precision.kv_cache.value,
    )


def headline_of(spec: LLMDeploymentSpec) -> str:
    """The same of a spec."""
    return _words(
        spec.gpu.product,
        shape_of(spec),
        spec.quantization.weights,
        spec.quantization.kv_cache.value,
    )


def _words(product: str, shape: Shape, weights: WeightPrecision, kv_cache: str) -> str:
    return f"{shape_words(shape)} on {product}, weights {weights.value}, KV cache {kv_cache}"


def shape_of(spec: LLMDeploymentSpec) -> Shape:
    """How a spec splits one replica."""
    split = spec.parallelism
    return Shape(split.tensor, split.pipeline, split.expert_groups, split.attention_groups)


def shape_words(shape: Shape) -> str:
    """A split in words; what is neutral is left out."""
    words = f"tensor {shape.tensor} × pipeline {shape.pipeline}"
    if shape.expert > 1:
        words += f", experts over {shape.expert} ranks"
    if shape.attention_data > 1:
        words += f", attention in {shape.attention_data} groups"
    return words
