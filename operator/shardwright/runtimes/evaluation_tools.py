"""The command lines of the tools that measure, and what they are given to read.

lm_eval's `mmlu` compares log probabilities of the prompt; of a server that does not tell those the
letter that it writes is taken (`mmlu_generative`).
"""

from __future__ import annotations

import math

from shardwright.api.accuracy import Accuracy, Task
from shardwright.api.names import PORT_HTTP
from shardwright.api.spec import LLMDeploymentSpec
from shardwright.resolved import Resolved
from shardwright.runner.contract import (
    STEP_ENGINE,
    STEP_MODEL,
    STORE,
    TOOL_LM_EVAL,
    TOOL_PERPLEXITY,
    TOOL_TRTLLM_EVAL,
    Command,
    artifact_folder,
)
from shardwright.runtimes.base import ModelSource
from shardwright.runtimes.evaluation_ways import ECHO, Way

# Requests at a time that lm_eval sends, and tokens that it writes at most.
_CONCURRENT = 8
_FEWSHOT = {Task.MMLU: 5, Task.GSM8K: 5, Task.CNN_DAILYMAIL: 0}
# EleutherAI/lm-evaluation-harness v0.4.9.2, lm_eval/tasks/cnn_dailymail: it has ROUGE-1 of the same
# articles, in other words than trtllm-eval asks for it.
_SUMMARIES = "cnn_dailymail_abisee"
_SUBJECTS = 57  # subtasks of mmlu: lm_eval's --limit counts in each of them
_PASSAGE_BYTES = 4096


def accuracy_of(spec: LLMDeploymentSpec) -> Accuracy:
    """The gate of a spec.

    Raises:
        ValueError: It has none.
    """
    accuracy = spec.quantization.accuracy
    if accuracy is None:
        raise ValueError("the spec asks for no accuracy")
    return accuracy


def command(way: Way, resolved: Resolved, model: ModelSource) -> Command:
    """What the way's tool is called with; `{leader}` stands for whom it asks."""
    spec = resolved.spec
    if way is Way.LM_EVAL:
        return _lm_eval(spec, model)
    if way is Way.PERPLEXITY:
        return _perplexity(spec)
    backend = "tensorrt" if resolved.serve_step == STEP_ENGINE else "pytorch"
    split = (resolved.tensor, resolved.pipeline)
    return trtllm_eval(served_folder(resolved, model), model.folder, backend, split, spec)


def served_folder(resolved: Resolved, model: ModelSource) -> str:
    """Folder of what is served, inside the pod."""
    if resolved.serve_step == STEP_MODEL:
        return model.folder
    return f"{STORE}/{artifact_folder(resolved.serve_step, resolved.serve_key)}"


def trtllm_eval(
    served: str,
    tokenizer: str,
    backend: str,
    split: tuple[int, int],
    spec: LLMDeploymentSpec,
    limits: tuple[str, ...] = (),
) -> Command:
    """The tool that loads what it measures: a folder, in a split of (tensor, pipeline) ranks.

    What its configuration file has is not repeated before the task's name.
    """
    accuracy = accuracy_of(spec)
    tensor, pipeline = split
    argv = (
        "trtllm-eval",
        *("--model", served),
        *("--tokenizer", tokenizer),
        *("--backend", backend),
        *("--tp_size", str(tensor)),
        *("--pp_size", str(pipeline)),
        *("--gpus_per_node", str(tensor)),
        *("--extra_llm_api_options", "{scratch}/config.yaml"),
        *(("--trust_remote_code",) if spec.model.trust_remote_code else ()),
        *limits,
        accuracy.task.value,
        *(("--dataset_path", f"{STORE}/{accuracy.dataset}") if accuracy.dataset else ()),
        *(("--num_samples", str(accuracy.samples)) if accuracy.samples else ()),
    )
    return Command(tool=TOOL_TRTLLM_EVAL, argv=argv)


def _lm_eval(spec: LLMDeploymentSpec, model: ModelSource) -> Command:
    accuracy = accuracy_of(spec)
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
        "max_length": str(longest(spec)),
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


def longest(spec: LLMDeploymentSpec) -> int:
    """Tokens of a prompt and its answer at most, as lm_eval is told."""
    return spec.engine.limits.max_seq_len


def passage_bytes(spec: LLMDeploymentSpec) -> int:
    """Bytes of a passage at most: no tokenizer makes more tokens of it than that.

    A server may put one before them, and writes one behind them.
    """
    return max(1, min(_PASSAGE_BYTES, spec.engine.limits.max_input_len - 1, longest(spec) - 2))


def _perplexity(spec: LLMDeploymentSpec) -> Command:
    accuracy = accuracy_of(spec)
    passages = ("--passages", str(accuracy.samples)) if accuracy.samples else ()
    argv = (
        "perplexity",
        *("--url", f"http://{{leader}}:{PORT_HTTP}"),
        *("--model", spec.model.served_name),
        *("--text", f"{STORE}/{accuracy.dataset}"),
        *("--passage_bytes", str(passage_bytes(spec))),
        *passages,
    )
    return Command(tool=TOOL_PERPLEXITY, argv=argv)
