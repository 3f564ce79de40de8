"""Triton's repositories: by its own rules, by the recorded models, with typed values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from shardwright_standin.triton import repository as rules
from shardwright_standin.triton.pbtxt import TextError, parse
from tests.golden import specs

from shardwright.resolved import Resolved
from shardwright.runner.contract import FILES_LIMIT_BYTES, Prepared, inside
from shardwright.runner.serve.repository import write_repository
from shardwright.runtimes.tensorrt_config import CONFIG_KEYS
from shardwright.runtimes.triton_model_config import (
    Batching,
    DataType,
    ModelConfig,
    Step,
    Tensor,
    Value,
    value_text,
)
from shardwright.runtimes.triton_options import OPTIONS, RESERVED, Place, options
from shardwright.runtimes.triton_repository import Repository, llm_config, repository
from shardwright.runtimes.triton_tensors import tensors
from shardwright.runtimes.triton_versions import ALL_MODELS

CONTRACTS = Path(__file__).parents[1] / "contracts"


def recorded(name: str) -> Any:
    return yaml.safe_load((CONTRACTS / f"{name}.yaml").read_text(encoding="utf-8"))


MODELS = recorded("triton-models-1.2")["models"]
LLM_ARGS = recorded("llm_args-1.2")


def resolved(
    backend: str = "TensorRT", tensor: int = 2, pipeline: int = 2, **changes: Any
) -> Resolved:
    engine = {"runtime": "Triton", "backend": backend, **changes.pop("engine", {})}
    asked = specs.spec(
        **{
            "model": {"uri": "hf://org/model", "servedName": "llama-8b"},
            "engine": engine,
            "parallelism": {"tensor": tensor, "pipeline": pipeline},
            **changes,
        }
    )
    return specs.resolved(asked)


# Each option at a value of its own, and quantized KV caches, by which paged attention goes.
SOME: Mapping[str, Any] = {
    "batch_scheduler_policy": "max_utilization",
    "decoding_mode": "top_k_top_p",
    "max_attention_window_size": [4096, 512],
    "preprocessing_instance_count": 2,
    "postprocessing_instance_count": 3,
}
ALL = {
    name: SOME.get(name, True if option.takes == "true or false" else 7)
    for name, option in OPTIONS.items()
}
TEMPLATES: dict[str, Resolved] = {
    **{
        f"engine-tp{tensor}-pp{pipeline}": resolved(tensor=tensor, pipeline=pipeline)
        for tensor, pipeline in itertools.product((1, 2, 8), (1, 2))
    },
    "engine-int8-cache": resolved(quantization={"weights": "FP8", "kvCache": "INT8"}),
    "engine-options": resolved(engine={"config": ALL}),
    "engine-not-decoupled": resolved(engine={"config": {"decoupled_mode": False}}),
    "pytorch": resolved("PyTorch"),
    "pytorch-code": resolved(
        "PyTorch",
        1,
        1,
        model={"uri": "hf://org/model", "servedName": "m", "trustRemoteCode": True},
        engine={"config": {"kv_cache_config": {"enable_block_reuse": False}}},
    ),
}
each = pytest.mark.parametrize("name", TEMPLATES)


def written(tmp_path: Path, found: Repository) -> Path:
    """The repository in a folder, with the image's models beside."""
    copies = {}
    for path, source in found.copies.items():
        assert source.startswith(f"{ALL_MODELS}/")
        image = tmp_path / "image" / path
        (image / "1").mkdir(parents=True)
        (image / "1" / "model.py").write_text("")
        (image / "config.pbtxt").write_text("max_batch_size: ${triton_max_batch_size}")
        copies[path] = str(image)
    root = tmp_path / "repository"
    values = {"{artifact}": "/store/engine", "{model}": "/store/model"}
    write_repository(Prepared(files=found.written(), copies=copies), root, values)
    return root


@each
def test_it_keeps_the_rules_of_triton(tmp_path: Path, name: str) -> None:
    found = repository(TEMPLATES[name])
    models = rules.load(written(tmp_path, found))
    assert set(models) == {model.name for model in found.models}
    for model in models.values():
        text = (tmp_path / "repository" / model.name / "config.pbtxt").read_text()
        assert "{model}" not in text
        assert "{artifact}" not in text
        assert "$" not in text


@each
def test_its_files_fit_into_a_request(name: str) -> None:
    found = repository(TEMPLATES[name])
    assert all(inside(path) for path in (*found.written(), *found.copies))
    assert sum(len(text) for text in found.written().values()) < FILES_LIMIT_BYTES / 2


def tensor_line(tensor: Mapping[str, Any]) -> str:
    """A parsed tensor as the record has it."""
    said = [word for word in ("ragged", "optional") if tensor.get(_FIELDS[word])]
    scalar = ["scalar"] if "reshape" in tensor else []
    dims = ", ".join(map(str, tensor["dims"]))
    return " ".join([tensor["data_type"].removeprefix("TYPE_"), f"[{dims}]", *scalar, *said])


_FIELDS = {"ragged": "allow_ragged_batch", "optional": "optional"}


@each
def test_its_tensors_and_parameters_are_those_of_the_backend(name: str) -> None:
    found = TEMPLATES[name]
    served = found.spec.model.served_name
    compiled = name.startswith("engine")
    for model in repository(found).models:
        kind = model.name if model.name != served else ("ensemble" if compiled else "llmapi")
        entry, config = MODELS[kind], parse(model.text())
        for field in ("backend", "platform"):
            assert config.get(field) == entry.get(field)
        for part, field in (("inputs", "input"), ("outputs", "output")):
            known = {key: line.replace("LOGITS", "FP32") for key, line in entry[part].items()}
            for tensor in config[field]:
                assert tensor_line(tensor) == known[tensor["name"]], (kind, tensor["name"])
        given = set(config.get("parameters", {}))
        assert given <= set(entry.get("parameters", ()))
        assert given >= set(entry.get("required", ()))
        declared = {tensor["name"] for part in ("input", "output") for tensor in config[part]}
        assert declared >= set(entry.get("needs", ()))


def parameters(found: Resolved, model: str) -> dict[str, str]:
    (config,) = (one for one in repository(found).models if one.name == model)
    return {key: value_text(value) for key, value in config.parameters.items()}


def test_ranks_take_the_gpus_of_their_own_pod() -> None:
    """Listed GPUs times nodes are all ranks, as the executor asks."""
    for tensor, pipeline in ((1, 1), (8, 1), (4, 2), (1, 3)):
        given = parameters(resolved(tensor=tensor, pipeline=pipeline), "tensorrt_llm")
        assert given["gpu_device_ids"] == ",".join(map(str, range(tensor)))
        assert given["num_nodes"] == str(pipeline)


def test_blocks_are_reused_only_by_engines_that_can() -> None:
    assert (
        parameters(TEMPLATES["engine-tp1-pp1"], "tensorrt_llm")["enable_kv_cache_reuse"] == "true"
    )
    given = parameters(TEMPLATES["engine-int8-cache"], "tensorrt_llm")
    assert given["enable_kv_cache_reuse"] == "false"


def test_every_option_reaches_its_place() -> None:
    found = TEMPLATES["engine-options"]
    assert set(options(found.spec)) == set(OPTIONS)
    by_name = {model.name: model for model in repository(found).models}
    for name, option in OPTIONS.items():
        value = ALL[name]
        if option.place in (Place.ENGINE, Place.PREPROCESSING, Place.POSTPROCESSING):
            given = parameters(found, option.place.value)
            typed: Value = tuple(value) if isinstance(value, list) else value
            assert given[name] == value_text(typed)
    assert by_name["preprocessing"].instances == 2
    assert by_name["postprocessing"].instances == 3
    for name in ("preprocessing", "tensorrt_llm"):
        assert by_name[name].batching == Batching(64, 7, 7)
    assert by_name["tensorrt_llm"].decoupled
    assert not repository(TEMPLATES["engine-not-decoupled"]).models[1].decoupled


def test_options_are_parameters_that_the_record_has() -> None:
    for name, option in OPTIONS.items():
        if option.place.value in MODELS:
            assert name in MODELS[option.place.value]["parameters"], name
    assert not set(OPTIONS) & set(RESERVED)


@pytest.mark.parametrize("name", ["pytorch", "pytorch-code"])
def test_the_llm_api_gets_arguments_that_it_knows(name: str) -> None:
    found = TEMPLATES[name]
    (path,) = (path for path in repository(found).written() if path.endswith("model.yaml"))
    config = yaml.safe_load(repository(found).written()[path])
    assert config == llm_config(found) == json.loads(json.dumps(config))
    own = config.pop("triton_config")
    assert set(own) <= set(MODELS["llmapi"]["triton_config"])
    known = {*LLM_ARGS["keys"], *LLM_ARGS["pytorch_keys"], *MODELS["llmapi"]["arguments"]}
    assert set(config) <= known
    # Both sides of the model are told the same.
    (model,) = repository(found).models
    assert own == {"max_batch_size": model.max_batch_size, "decoupled": model.decoupled}
    world = (config["tensor_parallel_size"], config["pipeline_parallel_size"])
    assert world == (found.tensor, found.pipeline)
    assert config["gpus_per_node"] == found.tensor
    assert config.get("trust_remote_code", False) is found.spec.model.trust_remote_code
    assert set(found.spec.engine.config) <= set(CONFIG_KEYS)


WORDS = st.text(st.characters(codec="ascii"), max_size=12)


@given(
    name=WORDS,
    batch=st.integers(0, 2**31 - 1),
    decoupled=st.booleans(),
    dims=st.lists(st.sampled_from([-1, 1, 7]), min_size=1, max_size=3),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    parameters=st.dictionaries(
        WORDS,
        st.booleans() | st.integers() | st.floats(0, 1) | WORDS | st.tuples(st.integers()),
        max_size=3,
    ),
)
def test_what_is_written_is_read_back(
    name: str,
    batch: int,
    decoupled: bool,
    dims: list[int],
    flags: tuple[bool, bool, bool],
    parameters: dict[str, Value],
) -> None:
    optional, ragged, scalar = flags
    tensor = Tensor("x", DataType.FP32, tuple(dims), optional, ragged, scalar)
    config = ModelConfig(
        name,
        batch,
        (tensor,),
        (Tensor("y", DataType.STRING, (1,)),),
        platform="ensemble",
        decoupled=decoupled,
        steps=(Step("m", {"a": "x"}, {"b": "y"}),),
        parameters=parameters,
    )
    found = parse(config.text())
    assert (found["name"], found["max_batch_size"]) == (name, batch)
    assert found.get("model_transaction_policy", {}).get("decoupled", False) is decoupled
    (read,) = found["input"]
    assert read["dims"] == dims
    assert (read.get("optional", False), read.get("allow_ragged_batch", False)) == flags[:2]
    assert ("reshape" in read) is scalar
    texts = {key: value["string_value"] for key, value in found.get("parameters", {}).items()}
    assert texts == {key: value_text(value) for key, value in parameters.items()}
    (step,) = found["ensemble_scheduling"]["step"]
    assert step == {
        "model_name": "m",
        "model_version": -1,
        "input_map": {"a": "x"},
        "output_map": {"b": "y"},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('nmae: "x"', "no field of this name"),
        ("name: x", "a string is expected"),
        ('name "x"', "a colon is expected"),
        ('max_batch_size: "4"', "a int32 is expected"),
        ("max_batch_size: 4.5", "a int32 is expected"),
        ("max_batch_size: true", "a int32 is expected"),
        ("max_batch_size: 2147483648", "a int32 is expected"),
        ("max_batch_size: 1 max_batch_size: 2", "has it twice"),
        ("max_batch_size: [ 1 ]", "no list"),
        ("model_transaction_policy { decoupled: yes }", "a bool is expected"),
        ("input [ { data_type: TYPE_FLOAT } ]", "no such value"),
        ("input [ { dims: [ 1 2 ] } ]", "a comma"),
        ("input [ { dims: [ -1 ] }", "ends inside"),
        ("instance_group [ { kind: KIND_TPU } ]", "no such value"),
        ("dynamic_batching { max_queue_delay_microseconds: -1 }", "a uint64 is expected"),
        ('parameters { key: "a" value: "b" }', "a ModelParameter is expected"),
        ('parameters { key: "a" }', "one key and one value"),
        ('parameters { key: "a" value { } } parameters { key: "a" value { } }', "twice"),
        ("name: $x", "no token"),
    ],
)
def test_a_configuration_of_other_types_is_refused(text: str, words: str) -> None:
    with pytest.raises(TextError, match=words):
        parse(text)


def broken(tmp_path: Path, path: str, old: str, new: str) -> str:
    """What the rules say of a repository after one change."""
    root = written(tmp_path, repository(TEMPLATES["engine-tp2-pp2"]))
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))
    with pytest.raises(rules.RepositoryError) as caught:
        rules.load(root)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "old", "new", "words"),
    [
        ("tensorrt_llm/config.pbtxt", '"tensorrt_llm"', '"other"', "unlike its folder"),
        ("tensorrt_llm/config.pbtxt", "max_batch_size: 64", "", "max_batch_size"),
        ("tensorrt_llm/config.pbtxt", "[ 64 ]", "[ 65 ]", "preferred size"),
        ("tensorrt_llm/config.pbtxt", "KIND_CPU", "KIND_GPU", "instances are on the CPU"),
        ("tensorrt_llm/config.pbtxt", 'backend: "tensorrtllm"', "", "'platform' or 'backend'"),
        ("tensorrt_llm/config.pbtxt", '"input_lengths"', '"input_ids"', "each once"),
        ("tensorrt_llm/config.pbtxt", "dims: [ 2, -1 ]", "dims: [ ]", "'dims'"),
        ("tensorrt_llm/config.pbtxt", "shape: [ ]", "shape: [ 2 ]", "different size"),
        ("llama-8b/config.pbtxt", 'key: "QUERY"', 'key: "QUERIES"', "does not exist"),
        ("llama-8b/config.pbtxt", 'value: "max_tokens"', 'value: "seed"', "is ('TYPE_INT32'"),
        ("llama-8b/config.pbtxt", 'model_name: "postprocessing"', 'model_name: "p"', "no model"),
        ("llama-8b/config.pbtxt", "max_batch_size: 64", "max_batch_size: 128", "allows batches"),
        (
            "preprocessing/config.pbtxt",
            "TYPE_INT32 dims: [ -1 ]",
            "TYPE_INT64 dims: [ -1 ]",
            "is (",
        ),
    ],
)
def test_the_rules_find_what_is_wrong(
    tmp_path: Path, path: str, old: str, new: str, words: str
) -> None:
    assert words in broken(tmp_path, path, old, new)


def test_an_ensemble_s_tensor_that_nothing_gives_is_found(tmp_path: Path) -> None:
    root = written(tmp_path, repository(TEMPLATES["engine-tp2-pp2"]))
    path = root / "llama-8b" / "config.pbtxt"
    text = path.read_text()
    # A name changed on both sides is as good as before.
    path.write_text(text.replace('"_INPUT_ID"', '"_IDS"'))
    rules.load(root)
    path.write_text(text.replace('"_INPUT_ID"', '"_IDS"', 1))
    with pytest.raises(rules.RepositoryError, match="takes _INPUT_ID, which nothing gives"):
        rules.load(root)


def test_layout_rules(tmp_path: Path) -> None:
    root = written(tmp_path, repository(TEMPLATES["engine-tp2-pp2"]))
    (root / "tensorrt_llm" / "1").rename(root / "tensorrt_llm" / "01")
    with pytest.raises(rules.RepositoryError, match="at least one version"):
        rules.load(root)
    (root / "tensorrt_llm" / "01").rename(root / "tensorrt_llm" / "12")
    assert rules.load(root)["tensorrt_llm"].version.name == "12"
    (root / "preprocessing" / "1" / "model.py").unlink()
    with pytest.raises(rules.RepositoryError, match=r"has no model\.py"):
        rules.load(root)
    with pytest.raises(rules.RepositoryError, match="no such repository"):
        rules.load(tmp_path / "nowhere")


def test_a_tensor_s_line_that_cannot_be_read_is_told() -> None:
    with pytest.raises(ValueError, match="tensor x"):
        tensors({"x": "INT32 -1"})
