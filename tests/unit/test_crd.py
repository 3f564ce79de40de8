"""The generated CustomResourceDefinition, and the converter that makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
import yaml
from pydantic import Field, StringConstraints
from tests.support.specs import MINIMAL_SPEC, SPEC_SCHEMA
from typer.testing import CliRunner

from shardwright.api.asked import AskedSpec
from shardwright.api.crd import crd, crd_yaml, schema
from shardwright.api.model import Model
from shardwright.api.rules import Rule
from shardwright.api.schema import SchemaError, structural
from shardwright.cli.crd import crd as crd_command

CRD_FILE = Path(__file__).resolve().parents[2] / "crds" / "llmdeployments.yaml"
VERSION = crd()["spec"]["versions"][0]
LIMIT_BYTES = 100_000


def nodes(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for word, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if word in node:
            yield from nodes(node[word], path + mark)


ALL_NODES = list(nodes(schema()))
SPEC_NODES = list(nodes(SPEC_SCHEMA, ".spec"))


# The file


def test_the_file_in_crds_is_what_the_models_describe() -> None:
    assert CRD_FILE.read_text(encoding="utf-8") == crd_yaml(), (
        "write it anew: shardwright crd --output crds/llmdeployments.yaml"
    )


def test_the_file_is_below_its_size_and_says_how_it_was_made() -> None:
    text = crd_yaml()
    assert len(text.encode()) < LIMIT_BYTES
    assert text.startswith("# Generated")
    assert "shardwright crd --output" in text
    assert yaml.safe_load(text) == crd()
    assert "&id" not in text


def test_names_and_subresources() -> None:
    whole = crd()
    names = whole["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == (["llmd"], ["llm"])
    assert whole["metadata"]["name"] == f"{names['plural']}.{whole['spec']['group']}"
    assert whole["metadata"]["labels"] == {"app.kubernetes.io/part-of": "shardwright"}
    assert "annotations" not in whole["metadata"]
    assert [v["name"] for v in whole["spec"]["versions"] if v["served"] and v["storage"]] == [
        "v1alpha1"
    ]
    assert VERSION["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_columns() -> None:
    columns = VERSION["additionalPrinterColumns"]
    narrow = [column["name"] for column in columns if not column.get("priority")]
    wide = [column["name"] for column in columns if column.get("priority")]
    assert narrow == ["Ready", "Reason", "Replicas", "TP", "PP", "GPU", "Engine", "Age"]
    assert wide == ["Desired", "Message"]


@pytest.mark.parametrize(
    "path",
    [
        column["jsonPath"]
        for column in VERSION["additionalPrinterColumns"]
        if column["jsonPath"].startswith((".spec", ".status")) and "[?" not in column["jsonPath"]
    ]
    + list(VERSION["subresources"]["scale"].values()),
)
def test_paths_of_columns_and_scale_lead_to_a_value(path: str) -> None:
    node = dict(ALL_NODES)[path]
    assert node["type"] in {"string", "integer"}


# The schema


@pytest.mark.parametrize(("path", "node"), ALL_NODES, ids=[path or "." for path, _ in ALL_NODES])
def test_every_node_is_structural(path: str, node: Mapping[str, Any]) -> None:
    assert node.get("type") or node.get("x-kubernetes-int-or-string"), path
    for word in ("$ref", "anyOf", "allOf", "oneOf", "const", "title", "patternProperties"):
        assert word not in node, f"{path} holds {word}"
    assert node.get("additionalProperties") is not False
    assert not isinstance(node.get("exclusiveMinimum", True), int | float) or isinstance(
        node.get("exclusiveMinimum", True), bool
    )
    assert not ("properties" in node and "additionalProperties" in node)
    if node.get("x-kubernetes-list-type") == "map":
        item = node["items"]
        for key in node["x-kubernetes-list-map-keys"]:
            assert key in item["required"] or "default" in item["properties"][key]


@pytest.mark.parametrize(("path", "node"), SPEC_NODES, ids=[path for path, _ in SPEC_NODES])
def test_every_list_map_string_and_number_of_the_spec_is_bounded(
    path: str, node: Mapping[str, Any]
) -> None:
    kind = node.get("type")
    if kind == "string":
        assert "maxLength" in node or "enum" in node, path
    elif kind == "array":
        assert "maxItems" in node, path
    elif kind in {"integer", "number"}:
        assert {"minimum", "maximum"} <= set(node), path
    elif kind == "object" and "properties" not in node:
        assert "maxProperties" in node, path
    elif node.get("x-kubernetes-int-or-string"):
        assert {"minimum", "maximum", "maxLength"} <= set(node), path


@pytest.mark.parametrize(("path", "node"), SPEC_NODES, ids=[path for path, _ in SPEC_NODES])
def test_every_field_of_the_spec_is_described(path: str, node: Mapping[str, Any]) -> None:
    if not path.endswith(("[]", ".*")):
        assert node["description"]


def test_a_field_is_either_required_or_has_a_default_or_may_be_absent() -> None:
    absent = []
    for path, node in SPEC_NODES:
        for name, child in node.get("properties", {}).items():
            required = name in node.get("required", ())
            assert not (required and "default" in child), f"{path}.{name}"
            if not required and "default" not in child:
                absent.append(f"{path}.{name}".removeprefix(".spec."))
    assert absent == [
        "lora",
        "speculative",
        "gpu",
        "parallelism",
        "workload",
        "model.secretRef",
        "engine.version",
        "engine.backend",
        "engine.image",
        "lora.adapters[].secretRef",
        "speculative.model",
        "speculative.model.secretRef",
        "placement.tolerations[].tolerationSeconds",
        "parallelism.tensor",
        "parallelism.pipeline",
        "parallelism.expert",
        "parallelism.attentionData",
        "quantization.weights",
        "quantization.kvCache",
        "quantization.accuracy",
        "quantization.accuracy.samples",
        "quantization.accuracy.dataset",
        "quantization.accuracy.maxDrop",
        "quantization.accuracy.minScore",
        "quantization.accuracy.maxRise",
        "quantization.accuracy.maxPerplexity",
        "workload.objective",
        "workload.concurrency",
        "workload.inputLen",
        "workload.outputLen",
    ]


def _filled(node: Mapping[str, Any], value: Any) -> Any:
    if not isinstance(value, dict) or "properties" not in node:
        return value
    made = dict(value)
    for name, child in node["properties"].items():
        if name not in made and "default" in child:
            made[name] = child["default"]
        if name in made:
            made[name] = _filled(child, made[name])
    return made


def test_defaults_of_the_schema_are_the_defaults_of_the_models() -> None:
    read = AskedSpec.read(MINIMAL_SPEC)
    dumped = read.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert _filled(SPEC_SCHEMA, MINIMAL_SPEC) == dumped


def test_an_unseen_object_is_not_taken_for_ready() -> None:
    status = schema()["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    defaults = [path for path, node in nodes(status) if path and "default" in node]
    assert defaults == [], "a default in status is an answer that nobody gave"


def test_conditions_and_groups_are_merged_by_their_keys() -> None:
    status = schema()["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert status["groups"]["x-kubernetes-list-map-keys"] == ["index"]


def test_rules_carry_a_message() -> None:
    rules = [rule for _, node in ALL_NODES for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 10
    assert all(rule["rule"] and rule["message"] for rule in rules)


# The converter


class Leaf(Model):
    """A leaf."""

    value: int = 1


def _field(annotation: Any, default: Any = ..., **extra: Any) -> dict[str, Any]:
    made = type(
        "Holder",
        (Model,),
        {
            "__module__": __name__,
            "__annotations__": {"x": annotation},
            "x": Field(default, **extra),
        },
    )
    found: dict[str, Any] = structural(made)["properties"]["x"]
    return found


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, {"type": "integer"}),
        (str | None, {"type": "string"}),
        (int | str, {"x-kubernetes-int-or-string": True}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Annotated[float, Field(gt=0)], {"type": "number", "minimum": 0, "exclusiveMinimum": True}),
        (Annotated[int, Field(lt=5)], {"type": "integer", "maximum": 5, "exclusiveMaximum": True}),
        (
            list[str],
            {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"},
        ),
        (set[str], {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict[str, Any], {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (
            Leaf,
            {
                "type": "object",
                "description": "A leaf.",
                "properties": {"value": {"type": "integer", "default": 1}},
            },
        ),
    ],
)
def test_a_pydantic_field_becomes_a_structural_one(
    annotation: Any, expected: Mapping[str, Any]
) -> None:
    assert _field(annotation) == expected


def test_the_keys_of_a_list_make_it_a_map() -> None:
    found = _field(list[Leaf], json_schema_extra={"x-list-map-keys": ["value"]})
    assert found["x-kubernetes-list-type"] == "map"
    assert found["x-kubernetes-list-map-keys"] == ["value"]


def test_what_pydantic_says_about_keys_becomes_a_rule() -> None:
    key = Annotated[str, StringConstraints(pattern="^[a-z]+$", max_length=9)]
    found = _field(dict[key, str], json_schema_extra={"x-key-form": "lower case"})
    assert found["additionalProperties"] == {"type": "string"}
    (rule,) = found["x-kubernetes-validations"]
    assert rule["rule"] == "self.all(key, key.size() <= 9 && key.matches(r'^[a-z]+$'))"
    assert rule["message"] == "each key must be lower case"


def test_rules_of_a_model_stand_at_its_object_and_at_its_default() -> None:
    class Ruled(Model):
        """Ruled."""

        low: int = 1
        rules: ClassVar[tuple[Rule, ...]] = (Rule("self.low > 0", "too low", field_path=".low"),)

    class Outer(Model):
        """Outer."""

        ruled: Ruled = Field(default_factory=Ruled)
        leaf: Leaf = Field(default_factory=Leaf)

    found = structural(Outer)["properties"]
    assert found["ruled"]["x-kubernetes-validations"] == [
        {
            "rule": "self.low > 0",
            "message": "too low",
            "fieldPath": ".low",
            "reason": "FieldValueInvalid",
        }
    ]
    # the server evaluates the rule on the default as written, before it fills it
    assert found["ruled"]["default"] == {"low": 1}
    assert found["leaf"]["default"] == {}
    assert "default" not in structural(Outer, defaults=False)["properties"]["leaf"]


class Loop(Model):
    """A loop."""

    inner: list[Loop] = Field(default_factory=list)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (int | bool, "union of 2 types"),
        (Leaf | int, "union of 2 types"),
        (tuple[int, str], "prefixItems"),
        (Any, "has no type"),
        (list[Any], "has no type"),
        (Loop, "Loop holds itself"),
    ],
)
def test_what_has_no_structural_form_is_named_with_its_path(annotation: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said) as caught:
        _field(annotation)
    assert ".x" in str(caught.value)


def test_a_default_that_an_empty_object_would_not_get_is_refused() -> None:
    with pytest.raises(SchemaError, match="differs from an empty Leaf"):
        _field(Leaf, default=Leaf(value=2))


# The command

_APP = typer.Typer()
_APP.command()(crd_command)


def _run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(_APP, list(arguments))
    return done.exit_code, done.output


def test_command_prints_the_crd() -> None:
    assert _run() == (0, crd_yaml())


def test_command_writes_and_then_agrees(tmp_path: Path) -> None:
    file = tmp_path / "below" / "crd.yaml"
    assert _run("--check", "--output", str(file))[0] == 1
    assert _run("--output", str(file))[0] == 0
    assert file.read_text(encoding="utf-8") == crd_yaml()
    assert _run("--check", "--output", str(file))[0] == 0


def test_command_shows_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "crd.yaml"
    file.write_text(crd_yaml().replace("plural: llmdeployments", "plural: llms"), encoding="utf-8")
    code, output = _run("--check", "-o", str(file))
    assert code == 1
    assert "-    plural: llms" in output
    assert "+    plural: llmdeployments" in output
