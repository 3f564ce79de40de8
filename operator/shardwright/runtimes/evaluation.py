"""The measurements of an accuracy gate: keys, images, GPUs, and the tools' command lines.

Which tool measures what is in `evaluation_ways`. lm_eval's `mmlu` compares log probabilities of the
prompt; of a server that does not tell those the letter that it writes is taken (`mmlu_generative`).
A baseline is measured by trtllm-eval alone: elsewhere it would take a second server, and is given
as a number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.api.accuracy import Accuracy, Task
from shardwright.api.names import PORT_HTTP
from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.observe.quantity import to_millis, to_whole
from shardwright.observe.world import Resources
from shardwright.resolved import Resolved, Score
from shardwright.runner.contract import (
    STEP_ENGINE,
    STEP_MODEL,
    STEP_SCORE,
    STORE,
    TOOL_LM_EVAL,
    TOOL_PERPLEXITY,
    TOOL_TRTLLM_EVAL,
    Command,
    artifact_folder,
    artifact_key,
)
from shardwright.runtimes import tensorrt_serve
from shardwright.runtimes.base import ModelSource, Refusal, stored
from shardwright.runtimes.evaluation_ways import ECHO, Way, lm_eval_image, way_of
from shardwright.runtimes.tensorrt_precision import model_dtype

# Requests at a time that lm_eval sends, and tokens that it writes at most.
_CONCURRENT = 8
_FEWSHOT = {Task.MMLU: 5, Task.GSM8K: 5, Task.CNN_DAILYMAIL: 0}
# EleutherAI/lm-evaluation-harness v0.4.9.2, lm_eval/tasks/cnn_dailymail: it has ROUGE-1 of the same
# articles, in other words than trtllm-eval asks for it.
_SUMMARIES = "cnn_dailymail_abisee"
_SUBJECTS = 57  # subtasks of mmlu: lm_eval's --limit counts in each of them
_PASSAGE_BYTES = 4096
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
    accuracy = _accuracy(resolved.spec)
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
        commands=(_command(way, resolved, model, accuracy),),
        expected_files=(),
        gpus=resolved.tensor if own else 0,
        product=resolved.spec.gpu.product if own else "",
        resources=_resources(settings, resolved.tensor if own else 0, model.facts.bytes),
        config=_config(resolved) if own else {},
        asks_leader=not own,
        loads=_served(resolved, model) if own else "",
        also=_reads(way, resolved, model),
    )


def baseline_of(
    resolved: Resolved, model: ModelSource, settings: Settings, found: Baseline
) -> Score:
    """The measurement of the unquantized model: keyed without precision and without split.

    It runs on the PyTorch backend, which serves the model's own files, with limits of its own: they
    decide memory and speed, not answers. `found` says on how many GPUs it fits.
    """
    spec, accuracy = resolved.spec, _accuracy(resolved.spec)
    inputs: dict[str, object] = {
        "of": {
            "model": model.key,
            "commit": model.commit or None,
            "image": resolved.image,
            "runtime": spec.engine.runtime.value,
            "version": spec.engine.version,
            "backend": "PyTorch",
            "dtype": model_dtype(spec.model.dtype, model.facts.dtype),
        },
        **_measured(accuracy, Way.TRTLLM_EVAL),
    }
    config = {"dtype": model_dtype(spec.model.dtype, model.facts.dtype)}
    argv = (
        *_group(model.folder, model.folder, "pytorch", found.tensor, 1, spec),
        *("--max_batch_size", str(BASELINE_BATCH)),
        *("--max_num_tokens", str(BASELINE_TOKENS)),
        *_task(accuracy),
    )
    return Score(
        step=STEP_SCORE,
        key=artifact_key(STEP_SCORE, inputs),
        inputs=_given(inputs),
        source_key=model.key,
        image=resolved.image,
        commands=(Command(tool=TOOL_TRTLLM_EVAL, argv=argv),),
        expected_files=(),
        gpus=found.tensor,
        product=spec.gpu.product,
        resources=_resources(settings, found.tensor, model.facts.bytes),
        config=config,
        loads=model.folder,
    )


def _reads(way: Way, resolved: Resolved, model: ModelSource) -> tuple[str, ...]:
    """What a tool reads beside what it loads: the tokenizer, and what drafts for its own copy."""
    if way is Way.PERPLEXITY:
        return ()
    if way is Way.LM_EVAL:
        return stored(model)
    tokenizer = model if _served(resolved, model) != model.folder else None
    draft = model.draft
    drafts = draft is not None and draft.folder in json.dumps(_config(resolved))
    return stored(tokenizer, draft if drafts and draft and draft.key != model.key else None)


def _accuracy(spec: LLMDeploymentSpec) -> Accuracy:
    accuracy = spec.quantization.accuracy
    if accuracy is None:
        raise ValueError("the spec asks for no accuracy")
    return accuracy


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


def _command(way: Way, resolved: Resolved, model: ModelSource, accuracy: Accuracy) -> Command:
    if way is Way.TRTLLM_EVAL:
        return _trtllm_eval(resolved, model, accuracy)
    if way is Way.LM_EVAL:
        return _lm_eval(resolved, model, accuracy)
    return _perplexity(resolved, accuracy)


def _served(resolved: Resolved, model: ModelSource) -> str:
    """Folder of what is served, inside the pod."""
    if resolved.serve_step == STEP_MODEL:
        return model.folder
    return f"{STORE}/{artifact_folder(resolved.serve_step, resolved.serve_key)}"


def _trtllm_eval(resolved: Resolved, model: ModelSource, accuracy: Accuracy) -> Command:
    served = _served(resolved, model)
    backend = "tensorrt" if resolved.serve_step == STEP_ENGINE else "pytorch"
    argv = (
        *_group(served, model.folder, backend, resolved.tensor, resolved.pipeline, resolved.spec),
        *_task(accuracy),
    )
    return Command(tool=TOOL_TRTLLM_EVAL, argv=argv)


def _group(
    served: str, tokenizer: str, backend: str, tensor: int, pipeline: int, spec: LLMDeploymentSpec
) -> tuple[str, ...]:
    """The options before the task's name; what the configuration file has is not repeated."""
    return (
        "trtllm-eval",
        *("--model", served),
        *("--tokenizer", tokenizer),
        *("--backend", backend),
        *("--tp_size", str(tensor)),
        *("--pp_size", str(pipeline)),
        *("--gpus_per_node", str(tensor)),
        *("--extra_llm_api_options", "{scratch}/config.yaml"),
        *(("--trust_remote_code",) if spec.model.trust_remote_code else ()),
    )


def _task(accuracy: Accuracy) -> tuple[str, ...]:
    samples = ("--num_samples", str(accuracy.samples)) if accuracy.samples else ()
    data = ("--dataset_path", f"{STORE}/{accuracy.dataset}") if accuracy.dataset else ()
    return (accuracy.task.value, *data, *samples)


def _lm_eval(resolved: Resolved, model: ModelSource, accuracy: Accuracy) -> Command:
    spec = resolved.spec
    echo = spec.engine.runtime.value in ECHO
    task = accuracy.task.value
    if accuracy.task is Task.MMLU and not echo:
        task = "mmlu_generative"
    elif accuracy.task is Task.CNN_DAILYMAIL:
        task = _SUMMARIES
    arguments = {
        "base_url": f"http://{{leader}}:{PORT_HTTP}/v1/completions",
        "model": spec.model.served_name,
        "tokenizer": model.folder,
        "tokenizer_backend": "huggingface",
        "num_concurrent": str(_CONCURRENT),
        "max_length": str(spec.engine.limits.max_seq_len),
        # Log probabilities are counted off by the tokens that lm_eval sends: a text would get a
        # token more from servers that put one before it. What is generated is asked for by text.
        "tokenized_requests": str(task == Task.MMLU.value),
        **({"trust_remote_code": "True"} if spec.model.trust_remote_code else {}),
    }
    argv = [
        *("lm_eval", "--model", "local-completions"),
        *("--tasks", task),
        *("--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())),
        *("--num_fewshot", str(_FEWSHOT[accuracy.task])),
        *("--output_path", "{out}"),
    ]
    if accuracy.samples:
        each = math.ceil(accuracy.samples / _SUBJECTS) if accuracy.task is Task.MMLU else None
        argv += ["--limit", str(each or accuracy.samples)]
    env = {"TOKENIZERS_PARALLELISM": "false"}
    if accuracy.dataset:
        # A cache of the hub's and of `datasets`, filled once where there is a network.
        offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
        env |= {"HF_HOME": f"{STORE}/{accuracy.dataset}", **offline}
    return Command(tool=TOOL_LM_EVAL, argv=tuple(argv), env=env)


def _perplexity(resolved: Resolved, accuracy: Accuracy) -> Command:
    spec = resolved.spec
    size = min(_PASSAGE_BYTES, spec.engine.limits.max_input_len, spec.engine.limits.max_seq_len - 1)
    passages = ("--passages", str(accuracy.samples)) if accuracy.samples else ()
    argv = (
        "perplexity",
        *("--url", f"http://{{leader}}:{PORT_HTTP}"),
        *("--model", spec.model.served_name),
        *("--text", f"{STORE}/{accuracy.dataset}"),
        *("--passage_bytes", str(max(1, size))),
        *passages,
    )
    return Command(tool=TOOL_PERPLEXITY, argv=argv)


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
