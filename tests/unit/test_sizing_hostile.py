"""A config.json from anyone: the answer is a model, or an error that names a key."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shardwright.cli.app import app
from shardwright.sizing.catalogue import catalogue_config, catalogue_names
from shardwright.sizing.config_families import FAMILIES
from shardwright.sizing.config_json import ConfigError, load_json, model_from_config
from shardwright.sizing.memory import plan_memory
from shardwright.sizing.shape import EngineSettings, GPUMemory, Precision, Shape

CONFIGS = [dict(catalogue_config(name)) for name in catalogue_names()]
QUANTIZED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 128}}
    },
    "ignore": ["lm_head", "re:.*self_attn.*"],
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**20, max_value=10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        ["full_attention", "re:(a+)+$", "Linear", "fp8", "../../etc/passwd", *FAMILIES]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5)
    ),
    max_leaves=12,
)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"quantization_config": value, "text_config": value}
    return value


def paths(config: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of every key of a configuration."""
    found = []
    for key, value in config.items():
        found.append((*above, key))
        if isinstance(value, dict):
            found += paths(value, (*above, key))
    return found


@st.composite
def broken_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A real configuration with some keys replaced, deleted or added."""
    config = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    if draw(st.booleans()):
        config["quantization_config"] = copy.deepcopy(QUANTIZED)
    if draw(st.booleans()):
        config["layer_types"] = ["full_attention"] * draw(st.integers(0, 200))
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(paths(config)))
        place = config
        for key in path[:-1]:
            place = place.get(key, {})
        if not isinstance(place, dict) or path[-1] not in place:
            continue
        if draw(st.booleans()):
            place[path[-1]] = draw(VALUES)
        else:
            del place[path[-1]]
    config.update(draw(st.dictionaries(st.text(max_size=12), VALUES, max_size=3)))
    return config


def answer(config: Any, index: Any = None) -> None:
    """The contract: a model that can be planned, or an error that names a key."""
    refused: ConfigError | None = None
    try:
        model = model_from_config(config, name="hostile", index=index)
    except ConfigError as error:
        refused = error
    if refused:
        assert refused.key
        assert refused.key in str(refused)
        assert len(str(refused)) < 2000
        return
    engine = EngineSettings("VLLM", "0.19.0")
    plan = plan_memory(model, Shape(), Precision(None), engine, GPUMemory(80 * 2**30))
    assert plan.stages[0].weights >= 0


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(broken_configs())
def test_a_broken_configuration_is_answered(config: dict[str, Any]) -> None:
    answer(config)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_anything_at_all_is_answered(config: Any) -> None:
    answer(config)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_any_index_is_answered(index: Any) -> None:
    silent = {key: value for key, value in CONFIGS[0].items() if key != "tie_word_embeddings"}
    answer(CONFIGS[0], index)
    answer(silent, index)
    answer(silent, {"weight_map": index, "metadata": {"total_size": index}})


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_answered(text: bytes | str) -> None:
    decoded: Any = {}
    with contextlib.suppress(ConfigError):
        decoded = load_json(text)
    answer(decoded)


@pytest.mark.parametrize("levels", [10, 900, 100_000])
def test_depth_is_no_danger(levels: int) -> None:
    with pytest.raises(ConfigError):
        model_from_config(deep(levels), name="deep")


def test_a_configuration_that_holds_itself_is_answered() -> None:
    config: dict[str, Any] = {"model_type": "llama"}
    config["text_config"] = config
    answer(config)


def test_very_many_patterns_are_refused_instead_of_matched() -> None:
    many = {
        **CONFIGS[0],
        "quantization_config": {
            "quant_method": "fp8",
            "modules_to_not_convert": [f"*a{n}*" for n in range(10_000)],
        },
    }
    with pytest.raises(ConfigError, match="10000 patterns for all layers; at most 256"):
        model_from_config(many, name="m")
    of_one = [f"model.layers.3.*a{number}*" for number in range(5000)]
    many["quantization_config"]["modules_to_not_convert"] = of_one
    with pytest.raises(ConfigError, match="5000 patterns with wildcards for single layers; at mo"):
        model_from_config(many, name="m")
    many["quantization_config"]["modules_to_not_convert"] = ["x"] * 100_000
    with pytest.raises(ConfigError, match="a list of 100000 entries"):
        model_from_config(many, name="m")


def gptq_rules(count: int, length: int) -> dict[str, Any]:
    rules = {f"-:{number:0{length}}": {} for number in range(count)}
    return {"quant_method": "gptq", "bits": 4, "dynamic": rules}


def test_rules_of_gptq_are_bounded_as_lists_are() -> None:
    with pytest.raises(ConfigError, match="a mapping of 70000 keys; allowed is an object of at"):
        model_from_config({**CONFIGS[0], "quantization_config": gptq_rules(70_000, 5)}, name="m")
    with pytest.raises(ConfigError, match="rules of at most 512 characters"):
        model_from_config({**CONFIGS[0], "quantization_config": gptq_rules(1, 5000)}, name="m")


@pytest.mark.parametrize("name", ["x" * 100_000, "\x1b[2J", "a\nb"], ids=["long", "escape", "line"])
def test_a_key_that_somebody_made_up_is_quoted_and_cut(name: str) -> None:
    """Errors go to terminals and logs."""
    groups = {name: {"weights": {"num_bits": -1}}}
    section = {"quant_method": "compressed-tensors", "config_groups": groups}
    with pytest.raises(ConfigError) as found:
        model_from_config({**CONFIGS[0], "quantization_config": section}, name="m")
    assert found.value.key.startswith("quantization_config.config_groups.")
    assert found.value.key.endswith(".weights.num_bits")
    assert len(str(found.value)) < 400
    assert str(found.value).isprintable()


def test_of_a_key_written_twice_the_last_counts_as_it_does_for_runtimes() -> None:
    assert load_json('{"hidden_size": 1, "hidden_size": 2}') == {"hidden_size": 2}


@pytest.mark.parametrize("name", ["\x1b[31mred", "x" * 1000, "", 7])
def test_a_name_that_cannot_be_printed_gives_way_to_the_folders(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIGS[6], "_name_or_path": name}))
    arguments = ["--model-config", str(folder / "config.json"), "--gpu-memory-gib", "79.19"]
    result = CliRunner().invoke(app, ["memory", *arguments])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("my-model: ")


def test_nothing_of_a_models_folder_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w').close()\n"
    for name in ("configuration_model.py", "modeling_model.py", "__init__.py", "sitecustomize.py"):
        (tmp_path / name).write_text(code)
    config = {
        **CONFIGS[6],
        "auto_map": {
            "AutoConfig": "configuration_model.Config",
            "AutoModelForCausalLM": "modeling_model.Model",
        },
        "trust_remote_code": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ["--model-config", str(tmp_path / "config.json"), "--gpu-memory-gib", "79.19"]
    result = CliRunner().invoke(app, ["memory", *arguments])
    assert result.exit_code == 0, result.output
    assert not marker.exists()


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    huge = tmp_path / "config.json"
    with huge.open("wb") as stream:
        stream.truncate(8 * 2**30)  # a sparse file
    result = CliRunner().invoke(
        app, ["memory", "--model-config", str(huge), "--gpu-memory-gib", "79.19"]
    )
    assert result.exit_code == 2
    assert "at most 4194304 are read" in result.output
