"""What an adapter's own files say, and what is refused of them; nothing is executed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import adapter, peft_config, peft_weights, write

from shardwright.runner.adapter_facts import AdapterFactsError, adapter_facts
from shardwright.runner.contract import (
    AdapterFacts,
    Report,
    decode,
    encode,
    encode_report,
)

SIZES = {"q_proj": (64, 64), "v_proj": (64, 32)}


A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{half}.weight" for half in "AB")


def tensor(shape: str = "[8, 4]", dtype: str = "F32", offsets: str = "[0, 128]") -> str:
    """An entry of a header, whose numbers are written out."""
    return f'{{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}'


def raw(header: dict[str, str]) -> bytes:
    """A file of 128 bytes of data under this header."""
    text = "{" + ", ".join(f'"{name}": {entry}' for name, entry in header.items()) + "}"
    return struct.pack("<Q", len(text)) + text.encode() + bytes(128)


def facts(tmp_path: Path, **changes: bytes) -> AdapterFacts:
    files = adapter(SIZES)
    names = {"config": "adapter_config.json", "weights": "adapter_model.safetensors"}
    return adapter_facts(write(tmp_path, {**files, **{names[k]: v for k, v in changes.items()}}))


def test_an_adapter_tells_rank_modules_base_and_sizes(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found.rank, found.alpha, found.base) == (8, 16.0, "acme/tiny")
    assert found.modules == ("q_proj", "v_proj")
    assert found.sizes == SIZES
    assert (found.layers, found.dtype, found.features) == (2, "F32", ())
    assert found.bytes == (tmp_path / "adapter_model.safetensors").stat().st_size


def test_the_highest_rank_of_any_module_counts(tmp_path: Path) -> None:
    pattern = {"q_proj": 32}
    assert facts(tmp_path, config=peft_config(8, rank_pattern=pattern)).rank == 32
    assert facts(tmp_path, weights=peft_weights(SIZES, rank=16)).rank == 16


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, ()),
        ({"use_rslora": True}, ("use_rslora",)),
        ({"alpha_pattern": {"q_proj": 16}}, ()),
        ({"alpha_pattern": {"q_proj": 64}}, ("alpha_pattern",)),
        # The weights say whether a pattern has met a module.
        ({"rank_pattern": {"lm_head": 4}}, ()),
        ({"r": 4, "rank_pattern": {"_proj": 8}}, ("rank_pattern",)),
    ],
)
def test_what_makes_another_scale_than_alpha_by_r_is_told(
    tmp_path: Path, more: dict[str, Any], told: tuple[str, ...]
) -> None:
    found = facts(tmp_path, config=peft_config(**{"lora_alpha": 16, **more}))
    assert found.scales == told
    assert decode(Report, encode(Report("Done", adapter=found))).adapter == found


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
    ],
)
def test_what_no_runtime_computes_with_is_told(
    tmp_path: Path, more: dict[str, Any], told: str
) -> None:
    assert facts(tmp_path, config=peft_config(**more)).features == (told,)


def test_weights_beside_low_rank_matrices_are_told(tmp_path: Path) -> None:
    extra = peft_weights(SIZES, extra=("base_model.model.lm_head.weight",))
    assert facts(tmp_path, weights=extra).features == ("lm_head",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": b"{"}, "no JSON"),
        ({"config": peft_config(0)}, "rank r is 0"),
        ({"config": peft_config(True)}, "rank r is True"),
        ({"config": peft_config(rank_pattern={"q": "x"})}, "rank q is 'x'"),
        ({"config": peft_config(peft_type="IA3")}, "peft_type is 'IA3'"),
        ({"config": peft_config(lora_alpha="much")}, "lora_alpha is 'much'"),
        ({"weights": peft_weights({})}, "no lora_A and lora_B"),
        ({"weights": peft_weights(SIZES)[:-4]}, "cut off"),
        ({"weights": b"\x80\x02pickle"}, "no safetensors file"),
        ({"weights": struct.pack("<Q", 2) + b"[]"}, "header cannot be read"),
        ({"config": peft_config(alpha_pattern=[1])}, "alpha_pattern is no object"),
        ({"weights": raw({A: tensor(offsets="[0, 1e999]")})}, "header cannot be read"),
        ({"weights": raw({A: tensor()})}, "q_proj has a lora_A and no lora_B"),
        ({"weights": raw({B: tensor()})}, "q_proj has a lora_B and no lora_A"),
        (
            {"weights": raw({A: tensor("[8, 4]"), B: tensor("[8, 4]")})},
            "a lora_A of rank 8 and a lora_B of rank 4",
        ),
        ({"weights": raw({A: tensor(f"[8, {'9' * 4000}]")})}, "expected two sizes"),
        ({"weights": raw({A: tensor("[8, 8]")})}, r"lies at bytes \[0, 128\], and \[8, 8\] of F32"),
        ({"weights": raw({A: tensor(offsets='["0", "128"]')})}, "lies at bytes"),
        ({"weights": raw({A: tensor(dtype="I8")})}, "has type 'I8', expected one of F64"),
    ],
)
def test_files_that_make_no_sense_are_refused_with_the_field(
    tmp_path: Path, changes: dict[str, bytes], said: str
) -> None:
    with pytest.raises(AdapterFactsError, match=said):
        facts(tmp_path, **changes)


@pytest.mark.parametrize("letter", ["m", "é", "模", "\U0001f600", "\x01"], ids=ascii)
def test_facts_pass_through_a_report_and_a_full_one_stays_small(
    tmp_path: Path, letter: str
) -> None:
    found = facts(tmp_path)
    report = Report("Done", step="adapter", key="0" * 16, adapter=found)
    assert decode(Report, encode(report)).adapter == found
    many = {f"{number:04}{letter * 90}": (4096, 4096) for number in range(40)}
    others = [f"base_model.model.{number:04}o{letter * 90}.weight" for number in range(40)]
    crowded = facts(
        tmp_path,
        config=peft_config(base_model_name_or_path=letter * 5000),
        weights=peft_weights(many, rank=1, layers=1, extra=others),
    )
    assert (len(crowded.modules), len(crowded.features)) == (16, 8)
    text = encode_report(Report("Done", adapter=crowded, log_tail="l" * 9000))
    assert len(text.encode()) <= 4096
    assert decode(Report, text).adapter == crowded


def test_a_report_without_an_adapter_is_encoded_as_before() -> None:
    assert "adapter" not in encode(Report("Done"))
