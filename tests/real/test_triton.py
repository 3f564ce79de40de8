"""Triton on real nodes: one server a rank, over two nodes, and the tokens of the whole model."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.real.examples import example
from tests.real.site import AT_ONCE, MODEL, RANKS, Site, table
from tests.standin.running import PROMPTS
from tests.support.kube import Json
from tests.support.operator import Operator
from tests.support.standin_model import ANSWER_TOKENS, unsharded

from shardwright.api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# Backend, tensor, pipeline, and what a request says besides its text.
SHAPES: dict[str, tuple[str, int, int, Json]] = {
    "triton-example": ("TensorRT", 2, 2, {"max_tokens": ANSWER_TOKENS}),
    "triton-pytorch": (
        "PyTorch",
        2,
        2,
        {
            "sampling_param_max_tokens": ANSWER_TOKENS,
            "sampling_param_exclude_input_from_output": True,
        },
    ),
    "triton-one-node": ("TensorRT", 2, 1, {"max_tokens": ANSWER_TOKENS}),
}
# Triton's example, in this shape: in FP8.
EXAMPLE, OF_EXAMPLE = "llama-70b-triton", "triton-example"


@pytest.fixture(scope="module")
def texts(model: Path) -> dict[str, str]:
    """What the unsharded model goes on with after each prompt."""
    return unsharded(model, PROMPTS, chat=False)


@pytest.fixture(scope="module")
def rounded(model: Path, texts: dict[str, str]) -> dict[str, str]:
    """The same in FP8."""
    found = unsharded(model, PROMPTS, chat=False, qformat="fp8")
    assert all(found[prompt] != texts[prompt] for prompt in PROMPTS)
    return found


@pytest.fixture(scope="module")
def served(running: Operator, shared_site: Site) -> Site:
    """One deployment of each shape, from one model."""
    for name, (backend, tensor, pipeline, _) in SHAPES.items():
        if name == OF_EXAMPLE:
            shared_site.kube.create_whole(name, example(EXAMPLE, tensor, pipeline))
        else:
            engine = {"runtime": "Triton", "backend": backend}
            shared_site.create(name, tensor, pipeline, engine=engine)
    return shared_site


def generate(leader: Json, model: str, body: Json) -> str:
    url = f"http://{leader['status']['podIP']}:{names.PORT_HTTP}/v2/models/{model}/generate"
    asked = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=120) as answer:  # noqa: S310 - our own pod
        text: str = json.load(answer)["text_output"]
        return text


@pytest.mark.parametrize("name", SHAPES)
def test_it_goes_on_as_the_whole_model_does(
    served: Site,
    texts: dict[str, str],
    rounded: dict[str, str],
    record_property: Callable[[str, object], None],
    name: str,
) -> None:
    _, tensor, pipeline, more = SHAPES[name]
    served.ready(name)
    (leader,) = served.leaders(name)
    says, asked_for = (rounded, "llama-70b") if name == OF_EXAMPLE else (texts, MODEL)
    with ThreadPoolExecutor(AT_ONCE) as workers:
        found = workers.map(
            lambda prompt: generate(leader, asked_for, {"text_input": prompt, **more}), says
        )
        assert dict(zip(says, found, strict=True)) == says
    rows = served.ranks(leader)
    for line in table(name, rows):
        record_property(RANKS, line)
    assert [row["rank"] for row in rows] == list(range(tensor * pipeline))
    assert len({row["node"] for row in rows}) == pipeline
    for stage in range(pipeline):
        assert len({row["gpu"] for row in rows if row["stage"] == stage}) == tensor
