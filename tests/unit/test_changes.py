"""Every spec path has one change class, and the table says what each class causes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.specs import MINIMAL_SPEC, SPEC_SCHEMA, leaves, put

from shardwright.api.changes import (
    SPEC_CLASSES,
    ChangeClass,
    Effects,
    UnclassifiedPathError,
    change_class,
    changed,
    effects,
    hashed_spec,
    why,
)
from shardwright.api.spec import Backend, LLMDeploymentSpec

PATHS = [".".join(path) for path, _ in leaves(SPEC_SCHEMA)]


def _read(path: str = "replicas", value: Any = 1) -> LLMDeploymentSpec:
    return LLMDeploymentSpec.read(put(MINIMAL_SPEC, path, value))


# Classes


@pytest.mark.parametrize("path", PATHS)
def test_every_path_of_the_crd_has_exactly_one_class(path: str) -> None:
    matching = [
        prefix for prefix in SPEC_CLASSES if path == prefix or path.startswith(f"{prefix}.")
    ]
    assert len(matching) == 1, f"spec.{path}: {matching or 'no class; add it to SPEC_CLASSES'}"
    assert change_class(path) is SPEC_CLASSES[matching[0]]


@pytest.mark.parametrize("prefix", SPEC_CLASSES)
def test_no_class_stands_at_a_path_that_the_crd_does_not_have(prefix: str) -> None:
    assert any(path == prefix or path.startswith(f"{prefix}.") for path in PATHS)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("model.uri", ChangeClass.MODEL),
        ("parallelism.pipeline", ChangeClass.SHAPE),
        ("gpu.product", ChangeClass.GPU),
        ("engine.image", ChangeClass.RUNTIME),
        ("model.dtype", ChangeClass.WEIGHTS),
        ("quantization.calibration.samples", ChangeClass.WEIGHTS),
        ("quantization.kvCache", ChangeClass.KV_CACHE),
        ("engine.limits.maxSeqLen", ChangeClass.BUILD),
        ("engine.limits.gpuMemoryFraction", ChangeClass.ROLLING),
        ("engine.build.plugins.gemm", ChangeClass.BUILD),
        ("engine.config.kv_cache_config.free", ChangeClass.ROLLING),
        ("pod.env", ChangeClass.ROLLING),
        ("placement.nodeSelector[example.com/pool]", ChangeClass.ROLLING),
        ("storage.claimName", ChangeClass.STORAGE),
        ("model.secretRef.name", ChangeClass.NONE),
        ("rollout.drainTimeoutSeconds", ChangeClass.NONE),
        ("replicas", ChangeClass.NONE),
    ],
)
def test_class_of_a_path(path: str, expected: ChangeClass) -> None:
    assert change_class(path) is expected


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("engine.limits.unheardOf", "add it to SPEC_CLASSES"),
        ("podd", "add it to SPEC_CLASSES"),
        ("engine.limits", "ask for one of engine.limits.gpuMemoryFraction"),
        ("quantization", "quantization.weights"),
    ],
)
def test_a_path_without_a_class_is_an_error_that_says_so(path: str, said: str) -> None:
    with pytest.raises(UnclassifiedPathError, match=f"spec.{path}.*{said}"):
        change_class(path)


# Effects: the columns are fetch, checkpoint, engine, candidate, roll

TENSORRT = [
    (ChangeClass.MODEL, "fetch checkpoint engine candidate roll"),
    (ChangeClass.STORAGE, "fetch checkpoint engine candidate roll"),
    (ChangeClass.WEIGHTS, "checkpoint engine candidate roll"),
    (ChangeClass.DRAFT, "fetch checkpoint engine candidate roll"),
    (ChangeClass.RUNTIME, "checkpoint engine candidate roll"),
    (ChangeClass.SHAPE, "checkpoint engine candidate roll"),
    (ChangeClass.SPECULATION, "checkpoint engine candidate roll"),
    (ChangeClass.KV_CACHE, "checkpoint engine candidate roll"),
    (ChangeClass.GPU, "engine candidate roll"),
    (ChangeClass.BUILD, "engine candidate roll"),
    (ChangeClass.GATE, "candidate"),
    (ChangeClass.ROLLING, "roll"),
    (ChangeClass.NONE, ""),
]
PYTORCH_QUANTIZED = [
    (ChangeClass.MODEL, "fetch checkpoint candidate roll"),
    (ChangeClass.STORAGE, "fetch checkpoint candidate roll"),
    (ChangeClass.WEIGHTS, "checkpoint candidate roll"),
    (ChangeClass.DRAFT, "fetch candidate roll"),
    (ChangeClass.RUNTIME, "checkpoint candidate roll"),
    (ChangeClass.SHAPE, "candidate roll"),
    (ChangeClass.SPECULATION, "candidate roll"),
    (ChangeClass.KV_CACHE, "candidate roll"),
    (ChangeClass.GPU, "candidate roll"),
    (ChangeClass.BUILD, "candidate roll"),
    (ChangeClass.GATE, "candidate"),
    (ChangeClass.ROLLING, "roll"),
    (ChangeClass.NONE, ""),
]
PYTORCH_AS_IS = [
    (change, columns.replace("checkpoint ", "")) for change, columns in PYTORCH_QUANTIZED
]


def _columns(found: Effects) -> str:
    names = ("fetch", "checkpoint", "engine", "candidate", "roll")
    return " ".join(name for name in names if getattr(found, name))


@pytest.mark.parametrize(("change", "expected"), TENSORRT)
@pytest.mark.parametrize("quantized", [True, False])
def test_effects_on_the_tensorrt_backend(
    change: ChangeClass, expected: str, quantized: bool
) -> None:
    assert _columns(effects(change, Backend.TENSORRT, quantized)) == expected


@pytest.mark.parametrize(("change", "expected"), PYTORCH_QUANTIZED)
def test_effects_on_the_pytorch_backend_with_quantized_weights(
    change: ChangeClass, expected: str
) -> None:
    assert _columns(effects(change, Backend.PYTORCH, quantized=True)) == expected


@pytest.mark.parametrize(("change", "expected"), PYTORCH_AS_IS)
def test_effects_on_the_pytorch_backend_with_weights_as_they_are(
    change: ChangeClass, expected: str
) -> None:
    assert _columns(effects(change, Backend.PYTORCH, quantized=False)) == expected
    # vLLM and SGLang: whatever the weights are, the checkpoint is the model's own
    assert _columns(effects(change, None, quantized=True)) == expected


@pytest.mark.parametrize("table", [TENSORRT, PYTORCH_QUANTIZED])
def test_the_table_has_a_row_for_every_class(table: list[tuple[ChangeClass, str]]) -> None:
    assert [change for change, _ in table] == list(ChangeClass)


# What names a revision


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", 7),
        ("rollout.maxSurge", 2),
        ("rollout.buildOn", "Borrow"),
        ("rollout.drainTimeoutSeconds", 5),
        ("model.secretRef", {"name": "token"}),
    ],
)
def test_a_change_of_class_none_names_no_new_revision(path: str, value: Any) -> None:
    assert hashed_spec(_read(path, value)) == hashed_spec(_read())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.uri", "hf://org/other"),
        ("model.servedName", "other"),
        ("engine.image", "registry.example.com/engine:1"),
        ("engine.config", {"enable_chunked_prefill": True}),
        ("engine.limits.maxSeqLen", 4097),
        ("engine.limits.gpuMemoryFraction", 0.5),
        ("gpu.product", "NVIDIA-H200"),
        ("parallelism.tensor", 2),
        ("quantization.kvCache", "FP8"),
        ("storage.claimName", "other"),
        ("placement.nodeSelector", {"pool": "a"}),
        ("pod.shmSize", "1Gi"),
        ("pod.annotations", {"a": "b"}),
    ],
)
def test_any_other_change_names_a_new_revision(path: str, value: Any) -> None:
    assert hashed_spec(_read(path, value)) != hashed_spec(_read())


def test_a_field_at_its_default_counts_like_any_other() -> None:
    assert hashed_spec(_read("parallelism.tensor", 1)) == hashed_spec(_read())
    assert hashed_spec(_read())["parallelism"] == {"tensor": 1, "pipeline": 1}


def test_an_absent_field_is_left_out_so_that_new_optional_fields_rename_nothing() -> None:
    assert "image" not in hashed_spec(_read())["engine"]


def test_a_null_of_the_runtimes_configuration_counts() -> None:
    with_null = hashed_spec(_read("engine.config", {"scheduler": None}))
    assert with_null["engine"]["config"] == {"scheduler": None}


def test_a_quantity_counts_the_same_as_a_number_and_as_a_string() -> None:
    assert hashed_spec(_read("pod.resources.cpu", 8)) == hashed_spec(
        _read("pod.resources.cpu", "8")
    )
    assert hashed_spec(_read("pod.resources.cpu", 9)) != hashed_spec(_read())


def _accuracy(field: str) -> dict[str, Any]:
    """A gate with this limit of those of which only one may stand."""
    if field in ("maxRise", "maxPerplexity"):
        return {"task": "perplexity", "dataset": "text.txt", "samples": 1, field: 1.0}
    limit = field if field in ("maxDrop", "minScore") else "maxDrop"
    return {"task": "mmlu", "dataset": "data", "samples": 1, limit: 1.0}


@pytest.mark.parametrize("path", PATHS)
def test_exactly_the_paths_that_are_not_of_class_none_are_hashed(path: str) -> None:
    given = put(MINIMAL_SPEC, "engine.image", "image:1")
    given = put(given, "model.secretRef.name", "token")
    given = put(given, "parallelism", {"tensor": 2, "expert": 2, "attentionData": 2})
    given = put(given, "quantization.accuracy", _accuracy(path.rpartition(".")[2]))
    drafts = {"uri": "hf://org/draft", "secretRef": {"name": "token"}}
    given = put(given, "speculative", {"method": "DraftModel", "model": drafts})
    full = LLMDeploymentSpec.read(put(given, "lora", {}))
    node: Any = hashed_spec(full) if path.partition(".")[0] != "workload" else {}
    for step in path.split("."):
        node = node.get(step) if isinstance(node, dict) else None
    assert (node is not None) is (change_class(path) is not ChangeClass.NONE)


# Differences in words


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1}, ""),
        ({"replicas": 1}, {"replicas": 2}, "replicas 1 → 2"),
        (
            {"parallelism": {"tensor": 4}},
            {"parallelism": {"tensor": 8}},
            "parallelism.tensor 4 → 8",
        ),
        ({"engine": {}}, {"engine": {"image": "a:1"}}, "engine.image unset → a:1"),
        ({"engine": {"image": "a:1"}}, {"engine": {}}, "engine.image a:1 → unset"),
        (
            {"model": {"trustRemoteCode": False}},
            {"model": {"trustRemoteCode": True}},
            "model.trustRemoteCode false → true",
        ),
        ({"pod": {"env": []}}, {"pod": {"env": [{"name": "A"}]}}, "pod.env changed"),
        (
            {"pod": {"fabricProfile": ""}},
            {"pod": {"fabricProfile": "ib"}},
            'pod.fabricProfile "" → ib',
        ),
        (
            {"placement": {"nodeSelector": {}}},
            {"placement": {"nodeSelector": {"example.com/pool": "a"}}},
            "placement.nodeSelector[example.com/pool] unset → a",
        ),
        ({}, {"model": {"secretRef": {"name": "t"}}}, "model.secretRef.name unset → t"),
        (
            {"engine": {"config": {"a": True}}},
            {"engine": {"config": {"a": 1}}},
            "engine.config.a true → 1",
        ),
        ({"ofAnOlderVersion": 1}, {}, "ofAnOlderVersion 1 → unset"),
    ],
)
def test_why_says_path_old_and_new(old: dict[str, Any], new: dict[str, Any], expected: str) -> None:
    assert why(old, new) == expected


def test_why_names_the_three_heaviest_and_counts_the_rest() -> None:
    old = {
        "replicas": 1,
        "pod": {"shmSize": "1Gi"},
        "engine": {"limits": {"maxSeqLen": 1}},
        "parallelism": {"tensor": 4, "pipeline": 1},
        "model": {"uri": "hf://a/b"},
    }
    new = {
        "replicas": 2,
        "pod": {"shmSize": "2Gi"},
        "engine": {"limits": {"maxSeqLen": 2}},
        "parallelism": {"tensor": 8, "pipeline": 2},
        "model": {"uri": "hf://a/c"},
    }
    assert why(old, new) == (
        "model.uri hf://a/b → hf://a/c, parallelism.tensor 4 → 8, parallelism.pipeline 1 → 2 "
        "and 3 more"
    )


def test_why_shortens_a_long_value() -> None:
    text = why({"model": {"uri": "a"}}, {"model": {"uri": "x" * 500}})
    assert len(text) < 100
    assert text.endswith("…")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.sampled_from(["model", "engine", "x.y"]), _JSON, max_size=3)


@given(_OBJECTS)
def test_nothing_differs_from_itself(value: dict[str, Any]) -> None:
    assert changed(value, copy.deepcopy(value)) == []


@given(_OBJECTS, _OBJECTS)
def test_differences_turn_round(old: dict[str, Any], new: dict[str, Any]) -> None:
    there = {(path, str(before), str(after)) for path, before, after in changed(old, new)}
    back = {(path, str(after), str(before)) for path, before, after in changed(new, old)}
    assert there == back
