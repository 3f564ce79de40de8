"""The accuracy gate: what a new engine must score before it serves.

Scores are in the task's own unit: per cent of right answers for mmlu and gsm8k, ROUGE-1 for
cnn_dailymail, and perplexity, where less is better. Hence two names for each limit.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from shardwright.api.model import Model
from shardwright.api.rules import Rule
from shardwright.api.scalars import Float, Int

MEASURE: Literal["Measure"] = "Measure"
BASELINE_PATTERN = r"^(Measure|[0-9]{1,6}(\.[0-9]{1,6})?)$"
_BASELINE_LENGTH = 13
_BASELINE_MOST = 999999


class Task(StrEnum):
    """What is asked of the model; the names are those of the tools."""

    MMLU = "mmlu"
    GSM8K = "gsm8k"
    CNN_DAILYMAIL = "cnn_dailymail"
    PERPLEXITY = "perplexity"


def _baseline(value: object) -> int | str:
    """The user's own form is kept: `68` stays a number, `"68.2"` a string."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _BASELINE_MOST:
        return value
    if isinstance(value, str) and re.fullmatch(BASELINE_PATTERN[1:-1], value):
        return value
    raise PydanticCustomError(
        "baseline",
        "baseline '{value}' is neither Measure nor a score: write a number with a point in quotes, "
        'such as "68.2"',
        {"value": str(value)},
    )


Baseline = Annotated[
    int | str,
    BeforeValidator(_baseline),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "maximum": _BASELINE_MOST,
            "maxLength": _BASELINE_LENGTH,
            "pattern": BASELINE_PATTERN,
        }
    ),
]

_LIMITS = ("maxDrop", "minScore", "maxRise", "maxPerplexity")
_ONE_LIMIT = (
    "give exactly one limit: maxDrop or minScore, or for task perplexity maxRise or maxPerplexity"
)
_RIGHT_LIMIT = (
    "of a perplexity less is better: task perplexity takes maxRise or maxPerplexity, "
    "the other tasks take maxDrop or minScore"
)
_NO_BASELINE = (
    "baseline is looked at by maxDrop and maxRise alone: leave it out, or use one of them"
)
_NO_PER_CENT = "baseline must be a score in per cent, 0 to 100; only a perplexity may be more"
_NO_PERPLEXITY = "baseline must be a perplexity, which is 1 or more"
_PASSES_ALL = (
    "so that a score of 0 would pass: lower maxDrop, or give the baseline in per cent, not as a "
    "fraction"
)
_MEASURED = f"(type(self.baseline) == string && self.baseline == '{MEASURE}')"
_BEST_SCORE = 100
# That of a model which is sure of every word: e to the power of a loss of 0.
_LEAST_PERPLEXITY = 1
_TEXT_NEEDED = "task perplexity needs dataset: the path of a text file on the claim"


class Accuracy(Model):
    """What a new engine must score before it serves; without this block nothing is measured."""

    task: Task = Field(description="mmlu, gsm8k, cnn_dailymail, or perplexity of your own text.")
    samples: Int | None = Field(
        default=None,
        ge=1,
        le=1000000,
        description="Questions, articles or passages of text; left out, all of them.",
    )
    dataset: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=256)]
        | None
    ) = Field(
        default=None,
        description="Path of the data on the claim; left out, the tool downloads them. For "
        "perplexity a text file.",
    )
    max_drop: Float | None = Field(
        default=None, ge=0, le=100, description="Points that the score may lie below the baseline."
    )
    min_score: Float | None = Field(
        default=None, ge=0, le=100, description="The least score, whatever the baseline has."
    )
    max_rise: Float | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="By how much the perplexity may exceed the baseline.",
    )
    max_perplexity: Float | None = Field(
        default=None, ge=1, le=1000000, description="The highest perplexity."
    )
    baseline: Baseline = Field(
        default=MEASURE,
        description="What maxDrop and maxRise compare with: Measure runs the same task on the "
        'unquantized model, once; or its score, such as "68.2".',
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"[{', '.join(f'has(self.{name})' for name in _LIMITS)}].filter(x, x).size() == 1",
            _ONE_LIMIT,
        ),
        Rule(
            "(self.task == 'perplexity') == (has(self.maxRise) || has(self.maxPerplexity))",
            _RIGHT_LIMIT,
            field_path=".task",
        ),
        Rule("self.task != 'perplexity' || has(self.dataset)", _TEXT_NEEDED, field_path=".task"),
        Rule(
            f"{_MEASURED} || has(self.maxDrop) || has(self.maxRise)",
            _NO_BASELINE,
            field_path=".baseline",
        ),
        Rule(
            f"self.task == 'perplexity' || {_MEASURED} || double(self.baseline) <= {_BEST_SCORE}.0",
            _NO_PER_CENT,
            message_expression="'baseline %s is no score of task %s, which is per cent: give 0 to "
            f"{_BEST_SCORE}'.format([dyn(self.baseline), dyn(self.task)])",
            field_path=".baseline",
        ),
        Rule(
            f"self.task != 'perplexity' || {_MEASURED} || "
            f"double(self.baseline) >= {_LEAST_PERPLEXITY}.0",
            _NO_PERPLEXITY,
            message_expression=f"'baseline %s is no perplexity, which is {_LEAST_PERPLEXITY} or "
            "more'.format([self.baseline])",
            field_path=".baseline",
        ),
        Rule(
            f"!has(self.maxDrop) || {_MEASURED} || self.maxDrop < double(self.baseline)",
            f"maxDrop is not less than baseline, {_PASSES_ALL}",
            message_expression="'maxDrop %s is not less than baseline %s, "
            f"{_PASSES_ALL}'.format([dyn(self.maxDrop), dyn(self.baseline)])",
            field_path=".maxDrop",
        ),
        Rule(
            "!has(self.dataset) || !self.dataset.contains('..')",
            "dataset must not contain '..': it is a path on the claim",
            field_path=".dataset",
        ),
    )

    @model_validator(mode="after")
    def _one_limit_that_fits(self) -> Accuracy:
        given = (self.max_drop, self.min_score, self.max_rise, self.max_perplexity)
        if sum(limit is not None for limit in given) != 1:
            raise ValueError(_ONE_LIMIT)
        rises = self.max_rise is not None or self.max_perplexity is not None
        if (self.task is Task.PERPLEXITY) != rises:
            raise ValueError(_RIGHT_LIMIT)
        if self.task is Task.PERPLEXITY and self.dataset is None:
            raise ValueError(_TEXT_NEEDED)
        if self.dataset is not None and ".." in self.dataset:
            raise ValueError("dataset must not contain '..': it is a path on the claim")
        if not self.relative and self.baseline != MEASURE:
            raise ValueError(_NO_BASELINE)
        self._check_unit_of_baseline()
        return self

    def _check_unit_of_baseline(self) -> None:
        """A given baseline in the task's unit, and of use to the limit beside it."""
        given = self.given_baseline
        if given is None:
            return
        if self.task is Task.PERPLEXITY:
            if given < _LEAST_PERPLEXITY:
                raise ValueError(
                    f"baseline {self.baseline} is no perplexity, which is {_LEAST_PERPLEXITY} or "
                    "more"
                )
            return
        if given > _BEST_SCORE:
            raise ValueError(
                f"baseline {self.baseline} is no score of task {self.task.value}, which is per "
                f"cent: give 0 to {_BEST_SCORE}"
            )
        if self.max_drop is not None and self.max_drop >= given:
            raise ValueError(
                f"maxDrop {self.max_drop:g} is not less than baseline {self.baseline}, "
                f"{_PASSES_ALL}"
            )

    @property
    def relative(self) -> bool:
        """Whether the limit is one beside a baseline."""
        return self.max_drop is not None or self.max_rise is not None

    @property
    def measures_baseline(self) -> bool:
        """Whether the baseline has to be measured."""
        return self.relative and self.baseline == MEASURE

    @property
    def given_baseline(self) -> float | None:
        """The baseline's score that the user gave."""
        return None if not self.relative or self.baseline == MEASURE else float(self.baseline)
