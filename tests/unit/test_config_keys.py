"""What a fetch reports of config.json is all that the planner's parser looks at, and short."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from tests.golden import specs

from shardwright.observe.projections import record_view
from shardwright.observe.world import Record, RecordState
from shardwright.render.records import record_body
from shardwright.runner.config_keys import (
    LIMIT_BYTES,
    QUANTIZATION_SECTIONS,
    TEXT_KEYS,
    TEXT_SECTIONS,
    TOWER_KEYS,
    TOWER_SECTIONS,
    UNPACKED_LIMIT_BYTES,
    kept_config,
    pack_config,
    unpack_config,
)
from shardwright.runner.contract import (
    DONE,
    STEP_MODEL,
    TERMINATION_LIMIT_BYTES,
    ModelFacts,
    Report,
    decode,
    encode_report,
)
from shardwright.sizing.config_json import load_json, model_from_config

SIZING = Path(__file__).resolve().parents[2] / "operator/shardwright/sizing"
MODELS: dict[str, Any] = json.loads((SIZING / "data/models.json").read_text())["models"]
READS = frozenset({"integer", "number", "flag", "text", "texts", "integers", "section", "find"})
# Quantization sections are kept whole, an index is not part of the file.
ELSEWHERE = frozenset({"config_quantization.py"})
ROPE_AND_INDEX = frozenset(
    {"factor", "full_attention", "original_max_position_embeddings", "rope_type", "type"}
    | {"metadata", "total_size"}
)


def names_read() -> set[str]:
    """Every key that the parser's modules ask a configuration for."""
    found: set[str] = set()
    for path in sorted(SIZING.glob("config_*.py")):
        if path.name in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in READS
            ):
                found |= {
                    arg.value
                    for arg in node.args
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                }
    return found


def test_every_key_that_the_parser_asks_for_is_kept() -> None:
    kept = TEXT_KEYS | TOWER_KEYS | {*TEXT_SECTIONS, *TOWER_SECTIONS, *QUANTIZATION_SECTIONS}
    asked = names_read()
    assert len(asked) > 60
    assert asked - kept - ROPE_AND_INDEX == set()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_read_from_what_was_kept_is_the_model_of_the_whole_file(name: str) -> None:
    config = {
        **MODELS[name]["config"],
        "transformers_version": "4.46.0",
        "bos_token_id": 1,
        "auto_map": {"AutoModel": "code.py"},
        "initializer_range": 0.02,
    }
    packed = pack_config(kept_config(config, {}))
    assert 0 < len(packed) <= LIMIT_BYTES
    again = model_from_config(load_json(unpack_config(packed)), name=name)
    assert again == model_from_config(MODELS[name]["config"], name=name)
    assert "auto_map" not in packed


def test_long_lists_are_packed_and_come_back_as_they_were() -> None:
    long = {
        "layer_types": ["sliding_attention", "full_attention"] * 512,
        "quantization_config": {"ignore": [f"model.layers.{n}.mlp" for n in range(300)]},
    }
    packed = pack_config(kept_config(long, {}))
    assert packed.startswith("zlib:")
    assert len(packed) <= LIMIT_BYTES
    assert json.loads(unpack_config(packed)) == long


def test_what_is_too_long_even_packed_is_left_out() -> None:
    names = [f"{n * 7919 % 100_003:x}.{n * 104_729 % 99_991:x}" for n in range(2000)]
    assert pack_config({"quantization_config": {"ignore": names}}) == ""
    assert pack_config({"quantization_config": {"ignore": ["x" * UNPACKED_LIMIT_BYTES]}}) == ""


@pytest.mark.parametrize("text", ["zlib:", "zlib:%%%", "zlib:AAAA", "zlib:eJw="])
def test_a_record_that_somebody_else_wrote_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="config of the model's facts"):
        unpack_config(text)


def test_a_bomb_is_not_unpacked() -> None:
    import base64  # noqa: PLC0415
    import zlib  # noqa: PLC0415

    bomb = base64.b64encode(zlib.compress(b" " * (UNPACKED_LIMIT_BYTES * 8), 9)).decode()
    with pytest.raises(ValueError, match="more than"):
        unpack_config(f"zlib:{bomb}")


def test_model_optimizers_own_file_stands_in_for_a_missing_section() -> None:
    note = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    config = MODELS["meta-llama/Llama-3.1-8B"]["config"]
    read = model_from_config(load_json(pack_config(kept_config(config, note))), name="x")
    assert (read.checkpoint.method, read.checkpoint.weight_bits) == ("modelopt", 8)


def test_a_report_with_the_longest_config_and_a_long_log_keeps_to_the_kubelets_limit() -> None:
    facts = specs.facts(config="x" * LIMIT_BYTES)
    report = Report(outcome=DONE, step="model", key="0" * 16, facts=facts, log_tail="e" * 9000)
    text = encode_report(report)
    assert len(text.encode()) <= TERMINATION_LIMIT_BYTES
    assert decode(Report, text).facts == facts


def test_facts_of_another_version_are_read() -> None:
    plain = {"architecture": "A", "model_type": "a", "layers": 1, "hidden_size": 1, "heads": 1}
    plain |= {"kv_heads": 1, "head_dim": 1, "vocab_size": 1, "max_positions": 1, "dtype": "float16"}
    assert ModelFacts.read(plain).config == ""
    assert ModelFacts.read({**plain, "unheardOf": 1, "config": "{}"}).config == "{}"


def test_a_record_keeps_the_config_beside_the_facts_so_that_older_operators_read_them() -> None:
    packed = pack_config(kept_config(MODELS["meta-llama/Llama-3.1-8B"]["config"], {}))
    record = Record(
        STEP_MODEL,
        "0123456789abcdef",
        specs.CLAIM.uid,
        RecordState.READY,
        facts=specs.facts(config=packed),
    )
    body = record_body(record, specs.CLAIM)
    assert "config" not in json.loads(body["data"]["facts"])
    body["metadata"] |= {"uid": "uid", "resourceVersion": "1"}
    assert record_view(body).facts == record.facts
