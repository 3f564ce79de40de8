"""Reading a score out of what an evaluation tool says or leaves: one reader a tool.

All scores are in the unit of the spec: per cent, ROUGE-1 × 100, or perplexity.
"""

from __future__ import annotations

import math
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
    "mmlu": re.compile(r"MMLU weighted average accuracy: ([0-9.]+) \(([0-9]{1,12})\)"),
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
# Rounding may put a mean of shares a little above all of them.
_MOST = 100 + 1e-6


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
    _told: tuple[str, int] | None = field(default=None, init=False)

    def __call__(self, line: bytes) -> None:
        """One more line."""
        match = _LOGGED[self.task].search(line.decode("utf-8", "replace"))
        if match:
            groups = match.groups()
            self._told = (groups[0], int(groups[1]) if len(groups) > 1 else 0)

    def score(self) -> Score:
        """What was found.

        Raises:
            NoScoreError: No line told it, or one told what cannot be a score.
        """
        if self._told is None:
            raise NoScoreError(f"no line of its log tells the score of {self.task}")
        text, samples = self._told
        try:
            value = float(text.rstrip("."))
        except ValueError:
            value = math.nan
        return Score(_possible(value, text, self.task), samples)


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
        value = content["results"][task][metric]
    except (KeyError, TypeError) as error:
        raise NoScoreError(f"{files[-1].name} has no {metric} of {task}: {error!r}") from error
    counts = isinstance(value, (int, float)) and not isinstance(value, bool)
    share = float(value) if counts else math.nan
    return Score(_possible(share * _PER_CENT, value, task), _samples(content))


def _possible(value: float, told: object, task: str) -> float:
    """A share of right answers, or ROUGE-1, in per cent.

    A gate trusts this number: one that is above all, or none, would open it for any engine.

    Raises:
        NoScoreError: It is none from 0 to 100.
    """
    if not 0 <= value <= _MOST:
        raise NoScoreError(f"the score of {task} is told as {str(told)[:40]!r}, which none can be")
    return min(value, float(_PER_CENT))


def _samples(content: Mapping[str, Any]) -> int:
    """Of all tasks of a group together."""
    counted = content.get("n-samples")
    if not isinstance(counted, Mapping):
        return 0
    every = [one.get("effective") for one in counted.values() if isinstance(one, Mapping)]
    return sum(count for count in every if type(count) is int and count > 0)
