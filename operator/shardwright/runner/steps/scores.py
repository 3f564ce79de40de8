"""Reading a score out of what an evaluation tool says or leaves: one reader a tool.

All scores are in the unit of the spec: per cent, ROUGE-1 × 100, or perplexity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.runner.jsonfile import JsonFileError, read_object

# What trtllm-eval logs at its end. NVIDIA/TensorRT-LLM, tensorrt_llm/evaluate: mmlu.py at 0c8de69a,
# lm_eval.py at 00dc3b46, cnn_dailymail.py at 036a60f7 (a line a metric, below "Beam 0 rouge
# scores:"; with one beam there is one such block).
_LOGGED: Mapping[str, re.Pattern[str]] = {
    "mmlu": re.compile(r"MMLU weighted average accuracy: ([0-9.]+) \(([0-9]+)\)"),
    "gsm8k": re.compile(r"lm-eval gsm8k average accuracy: ([0-9.]+)"),
    "cnn_dailymail": re.compile(r"\brouge1: ([0-9.]+)"),
}
# Which number of lm_eval's results counts, by the task it was given: the metric and its filter.
# EleutherAI/lm-evaluation-harness v0.4.9.2, lm_eval/tasks/{gsm8k,mmlu,cnn_dailymail}.
_METRICS: Mapping[str, str] = {
    "gsm8k": "exact_match,strict-match",
    "mmlu": "acc,none",
    "mmlu_generative": "exact_match,get_response",
    "cnn_dailymail_abisee": "rouge1,none",
}
_PER_CENT = 100


class NoScoreError(ValueError):
    """The tool ended well, and what it left tells no score."""


@dataclass(frozen=True)
class Score:
    """A score, and how many samples it is over; 0 where the tool does not say."""

    value: float
    samples: int = 0


@dataclass
class LoggedScore:
    """Takes the lines of a tool's log; the last one that tells the task's score counts."""

    task: str
    found: Score | None = field(default=None, init=False)

    def __call__(self, line: bytes) -> None:
        """One more line."""
        match = _LOGGED[self.task].search(line.decode("utf-8", "replace"))
        if match:
            groups = match.groups()
            self.found = Score(float(groups[0]), int(groups[1]) if len(groups) > 1 else 0)

    def score(self) -> Score:
        """What was found.

        Raises:
            NoScoreError: No line told it.
        """
        if self.found is None:
            raise NoScoreError(f"no line of its log tells the score of {self.task}")
        return self.found


def saved_score(folder: Path, task: str) -> Score:
    """The score of a task of lm_eval, from the results that it saved below a folder.

    Raises:
        NoScoreError: There are none, or they do not tell it.
        OSError: The folder cannot be read.
    """
    files = sorted(folder.rglob("results_*.json"))
    if not files:
        raise NoScoreError(f"it left no results_*.json below {folder}")
    try:
        content = read_object(files[-1])
    except JsonFileError as error:
        raise NoScoreError(str(error)) from error
    metric = _METRICS[task]
    try:
        value = float(content["results"][task][metric])
    except (KeyError, TypeError, ValueError) as error:
        raise NoScoreError(f"{files[-1].name} has no {metric} of {task}: {error!r}") from error
    return Score(value * _PER_CENT, _samples(content))


def _samples(content: Mapping[str, Any]) -> int:
    """Of all tasks of a group together."""
    counted = content.get("n-samples")
    if not isinstance(counted, Mapping):
        return 0
    every = [one.get("effective") for one in counted.values() if isinstance(one, Mapping)]
    return int(sum(count for count in every if isinstance(count, (int, float))))
