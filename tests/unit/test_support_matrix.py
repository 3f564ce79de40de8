"""Each combination of runtime, precision, split, adapters and draft is rendered or refused.

`UPDATE_GOLDEN=1` writes docs/support-matrix.md anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.standin import test_rendered_direct as direct
from tests.standin.test_rendered_commands import parse
from tests.support import matrix
from tests.support.matrix import SERVED, Answer, Cell, Refused, Served, Taken

from shardwright.api.spec import Backend, Runtime, WeightPrecision
from shardwright.runtimes.registry import DIRECT, runtime

PAGE = Path(__file__).resolve().parents[2] / "docs/support-matrix.md"
# Checkpoints that bring the precision, so that a backend without a builder makes nothing of them.
AS_IT_COMES = frozenset({WeightPrecision.NONE, WeightPrecision.INT4_GPTQ})


@pytest.fixture(scope="module")
def answers() -> Mapping[Cell, Answer]:
    return {cell: matrix.answer(cell) for cell in matrix.cells()}


each = pytest.mark.parametrize("served", SERVED, ids=str)


def of(served: Served, answers: Mapping[Cell, Answer]) -> Mapping[Cell, Answer]:
    return {cell: found for cell, found in answers.items() if cell.served == served}


def made(cell: Cell) -> tuple[str, ...]:
    """What a combination must make below the model, told without the runtimes' code."""
    if cell.served.backend is Backend.TENSORRT:
        return ("checkpoint", "engine")
    if cell.served.backend is Backend.PYTORCH and cell.weights not in AS_IT_COMES:
        return ("checkpoint",)
    return ()


def accepted(found: Taken) -> None:
    """Put all that the pods of a combination run before the recorded contracts' strict parsers.

    Raises:
        SystemExit: One of them refuses it.
    """
    for artifact in found.resolved.artifacts:
        for command in artifact.commands:
            parse(command.argv)
    name = found.spec.engine.runtime
    engine, config = runtime(name), runtime(name).serve_config(found.resolved)
    for stage in range(found.resolved.pipeline):
        command = engine.serve_command(found.resolved, stage)
        if name in DIRECT:
            # Their configuration file holds flags.
            direct.parse(command, direct.words(command, config))
        else:
            parse(command.argv)


@each
def test_what_is_refused_rests_on_a_source(served: Served, answers: Mapping[Cell, Answer]) -> None:
    for cell, found in of(served, answers).items():
        if isinstance(found, Refused):
            for one in (found.cause, *found.others):
                assert one.source in matrix.SOURCES, f"{cell}: {one}"
                assert "not implemented" not in one.message.lower()


@each
def test_what_is_taken_makes_what_it_must(served: Served, answers: Mapping[Cell, Answer]) -> None:
    for cell, found in of(served, answers).items():
        if isinstance(found, Taken) and not cell.draft:
            assert tuple(step for step in found.steps if step != "model") == made(cell), str(cell)


@each
def test_every_command_of_it_parses(served: Served, answers: Mapping[Cell, Answer]) -> None:
    taken = [found for found in of(served, answers).values() if isinstance(found, Taken)]
    assert taken
    for found in taken:
        accepted(found)


def test_every_runtime_and_precision_is_there(answers: Mapping[Cell, Answer]) -> None:
    assert {cell.served.runtime for cell in answers} == set(Runtime)
    assert len(answers) == len(SERVED) * len(WeightPrecision) * len(matrix.SHAPES) * 4
    for weights in WeightPrecision:
        taken = [
            cell
            for cell, found in answers.items()
            if cell.weights is weights and isinstance(found, Taken)
        ]
        assert taken, f"{weights} runs nowhere"


def cause(answers: Mapping[Cell, Answer], cell: Cell) -> tuple[str, set[str]]:
    found = answers[cell]
    assert isinstance(found, Refused)
    return found.cause.source, {one.source for one in found.others}


def test_a_refused_cell_tells_what_stands_against_its_plain_form(
    answers: Mapping[Cell, Answer],
) -> None:
    engines = Served(Runtime.TRITON, Backend.TENSORRT)
    # On the GPU of its row it is adapters; the first GPU does not come to them.
    cell = Cell(engines, WeightPrecision.NVFP4, "1×1", lora=True, draft=False)
    assert cause(answers, cell) == ("triton-lora-tensors", set())
    # With the first draft; others are refused for what they need.
    engines = Served(Runtime.TENSORRT_LLM, Backend.TENSORRT)
    cell = Cell(engines, WeightPrecision.INT4_GPTQ, "TP2", lora=False, draft=True)
    assert cause(answers, cell) == (
        "trtllm-speculation-pytorch",
        {"trtllm-quantize-eagle", "trtllm-heads-converters"},
    )
    # From the checkpoint that brings the precision, not from all that do not.
    cell = Cell(Served(Runtime.VLLM), WeightPrecision.W4A8_AWQ, "1×1", lora=False, draft=False)
    assert cause(answers, cell) == ("vllm-modelopt-algos", set())


def test_every_source_is_complete() -> None:
    for name, source in matrix.SOURCES.items():
        assert set(source) == {"says", "where"}, name
        assert len(source["says"]) > 20, name
        assert any(sign.isdigit() for sign in source["where"]), f"{name}: no version or commit"


def test_the_page_is_what_the_operator_answers(answers: Mapping[Cell, Answer]) -> None:
    page = matrix.page(answers)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page
