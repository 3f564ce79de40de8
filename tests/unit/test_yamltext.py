"""A key that is there twice is lost to nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.unit.test_docs import ROOT

from shardwright.api.yamltext import load, load_all
from shardwright.cli.reading import BadInputError, documents

TWICE = """\
spec:
  engine:
    config: {seed: 1}
    runtime: VLLM
    config: {seed: 2}
"""


def test_a_key_that_is_there_twice_is_told_with_both_its_lines() -> None:
    with pytest.raises(BadInputError) as caught:
        documents(TWICE, "llama.yaml")
    told = str(caught.value)
    assert told.startswith("llama.yaml: no YAML: while reading a mapping")
    assert "the key 'config' is there twice, first in line 3: leave one of them out" in told
    assert "line 5" in told


@pytest.mark.parametrize(
    "text",
    [
        "{a: 1, b: {a: 2}}",
        "[{a: 1}, {a: 2}]",
        "base: &base {a: 1}\nmore: {<<: *base, a: 2}",
        "both: {<<: {a: 1}, b: 2}",
        "1: a\n2: b",
        "",
    ],
)
def test_all_else_is_as_the_library_reads_it(text: str) -> None:
    assert load(text) == yaml.safe_load(text)


def test_no_object_is_made_of_a_tag() -> None:
    with pytest.raises(yaml.YAMLError, match="python/object"):
        load("!!python/object/apply:os.getcwd []")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda p: p.name)
def test_every_example_has_each_key_once(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert list(load_all(text)) == list(yaml.safe_load_all(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 2001-13-40", "2001-13-40"),
        ("b: 1\na: 2001-12-14t21:59:43.10-99:00", "line 2"),
        ("a: !!int abc", "abc"),
        ("a: !!float x", "'x'"),
        ("a: !!timestamp x", "'x'"),
        ("a: !!bool maybe", "maybe"),
        ("!!map [a]", "expected a mapping"),
        ("[" * 5000, "nested too deeply"),
        ("[" * 1500 + "]" * 1500, "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_one_kind_of_error(text: str, told: str) -> None:
    with pytest.raises(yaml.YAMLError, match=re.escape(told)):
        load(text)
    with pytest.raises(yaml.YAMLError, match=re.escape(told)):
        list(load_all(text))
