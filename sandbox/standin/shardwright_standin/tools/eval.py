"""`trtllm-eval`: MMLU with the real task's scores and log lines, over the tiny model.

Other tasks parse and are then refused: they need libraries or data that are not here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright_standin import commandline
from shardwright_standin.faults import Faults
from shardwright_standin.front.engine import Engine
from shardwright_standin.model import tokenizer
from shardwright_standin.tools import llm
from shardwright_standin.tools.mmlu import SUBJECTS, Question, read_questions
from shardwright_standin.tools.played import NotPlayedError, refuse_others

_PLAYED = {
    "model",
    "tokenizer",
    "backend",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "tp_size",
    "pp_size",
    "gpus_per_node",
    "extra_llm_api_options",
    "log_level",
    "kv_cache_free_gpu_memory_fraction",
    "trust_remote_code",
    "disable_kv_cache_reuse",
}


def main() -> int:
    """The program.

    Returns:
        The exit status; a missed threshold is an AssertionError, as in the real task.
    """
    asked = commandline.parse("trtllm-eval", sys.argv[1:])
    values, task = asked.values, asked.inner
    Faults(program="trtllm-eval").reach("start")
    refuse_others("trtllm-eval", values, _PLAYED)
    if asked.command != "mmlu":
        raise NotPlayedError(f"trtllm-eval: the stand-in plays mmlu only, not {asked.command}")
    if task["dataset_path"] is None:
        raise FileNotFoundError("--dataset_path is not given, and the stand-in downloads nothing")
    if task["apply_chat_template"] or task["system_prompt"] or task["chat_template_kwargs"]:
        raise NotPlayedError("trtllm-eval: the stand-in plays mmlu without a chat template")
    questions = list(read_questions(Path(task["dataset_path"]), task))
    arguments = llm.arguments(
        {**values, "free_gpu_memory_fraction": values["kv_cache_free_gpu_memory_fraction"]},
        values["extra_llm_api_options"],
        values["backend"],
    )
    loaded = llm.start(Path(values["model"]), values["backend"], arguments, "trtllm-eval")
    try:
        right = score(loaded.engine, questions, task)
    finally:
        loaded.end()
    for subject in SUBJECTS:
        own = [hit for hit, one in zip(right, questions, strict=True) if one.subject == subject]
        _log(f"Average accuracy {100 * sum(own) / len(own):.2f} ({len(own)}) - {subject}")
    accuracy = 100 * sum(right) / len(right)
    _log(f"MMLU weighted average accuracy: {accuracy:.2f} ({len(right)})")
    if task["check_accuracy"] and accuracy < task["accuracy_threshold"]:
        raise AssertionError(
            f"Expected accuracy >= {task['accuracy_threshold']}, but got {accuracy}."
        )
    return 0


def score(engine: Engine, questions: Sequence[Question], task: Mapping[str, Any]) -> list[bool]:
    """Whether each answer begins with the right letter; all questions are asked at once."""
    running = []
    for question in questions:
        prompt = tokenizer.encode(question.prompt)[-task["max_input_length"] :]
        running.append(engine.submit(prompt, task["max_output_length"], engine.stop_token))
    texts = [tokenizer.decode(generation.stream()) for generation in running]
    return [
        text.strip().startswith(question.answer)
        for text, question in zip(texts, questions, strict=True)
    ]


def _log(text: str) -> None:
    print(f"[TRT-LLM] [I] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
