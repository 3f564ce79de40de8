"""The measurements of an accuracy gate: keys, images, GPUs, servers.

Which tool measures what is in `evaluation_ways`, how it is called in `evaluation_tools`. A baseline
is measured with the same tool: by trtllm-eval alone, or by one that asks a server of the 16-bit
model in the same pod.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.api.accuracy import Accuracy
from shardwright.api.serving import Backend, Build, Limits, Parallelism, Quantization
from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.observe.quantity import to_millis, to_whole
from shardwright.observe.world import Resources
from shardwright.resolved import Resolved, Score, ServerBeside
from shardwright.runner.contract import (
    STEP_ENGINE,
    STEP_MODEL,
    STEP_SCORE,
    ModelFacts,
    artifact_key,
)
from shardwright.runtimes import tensorrt_serve
from shardwright.runtimes.base import ModelSource, Refusal, serving_of, stored
from shardwright.runtimes.evaluation_tools import (
    accuracy_of,
    command,
    longest,
    passage_bytes,
    served_folder,
    trtllm_eval,
)
from shardwright.runtimes.evaluation_ways import Way, lm_eval_image, way_of
from shardwright.runtimes.registry import runtime
from shardwright.runtimes.tensorrt_precision import model_dtype

BASELINE_BATCH, BASELINE_TOKENS = 64, 8192
_HOST_ROOM = 1.2


@dataclass(frozen=True, slots=True)
class Baseline:
    """The unquantized model on one node: tensor-parallel ranks that hold it."""

    tensor: int


def score_of(
    resolved: Resolved, model: ModelSource, settings: Settings, previous: Resolved | None
) -> Score:
    """The measurement of what a revision serves.

    Raises:
        ValueError: The gate of its spec cannot measure; `refuse` says why.
    """
    accuracy = accuracy_of(resolved.spec)
    way = way_of(resolved.spec, accuracy)
    if isinstance(way, Refusal):
        raise ValueError(way.message)  # noqa: TRY004 - a spec that was not accepted
    own = way is Way.TRTLLM_EVAL
    image = _image(way, resolved, settings, previous)
    inputs: dict[str, object] = {
        "of": dict(resolved.proof_inputs),
        "options": _options(resolved, own=own) or None,
        **_measured(accuracy, way),
        # The runner is part of no key.
        "toolImage": image if way is Way.LM_EVAL else None,
    }
    return Score(
        step=STEP_SCORE,
        key=artifact_key(STEP_SCORE, inputs),
        inputs=_given(inputs),
        source_key=resolved.serve_key,
        image=image,
        commands=(command(way, resolved, model),),
        expected_files=(),
        gpus=resolved.tensor if own else 0,
        product=resolved.spec.gpu.product if own else "",
        resources=_resources(settings, resolved.tensor if own else 0, model.facts.bytes),
        config=_config(resolved) if own else {},
        asks_leader=not own,
        loads=served_folder(resolved, model) if own else "",
        also=_reads(way, resolved, model),
    )


def baseline_of(
    resolved: Resolved,
    model: ModelSource,
    settings: Settings,
    previous: Resolved | None,
    found: Baseline,
) -> Score:
    """The measurement of the unquantized model: keyed without precision and without split.

    It runs on the PyTorch backend, or on the runtime that has no backends, which serve the model's
    own files, with limits of its own: they decide memory and speed, not answers. `found` says on
    how many GPUs it fits.

    Raises:
        ValueError: The gate of its spec cannot measure; `refuse` says why.
    """
    spec, accuracy = resolved.spec, accuracy_of(resolved.spec)
    way = way_of(spec, accuracy)
    if isinstance(way, Refusal):
        raise ValueError(way.message)  # noqa: TRY004 - a spec that was not accepted
    of: dict[str, object] = {
        "model": model.key,
        "commit": model.commit or None,
        "image": resolved.image,
        "runtime": spec.engine.runtime.value,
        "version": spec.engine.version,
        "backend": "PyTorch" if spec.engine.backend is not None else None,
        "dtype": model_dtype(spec.model.dtype, model.facts.dtype),
    }
    inputs = {"of": _given(of) if way is not Way.TRTLLM_EVAL else of, **_measured(accuracy, way)}
    if way is not Way.TRTLLM_EVAL:
        image = _image(way, resolved, settings, previous)
        return _asked_beside(resolved, model, settings, image, found, inputs)
    config = {"dtype": model_dtype(spec.model.dtype, model.facts.dtype)}
    limits = ("--max_batch_size", str(BASELINE_BATCH), "--max_num_tokens", str(BASELINE_TOKENS))
    split = (found.tensor, 1)
    return Score(
        step=STEP_SCORE,
        key=artifact_key(STEP_SCORE, inputs),
        inputs=_given(inputs),
        source_key=model.key,
        image=resolved.image,
        commands=(trtllm_eval(model.folder, model.folder, "pytorch", split, spec, limits),),
        expected_files=(),
        gpus=found.tensor,
        product=spec.gpu.product,
        resources=_resources(settings, found.tensor, model.facts.bytes),
        config=config,
        loads=model.folder,
    )


def plain_spec(spec: LLMDeploymentSpec, facts: ModelFacts, tensor: int) -> LLMDeploymentSpec:
    """The unquantized model on so many GPUs of one node, as the baseline's step serves it."""
    longest = min(spec.engine.limits.max_seq_len, facts.max_positions or 2**30)
    limits = Limits(
        max_batch_size=BASELINE_BATCH,
        max_num_tokens=BASELINE_TOKENS,
        max_input_len=min(spec.engine.limits.max_input_len, longest),
        max_seq_len=longest,
    )
    backend = Backend.PYTORCH if spec.engine.backend is not None else None
    engine = spec.engine.model_copy(
        update={"backend": backend, "limits": limits, "build": Build(), "config": {}}
    )
    return spec.model_copy(
        update={
            "engine": engine,
            "quantization": Quantization(accuracy=spec.quantization.accuracy),
            "parallelism": Parallelism(tensor=tensor, pipeline=1),
            "lora": None,
            "speculative": None,
        }
    )


def _asked_beside(
    resolved: Resolved,
    model: ModelSource,
    settings: Settings,
    image: str,
    found: Baseline,
    inputs: dict[str, object],
) -> Score:
    """A measurement that asks a server of its own pod, which serves the unquantized model.

    What it is asked at once is part of the key: longer prompts are cut to its longest sequence, and
    a text into passages.
    """
    way = Way(str(inputs["tool"]))
    plain = replace(
        resolved,
        spec=plain_spec(resolved.spec, model.facts, found.tensor),
        serve_step=STEP_MODEL,
        serve_key=model.key,
        draft=None,
    )
    engine = runtime(plain.spec.engine.runtime)
    loading = _resources(settings, found.tensor, model.facts.bytes)
    cut = passage_bytes if way is Way.PERPLEXITY else longest
    whole = {
        **inputs,
        "length": cut(plain.spec),
        "toolImage": image if way is Way.LM_EVAL else None,
    }
    return Score(
        step=STEP_SCORE,
        key=artifact_key(STEP_SCORE, whole),
        inputs=_given(whole),
        source_key=model.key,
        image=image,
        commands=(command(way, plain, model),),
        expected_files=(),
        gpus=found.tensor,
        product=resolved.spec.gpu.product,
        resources=replace(loading + _resources(settings, 0, 0), pods=1),
        loads=model.folder,
        beside=ServerBeside(
            image=resolved.image,
            command=engine.serve_command(plain),
            config=dict(engine.serve_config(plain)),
            served_name=plain.spec.model.served_name,
            health_path=serving_of(engine, plain).health_path,
            resources=loading,
        ),
    )


def _reads(way: Way, resolved: Resolved, model: ModelSource) -> tuple[str, ...]:
    """What a tool reads beside what it loads: the tokenizer, and what drafts for its own copy."""
    if way is Way.PERPLEXITY:
        return ()
    if way is Way.LM_EVAL:
        return stored(model)
    tokenizer = model if served_folder(resolved, model) != model.folder else None
    draft = model.draft
    drafts = draft is not None and draft.folder in json.dumps(_config(resolved))
    return stored(tokenizer, draft if drafts and draft and draft.key != model.key else None)


def _given(inputs: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in inputs.items() if value is not None}


def _measured(accuracy: Accuracy, way: Way) -> dict[str, object]:
    """What of a gate decides a score: not its limits."""
    return {
        "task": accuracy.task.value,
        "samples": accuracy.samples,
        "dataset": accuracy.dataset,
        "tool": way.value,
    }


def _image(way: Way, resolved: Resolved, settings: Settings, previous: Resolved | None) -> str:
    """The tool's image: as before while the same tool measures, whatever settings say since."""
    if way is Way.TRTLLM_EVAL:
        return resolved.image
    if way is Way.PERPLEXITY:
        return settings.operator_image
    return lm_eval_image(settings, previous)


def _options(resolved: Resolved, *, own: bool) -> dict[str, Any]:
    """The user's own options that are measured with.

    They may well decide what is answered (a KV cache's precision, the kernels of experts), so they
    are in the score's key. Where Triton serves an engine they are of Triton's models, which
    trtllm-eval does without.
    """
    spec = resolved.spec
    of_triton = spec.engine.runtime is Runtime.TRITON and resolved.serve_step == STEP_ENGINE
    return {} if own and of_triton else dict(spec.engine.config)


def _config(resolved: Resolved) -> dict[str, Any]:
    """What is served is what is measured: the server's own configuration."""
    options = _options(resolved, own=True)
    engine = resolved.spec.engine.model_copy(update={"config": options})
    spec = resolved.spec.model_copy(update={"engine": engine})
    return dict(tensorrt_serve.serve_config(replace(resolved, spec=spec)))


def _resources(settings: Settings, gpus: int, model_bytes: int) -> Resources:
    """Of a pod that loads the model, or of one that only asks."""
    if not gpus:
        asking = settings.fetch_resources
        return Resources(
            cpu_millis=to_millis(asking.cpu),
            memory_bytes=to_whole(asking.memory),
            ephemeral_bytes=to_whole(asking.ephemeral_storage),
            pods=1,
        )
    asked = settings.step_resources
    host = -(-math.ceil(model_bytes * _HOST_ROOM) // 2**20) * 2**20
    return Resources(
        cpu_millis=to_millis(asked.cpu),
        memory_bytes=max(to_whole(asked.memory), host),
        ephemeral_bytes=to_whole(asked.ephemeral_storage),
        pods=1,
        gpus=gpus,
    )
