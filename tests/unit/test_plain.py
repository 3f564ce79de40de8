"""Options that are passed on as they are: what any system on their way can carry."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import pytest
from tests.support.specs import MINIMAL_SPEC

from shardwright.control.situate import parse_spec
from shardwright.plan.revisions import asked_digest


def nested(levels: int, inner: object) -> dict[str, Any]:
    for _ in range(levels):
        inner = {"a": inner}
    return {"hf-overrides": inner}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (nested(400, 1), "hf-overrides.a.a… is nested more than 16 levels deep"),
        ({"x": [[[math.nan]]]}, "x.0.0.0 is nan: write a finite number"),
        ({"x": {"y": -math.inf}}, "x.y is -inf: write a finite number"),
        (
            {"seed": 10**400},
            "seed has more than 64 bits: write a number between -2^63 and 2^63 - 1",
        ),
        ({"seed": -(2**63) - 1}, "seed has more than 64 bits"),
        # What YAML has and JSON has not.
        ({"x": date(2026, 1, 2)}, "x is a date: write it in quotes, '2026-01-02'"),
        ({"x": [datetime(2026, 1, 2, tzinfo=UTC)]}, "x.0 is a date: write it in quotes"),
        ({"x": b"y"}, "x is bytes, which JSON has not"),
        ({"x": {"y", "z"}}, "x is set, which JSON has not"),
        ({"x": {1: 2, "b": 3}}, "x.1: this key is no text: write it in quotes"),
        ({"x": {None: 2}}, "x.None: this key is no text"),
    ],
)
def test_options_that_cannot_be_carried_are_refused_by_their_place(
    config: dict[str, Any], said: str
) -> None:
    spec, problem = parse_spec({**MINIMAL_SPEC, "engine": {"runtime": "VLLM", "config": config}})
    assert spec is None
    assert problem.startswith("spec.engine.config: ")
    assert said in problem


def test_options_of_any_use_are_carried() -> None:
    config = {**nested(14, [1.5, None, True, "text"]), "seed": 2**63 - 1, "low": -(2**63)}
    spec, problem = parse_spec({**MINIMAL_SPEC, "engine": {"runtime": "VLLM", "config": config}})
    assert problem == ""
    assert spec is not None
    assert asked_digest(spec)
