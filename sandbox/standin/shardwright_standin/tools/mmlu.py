"""MMLU's questions, put as the real task puts them (tensorrt_llm/evaluate/mmlu.py at 0c8de69a).

The data set has the published layout: `dev/{subject}_dev.csv` and `test/{subject}_test.csv` without
header, question, four choices, answer.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUBJECTS = (
    "abstract_algebra",
    "anatomy",
    "astronomy",
    "business_ethics",
    "clinical_knowledge",
    "college_biology",
    "college_chemistry",
    "college_computer_science",
    "college_mathematics",
    "college_medicine",
    "college_physics",
    "computer_security",
    "conceptual_physics",
    "econometrics",
    "electrical_engineering",
    "elementary_mathematics",
    "formal_logic",
    "global_facts",
    "high_school_biology",
    "high_school_chemistry",
    "high_school_computer_science",
    "high_school_european_history",
    "high_school_geography",
    "high_school_government_and_politics",
    "high_school_macroeconomics",
    "high_school_mathematics",
    "high_school_microeconomics",
    "high_school_physics",
    "high_school_psychology",
    "high_school_statistics",
    "high_school_us_history",
    "high_school_world_history",
    "human_aging",
    "human_sexuality",
    "international_law",
    "jurisprudence",
    "logical_fallacies",
    "machine_learning",
    "management",
    "marketing",
    "medical_genetics",
    "miscellaneous",
    "moral_disputes",
    "moral_scenarios",
    "nutrition",
    "philosophy",
    "prehistory",
    "professional_accounting",
    "professional_law",
    "professional_medicine",
    "professional_psychology",
    "public_relations",
    "security_studies",
    "sociology",
    "us_foreign_policy",
    "virology",
    "world_religions",
)
_CHOICES = "ABCD"


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its examples in front, and the letter that is right."""

    subject: str
    prompt: str
    answer: str


def read_questions(folder: Path, task: Mapping[str, Any]) -> Iterator[Question]:
    """The questions of all subjects, a sample of each when `num_samples` says so.

    Raises:
        FileNotFoundError: When a subject's file is missing.
    """
    most = task["num_samples"]
    each = None if most is None else math.ceil(most / len(SUBJECTS))
    chance = random.Random(task["random_seed"])  # noqa: S311 - a sample, no secret
    for subject in SUBJECTS:
        examples = _rows(folder / "dev" / f"{subject}_dev.csv")[: task["num_fewshot"]]
        # The real task leaves two blanks before the subject.
        words = " " + subject.replace("_", " ")
        shown = f"The following are multiple choice questions (with answers) about {words}.\n\n"
        shown += "".join(f"{_question(row)} {row[-1]}\n\n" for row in examples)
        rows = _rows(folder / "test" / f"{subject}_test.csv")
        if each is not None and each < len(rows):
            rows = chance.sample(rows, each)
        for row in rows:
            yield Question(subject, shown + _question(row), row[-1])


def _rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))


def _question(row: list[str]) -> str:
    choices = "".join(
        f"\n{letter}. {text}" for letter, text in zip(_CHOICES, row[1:-1], strict=True)
    )
    return f"{row[0]}{choices}\nAnswer:"
