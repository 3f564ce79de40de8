"""With which tool an accuracy gate measures, and what no tool can.

    runtime              stages  tasks                        tool            asks        GPUs
    TensorRTLLM, Triton  1       mmlu, gsm8k, cnn_dailymail   trtllm-eval     its own     tensor
    TensorRTLLM          > 1     mmlu, gsm8k, cnn_dailymail   lm_eval         candidate   none
    VLLM, SGLang, NIM    any     mmlu, gsm8k, cnn_dailymail   lm_eval         candidate   none
    VLLM, SGLang, NIM    any     perplexity                   the runner      candidate   none

`trtllm-eval` takes what is served (engine or checkpoint) into a pod of its own, which is one node:
an engine of several stages is asked where it runs. What Triton serves is TensorRT-LLM's engine, and
its image holds TensorRT-LLM whole: the engine is measured without Triton's own models around it.
"""

from __future__ import annotations

from enum import StrEnum

from shardwright.api.accuracy import Accuracy, Task
from shardwright.api.settings import Settings
from shardwright.api.spec import LLMDeploymentSpec, Runtime
from shardwright.resolved import Resolved
from shardwright.runner.contract import TOOL_LM_EVAL
from shardwright.runtimes.base import Refusal

# Runtimes whose image holds trtllm-eval: it comes with TensorRT-LLM's package (console_scripts of
# its setup.py), which dockerfile/Dockerfile.triton.trt_llm_backend of
# triton-inference-server/tensorrtllm_backend installs whole.
_OWN_TOOL = frozenset({Runtime.TENSORRT_LLM, Runtime.TRITON})
# Servers that repeat a prompt with its log probabilities (echo and logprobs of /v1/completions).
# NIM's endpoint is vLLM's own (reference/api-reference of its documents).
ECHO = frozenset({Runtime.VLLM, Runtime.SGLANG, Runtime.NIM})
# Runtimes of which a server for the 16-bit model is started beside the tool, on one node.
BESIDE = frozenset({Runtime.TENSORRT_LLM, Runtime.VLLM, Runtime.SGLANG})
# Runtimes that answer POST /v1/completions.
_OPENAI = frozenset({Runtime.TENSORRT_LLM, *ECHO})


class Way(StrEnum):
    """How a score is measured."""

    TRTLLM_EVAL = "trtllm-eval"
    LM_EVAL = "lm_eval"
    PERPLEXITY = "perplexity"


def way_of(spec: LLMDeploymentSpec, accuracy: Accuracy) -> Way | Refusal:
    """The table at the top: with which tool a spec's gate measures, or why with none."""
    name, task, stages = spec.engine.runtime.value, accuracy.task, spec.parallelism.pipeline
    if task is Task.PERPLEXITY:
        return Way.PERPLEXITY if name in ECHO else _no_perplexity(name)
    if name in _OWN_TOOL and stages == 1:
        return Way.TRTLLM_EVAL
    if name in _OPENAI:
        return Way.LM_EVAL
    return _not_supported(
        accuracy,
        f"runtime {name} with pipeline {stages}: trtllm-eval loads an engine of one stage into one "
        "pod, and the server has no OpenAI-style endpoint that lm_eval could ask; use pipeline 1, "
        "or runtime TensorRTLLM, or leave quantization.accuracy out",
        "triton-http-protocols",
    )


def _no_perplexity(name: str) -> Refusal:
    way_out = "use mmlu or gsm8k, or runtime VLLM or SGLang"
    if name in _OPENAI:
        why = f"the server of runtime {name} tells no log probabilities of a prompt"
        source = "trtllm-prompt-logprobs"
    else:
        why = f"the server of runtime {name} has no OpenAI-style endpoint to ask"
        source = "triton-http-protocols"
    return Refusal(
        "AccuracyTaskNotSupported",
        f"quantization.accuracy.task perplexity: {why}; {way_out}",
        source,
    )


def _not_supported(accuracy: Accuracy, why: str, source: str) -> Refusal:
    return Refusal(
        "AccuracyTaskNotSupported",
        f"quantization.accuracy.task {accuracy.task.value}: {why}",
        source,
    )


def refuse(
    spec: LLMDeploymentSpec, settings: Settings, previous: Resolved | None = None
) -> Refusal | None:
    """Why the gate of a spec cannot measure, told by spec and settings alone."""
    accuracy = spec.quantization.accuracy
    if accuracy is None:
        return None
    name, way = spec.engine.runtime.value, way_of(spec, accuracy)
    if isinstance(way, Refusal):
        return way
    if way is Way.LM_EVAL and not lm_eval_image(settings, previous):
        return Refusal(
            "EvaluationImageUnknown",
            f"quantization.accuracy.task {accuracy.task.value} with runtime "
            f"{spec.engine.runtime.value} and pipeline {spec.parallelism.pipeline} is measured by "
            "lm_eval, and the operator's settings name no evaluationImage that holds it (lm_eval "
            "0.4.9 or later, with its extra `api`); have the administrator set it",
        )
    if accuracy.measures_baseline and way is not Way.TRTLLM_EVAL and name not in BESIDE:
        return Refusal(
            "BaselineUnavailable",
            f"quantization.accuracy.baseline Measure with runtime {name}: its container chooses a "
            "profile by the checkpoint that it is given, so that the 16-bit model is not served "
            'as the candidate is; give its score (baseline: "68.2"), or a limit without a '
            "baseline (minScore, maxPerplexity)",
        )
    return None


def lm_eval_image(settings: Settings, previous: Resolved | None) -> str:
    """Its image, as before while it measures on, whatever settings say since; empty for none."""
    if previous is not None and previous.gate is not None:
        old = previous.gate.score
        if old.commands[0].tool == TOOL_LM_EVAL:
            return old.image
    return settings.evaluation_image or ""
