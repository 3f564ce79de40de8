"""A model's facts are read from files of strangers: as data, bounded, and refused by field."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runner.contract import ModelFacts
from shardwright.runner.facts import ModelFactsError, facts_of, model_facts, weight_bytes
from shardwright.runner.jsonfile import JsonFileError, read_object
from shardwright_sandbox.player import models

# Fields of meta-llama/Llama-3.1-8B's config.json.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def put(folder: Path, config: object = LLAMA, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def read(**changes: Any) -> ModelFacts:
    config = {**LLAMA, **changes}
    return facts_of({name: value for name, value in config.items() if value is not None}, {}, 0)


def test_the_facts_of_a_model(tmp_path: Path) -> None:
    folder = put(tmp_path / "m", **{"model.safetensors": bytes(700)})
    found = model_facts(folder)
    assert json.loads(found.config)["num_hidden_layers"] == 32
    assert replace(found, config="") == ModelFacts(
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_positions=131072,
        dtype="bfloat16",
        bytes=700,
    )


TABLES = sorted(models.FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_sandbox_reads_the_same_of_its_models(path: Path) -> None:
    table = json.loads(path.read_text())
    model = models.Model(table["config"], int(table["bytes"]))
    assert facts_of(model.config, {}, model.bytes) == models.facts(model)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"num_key_value_heads": None}, "kv_heads", 32),
        ({"num_key_value_heads": None, "multi_query": True}, "kv_heads", 1),
        ({"num_key_value_heads": None, "multi_query_group_num": 2}, "kv_heads", 2),
        ({"head_dim": 256}, "head_dim", 256),
        ({"num_local_experts": 8}, "experts", 8),
        ({"n_routed_experts": 256}, "experts", 256),
        ({"n_routed_experts": 0}, "experts", 0),
        ({"torch_dtype": None, "dtype": "float16"}, "dtype", "float16"),
        ({"torch_dtype": "torch.float16"}, "dtype", "float16"),
        ({"torch_dtype": None}, "dtype", "float32"),
        ({"num_hidden_layers": None, "n_layer": 12}, "layers", 12),
        ({"quantization_config": {"quant_method": "GPTQ", "bits": 4}}, "quantization", "gptq"),
        ({"auto_map": {"AutoModel": "modeling.Model"}}, "remote_code", True),
        ({"time_step_limit": [0.0, float("inf")]}, "layers", 32),
    ],
)
def test_families_spell_their_fields_differently(
    changes: dict[str, Any], field: str, value: object
) -> None:
    assert getattr(read(**changes), field) == value


def test_of_a_multimodal_model_the_text_model_counts() -> None:
    """Heads of a vision tower would refuse every tensor size that the text model can have."""
    whole = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "num_attention_heads": 7,
        "vision_config": {"num_attention_heads": 13, "num_hidden_layers": 24},
        "text_config": {**LLAMA, "architectures": None},
    }
    facts = facts_of(whole, {}, 0)
    assert (facts.architecture, facts.model_type) == ("LlavaForConditionalGeneration", "llama")
    assert (facts.heads, facts.layers) == (32, 32)


def test_what_modelopt_has_quantized_is_known_by_its_note(tmp_path: Path) -> None:
    note = b'{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}'
    folder = put(tmp_path / "m", **{"hf_quant_config.json": note})
    assert model_facts(folder).quantization == "fp8"


@pytest.mark.parametrize(
    ("tokenizer", "code"),
    [
        (b'{"auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", null]}}', True),
        (b'{"tokenizer_class": "PreTrainedTokenizerFast"}', False),
    ],
)
def test_code_of_a_tokenizer_is_code_of_the_model(
    tmp_path: Path, tokenizer: bytes, *, code: bool
) -> None:
    folder = put(tmp_path / "m", **{"tokenizer_config.json": tokenizer})
    assert model_facts(folder).remote_code is code


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = put(tmp_path / "m", **{"tokenizer_config.json": b"[]"})
    with pytest.raises(ModelFactsError, match=r"tokenizer_config\.json"):
        model_facts(folder)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 2.5}, "num_attention_heads"),
        ({"num_key_value_heads": 64}, "key-value heads"),
        ({"architectures": []}, "architectures"),
        ({"architectures": "Llama"}, "architectures"),
        ({"architectures": ["a\nb"]}, "architectures"),
        ({"architectures": ["x" * 500]}, "architectures"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"torch_dtype": "a b"}, "torch_dtype"),
        ({"quantization_config": {"quant_method": {}}}, "quant_method"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelFactsError, match=field):
        read(**changes)


def test_a_refusal_is_short_whatever_the_value_is() -> None:
    with pytest.raises(ModelFactsError) as caught:
        read(num_hidden_layers="9" * 1_000_000)
    assert len(str(caught.value)) < 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from([*LLAMA, "text_config", "auto_map", "quantization_config", "head_dim"])


@given(changes=st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_config_gives_facts_or_a_refusal(changes: dict[str, Any]) -> None:
    try:
        facts = facts_of({**LLAMA, **changes}, {}, 0)
    except ModelFactsError:
        return
    counts = (facts.layers, facts.hidden_size, facts.heads, facts.kv_heads, facts.head_dim)
    assert all(type(count) is int and count >= 1 for count in counts)
    assert facts.kv_heads <= facts.heads


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda _: None, "is not there"),
        (lambda path: path.write_text("{"), "is no JSON"),
        (lambda path: path.write_text("[1]"), "holds list, not an object"),
        (lambda path: path.write_text("[" * 200_000), "nested too deep"),
        (lambda path: path.write_text('{"a":' * 200_000), "nested too deep"),
        (lambda path: path.write_text('{"a": ' + "9" * 100_000 + "}"), "100000 digits"),
        (lambda path: path.write_bytes(b'{"a": "\xff"}'), "is no JSON"),
        (lambda path: path.write_text(" " * 2000), "has 2000 bytes, the limit is 1000"),
        (lambda path: path.mkdir(), "no regular file"),
        (os.mkfifo, "no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    ],
)
def test_a_file_that_is_no_bounded_json_object_is_refused(
    tmp_path: Path, write: Callable[[Path], object], told: str
) -> None:
    path = tmp_path / "config.json"
    write(path)
    limit = 1000 if "limit" in told else 2**22
    with pytest.raises(JsonFileError, match=told):
        read_object(path, limit)


def test_weights_are_counted_once(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    folder = put(
        tmp_path / "m",
        **{
            "m-1.safetensors": bytes(10),
            "m-2.safetensors": bytes(20),
            "consolidated.safetensors": bytes(30),
            "pytorch_model.bin": bytes(40),
        },
    )
    assert weight_bytes(folder) == 30
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(folder) == 30
    (folder / "m-2.safetensors").unlink()
    with pytest.raises(ModelFactsError, match=r"m-2\.safetensors"):
        weight_bytes(folder)


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "../../etc/passwd"}}
    folder = put(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFactsError, match="no table of files"):
        weight_bytes(folder)


def test_a_hub_s_cache_of_links_is_read(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(bytes(99))
    folder = put(tmp_path / "m")
    (folder / "model.safetensors").symlink_to(blob)
    assert weight_bytes(folder) == 99
