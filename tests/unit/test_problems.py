"""What is wrong with a manifest is said in our words: field, value, limit, and what to write."""

from __future__ import annotations

import ast
import datetime as dt
import math
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, ValidationError
from pydantic_core.core_schema import ErrorType
from tests.support.specs import MINIMAL_SPEC, manifest, put, specs

import shardwright
from shardwright.api.asked import AskedSpec
from shardwright.api.forms import PATTERNS, form_of
from shardwright.api.problems import MOST, SENTENCES, problems
from shardwright.api.resource import LLMDeployment
from shardwright.api.settings import Settings
from shardwright.api.status import LLMDeploymentStatus
from shardwright.diagnose.observed import Observed
from shardwright.sizing.fleet_file import FleetFile

# All that is read from what a person wrote, and a status, which `doctor` reads.
READ: tuple[type[BaseModel], ...] = (
    LLMDeployment,
    LLMDeploymentStatus,
    Settings,
    Observed,
    FleetFile,
)
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]

# Which errors a part of a core schema raises; the sources are the validators of pydantic-core
# (src/validators/*.rs), and pydantic's list of validation errors.
BOUNDS = {
    "ge": "greater_than_equal",
    "gt": "greater_than",
    "le": "less_than_equal",
    "lt": "less_than",
}
BY_PART: Mapping[str, frozenset[str]] = {
    "any": frozenset(),
    "default": frozenset(),
    "nullable": frozenset(),
    "no-info": frozenset(),
    "model": frozenset(),
    "model-field": frozenset(),
    # each branch raises its own
    "union": frozenset(),
    "function-before": frozenset(),
    "function-after": frozenset(),
    "function-wrap": frozenset(),
    "definitions": frozenset(),
    "definition-ref": frozenset(),
    "model-fields": frozenset({"model_type", "missing", "extra_forbidden", "invalid_key"}),
    "dict": frozenset({"dict_type"}),
    "list": frozenset({"list_type"}),
    "str": frozenset({"string_type", "string_unicode"}),
    "bool": frozenset({"bool_type"}),
    "int": frozenset({"int_type"}),
    "float": frozenset({"float_type"}),
    "enum": frozenset({"enum"}),
    "literal": frozenset({"literal_error"}),
}
LAX: Mapping[str, frozenset[str]] = {
    "bool": frozenset({"bool_parsing"}),
    "int": frozenset({"int_parsing", "int_parsing_size", "int_from_float"}),
    "float": frozenset({"float_parsing"}),
}
SIZES: Mapping[str, Mapping[str, str]] = {
    "str": {
        "max_length": "string_too_long",
        "min_length": "string_too_short",
        "pattern": "string_pattern_mismatch",
    },
    "list": {"max_length": "too_long", "min_length": "too_short"},
    "dict": {"max_length": "too_long", "min_length": "too_short"},
}


def parts(node: object) -> Iterator[Mapping[str, Any]]:
    """All parts of a core schema."""
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            yield node
        for child in node.values():
            yield from parts(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from parts(child)


def raised(part: Mapping[str, Any]) -> set[str]:
    """Types of errors that a part of a core schema raises; an unknown part is a KeyError."""
    kind = part["type"]
    found = set(BY_PART[kind])
    if not part.get("strict"):
        found |= LAX.get(kind, set())
    if kind == "float" and part.get("allow_inf_nan") is False:
        found.add("finite_number")
    found |= {error for bound, error in BOUNDS.items() if bound in part}
    return found | {error for name, error in SIZES.get(kind, {}).items() if name in part}


ALL_RAISED = {
    error
    for model in READ
    for part in parts(model.__pydantic_core_schema__)
    for error in raised(part)
}


def test_every_type_of_error_that_the_models_raise_has_a_sentence() -> None:
    assert len(ALL_RAISED) > 20
    assert {*SENTENCES, "extra_forbidden"} >= ALL_RAISED


def test_every_sentence_is_of_an_error_that_pydantic_has() -> None:
    assert set(SENTENCES) <= set(typing.get_args(ErrorType))


def test_errors_of_our_own_are_told_in_their_own_words() -> None:
    """Types that our validators make up must not be those of a sentence."""
    made = {
        call.args[0].value
        for file in Path(shardwright.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "PydanticCustomError"
        and isinstance(call.args[0], ast.Constant)
    }
    assert made == {"quantity", "baseline", "duplicate"}
    assert not made & set(SENTENCES)


def patterns(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        for child in node.values():
            yield from patterns(child)
    elif isinstance(node, list):
        for child in node:
            yield from patterns(child)


@pytest.mark.parametrize("model", READ, ids=lambda model: model.__name__)
def test_every_pattern_has_words(model: type[BaseModel]) -> None:
    assert set(patterns(form_of(model).root)) <= set(PATTERNS)


def said(spec: Mapping[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ValidationError) as caught:
        AskedSpec.read(spec)
    return problems(caught.value, AskedSpec, "spec")


DNS_NAME = "a-z, 0-9, '-' and '.' that begins and ends with a letter or digit, as in my-name"
SAID: tuple[tuple[str, Any, str], ...] = (
    # names
    ("tensor", 8, "spec.tensor: is no field here: write spec.parallelism.tensor"),
    ("replica", 2, "spec.replica: is no field: did you mean spec.replicas?"),
    (
        "engine.limits.max_seq_len",
        100,
        "spec.engine.limits.max_seq_len: is no field: did you mean spec.engine.limits.maxSeqLen?",
    ),
    (
        "workload.users",
        3,
        (
            "spec.workload.users: is no field: known here are objective, concurrency, inputLen, "
            "outputLen"
        ),
    ),
    (
        "ev\x1b[2Jil",
        1,
        (
            r"spec.ev\x1b[2Jil: is no field: known here are model, engine, lora, "
            "speculative, replicas, placement, rollout, storage, pod, gpu, parallelism, "
            "quantization, "
            "workload"
        ),
    ),
    ("model", None, "spec.model: is missing: write a map with uri (The model)"),
    (
        "storage.claimName",
        None,
        (
            f"spec.storage.claimName: is missing: write a name of {DNS_NAME} "
            "(PersistentVolumeClaim of this namespace; ReadWriteMany unless all pods share one "
            "node)"
        ),
    ),
    ("workload", {1: 2}, "spec.workload[1]: this key is no text: write it in quotes, or remove it"),
    # types
    (
        "parallelism.tensor",
        "8",
        'spec.parallelism.tensor: "8" is a text: write it without quotes, 8',
    ),
    (
        "parallelism.tensor",
        "two",
        'spec.parallelism.tensor: "two" is a text: write a whole number from 1 to 1024',
    ),
    (
        "parallelism.tensor",
        True,
        "spec.parallelism.tensor: true is a boolean: write a whole number from 1 to 1024",
    ),
    ("parallelism.tensor", 8.0, "spec.parallelism.tensor: 8.0 is no whole number: write 8"),
    (
        "parallelism",
        8,
        (
            "spec.parallelism: 8 is a number: write a map with any of the fields tensor, pipeline, "
            "expert, attentionData"
        ),
    ),
    (
        "parallelism.tensor",
        [8],
        "spec.parallelism.tensor: is a list: write a whole number from 1 to 1024",
    ),
    ("engine.config", [], "spec.engine.config: is a list: write a map of at most 64 keys"),
    (
        "placement.levels",
        5,
        "spec.placement.levels: 5 is a number: write a list of at most 8 items",
    ),
    (
        "engine.version",
        1.2,
        (
            "spec.engine.version: 1.2 is a number, not a text: write a whole version, as in "
            "1.2.0 or "
            "1.3.0rc1, in quotes"
        ),
    ),
    (
        "gpu.product",
        dt.date(2024, 1, 1),
        'spec.gpu.product: 2024-01-01 is a date, not a text: write it in quotes, "2024-01-01"',
    ),
    (
        "model.trustRemoteCode",
        "true",
        'spec.model.trustRemoteCode: "true" is a text: write it without quotes, true',
    ),
    (
        "model.trustRemoteCode",
        1,
        "spec.model.trustRemoteCode: 1 is a number: write true or false, without quotes",
    ),
    (
        "engine.limits.gpuMemoryFraction",
        "0.5",
        'spec.engine.limits.gpuMemoryFraction: "0.5" is a text: write it without quotes, 0.5',
    ),
    # bounds
    (
        "parallelism.tensor",
        0,
        "spec.parallelism.tensor: 0 is less than 1: write a whole number from 1 to 1024",
    ),
    (
        "replicas",
        2**9000,
        (
            "spec.replicas: a whole number of 9001 bits is more than 1024: write a whole number "
            "from "
            "0 to 1024"
        ),
    ),
    (
        "engine.limits.gpuMemoryFraction",
        1,
        (
            "spec.engine.limits.gpuMemoryFraction: 1 is not less than 1: write a number greater "
            "than 0 "
            "and less than 1"
        ),
    ),
    (
        "engine.limits.gpuMemoryFraction",
        0,
        (
            "spec.engine.limits.gpuMemoryFraction: 0 is not more than 0: write a number greater "
            "than 0 "
            "and less than 1"
        ),
    ),
    (
        "engine.limits.gpuMemoryFraction",
        math.nan,
        (
            "spec.engine.limits.gpuMemoryFraction: .nan is no number: write a number greater "
            "than 0 "
            "and less than 1"
        ),
    ),
    ("pod.env", [{"name": "A"}] * 65, "spec.pod.env: has 65 items, the limit is 64: leave 1 out"),
    (
        "engine.config",
        {f"k{index}": 1 for index in range(66)},
        "spec.engine.config: has 66 keys, the limit is 64: leave 2 out",
    ),
    (
        "storage.claimName",
        "x" * 300,
        f'spec.storage.claimName: "{"x" * 79}… has 300 characters, the limit is 253: shorten it',
    ),
    # choices and forms
    (
        "engine.backend",
        "pytorch",
        (
            'spec.engine.backend: "pytorch" is not known: did you mean PyTorch? Write TensorRT or '
            "PyTorch"
        ),
    ),
    ("engine.backend", 5, "spec.engine.backend: 5 is not known: write TensorRT or PyTorch"),
    (
        "quantization.accuracy",
        {"task": "mmul"},
        (
            'spec.quantization.accuracy.task: "mmul" is not known: did you mean mmlu? Write mmlu, '
            "gsm8k, cnn_dailymail or perplexity"
        ),
    ),
    (
        "storage.claimName",
        "A_b",
        f'spec.storage.claimName: "A_b" has not the form asked: write a name of {DNS_NAME}',
    ),
    (
        "storage.claimName",
        "",
        f'spec.storage.claimName: "" is too short: write a name of {DNS_NAME}',
    ),
    (
        "model.servedName",
        "\ud800",
        "spec.model.servedName: holds half of a surrogate pair, which no UTF-8 text can: remove it",
    ),
    (
        "pod.annotations",
        {"-bad": "x"},
        (
            'spec.pod.annotations.-bad: the key "-bad" has not the form of one: write a label '
            "key such "
            "as pool or example.com/pool, at most 63 characters after the slash"
        ),
    ),
    (
        "pod.annotations",
        {"a": 5},
        'spec.pod.annotations.a: 5 is a number, not a text: write it in quotes, "5"',
    ),
    # our own validators
    (
        "pod.resources.cpu",
        1.5,
        (
            "spec.pod.resources.cpu: 1.5 is no quantity: write a whole number, or a text in "
            "quotes such "
            "as 8, 500m or 64Gi"
        ),
    ),
    (
        "engine.limits.maxInputLen",
        9000,
        (
            "spec.engine.limits: maxInputLen 9000 exceeds maxSeqLen 8192: raise maxSeqLen or lower "
            "maxInputLen"
        ),
    ),
    (
        "pod.env",
        [{"name": "A"}, {"name": "A"}],
        "spec.pod.env: name 'A' is given twice; each may stand once",
    ),
)


@pytest.mark.parametrize(("path", "value", "words"), SAID, ids=lambda value: str(value)[:30])
def test_a_sentence_names_field_value_limit_and_what_to_write(
    path: str, value: Any, words: str
) -> None:
    assert said(put(MINIMAL_SPEC, path, value)) == (words,)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (
            {"concurrency": "many"},
            'concurrency: "many" is a text: write a whole number from 1 to 256',
        ),
        (
            {"concurrency": 2.5},
            "concurrency: 2.5 is no whole number: write a whole number from 1 to 256",
        ),
        (
            {"timeouts": {"bindSeconds": "long"}},
            'timeouts.bindSeconds: "long" is a text: write a number greater than 0',
        ),
    ],
)
def test_settings_are_read_more_loosely_and_told_alike(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(raw)
    assert problems(caught.value, Settings) == (words,)


def test_an_empty_list_of_nodes() -> None:
    with pytest.raises(ValidationError) as caught:
        FleetFile.read({"nodes": []})
    assert problems(caught.value, FleetFile) == (
        "nodes: has 0 items: write a list of 1 to 10000 items",
    )


def test_all_is_told_at_once_in_the_order_of_paths() -> None:
    env = [{"name": "A"}] * 9 + [{"nam": "b"}] + [{"name": "1"}]
    asked: dict[str, Any] = {
        "storag": {"claimName": "models"},
        "replicas": -1,
        "model": {"uri": 5},
        "pod": {"env": env},
    }
    there = said(asked)
    assert [line.split(": ")[0] for line in there] == [
        "spec.model.uri",
        "spec.pod.env[9].nam",
        "spec.pod.env[9].name",
        "spec.pod.env[10].name",
        "spec.replicas",
        "spec.storag",
        "spec.storage",
    ]
    assert said(dict(reversed(asked.items()))) == there


def test_a_file_that_is_another_thing_altogether_is_not_told_line_by_line() -> None:
    there = said({f"k{index:04}": 1 for index in range(1000)})
    assert len(there) == MOST + 1
    assert there[-1] == "and 952 more problems", "1000 unknown fields, model and storage missing"


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(specs())
def test_whatever_is_wrong_no_word_is_pydantics(spec: dict[str, Any]) -> None:
    try:
        LLMDeployment.read(manifest(spec))
    except ValidationError as caught:
        error = caught
    else:
        return
    told = problems(error, LLMDeployment)
    assert len(told) == error.error_count()
    for line in told:
        assert line.isprintable()
        for word in ("Input should", "valid", "should have", "should match", "permitted"):
            assert word not in line
