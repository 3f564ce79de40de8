"""What a planner read of a checkpoint, said again, is what runtimes read in the file itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.golden import specs
from tests.unit.test_runtime_loads import SECTIONS

from shardwright.runtimes.published import kinds
from shardwright.sizing.config_quantization import checkpoint_precision
from shardwright.sizing.config_reader import ConfigError, Reader
from shardwright.sizing.model import CheckpointPrecision
from shardwright.sizing.quantized_section import config_of


def read(section: dict[str, Any]) -> CheckpointPrecision | None:
    reader = Reader({"quantization_config": section})
    try:
        return checkpoint_precision(reader, reader)
    except ConfigError:
        return None


# A planner keeps no type of activations: which number they are decides no size.
COARSER = {"compressed INT4, FP8 activations": ("compressed-tensors W4A8 INT4",)}
READABLE = {title: section for title, section in SECTIONS.items() if read(section) is not None}


def test_most_of_them_are_read() -> None:
    assert set(SECTIONS) - set(READABLE) == {"hqq"}


@pytest.mark.parametrize("title", READABLE)
def test_a_kind_stays_what_it_is(title: str) -> None:
    section = READABLE[title]
    found = read(section)
    assert found is not None
    own = specs.facts(
        quantization=section["quant_method"], config=json.dumps({"quantization_config": section})
    )
    again = specs.facts(quantization=found.method, config=config_of(found))
    assert kinds(again) == COARSER.get(title, kinds(own))


def test_16_bits_have_no_section() -> None:
    assert config_of(CheckpointPrecision()) == ""
