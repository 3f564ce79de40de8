"""Numbers in the planner's sentences: one of a thing is never several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.sizing import A100, H100, L40S, M8B, M70B, MIXTRAL, R1, VLLM, nodes
from typer.testing import CliRunner

from shardwright.cli.app import app
from shardwright.sizing.catalogue import catalogue_model
from shardwright.sizing.choose import choose
from shardwright.sizing.question import Limits, Objective, Workload
from shardwright.sizing.result import to_data
from shardwright.words import counted

THINGS = (
    "replica|request|node|GPU|stage|rank|layer|head|token|sequence|expert|prompt|domain|reason|"
    "group|kind|attention head|KV head|key-value head|routed expert|free GPU|such replica"
)
# "1 GPUs", and "2 GPU" where no number follows: "tensor 2 expert 2" names fields.
ONE_OF_SEVERAL = re.compile(rf"(?<![\d.,])1 (?:{THINGS})s\b")
SEVERAL_OF_ONE = re.compile(rf"(?<![\d.])(?:\d*[02-9]|\d+1) (?:{THINGS})\b(?!-| \d)")


def sentences(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from sentences(value)
    elif isinstance(data, list):
        for value in data:
            yield from sentences(value)


def wrong(text: str) -> list[str]:
    flat = " ".join(text.split())
    return [*ONE_OF_SEVERAL.findall(flat), *SEVERAL_OF_ONE.findall(flat)]


def test_counted() -> None:
    assert [counted(n, "GPU") for n in (0, 1, 2, 1000)] == [
        "0 GPUs",
        "1 GPU",
        "2 GPUs",
        "1,000 GPUs",
    ]
    assert counted(1, "node carries", "nodes carry") == "1 node carries"
    assert counted(3, "node carries", "nodes carry") == "3 nodes carry"


def test_the_search_finds_what_it_is_for() -> None:
    assert wrong("takes 1 GPUs") == ["1 GPUs"]
    assert wrong("2 replica on 21 node") == ["2 replica", "21 node"]
    assert not wrong("1 GPU, 2 GPUs, 11 nodes, 1,001 requests, 0.1 nodes; a 1.1 tokens/s replica")


@pytest.mark.parametrize("model", [M8B, M70B, MIXTRAL, R1, "google/gemma-7b"])
@pytest.mark.parametrize(
    ("product", "count", "gpus"), [(H100, 1, 1), (H100, 2, 8), (A100, 3, 1), (L40S, 1, 2)]
)
def test_choices(model: str, product: str, count: int, gpus: int) -> None:
    where = nodes(product, count, gpus)
    for objective in Objective:
        for concurrency, limits in (
            (1, Limits()),
            (1, Limits(replicas=1)),
            (64, Limits(tensor=1)),
            (5000, Limits(replicas=1)),
            (2, Limits(pipeline=2)),
        ):
            load = Workload(objective, concurrency, 1000, 1000)
            data = to_data(choose(catalogue_model(model), where, load, VLLM, limits))
            for text in sentences(data):
                assert not wrong(text), text


@pytest.mark.parametrize("command", ["plan", "explain"])
@pytest.mark.parametrize("spec", [{}, {"replicas": 1}, {"workload": {"concurrency": 1}}])
def test_the_command_line(tmp_path: Path, command: str, spec: dict[str, Any]) -> None:
    body = {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "one"},
        "spec": {"model": {"uri": f"hf://{M8B}@main"}, **spec},
    }
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    described = {"nodes": [{"product": H100, "count": 1, "gpus": 1}]}
    (tmp_path / "nodes.yaml").write_text(json.dumps(described), encoding="utf-8")
    files = [str(tmp_path / "one.yaml"), "--nodes", str(tmp_path / "nodes.yaml")]
    result = CliRunner().invoke(app, [command, *files])
    assert result.exit_code == 0, result.output
    assert not wrong(result.stdout)
