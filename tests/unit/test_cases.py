"""Every known case of what went wrong elsewhere has a test of what is right."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CASES: list[dict[str, Any]] = yaml.safe_load(
    (ROOT / "tests/cases.yaml").read_text(encoding="utf-8")
)
# As many as there are lines in the list that the cases come from: none may be lost.
HOW_MANY = 57
LEAST_WORDS = 8


@cache
def functions_of(path: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Test functions of a file by name."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {
        node.name: node
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def is_taken_out(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test is marked so that it shows nothing."""
    marks = {ast.unparse(decorator).split("(")[0] for decorator in test.decorator_list}
    return bool(marks & {"pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"})


def test_every_case_is_here_once() -> None:
    assert len(CASES) == HOW_MANY
    seen = Counter(report for case in CASES for report in case["reports"])
    assert [report for report, times in seen.items() if times > 1] == []
    assert all(case["reports"] for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["reports"][0])
def test_a_case_says_what_is_right_and_where_it_is_shown(case: dict[str, Any]) -> None:
    assert set(case) == {"reports", "right", "test"}
    assert len(case["right"].split()) >= LEAST_WORDS
    assert case["test"]
    for name in case["test"]:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        found = functions_of(ROOT / path)
        assert function in found, name
        assert not is_taken_out(found[function]), name


def test_no_object_needs_a_webhook_to_be_read_or_made() -> None:
    definition = yaml.safe_load((ROOT / "crds/llmdeployments.yaml").read_text(encoding="utf-8"))
    assert definition["spec"].get("conversion", {}).get("strategy", "None") == "None"
    assert [version["name"] for version in definition["spec"]["versions"]] == ["v1alpha1"]
    kinds = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
    for path in [*(ROOT / "charts").rglob("*"), *(ROOT / "operator").rglob("*.py")]:
        if path.is_file() and path.suffix in (".py", ".yaml", ".tpl", ".json"):
            text = path.read_text(encoding="utf-8")
            assert not any(kind in text for kind in kinds), path
