"""Manifests for tests: a smallest valid one, and random ones near every bound of the schema."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

from shardwright.api.crd import schema

Schema = Mapping[str, Any]
Path = tuple[str, ...]

SPEC_SCHEMA: Schema = schema()["properties"]["spec"]

MINIMAL_SPEC: Schema = {
    "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"},
    "gpu": {"product": "NVIDIA-H100-80GB-HBM3"},
    "storage": {"claimName": "models"},
}

# What no field of any type takes, or only some do.
_ODD = (None, True, 5, 2.5, "", "a", [], {}, ["a"], {"a": "b"})
_STRINGS = (
    "",
    "a",
    "A.b_c",
    "-a",
    "a-",
    "a..b",
    "a/b",
    "a\n",
    "a b",
    "ä",
    "1",
    "x" * 64,
    "x" * 600,
)
_QUANTITIES = (8, "8", "500m", "64Gi", "1.5Gi", "0", "0.0", 0, -1, 8.5, "8x", "", "9" * 21, 10**16)
_URIS = (
    "hf://org/name",
    "hf://org/name@refs/pr/1",
    "pvc://claim/folder/model",
    "s3://bucket/a/b",
    "oci://registry.example.com:5000/models/llama:v1",
    "hf://name",
    "ftp://host/x",
    "pvc://claim/../x",
    "hf://org/name\n",
)
_GOOD_URIS, _GOOD_QUANTITIES, _GOOD_KEYS = 5, 5, 3  # so many of the first are valid
_KEYS = ("pool", "example.com/pool", "a.b/c_d", "-a", "", "a/b/c", "x" * 64, "A/b", "a..b/c")


def put(spec: Schema, path: str | Path, value: Any) -> dict[str, Any]:
    """A copy of `spec` with `value` at a path."""
    steps = path.split(".") if isinstance(path, str) else path
    made: dict[str, Any] = copy.deepcopy(dict(spec))
    node = made
    for step in steps[:-1]:
        child = node.get(step)
        node[step] = child if isinstance(child, dict) else {}
        node = node[step]
    node[steps[-1]] = value
    return made


def manifest(spec: Schema, name: str = "llama") -> dict[str, Any]:
    return {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": spec,
    }


def leaves(node: Schema, path: Path = ()) -> Iterator[tuple[Path, Schema]]:
    """Every node without properties: values, lists and maps."""
    if "properties" in node:
        for name, child in node["properties"].items():
            yield from leaves(child, (*path, name))
    else:
        yield path, node


def _fitting(node: Schema, name: str = "") -> st.SearchStrategy[Any]:
    """Values that the node's shape allows; a rule may still refuse them."""
    if name == "uri":
        return st.sampled_from(_URIS[:_GOOD_URIS])
    if node.get("x-kubernetes-int-or-string"):
        return st.sampled_from(_QUANTITIES[:_GOOD_QUANTITIES])
    if "enum" in node:
        return st.sampled_from(node["enum"])
    match node["type"]:
        case "integer":
            low, high = node["minimum"], node["maximum"]
            return st.sampled_from([low, low + 1, high]) | st.integers(low, high)
        case "number":
            return st.floats(node["minimum"] + 0.001, node["maximum"] - 0.001)
        case "boolean":
            return st.booleans()
        case "string":
            return _fitting_strings(node)
        case "array":
            return st.lists(_fitting(node["items"]), max_size=3)
    return _objects(node, _fitting, _KEYS[:_GOOD_KEYS])


def _around(node: Schema, name: str = "") -> st.SearchStrategy[Any]:
    """Values on both sides of the node's bounds, or of another type."""
    odd = st.sampled_from(_ODD)
    if name == "uri":
        return odd | st.sampled_from(_URIS)
    if node.get("x-kubernetes-int-or-string"):
        return odd | st.sampled_from(_QUANTITIES)
    if "enum" in node:
        return odd | st.sampled_from([*node["enum"], "Other"])
    match node["type"]:
        case "integer" | "number":
            low, high = node["minimum"], node["maximum"]
            return odd | st.sampled_from([low - 1, low, high, high + 1])
        case "boolean":
            return odd | st.booleans()
        case "string":
            longest = node["maxLength"]
            return odd | st.sampled_from([*_STRINGS, "x" * longest, "x" * (longest + 1)])
        case "array":
            item, most = _fitting(node["items"]), node["maxItems"]
            return (
                odd
                | st.lists(_around(node["items"]), max_size=3)
                | st.lists(item, min_size=most + 1, max_size=most + 1)
            )
    return odd | _objects(node, _around, _KEYS)


def _objects(
    node: Schema,
    values: Callable[..., st.SearchStrategy[Any]],
    keys: tuple[str, ...],
) -> st.SearchStrategy[Any]:
    if "properties" in node:
        required = node.get("required", ())
        parts = {name: values(child, name) for name, child in node["properties"].items()}
        return st.fixed_dictionaries(
            {name: parts[name] for name in required},
            optional={name: part for name, part in parts.items() if name not in required},
        )
    if "additionalProperties" in node:
        return st.dictionaries(
            st.sampled_from(keys), values(node["additionalProperties"]) | st.none(), max_size=3
        )
    return st.sampled_from([{}, {"a": None}, {"a": {"b": [1, None, {}]}}])


def _fitting_strings(node: Schema) -> st.SearchStrategy[str]:
    if "pattern" not in node:
        return st.sampled_from(["", "a", "ä b\n", "x" * node["maxLength"]])
    short = st.from_regex(
        node["pattern"][1:-1], fullmatch=True, alphabet=st.characters(codec="ascii")
    )
    return short.filter(lambda text: node.get("minLength", 0) <= len(text) <= node["maxLength"])


_LEAVES = list(leaves(SPEC_SCHEMA))


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec with up to five fields set; in a third of them at, beyond or beside their bounds."""
    wild = draw(st.integers(0, 2)) == 0
    spec = copy.deepcopy(dict(MINIMAL_SPEC))
    for path, node in draw(st.lists(st.sampled_from(_LEAVES), max_size=5, unique_by=_path_of)):
        spec = put(spec, path, draw((_around if wild else _fitting)(node, path[-1])))
    if wild and draw(st.integers(0, 5)) == 0:
        path, _ = draw(st.sampled_from(_LEAVES))
        spec = put(spec, *draw(st.sampled_from([((*path[:-1], "unheardOf"), 1), (path[:1], None)])))
    return spec


def _path_of(leaf: tuple[Path, Schema]) -> Path:
    return leaf[0]
